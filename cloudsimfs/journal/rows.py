"""The rows of the journal as values. Pure."""

from __future__ import annotations

import enum
import json
from dataclasses import astuple, dataclass, field
from typing import Any

from cloudsimfs.datacache.state import ContentState, unpack, unpack_bytes
from cloudsimfs.inode import Base, Sent
from cloudsimfs.service.model import Entry, LaunchRequest


class Kept(enum.IntEnum):
    """Why a draft is beside the names; false if it is not. The values of the column `kept`."""

    NO = 0
    DRAFT = 1  # the daemon that wrote it died; or REFUSED before, and the user has dealt with it
    FOUND_CLOSED = 2  # found in the data directory without a row, and closed
    FOUND_OPEN = 3  # the same, and it was being written, or nothing is known of it
    REFUSED = 4  # closed, but others have replaced or removed the file that its missing bytes are of


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
    kept: Kept
    bytes: ContentState
    stored_ns: int | None = None
    sent: tuple[Sent, ...] = ()

    def size(self, on_disk: int) -> int:
        """Bytes of the draft, of a backing file that has `on_disk`: the row was made at the first change."""
        return min(on_disk, self.bytes.size) if self.kept is Kept.FOUND_CLOSED else max(0, on_disk)

    @property
    def is_found(self) -> bool:
        return self.kept in (Kept.FOUND_CLOSED, Kept.FOUND_OPEN)


@dataclass(frozen=True, slots=True)
class TombstoneRow:
    """One row of the table `gone`, with `base` if there is one in `gone_base`."""

    path: str
    entry: Entry | None
    is_dir: bool
    below: tuple[Entry, ...]
    after: tuple[int, ...]
    done: bool
    base: Base | None = None
    bases: dict[str, Base] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """One launch: a row of the account's book (`runs.book`)."""

    id: int
    request: LaunchRequest
    token: str | None
    known: frozenset[int]
    run: int | None
    refused: str | None = None
    refused_at: float = 0.0  # wall seconds


def pack_sent(sent: tuple[Sent, ...]) -> str:
    return json.dumps([astuple(upload) for upload in sent])


def unpack_sent(text: str) -> tuple[Sent, ...]:
    return tuple(Sent(*values) for values in json.loads(text))


def unpack_version(text: str | None) -> tuple[int, int, int] | None:
    if text is None:
        return None
    entry_id, size, mtime_ns = json.loads(text)
    return entry_id, size, mtime_ns


def file_row(values: tuple[Any, ...]) -> FileRow:
    ino, path, state, generation, uploaded, base, stored_ns, *held = values
    return FileRow(ino, path, state, generation, bool(uploaded), unpack(base), stored_ns, unpack_bytes(*held))


def draft_row(values: tuple[Any, ...]) -> DraftRow:
    ino, path, generation, uploaded, base, since_ns, kept, *held = values
    return DraftRow(ino, path, generation, bool(uploaded), unpack(base), since_ns, Kept(kept), unpack_bytes(*held))
