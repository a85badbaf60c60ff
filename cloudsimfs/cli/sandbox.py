"""`sandbox`: the embedded service in the foreground."""

from __future__ import annotations

import os
from pathlib import Path

import click

from cloudsimfs.cli.base import main
from cloudsimfs.errors import ConfigError


@main.command()
@click.option("--host", default="127.0.0.1")
@click.option("--port", default=8765)
@click.option("--key-file", type=click.Path(path_type=Path), help="Write the API key into this file.")
@click.option("--calls-per-hour", default=500, help="The account's limit; 0 for none.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where files live; default: gone at the end.")
def sandbox(host: str, port: int, key_file: Path | None, calls_per_hour: int, data_dir: Path | None) -> None:
    """Run the embedded service in the foreground: API v1 and v2, and runs that really compute."""
    try:
        from cloudsimfs.sandbox import Sandbox, Settings, serve_forever
    except ImportError as error:
        raise ConfigError(f"{error.name} is missing; install it: pip install 'cloudsimfs[sandbox]'") from error

    def announce(box: Sandbox) -> None:
        if key_file is not None:
            key_file.unlink(missing_ok=True)
            with open(os.open(key_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
                file.write(box.key + "\n")
        click.echo(f"the sandbox listens at {box.url}" + (f", key in {key_file}" if key_file else ""))

    serve_forever(
        host=host,
        port=port,
        data_dir=data_dir,
        key=None,
        settings=Settings(hourly_limit=calls_per_hour),
        announce=announce,
    )
