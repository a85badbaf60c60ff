"""`cache`: the contents of files that are kept on disk, by account, mounted or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from cloudsimfs import config
from cloudsimfs.cli.group import main
from cloudsimfs.cli.options import options, settings_of
from cloudsimfs.datacache.directory import measure
from cloudsimfs.text import count, mib
from cloudsimfs.vfs import accountdir


@main.group()
def cache() -> None:
    """The contents of files that are kept on disk, by account, mounted or not."""


@cache.command()
@options("url", "cache-dir")
@click.option("--json", "as_json", is_flag=True, help="For programs; sizes in bytes.")
def show(as_json: bool, **given: Any) -> None:
    """Show how much the cache holds, and where."""
    usage = {str(directory): measure(directory) for directory in _account_dirs(given)}
    if as_json:
        click.echo(json.dumps({place: {"bytes": used, "files": files} for place, (used, files) in usage.items()}))
        return
    for place, (used, files) in usage.items():
        click.echo(f"{place}: {mib(used)} in {count(files, 'file')}")


@cache.command()
@options("url", "cache-dir")
def clear(**given: Any) -> None:
    """Remove cached contents that the service has; what waits for upload stays. Not while the account is mounted."""
    for directory in _account_dirs(given):
        click.echo(f"{directory}: {mib(accountdir.clear(directory))} freed")


def _account_dirs(given: dict[str, Any]) -> list[Path]:
    """The directories of all accounts below the cache directory, or of those at one service."""
    settings = settings_of(given)
    return config.account_dirs(settings["cache-dir"], settings["url"])
