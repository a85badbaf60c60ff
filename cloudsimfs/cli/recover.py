"""`recover`: files that were being written when a mount's daemon died."""

from __future__ import annotations

import errno
import fnmatch
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from cloudsimfs import config
from cloudsimfs.cli import adopting
from cloudsimfs.cli.group import main
from cloudsimfs.cli.mounts import mount_at_hand, mount_of, read_status
from cloudsimfs.cli.options import options, settings_of
from cloudsimfs.control.simulations import SIMULATIONS
from cloudsimfs.control.state import STATE
from cloudsimfs.datacache.directory import is_mounted
from cloudsimfs.errors import ConfigError, MountError
from cloudsimfs.text import agree, count, printable
from cloudsimfs.vfs.drafts import Draft, copy_out, find_drafts, is_sound


@main.command()
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option("--save", metavar="DIR", type=click.Path(path_type=Path), help="Copy the files into DIR.")
@click.option("--upload", multiple=True, metavar="NAME", help="Upload NAME as it is; may be repeated.")
@click.option("--all", "upload_all", is_flag=True, help="Upload all files as they are.")
@click.option("--discard", multiple=True, metavar="NAME", help="Remove NAME; may be repeated.")
@click.option("--adopt", is_flag=True, help="Hand what waits under an earlier key of the account to the present key.")
@click.option("--from", "source", metavar="DIR", type=click.Path(path_type=Path), help="Adopt only what is there.")
@click.option("--yes", is_flag=True, help="Do not ask before something is removed, or adopted.")
@options("url", "key-file", "cache-dir")
@click.option("--json", "as_json", is_flag=True, help="For programs; sizes in bytes, times in nanoseconds.")
def recover(
    path: Path | None,
    save: Path | None,
    upload: tuple[str, ...],
    upload_all: bool,
    discard: tuple[str, ...],
    adopt: bool,
    source: Path | None,
    yes: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """List the files that were open for writing when the daemon died, and deal with them.

    They are kept on this machine, and nothing uploads them unless you say so. PATH is anywhere in the mount;
    default: the mount around the current directory, or the only one. Without a mount, the cache directories are
    searched: those of all services, unless --url or --profile names one. NAME is an id, a path or a pattern.

    Closed files that wait for upload in a cache directory that is not mounted, for example under a replaced key, are
    listed and saved, too, and so are files whose record was lost with the journal.

    --adopt hands everything that waits under an earlier key (files, drafts, deletes, unanswered launches) to the
    present key, whose next mount continues with it. The drive must not be mounted.
    """
    elsewhere, of_service = bool(given["cache_dir"] or given["url"]), bool(given["url"] or given["profile"])
    settings = settings_of(given)
    wanted = _Wanted(save, ("*", *upload) if upload_all else upload, discard, yes)
    if adopt or source is not None:
        if not adopt or wanted.anything:
            raise ConfigError(
                "--adopt goes with --from, --yes and the account's options only, --from with --adopt only"
            )
        adopting.adopt(config.account(settings).directory, source, yes=yes)
        return
    top = _mount(path, elsewhere=elsewhere)
    drafts = _listed(top) if top is not None else []
    places = _other_keys(top) if top is not None else _places(settings, of_service=of_service)
    kept = [draft for place in places for draft in find_drafts(place)]
    if not wanted.anything or not (drafts or kept or upload or discard):
        _show([*drafts, *kept], as_json=as_json)
    else:
        _deal_with(top, drafts, kept, wanted)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is to be done with drafts: `save` them in a directory, `upload` and `discard` those of these names."""

    save: Path | None
    upload: tuple[str, ...]
    discard: tuple[str, ...]
    yes: bool

    @property
    def anything(self) -> bool:
        return bool(self.save or self.upload or self.discard)


def _deal_with(top: Path | None, drafts: list[Draft], kept: list[Draft], wanted: _Wanted) -> None:
    """`drafts` are those of the mount at `top`; `kept` those of directories that are not mounted."""
    if top is None and (wanted.upload or wanted.discard):
        raise MountError("mount the storage first: without it, what is kept can only be listed and saved")
    if wanted.save is not None:
        _save(top, drafts, wanted.save)
        _save(None, kept, wanted.save)
    if top is not None and wanted.upload:
        for draft in _named(drafts, wanted.upload):
            _command(top, "upload", draft)
            click.echo(printable(f"/{draft.path}: to be uploaded"))
    if top is not None and wanted.discard:
        _discard(top, _named(drafts, wanted.discard), asked=wanted.yes)


def _mount(path: Path | None, *, elsewhere: bool) -> Path | None:
    if path is not None:
        return mount_of(path)
    return None if elsewhere else mount_at_hand("name one, or a place to look with --cache-dir")


def _listed(top: Path) -> list[Draft]:
    """What the mount has. Raises MountError if it names anything but files of its own cache."""
    cache = Path(read_status(top)["cache"]["directory"])
    drafts = [Draft(**draft) for draft in json.loads((top / STATE / "recover.json").read_text())]
    for draft in drafts:
        if not is_sound(draft, cache):
            raise MountError(f"{top}: says {draft.file!r} was {draft.path!r}, which cannot be: nothing is done")
    return drafts


def _places(settings: config.Settings, *, of_service: bool) -> list[Path]:
    return config.account_dirs(settings["cache-dir"], settings["url"] if of_service else None)


def _other_keys(top: Path) -> list[Path]:
    """The directories of the service's other keys that no mount uses."""
    directory = Path(read_status(top)["cache"]["directory"])
    return [other for other in config.other_accounts(directory) if not is_mounted(other)]


def _show(drafts: list[Draft], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([asdict(draft) for draft in drafts], indent=2))
        return
    for draft in drafts:
        click.echo(describe(draft))
    if not drafts:
        click.echo("nothing to recover", err=True)


def describe(draft: Draft) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(draft.since_ns / 1e9))
    notes = [] if draft.shown or draft.found else ["its name has the last closed state"]
    notes += ["its record in the journal was lost"] if draft.found else []
    notes += [f"closed, and not uploaded: waits in {Path(draft.file).parents[1]}"] if draft.closed else []
    notes += (
        [f"{count(draft.missing, 'byte')} of it {agree(draft.missing, 'is', 'are')} only on the service"]
        if draft.missing
        else []
    )
    noted = f"  ({'; '.join(notes)})" if notes else ""
    return printable(f"{draft.id} {draft.size:>12} {when} /{draft.path}{noted}")


