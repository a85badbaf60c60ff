"""The rows of the journal as values, and entries as text. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from cloudsimfs.datacache.state import ContentState
from cloudsimfs.inode import Sent
from cloudsimfs.service.model import Entry, LaunchRequest


@dataclass(frozen=True, slots=True)
class FileRow:
    """One row of the table `file`."""

    ino: int
    path: str
    state: str
    generation: int
    uploaded: bool
    base: Entry | None
    stored_ns: int | None
    bytes: ContentState
    sent: tuple[Sent, ...] = ()


@dataclass(frozen=True, slots=True)
class DraftRow:
    """One row of the table `draft`."""

    ino: int
    path: str
    generation: int
    uploaded: bool
    base: Entry | None
    since_ns: int
    kept: bool
    bytes: ContentState


@dataclass(frozen=True, slots=True)
class TombstoneRow:
    """One row of the table `gone`."""

    path: str
    entry: Entry | None
    is_dir: bool
    below: tuple[Entry, ...]
    after: tuple[int, ...]
    done: bool


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """One launch: a row of the account's book (`runs.book`)."""

    id: int
    request: LaunchRequest
    token: str | None
    known: frozenset[int]
    run: int | None
    refused: str | None = None


def pack(entry: Entry | None) -> str | None:
    if entry is None:
        return None
    return json.dumps([entry.id, entry.dirname, entry.name, entry.is_dir, entry.size, entry.mtime_ns, entry.sized])


def unpack(text: str | None) -> Entry | None:
    return None if text is None else Entry(*json.loads(text))


def unpack_version(text: str | None) -> tuple[int, int, int] | None:
    if text is None:
        return None
    entry_id, size, mtime_ns = json.loads(text)
    return entry_id, size, mtime_ns


def pack_bytes(held: ContentState) -> tuple[str, int, str | None, str | None, int, str]:
    return held.backing, held.size, pack(held.source), held.etag, held.remote_end, json.dumps(held.present)


def unpack_bytes(
    backing: str, size: int, source: str | None, etag: str | None, remote_end: int, present: str
) -> ContentState:
    ranges = tuple((start, end) for start, end in json.loads(present))
    return ContentState(backing, size, unpack(source), etag, remote_end, ranges)


def file_row(values: tuple[Any, ...]) -> FileRow:
    ino, path, state, generation, uploaded, base, stored_ns, *held = values
    return FileRow(ino, path, state, generation, bool(uploaded), unpack(base), stored_ns, unpack_bytes(*held))


def draft_row(values: tuple[Any, ...]) -> DraftRow:
    ino, path, generation, uploaded, base, since_ns, kept, *held = values
    return DraftRow(ino, path, generation, bool(uploaded), unpack(base), since_ns, bool(kept), unpack_bytes(*held))
