"""A mount that notes what it has the disk write: `python syncing.py FILE cloudsimfs mount ...`.

FILE gets a line for each fsync(2) and fdatasync(2) of the daemon, and for each commit of SQLite that syncs its log.
The product knows nothing of this: the functions are wrapped before the command line starts.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FULL, NORMAL = "PRAGMA synchronous=FULL", "PRAGMA synchronous=NORMAL"


@dataclass(frozen=True)
class Synced:
    """One file that was synced, how many bytes it had, and by which thread."""

    path: Path
    size: int
    thread: str

    @property
    def what(self) -> str:
        """Of a mount's cache: "bytes" of a file, the "names" of those, the journal's "rows"."""
        if self.path.parent.name == "data":
            return "bytes"
        return {"data": "names", "journal.db": "rows"}.get(self.path.name, str(self.path))


def wrap(note: Callable[[Synced], object], replace: Callable[[Any, str, Any], object]) -> None:
    """Have `note` told of what is synced from now on, after it is. `replace` is setattr, or one that is undone."""

    def told(path: Path) -> None:
        note(Synced(path, path.stat().st_size, threading.current_thread().name))

    def noted(call: Callable[[int], None]) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            call(fd)
            told(Path(os.readlink(f"/proc/self/fd/{fd}")))

        return sync

    def connect(path: Any, *arguments: Any, **named: Any) -> sqlite3.Connection:
        connection = opened(path, *arguments, **named)
        full = False

        def trace(statement: str) -> None:
            nonlocal full
            if full and statement not in (FULL, NORMAL):
                told(Path(path))
            full = statement == FULL or (full and statement != NORMAL)

        connection.set_trace_callback(trace)
        return connection

    opened: Callable[..., sqlite3.Connection] = sqlite3.connect
    replace(os, "fsync", noted(os.fsync))
    replace(os, "fdatasync", noted(os.fdatasync))
    replace(sqlite3, "connect", connect)


def noted_in(file: Path) -> list[Synced]:
    """What a mount has synced so far. Each line is appended with one write(2): none is half there."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [Synced(Path(path), int(size), thread) for path, size, thread in (line.split("\t") for line in lines)]


def main() -> None:
    from cloudsimfs.cli import main as command_line

    file = Path(sys.argv[1])

    def note(synced: Synced) -> None:
        with open(file, "ab", buffering=0) as stream:
            stream.write(f"{synced.path}\t{synced.size}\t{synced.thread}\n".encode())

    wrap(note, setattr)
    sys.argv[1:] = sys.argv[3:]
    command_line(prog_name="cloudsimfs")


if __name__ == "__main__":
    main()