def _named(drafts: list[Draft], names: Iterable[str]) -> list[Draft]:
    """The drafts with these names. Raises MountError if there is none of a name."""
    chosen: dict[str, Draft] = {}
    for name in names:
        pattern = name.lstrip("/")
        meant = [draft for draft in drafts if draft.id == name or fnmatch.fnmatchcase(draft.path, pattern)]
        if not meant and name != "*":
            raise MountError(f"{name}: there is nothing of that name to recover")
        chosen.update((draft.id, draft) for draft in meant)
    return list(chosen.values())


def _save(top: Path | None, drafts: list[Draft], directory: Path) -> None:
    """Copy drafts into `directory`. A mount at `top` first fetches what is missing of them."""
    for draft in drafts:
        reason = ""
        if draft.missing and top is not None:
            try:
                _command(top, "complete", draft)
            except MountError as error:
                reason = f": {error}"
            draft = next((found for found in _listed(top) if found.id == draft.id), draft)
        elif draft.missing:
            reason = ": it is not mounted"
        try:
            target = copy_out(draft, directory)
        except OSError as error:
            raise MountError(f"/{draft.path} cannot be copied to {directory}: {error.strerror}") from error
        click.echo(printable(str(target)))
        if draft.missing:
            missing, are = count(draft.missing, "byte"), agree(draft.missing, "is zero", "are zeros")
            said = f"note: {missing} of /{draft.path} could not be fetched and {are}{reason}"
            click.echo(printable(said), err=True)


def _discard(top: Path, drafts: list[Draft], *, asked: bool) -> None:
    for draft in drafts:
        if not asked and not sys.stdin.isatty():
            raise MountError("a removal cannot be undone: confirm with --yes")
        if asked or click.confirm(f"{describe(draft)}\nRemove it? This cannot be undone"):
            _command(top, "discard", draft)
            click.echo(printable(f"/{draft.path}: removed"))


def _command(top: Path, verb: str, draft: Draft) -> None:
    """Have the mount do `verb` with the draft, however long that takes. Raises MountError with the mount's reason."""
    while True:
        try:
            (top / STATE / "recover").write_text(f"{verb} {draft.id}")
            return
        except OSError as error:
            if error.errno != errno.ETIMEDOUT:
                raise MountError((top / SIMULATIONS / "error").read_text().strip() or str(error)) from error
