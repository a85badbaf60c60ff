"""What waits under another key of the service: `login` and `mount` mention it, `recover --adopt` takes it over."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from cloudsimfs import config
from cloudsimfs.datacache.directory import is_mounted
from cloudsimfs.errors import ConfigError, MountError
from cloudsimfs.text import agree, count, printable
from cloudsimfs.vfs import adoption
from cloudsimfs.vfs.adoption import Waiting


def note_other_keys(directory: Path) -> None:
    """Print a note for each other key under which something waits. `directory` is the present account's."""
    for other in _others(directory):
        try:
            waits = adoption.waiting(other)
        except MountError as error:
            click.echo(f"note: another key has left something here: {error}", err=True)
            continue
        if waits.lost:
            click.echo(
                f"note: the journal of another key, in {other}, does not fit the files beside it ({waits.lost}): "
                "which deletes it had is not known",
                err=True,
            )
        if waits or waits.keys:
            click.echo(
                f"note: {_describe(waits)} under another key, in {other}: `cloudsimfs recover` lists files; "
                "if that was an earlier key of this account, `cloudsimfs recover --adopt` (while it is not mounted) "
                "hands all of it to the present key; otherwise mount with that key",
                err=True,
            )


def _describe(waits: Waiting) -> str:
    if waits:
        return f"{waits} {waits.verb}"
    return f"{count(waits.keys, 'launch')} made with key=... {agree(waits.keys, 'is', 'are')} recorded"


def _others(directory: Path) -> list[Path]:
    """The directories of the service's other keys that no mount uses."""
    return [other for other in config.other_accounts(directory) if not is_mounted(other)]


def adopt(directory: Path, given: Path | None, *, yes: bool) -> None:
    """Hand what waits under other keys, or only in the directory `given`, to the account at `directory`."""
    sources = [_named(directory, given)] if given else list(filter(_has_something, _others(directory)))
    if not sources:
        click.echo("nothing waits under another key", err=True)
    if yes and len(sources) > 1:
        names = ", ".join(source.name for source in sources)
        raise MountError(f"several keys have something waiting ({names}): name one with --from")
    for source in sources:
        waits = adoption.waiting(source)
        if yes or _confirmed(source, waits):
            _hand_over(source, directory, waits)


def _has_something(directory: Path) -> bool:
    waits = adoption.waiting(directory)
    return bool(waits or waits.keys)


def _named(directory: Path, given: Path) -> Path:
    for other in config.other_accounts(directory):
        if given in (other, Path(other.name)) or given.absolute() == other:
            return other
    raise ConfigError(f"--from {given}: no directory of another key of this service; `cloudsimfs recover` names them")


def _confirmed(source: Path, waits: Waiting) -> bool:
    if not sys.stdin.isatty():
        raise MountError(
            f"{source}: only you know whether its key is an earlier one of this account: confirm with --yes"
        )
    text = f"{waits or 'nothing but launches that are done'} in {source}: was that an earlier key of this account?"
    return click.confirm(f"{text} If so, it is handed to the present key")


def _hand_over(source: Path, directory: Path, waits: Waiting) -> None:
    moved = adoption.adopt(source, directory)
    for before, after in moved:
        click.echo(printable(f"/{before} was written with this key, too: what is adopted becomes /{after}"))
    click.echo(f"adopted {waits or 'what there was'} of {source}; the next mount continues with it")
