"""A content as the journal keeps it: its backing file, its size, and which of its bytes are present. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from cloudsimfs.service.model import Entry


@dataclass(frozen=True, slots=True)
class ContentState:
    """`present` are the ranges of fetched bytes below `remote_end`, as (start, end) in bytes."""

    backing: str  # the file's name in the data directory
    size: int  # bytes
    source: Entry | None  # the version that missing bytes come from
    etag: str | None
    remote_end: int  # where the version's bytes end; bytes from here on were written here
    present: tuple[tuple[int, int], ...]
