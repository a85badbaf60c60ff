"""`status`, `refresh` and `flush`: what a running mount does."""

from __future__ import annotations

from pathlib import Path

import click

from cloudsimfs.cli.drain import drain
from cloudsimfs.cli.group import main
from cloudsimfs.cli.mounts import mount_meant, mount_of
from cloudsimfs.control.simulations import SIMULATIONS
from cloudsimfs.control.state import STATE
from cloudsimfs.errors import MountError
from cloudsimfs.text import printable_lines


@main.command()
@click.argument("path", type=click.Path(path_type=Path))
def refresh(path: Path) -> None:
    """Ask the service anew about PATH, a file or folder in a mount, and everything below it."""
    top = mount_of(path)
    (top / STATE / "refresh").write_text(str(path.absolute()))


@main.command()
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def status(path: Path | None, as_json: bool) -> None:
    """Show what waits for upload, how full the cache is and how many API calls are left, in the mount around PATH.

    Without PATH: in the mount around the current directory, or the only one.
    """
    top = mount_meant(path) / STATE
    click.echo(printable_lines((top / ("status.json" if as_json else "status")).read_text()), nl=False)


@main.command()
@click.argument("path", type=click.Path(path_type=Path), required=False)
def flush(path: Path | None) -> None:
    """Wait until everything that was written in the mount around PATH is on the service.

    Without PATH: in the mount around the current directory, or the only one.
    """
    top = mount_meant(path)
    if not drain(top, "flush again later"):
        raise MountError((top / SIMULATIONS / "error").read_text().strip())
