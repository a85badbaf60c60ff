"""Backing files of which the notes beside them say more than the journal: that becomes drafts beside the names.

    no row names the file       as everything in a directory whose journal was lost
    the row is older            the journal is an earlier copy of itself; the name shows the closed state of the row

Nothing is uploaded or removed unless the user says so (`recovery`), as the journal would have known what was removed
or renamed since.

Threading: none of its own; called before the first request, or without a mount.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from cloudsimfs import paths
from cloudsimfs.datacache import notes
from cloudsimfs.datacache.directory import size_of
from cloudsimfs.datacache.notes import State, copy_backing
from cloudsimfs.datacache.state import ContentState
from cloudsimfs.journal.journal import Journal
from cloudsimfs.journal.rows import DraftRow, FileRow, Kept
from cloudsimfs.text import agree, count
from cloudsimfs.vfs.localattrs import fresh_ino
from cloudsimfs.vfs.names import HIDDEN_PREFIX

log = logging.getLogger(__name__)

NAMELESS = "lost+found"  # the folder that files without a name are shown in


def find(data: Path, named: Collection[str]) -> Iterator[DraftRow]:
    """The rows that the files in the folder `data` would need. `named` are those that have one.

    Two for a file that was closed and then appended to: the closed state, and the whole.
    """
    for name in notes.unclaimed(data, named):
        yield from _rows(data, name)


def find_newer(data: Path, files: Iterable[FileRow]) -> Iterator[tuple[FileRow, DraftRow]]:
    """The same for files that were closed again after these rows were written."""
    for file in files:
        closed = notes.read(data / file.bytes.backing).closed
        if closed is None or (closed.generation <= file.generation and closed.bytes.size <= file.bytes.size):
            continue
        for row in _rows(data, file.bytes.backing):
            yield file, row


def _rows(data: Path, name: str) -> Iterator[DraftRow]:
    note = notes.read(data / name)
    size = size_of(data / name)
    closed = note.closed
    if closed is not None and _is_unlinked(closed):
        return
    if closed is not None:
        is_whole = size >= closed.bytes.size
        yield _row(closed, Kept.FOUND_CLOSED if is_whole else Kept.FOUND_OPEN)
        if size > closed.bytes.size:
            yield _row(note.draft or closed, Kept.FOUND_OPEN, size)
    elif note.draft is not None:
        if not _is_unlinked(note.draft):
            yield _row(note.draft, Kept.FOUND_OPEN, size)
    else:
        state = ContentState(name, size, None, None, 0, ())
        since_ns = (data / name).stat().st_mtime_ns
        yield _row(State("draft", f"{NAMELESS}/{name}", 0, state, since_ns), Kept.FOUND_OPEN)


def _row(state: State, kept: Kept, size: int | None = None) -> DraftRow:
    held = state.bytes if size is None else replace(state.bytes, size=size)
    return DraftRow(fresh_ino(), state.path, state.generation, False, None, state.since_ns, kept, held)


def _is_unlinked(state: State) -> bool:
    """Whether the file was unlinked while open. Its last handle has died with the daemon."""
    return paths.name(state.path).startswith(HIDDEN_PREFIX)


def keep_newer(journal: Journal, data: Path) -> None:
    """Keep what the journal's rows are too old to know, in files of their own. To be called before rows are used."""
    for file, row in list(find_newer(data, journal.files())):
        try:
            kept = _copied(data, row)
        except OSError as error:
            log.error("/%s: there is no room for its last closed state beside an earlier one: %s", file.path, error)
            journal.drop_file(file.ino)  # the name shows what the service has, and the file stays for the draft
            kept = row
        journal.save_draft(kept, closed=True)
        log.error("/%s: the journal is older than the file: its last closed state is kept for `recover`", row.path)


def _copied(data: Path, row: DraftRow) -> DraftRow:
    """The row with its bytes in a file of its own. Raises OSError."""
    copy = copy_backing(data, row.bytes.backing, row.size(size_of(data / row.bytes.backing)))
    return replace(row, bytes=replace(row.bytes, backing=copy))


def take_stock(journal: Journal, data: Path) -> None:
    """Give each file that may be the only copy of something a row. Who holds the directory's lock may call it."""
    named = journal.backing_names()
    found = sorted(find(data, named), key=lambda row: row.path)
    names = set[str]()
    for row in found:
        name = row.bytes.backing
        if name in names:
            continue  # its closed state has a row, and the whole went to a copy
        names.add(name)
        _save(journal, data, row, [other for other in found if other.bytes.backing == name])
    for name in set(notes.unclaimed(data, named | names)):
        notes.give_up(str(data / name))  # unlinked while open
    if names:
        files = f"{count(len(names), 'file')} that no row of the journal names {agree(len(names), 'is', 'are')} kept"
        log.error("%s: `cloudsimfs recover` lists what there is", files)


def _save(journal: Journal, data: Path, row: DraftRow, rows: list[DraftRow]) -> None:
    """Save the rows of one file: what was appended to a closed state gets a copy of its own, if there is room."""
    if len(rows) > 1:
        whole = rows[1]
        try:
            copied = _copied(data, whole)
        except OSError as error:
            log.error("/%s: what was closed and what was appended are kept as one: %s", row.path, error)
            journal.save_draft(whole, closed=True)
            return
        with journal.transaction():
            journal.save_draft(row, closed=True)
            journal.save_draft(copied, closed=True)
        return
    journal.save_draft(row, closed=True)
