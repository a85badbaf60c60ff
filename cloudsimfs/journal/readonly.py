"""Reading a journal that another mount may have open, without opening it as one's own.

Each function reads once; what it says may be out of date when it returns. Threading: none of its own.
"""

from __future__ import annotations

from pathlib import Path

from cloudsimfs.errors import MountError
from cloudsimfs.journal import stamp
from cloudsimfs.journal.database import Misfit, first_row, rows_of
from cloudsimfs.journal.rows import DraftRow, FileRow, draft_row, file_row
from cloudsimfs.journal.schema import DRAFTS, FILES, JOURNAL, SCHEMA_VERSION
from cloudsimfs.journal.stamp import Identity


def count_pending(path: Path) -> int:
    """How many files wait for their upload in the journal at `path`, which another mount may have open."""
    try:
        return int(rows_of(path, "SELECT count(*) FROM file WHERE state <> 'stored'")[0][0])
    except MountError:
        return 0


def read_misfit(directory: Path) -> str:
    """Why the next mount will set the directory's journal aside; empty if it fits, or if there never was one.

    Raises MountError if another version has written it, or it cannot be read now.
    """
    path, last = directory / JOURNAL, stamp.read(directory / "data")
    if not path.exists():
        return "it is missing" if last is not None else ""
    try:
        found = first_row(path, "identity", SCHEMA_VERSION)
    except Misfit as misfit:
        return misfit.reason
    return stamp.misfit(found and Identity(*found), last)


def read_named(path: Path) -> set[str]:
    """The backing files that rows of the journal at `path` name. Raises MountError."""
    return {name for (name,) in rows_of(path, "SELECT backing FROM file UNION SELECT backing FROM draft")}


def read_drafts(path: Path) -> list[DraftRow]:
    """The drafts in the journal at `path`, which another mount may have open. Raises MountError."""
    return [draft_row(values) for values in rows_of(path, DRAFTS)]


def read_files(path: Path) -> list[FileRow]:
    """The closed files in the journal at `path`, which another mount may have open. Raises MountError."""
    return [file_row(values) for values in rows_of(path, FILES)]


def read_closed(path: Path) -> list[FileRow]:
    """Those that wait for their upload."""
    return [row for row in read_files(path) if row.state == "closed"]


def read_counts(path: Path) -> tuple[int, int, int]:
    """How many deletes, launches of unknown outcome, and launches with a key the journal at `path` has.

    Raises MountError.
    """
    tables = "(SELECT count(*) FROM gone WHERE NOT done), count(*) - count(run), count(run)"
    deletes, unresolved, resolved = rows_of(path, f"SELECT {tables} FROM launch")[0]
    return deletes, unresolved, resolved


def has_adopted(path: Path, handover: str) -> bool:
    """Whether the journal at `path` has taken in a handover. Raises MountError."""
    return path.exists() and (handover,) in rows_of(path, "SELECT id FROM adopted")
