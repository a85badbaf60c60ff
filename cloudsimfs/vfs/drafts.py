"""Drafts as users see them: files that were being written when a daemon died. They are listed and copied here.

If the directory is not mounted, the closed files that wait for their upload are listed, too. Nothing is changed here:
`recovery` does that, in a mount. Threading: none of its own.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from cloudsimfs import paths
from cloudsimfs.datacache.directory import is_mounted, missing_bytes, size_of
from cloudsimfs.host.disk import copy_file
from cloudsimfs.journal.readonly import read_drafts, read_files, read_misfit, read_named
from cloudsimfs.journal.rows import DraftRow, FileRow, Kept
from cloudsimfs.vfs.found import find, find_newer
from cloudsimfs.vfs.names import is_local_name

ID_LENGTH = 8  # letters of the backing file's name


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft, as users see it. Sizes in bytes."""

    id: str
    path: str
    size: int
    since_ns: int  # ns since the epoch; when it was first written to
    missing: int  # bytes that only the service has
    file: str  # the backing file
    shown: bool  # the name shows the draft; otherwise it shows the last closed state
    closed: bool = False  # not a draft but a closed file: its directory is not mounted, or its record was lost
    found: bool = False  # in the data directory, without a record in the journal


def draft_of(row: DraftRow, data: Path) -> Draft:
    """The draft of a row, whose bytes are in the folder `data`."""
    file = data / row.bytes.backing
    size = row.size(size_of(file))
    missing = missing_bytes(data, replace(row.bytes, size=size))
    return Draft(
        id=row.bytes.backing[:ID_LENGTH],
        path=row.path,
        size=size,
        since_ns=row.since_ns,
        missing=missing,
        file=str(file),
        shown=not row.kept,
        closed=row.kept is Kept.FOUND_CLOSED,
        found=row.is_found,
    )


def _closed_of(row: FileRow, data: Path) -> Draft:
    file = data / row.bytes.backing
    since_ns = file.stat().st_mtime_ns if file.exists() else 0
    missing = missing_bytes(data, row.bytes)
    size = row.bytes.size
    return Draft(row.bytes.backing[:ID_LENGTH], row.path, size, since_ns, missing, str(file), shown=True, closed=True)


def find_drafts(directory: Path) -> list[Draft]:
    """The drafts in a cache directory. If it is not mounted, the closed files that wait for their upload, and those
    that the journal does not know.

    A mount uploads closed files by itself, and a file that it has open for writing is not a draft. Raises MountError.
    """
    mounted, data, journal = is_mounted(directory), directory / "data", directory / "journal.db"
    fits = journal.exists() and not read_misfit(directory)
    drafts = [row for row in read_drafts(journal) if row.kept or not mounted] if fits else []
    files = read_files(journal) if fits and not mounted else []
    closed = [row for row in files if row.state == "closed"]
    listed = [*(draft_of(row, data) for row in drafts), *(_closed_of(row, data) for row in closed)]
    listed += [draft_of(row, data) for _, row in find_newer(data, files)]
    if not mounted and data.is_dir():
        listed += [draft_of(row, data) for row in find(data, read_named(journal) if fits else ())]
    return [draft for draft in listed if not is_local_name(paths.name(draft.path))]


def copy_out(draft: Draft, directory: Path, taken: Collection[Path] = ()) -> Path:
    """Copy a draft into `directory` under its path. Returns where it is: never on another file or one of `taken`."""
    target = directory / draft.path
    if draft.missing:
        target = target.with_name(f"{target.name}.partial")
    if target in taken or target.exists():
        target = target.with_name(f"{target.name}.{draft.id}")
    target.parent.mkdir(parents=True, exist_ok=True)
    if Path(draft.file).exists():
        copy_file(Path(draft.file), target, draft.size)
    else:  # a stored file that was renamed: its bytes are not here
        target.touch(0o600)
        os.truncate(target, draft.size)
    return target
