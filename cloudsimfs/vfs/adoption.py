"""Handing everything that waits under one key of an account to another key: all rows of the first key's journal.

A key does not tell which account it belongs to: the user says that both belong to one. The source is the directory of
the first key, the target that of the other. The steps, in this order:

    0  launches    the target's book of launches has the rows of the source's; having them twice does no harm
    1  recorded    a row of the source's journal names the handover and the target
    2  linked      each backing file has a name in the target's directory, too, and is fsynced
    3  adopted     the target's journal has the rows and the id of the handover: one transaction
    4  emptied     the source's book of launches has no rows; the source's journal has none, not even that of step 1:
                   one transaction
    5  unlinked    the source's names of the backing files are gone

If it is killed before step 3, nothing has happened: the target's next mount removes backing files without a row. If
it is killed after step 3, everything belongs to the target, and `settle` or the next handover does the rest.

A file keeps the version it is based on, and its folder is listed again before the file is uploaded. If others have
stored another version by then, with any key, that is a conflict as usual (`uploader.conflicts`). A file that the
target has written under the same name and not yet stored keeps the name; the adopted file goes beside it. A delete is
left out if the target has written under its name since.

Threading: none; both directories are locked, so that neither is mounted.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from cloudsimfs import paths
from cloudsimfs.config import launches_dir
from cloudsimfs.datacache import notes
from cloudsimfs.datacache.directory import LOCAL, lock_directory, log_of, size_of
from cloudsimfs.errors import MountError
from cloudsimfs.host.disk import copy_file, disk_failure
from cloudsimfs.host.files import fsync_path, make_private
from cloudsimfs.journal.fitting import open_journal
from cloudsimfs.journal.journal import Journal
from cloudsimfs.journal.readonly import (
    has_adopted,
    read_closed,
    read_counts,
    read_drafts,
    read_misfit,
    read_named,
)
from cloudsimfs.journal.rows import DraftRow, FileRow, TombstoneRow
from cloudsimfs.journal.schema import JOURNAL
from cloudsimfs.listings import store
from cloudsimfs.runs.book import LaunchBook, take_from_journal
from cloudsimfs.text import agree, count, listed
from cloudsimfs.vfs import accountdir
from cloudsimfs.vfs.doubt import set_doubted_aside
from cloudsimfs.vfs.found import find, keep_newer, take_stock
from cloudsimfs.vfs.localattrs import fresh_ino
from cloudsimfs.vfs.names import conflict_names, is_local_name


@dataclass(frozen=True, slots=True)
class Waiting:
    """How many files and operations of a directory are not on the service yet."""

    files: int = 0  # closed
    drafts: int = 0  # being written when the daemon died
    deletes: int = 0
    launches: int = 0  # launches that got no answer
    keys: int = 0  # launches with a key, which must not be made again
    lost: str = ""  # why the journal cannot say more than that; empty: it can

    def __bool__(self) -> bool:
        return bool(self.files or self.drafts or self.deletes or self.launches)

    def __str__(self) -> str:
        counts = {"file": self.files, "draft": self.drafts, "delete": self.deletes, "launch": self.launches}
        return listed([count(number, noun) for noun, number in counts.items() if number])

    @property
    def verb(self) -> str:
        return agree(self.files + self.drafts + self.deletes + self.launches, "waits", "wait")


def waiting(directory: Path) -> Waiting:
    """What waits in a directory, also in files that the journal does not know. Raises MountError."""
    journal, data = directory / JOURNAL, directory / "data"
    lost = read_misfit(directory)
    fits = journal.exists() and not lost
    files, drafts = (read_closed(journal), read_drafts(journal)) if fits else ([], [])
    found = list(find(data, read_named(journal) if fits else ())) if data.is_dir() else []
    deletes, unresolved, resolved = read_counts(journal) if fits else (0, 0, 0)
    with closing(LaunchBook(launches_dir(directory))) as book:
        rows = [row for row in book.rows() if row.refused is None]
    unresolved += sum(row.run is None for row in rows)
    resolved += sum(row.run is not None and row.token is not None for row in rows)
    kept = [row.path for row in (*drafts, *found)]
    return Waiting(_real([row.path for row in files]), _real(kept), deletes, unresolved, resolved, lost)


def _real(files: list[str]) -> int:
    """How many of these files will be uploaded: those whose names may leave this machine."""
    return sum(not is_local_name(paths.name(path)) for path in files)


def settle(directory: Path, journal: Journal) -> None:
    """Undo or finish a handover that was killed, before the directory's journal is used. Raises MountError."""
    for handover, target in journal.handovers():
        if has_adopted(Path(target) / JOURNAL, handover):
            _let_go(directory, journal)
        else:
            journal.drop_handover()
            journal.sync()


