"""Drafts as users see them: files that were being written when a daemon died. They are listed and copied here.

If the directory is not mounted, the closed files that wait for their upload are listed, too. Nothing is changed here:
`recovery` does that, in a mount. Threading: none of its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass, replace
from pathlib import Path

from cloudsimfs import paths
from cloudsimfs.datacache.directory import is_backing_name, is_mounted, missing_bytes, size_of
from cloudsimfs.errors import MountError
from cloudsimfs.host.disk import copy_file
from cloudsimfs.host.files import open_below, open_new
from cloudsimfs.journal.readonly import read_drafts, read_files, read_misfit, read_named
from cloudsimfs.journal.rows import DraftRow, FileRow, Kept
from cloudsimfs.vfs.found import find, find_newer
from cloudsimfs.vfs.names import is_local_name

ID_LENGTH = 8  # letters of the backing file's name
MOST_COPIES = 100  # of one draft in one folder


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
    for draft in listed:
        if not is_sound(draft, directory):
            raise MountError(f"{directory}: {draft.file!r} as {draft.path!r} cannot be of a mount: nothing is done")
    return [draft for draft in listed if not is_local_name(paths.name(draft.path))]


def is_sound(draft: Draft, directory: Path) -> bool:
    """Whether it may be copied: a file of the cache in `directory`, and a path below the storage's root."""
    file = Path(draft.file)
    inside = all(map(paths.is_safe_name, draft.path.split("/")))
    return inside and file.parent == directory / "data" and is_backing_name(file.name)


def copy_out(draft: Draft, directory: Path) -> Path:
    """Copy a draft into `directory` under its path, never onto another file nor through a link. Returns where it is.

    Raises OSError.
    """
    *folders, name = draft.path.split("/")
    if draft.missing:
        name += ".partial"
    place = open_below(directory, folders)
    try:
        for free in (
            name,
            f"{name}.{draft.id}",
            *(f"{name}.{draft.id}-{number}" for number in range(2, MOST_COPIES)),
        ):
            with contextlib.suppress(FileExistsError):
                _copy(draft, free, place)
                return directory.joinpath(*folders, free)
    finally:
        os.close(place)
    raise FileExistsError(errno.EEXIST, "there are copies of it already", name)


def _copy(draft: Draft, name: str, place: int) -> None:
    if Path(draft.file).exists():
        copy_file(Path(draft.file), Path(name), draft.size, place=place)
    else:  # a stored file that was renamed: its bytes are not here
        fd = open_new(Path(name), place=place)
        os.ftruncate(fd, draft.size)
        os.close(fd)
