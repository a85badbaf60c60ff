"""A content as the journal keeps it: its backing file, its size, and which of its bytes are present. Pure.

Also as text: a row of the journal and the note beside a backing file (`notes`) have the same words.
"""

from __future__ import annotations

import json
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

    @property
    def needs_file(self) -> bool:
        """Whether the backing file has to hold anything: the service may have all of it."""
        return bool(self.present) or self.size > self.remote_end


def pack(entry: Entry | None) -> str | None:
    if entry is None:
        return None
    return json.dumps([entry.id, entry.dirname, entry.name, entry.is_dir, entry.size, entry.mtime_ns, entry.sized])


def unpack(text: str | None) -> Entry | None:
    return None if text is None else Entry(*json.loads(text))


def pack_bytes(held: ContentState) -> tuple[str, int, str | None, str | None, int, str]:
    return held.backing, held.size, pack(held.source), held.etag, held.remote_end, json.dumps(held.present)


def unpack_bytes(
    backing: str, size: int, source: str | None, etag: str | None, remote_end: int, present: str
) -> ContentState:
    ranges = tuple((start, end) for start, end in json.loads(present))
    return ContentState(backing, size, unpack(source), etag, remote_end, ranges)