def _let_go(directory: Path, journal: Journal) -> None:
    """Empty the source: steps 4 and 5."""
    names = journal.backing_names()
    with closing(LaunchBook(launches_dir(directory))) as book:
        book.clear()
    journal.clear()
    journal.sync()
    for name in names:
        for file in (*_files_of(directory, name), notes.note_of(directory / "data" / name)):
            file.unlink(missing_ok=True)


def _files_of(directory: Path, name: str) -> list[Path]:
    """A backing file, and the log of the ranges that were fetched into it since its row was written."""
    backing = directory / "data" / name
    return [backing, log_of(backing, LOCAL)]


def adopt(source: Path, target: Path) -> list[tuple[str, str]]:
    """Hand everything that waits in `source` to `target`. Returns the paths that had to change, before and after.

    Raises MountError if one of the directories is in use, or a step fails. Files adopted by then are whole.
    """
    try:
        with accountdir.provisional(target), _held(source), _held(target), ExitStack() as stack:
            make_private(target / "data")
            journals = [stack.enter_context(closing(open_journal(place))) for place in (source, target)]
            settle(source, journals[0])
            for place, journal in zip((source, target), journals, strict=True):
                set_doubted_aside(journal, place / "data")
                keep_newer(journal, place / "data")
                take_stock(journal, place / "data")
            return Handover(source, target, *journals).run()
    except OSError as error:
        raise disk_failure(error) from error


@contextmanager
def _held(directory: Path) -> Iterator[None]:
    """Keep mounts and launches out of the directory. Raises MountError if it is in use."""
    with ExitStack() as stack:
        try:
            stack.callback(os.close, lock_directory(directory))
            book = stack.enter_context(closing(LaunchBook(launches_dir(directory))))
            stack.enter_context(book.alone(wait=False))
        except MountError:
            raise MountError(
                f"{directory}: in use; unmount it first (`cloudsimfs umount`), then `cloudsimfs recover --adopt`"
            ) from None
        yield


class Handover:
    def __init__(self, source: Path, target: Path, old: Journal, new: Journal) -> None:
        self._source = source
        self._target = target
        self._old = old
        self._new = new
        self._id = secrets.token_hex(12)

    def run(self) -> list[tuple[str, str]]:
        self.hand_launches()
        self.record()
        for name in sorted(self._old.backing_names()):
            self.link(name)
        fsync_path(self._target / "data")
        places = _Places(self._new)
        self.save(places)
        _let_go(self._source, self._old)
        return places.moved()

    def hand_launches(self) -> None:
        with (
            closing(LaunchBook(launches_dir(self._source))) as old,
            closing(LaunchBook(launches_dir(self._target))) as new,
        ):
            take_from_journal(self._old, old)
            if rows := old.rows():
                new.take_over(rows)

    def record(self) -> None:
        self._old.begin_handover(self._id, str(self._target))
        self._old.sync()

    def link(self, name: str) -> None:
        for file in _files_of(self._source, name):
            with suppress(FileNotFoundError):  # replay reports that it is gone
                notes.give_up(str(self._target / "data" / name))  # as long as no row of the target names it
                _link(file, self._target / "data" / file.name)

    def save(self, places: _Places) -> None:
        """Save all rows, and the id of the handover, in one transaction."""
        folders = {paths.parent(row.path) for row in self._old.files()}
        store.inherit(self._target / "listings.db", self._source / "listings.db", folders)
        with self._new.transaction():
            self._save_files(places)
            for tombstone in self._old.tombstones():
                if places.may_go(tombstone):
                    self._new.save_tombstone(replace(tombstone, after=tuple(map(places.ino, tombstone.after))))
            self._save_attrs(places)
            self._new.save_adopted(self._id)
        self._new.sync()

    def _save_files(self, places: _Places) -> None:
        for folder in self._old.folders():
            if places.of(folder, is_dir=True) == folder:
                self._new.save_folder(folder)
        for file in self._old.files():
            if file.state == "closed" or places.of(file.path) == file.path:
                moved = _moved(file, places.of(file.path))
                self._new.save_file(replace(moved, ino=places.ino(file.ino)))
        for draft in sorted(self._old.drafts(), key=lambda row: not row.kept):  # saving a kept one drops the other
            place = draft.path if draft.kept else places.of(draft.path)
            self._new.save_draft(replace(_moved_draft(draft, place), ino=places.ino(draft.ino)), closed=True)

    def _save_attrs(self, places: _Places) -> None:
        own_attrs = self._new.attrs()
        for path, attr in self._old.attrs().items():
            place = places.of(path)
            if place not in own_attrs:
                ino = None if attr.ino is None else places.ino(attr.ino)
                self._new.save_attr(place, replace(attr, ino=ino))


