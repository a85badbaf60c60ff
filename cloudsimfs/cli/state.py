"""What a mount holds and does: `status`, `refresh`, `flush`, `cache`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from cloudsimfs import config
from cloudsimfs.cli.base import main
from cloudsimfs.cli.options import options, settings_of
from cloudsimfs.cli.running import drain, mount_meant, mount_of
from cloudsimfs.control.simulations import SIMULATIONS
from cloudsimfs.control.state import STATE
from cloudsimfs.datacache.directory import measure
from cloudsimfs.errors import MountError
from cloudsimfs.text import count, mib
from cloudsimfs.vfs import accountdir


@main.command()
@click.argument("path", type=click.Path(path_type=Path))
def refresh(path: Path) -> None:
    """Have PATH, a folder or file in a mount, and all below it looked at anew."""
    top = mount_of(path)
    (top / STATE / "refresh").write_text(str(path.absolute()))


@main.command()
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def status(path: Path | None, as_json: bool) -> None:
    """What waits for upload, how full the cache is, and how many API calls are left, of the mount PATH is in.

    Without PATH: of the mount we are in, or the only one.
    """
    top = mount_meant(path) / STATE
    click.echo((top / ("status.json" if as_json else "status")).read_text(), nl=False)


@main.command()
@click.argument("path", type=click.Path(path_type=Path), required=False)
def flush(path: Path | None) -> None:
    """Wait until all that was written in the mount PATH is in is on the service.

    Without PATH: in the mount we are in, or the only one.
    """
    top = mount_meant(path)
    if not drain(top, "flush again later"):
        raise MountError((top / SIMULATIONS / "error").read_text().strip())


@main.group()
def cache() -> None:
    """What is kept on disk of files that were read: by account, mounted or not."""


@cache.command()
@options("url", "cache-dir")
@click.option("--json", "as_json", is_flag=True, help="For programs; sizes in bytes.")
def show(as_json: bool, **given: Any) -> None:
    """How much the cache holds, and where."""
    found = {str(directory): measure(directory) for directory in _account_dirs(given)}
    if as_json:
        click.echo(json.dumps({place: {"bytes": used, "files": files} for place, (used, files) in found.items()}))
        return
    for place, (used, files) in found.items():
        click.echo(f"{place}: {mib(used)} in {count(files, 'file')}")


@cache.command()
@options("url", "cache-dir")
def clear(**given: Any) -> None:
    """Remove what is cached and stored on the service; what waits for its upload stays. Not while it is mounted."""
    for directory in _account_dirs(given):
        click.echo(f"{directory}: {mib(accountdir.clear(directory))} freed")


def _account_dirs(given: dict[str, Any]) -> list[Path]:
    """Of all accounts below the cache directory, or of those at one service."""
    settings = settings_of(given)
    return config.account_dirs(settings["cache-dir"], settings["url"])
