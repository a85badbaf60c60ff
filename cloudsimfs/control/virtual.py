"""The nodes of virtual folders: files with a reader, a command or both, folders, and links. Pure values."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass

from cloudsimfs.runs.poller import Followed


@dataclass(frozen=True, slots=True)
class File:
    """A virtual file. One with `live` is read again at every read(2), any other once for each open(2).

    `write` carries out a command. If it returns an answer, the same handle reads that afterwards.
    """

    read: Callable[[], bytes] | None = None
    write: Callable[[str], bytes | None] | None = None
    live: Followed | None = None
    cached: Callable[[], bytes] | None = None  # as `read`, but without an API call

    @property
    def perm(self) -> int:
        return (0o444 if self.read else 0) | (0o200 if self.write else 0)


_ODD = re.compile("[\\x7f-\\xa0\\xad\\u0600-\\u0605\\u061c\\u200b-\\u200f\\u2028-\\u202f\\u2060-\\u206f\\ufeff]")


@dataclass(frozen=True, slots=True)
class Folder:
    names: Callable[[], list[str]]


@dataclass(frozen=True, slots=True)
class Link:
    target: str


Node = File | Folder | Link


def kind(node: Node) -> int:
    """The file type bits of stat(2)."""
    if isinstance(node, Folder):
        return stat.S_IFDIR
    return stat.S_IFLNK if isinstance(node, Link) else stat.S_IFREG


def as_json(value: object) -> str:
    """JSON for programs, which a terminal may show as well: letters of all scripts as they are, nothing else."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n"
    return _ODD.sub(lambda match: json.dumps(match[0])[1:-1], text)


def text(read: Callable[[], str]) -> File:
    return File(lambda: read().encode("utf-8", "replace"))
