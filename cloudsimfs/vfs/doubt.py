"""Files whose bytes a power loss may have taken, though the journal has their rows: nobody is to believe these.

The name shows the last closed state that was on the disk, if there was one here, else what the service has. What
there is of the newer one becomes a draft beside the names. It may have zeros in it, and is not uploaded unless the
user says so (`recovery`).

Threading: none of its own; called by who holds the directory's lock, before the rows are used.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from cloudsimfs.datacache.directory import size_of
from cloudsimfs.datacache.notes import copy_backing
from cloudsimfs.datacache.state import ContentState
from cloudsimfs.journal.journal import Journal
from cloudsimfs.journal.proofs import Proved
from cloudsimfs.journal.rows import DraftRow, FileRow, Kept

log = logging.getLogger(__name__)

_DOUBTED = "/%s: the machine went down before its bytes were on the disk; what there is of them is kept for `recover`"


def set_doubted_aside(journal: Journal, data: Path) -> list[str]:
    """Settle all doubts of a journal, whose backing files are in the folder `data`. Returns the paths."""
    doubted = journal.doubted()
    files = {row.ino: row for row in journal.files()}
    drafts = {row.ino: row for row in journal.drafts() if not row.kept}
    for ino, proved in doubted.items():
        with journal.transaction():
            if ino in files:
                _go_back(journal, data, files[ino], drafts.get(ino), proved)
            elif ino in drafts:
                _keep(journal, data, drafts[ino])
            journal.settle_doubt(ino)
    found = [rows[ino].path for ino in doubted for rows in (files, drafts) if ino in rows]
    for path in found:
        log.error(_DOUBTED, path)
    return found


def _go_back(journal: Journal, data: Path, row: FileRow, draft: DraftRow | None, proved: Proved | None) -> None:
    """Set a closed state aside, for the one before it."""
    if proved is None or row.state == "stored" or _is_cut(data, proved.bytes):
        lose(journal, data, row, draft)
    elif proved.path != row.path:  # who knows what the name had then: both are kept
        lose(journal, data, row, draft)
        if proved.bytes.backing != row.bytes.backing:
            _save(journal, data, replace(row, path=proved.path), proved.bytes)
    else:
        if proved.bytes.backing != row.bytes.backing:
            _keep_both(journal, data, row, draft)
        elif size_of(data / proved.bytes.backing) > proved.bytes.size:
            _keep_appended(journal, data, row, proved.bytes)
        journal.save_file(replace(row, bytes=proved.bytes))


def _is_cut(data: Path, state: ContentState) -> bool:
    return state.needs_file and size_of(data / state.backing) < state.size


def lose(journal: Journal, data: Path, row: FileRow, draft: DraftRow | None) -> None:
    """Drop the row of a closed state that is not whole, and keep what there is of it, and of the draft behind it.

    Was it renamed, then its old name has the only copy: that is not deleted.
    """
    with journal.transaction():
        _keep_both(journal, data, row, draft)
        journal.drop_file(row.ino)
        for tombstone in journal.tombstones():
            if row.ino in tombstone.after:
                journal.drop_tombstone(tombstone.path)


def _keep_both(journal: Journal, data: Path, row: FileRow, draft: DraftRow | None) -> None:
    if draft is not None and draft.bytes.backing != row.bytes.backing:
        _keep(journal, data, draft)
    if row.state == "closed":
        _save(journal, data, row, row.bytes)


def _keep(journal: Journal, data: Path, draft: DraftRow) -> None:
    """Have a draft beside the names."""
    size = size_of(data / draft.bytes.backing)
    if size > 0:
        journal.keep_draft(draft, replace(draft.bytes, size=size))
    else:
        journal.drop_draft(draft.ino)


def _keep_appended(journal: Journal, data: Path, row: FileRow, proved: ContentState) -> None:
    """Keep all of a file whose first part is the closed state, in a file of its own."""
    try:
        copy = copy_backing(data, proved.backing, size_of(data / proved.backing))
    except OSError as error:
        log.error("/%s: what was appended cannot be kept: %s", row.path, error)
        return
    _save(journal, data, row, replace(row.bytes, backing=copy))


def _save(journal: Journal, data: Path, row: FileRow, held: ContentState) -> None:
    """Keep the bytes of a closed state as a draft."""
    size = size_of(data / held.backing)
    if size > 0:
        since_ns = (data / held.backing).stat().st_mtime_ns
        kept = replace(held, size=size)
        journal.save_draft(
            DraftRow(row.ino, row.path, row.generation, row.uploaded, row.base, since_ns, Kept.DRAFT, kept),
            closed=True,
        )