class _Places:
    """The names and inode numbers that adopted files get. Files of the target keep theirs."""

    def __init__(self, journal: Journal) -> None:
        self._inos = {row.ino for row in journal.files()} | {row.ino for row in journal.drafts()}
        self._inos |= {attr.ino for attr in journal.attrs().values() if attr.ino is not None}
        self._fresh: dict[int, int] = {}  # the source's number to a fresh one, where the target uses it already
        self._files = {row.path for row in journal.files()}
        self._files |= {row.path for row in journal.drafts() if not row.kept}
        self._tombstones = {row.path for row in journal.tombstones()}
        made = [*journal.folders(), *(paths.parent(path) for path in self._files)]
        self._folders = {above for folder in made for above in _with_parents(folder)}
        self._given: dict[str, str] = {}  # the source's path to the new one, of the part that had to change

    def of(self, path: str, *, is_dir: bool = False) -> str:
        """The path in the target. If `path` or a folder above it is taken, that part becomes a conflict copy's."""
        for above in _with_parents(path):
            if above in self._given:
                return self._given[above] + path[len(above) :]
            taken = above in self._files or (above == path and not is_dir and above in self._folders)
            if taken:
                free = (name for name in conflict_names(above) if name not in self._files | self._folders)
                self._given[above] = next(free)
                return self._given[above] + path[len(above) :]
        return path

    def ino(self, number: int) -> int:
        """`number`, or a fresh one if the target uses it: numbers that are made from a path are the same for both."""
        return self._fresh.setdefault(number, fresh_ino()) if number in self._inos else number

    def may_go(self, tombstone: TombstoneRow) -> bool:
        """Whether the delete may be adopted: the target has nothing of its own under the name."""
        path = tombstone.path
        return not (path in self._files | self._folders | self._tombstones or self._of_files(path))

    def _of_files(self, path: str) -> bool:
        return any(above in self._files for above in _with_parents(path))

    def moved(self) -> list[tuple[str, str]]:
        return sorted(self._given.items())


def _with_parents(path: str) -> list[str]:
    """The path and all folders above it but the root, from the top."""
    parts = path.split("/")
    return ["/".join(parts[: count + 1]) for count in range(len(parts)) if path]


def _moved(row: FileRow, path: str) -> FileRow:
    """The row under another path. There it is not based on a stored version."""
    return row if path == row.path else replace(row, path=path, base=None, uploaded=False, stored_ns=None, sent=())


def _moved_draft(row: DraftRow, path: str) -> DraftRow:
    return row if path == row.path else replace(row, path=path, base=None, uploaded=False, stored_ns=None, sent=())


def _link(source: Path, target: Path) -> None:
    """Give a file a second name. On a filesystem without hard links, make a copy."""
    fsync_path(source)
    target.unlink(missing_ok=True)  # left by a handover that was killed, and maybe older
    try:
        os.link(source, target)
    except OSError:
        fresh = target.with_name(f"{target.name}.part")  # the next mount removes it if it stays
        fresh.unlink(missing_ok=True)
        copy_file(source, fresh, size_of(source))
        fsync_path(fresh)
        fresh.rename(target)
