"""What waits under another key of the service: `login` and `mount` say so, `recover --adopt` hands it over."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import click

from cloudsimfs import adoption, config
from cloudsimfs.adoption import Waiting
from cloudsimfs.cachedir import is_mounted
from cloudsimfs.errors import ConfigError, MountError


def note_other_keys(directory: Path) -> None:
    """Say what waits under other keys of the service whose account's directory this is."""
    for other, waits in _waiting(directory).items():
        if waits:
            click.echo(
                f"note: {waits} {waits.verb} under another key, in {other}: `cloudsimfs recover` lists it; "
                "if that was an earlier key of this account, `cloudsimfs recover --adopt` (while it is not mounted) "
                "hands it to this one, else mount with it",
                err=True,
            )


def _waiting(directory: Path) -> dict[Path, Waiting]:
    """By the directory of each other key that no mount uses."""
    found = {}
    for other in config.other_accounts(directory):
        with contextlib.suppress(MountError):  # no journal of ours
            if not is_mounted(other):
                found[other] = adoption.waiting(other)
    return found


def adopt(directory: Path, given: Path | None, *, yes: bool) -> None:
    """Hand what waits under other keys, or under that of the directory `given`, to the account at `directory`."""
    sources = [_named(directory, given)] if given else [o for o, w in _waiting(directory).items() if w or w.keys]
    if not sources:
        click.echo("nothing waits under another key", err=True)
    if yes and len(sources) > 1:
        names = ", ".join(source.name for source in sources)
        raise MountError(f"several keys have something waiting ({names}): name one with --from")
    for source in sources:
        waits = adoption.waiting(source)
        if yes or _confirmed(source, waits):
            _hand_over(source, directory, waits)


def _named(directory: Path, given: Path) -> Path:
    for other in config.other_accounts(directory):
        if given in (other, Path(other.name)) or given.absolute() == other:
            return other
    raise ConfigError(f"--from {given}: no directory of another key of this service; `cloudsimfs recover` names them")


def _confirmed(source: Path, waits: Waiting) -> bool:
    if not sys.stdin.isatty():
        raise MountError(f"{source}: whether its key is an earlier one of this account, only you know: say --yes")
    text = f"{waits or 'nothing but launches that are done'} in {source}: was that an earlier key of this account?"
    return click.confirm(f"{text} Then it is handed to the present one")


def _hand_over(source: Path, directory: Path, waits: Waiting) -> None:
    moved = adoption.adopt(source, directory)
    for before, after in moved:
        click.echo(f"/{before} was written with this key, too: what is adopted becomes /{after}")
    click.echo(f"adopted {waits or 'what there was'} of {source}; the next mount goes on")
