"""`sandbox` runs the embedded service in the foreground; `demo` is a first session on it."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import click

from cloudsimfs.cli.group import main
from cloudsimfs.errors import ConfigError
from cloudsimfs.host.files import open_private


@main.command()
@click.option("--host", default="127.0.0.1")
@click.option("--port", default=8765, type=click.IntRange(0, 65535))
@click.option("--key-file", type=click.Path(path_type=Path), help="Write the API key into this file.")
@click.option("--calls-per-hour", default=500, help="The account's limit; 0 for none.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    help="Where files are kept; default: a directory that is removed at the end.",
)
def sandbox(host: str, port: int, key_file: Path | None, calls_per_hour: int, data_dir: Path | None) -> None:
    """Run the embedded service in the foreground: API v1 and v2, and runs that really compute."""
    _need_extra()
    from cloudsimfs.sandbox import Sandbox, Settings, serve_forever

    def announce(box: Sandbox) -> None:
        if key_file is not None:
            key_file.unlink(missing_ok=True)
            with open(open_private(key_file, os.O_EXCL | os.O_WRONLY), "w") as file:
                file.write(box.key + "\n")
        if host not in ("localhost", "::1") and not host.startswith("127."):
            click.echo(
                f"warning: {host} is not loopback: others may reach the sandbox, start runs on this machine with its "
                "key, and read the key on its way, since it is not encrypted",
                err=True,
            )
        click.echo(f"the sandbox listens at {box.url}" + (f", key in {key_file}" if key_file else ""))

    serve_forever(
        host=host,
        port=port,
        data_dir=data_dir,
        key=None,
        settings=Settings(hourly_limit=calls_per_hour),
        announce=announce,
    )


@main.command()
@click.option("--api", type=click.Choice(["v1", "v2"]), default="v2", help="The version to speak.", show_default=True)
@click.option("--stay", is_flag=True, help="Leave the drive mounted, and print how to end it.")
def demo(api: str, stay: bool) -> None:
    """A first session on the embedded service, from cp to results: no account, no network.

    Every command is printed before it runs. Nothing is left behind; ends with 0 only if results could be read.
    """
    _need_extra()
    session = Path(__file__).parent.parent / "sandbox/demo.sh"
    ours = [str(Path(sys.argv[0]).resolve().parent), str(Path(sys.executable).parent)]
    path = os.pathsep.join([*ours, os.environ.get("PATH", os.defpath)])
    try:
        os.execvpe("bash", ["bash", str(session), api, *(["stay"] if stay else [])], os.environ | {"PATH": path})
    except FileNotFoundError:
        raise ConfigError("the demo is a bash script, and there is no bash") from None


def _need_extra() -> None:
    """Raises ConfigError if a package that the embedded service needs is not installed."""
    try:
        importlib.import_module("cloudsimfs.sandbox.box")
    except ImportError as error:
        raise ConfigError(f"{error.name} is missing; install it: pip install 'cloudsimfs[sandbox]'") from error
