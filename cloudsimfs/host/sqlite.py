"""Opening a SQLite file as this package keeps them: private (0600), with a write-ahead log and a schema's version."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Literal

from cloudsimfs.host.files import open_private


class OtherVersion(sqlite3.DatabaseError):
    """The file was written by another version of this package."""

    def __init__(self, found: int) -> None:
        super().__init__(f"written by another version of cloudsimfs (schema {found})")


def open_database(
    path: Path, schema: str, version: int, *, synchronous: Literal["OFF", "NORMAL"]
) -> sqlite3.Connection:
    """A connection in autocommit mode for any thread, one at a time. The file is made if it is not there.

    `synchronous` NORMAL: what is committed survives the death of this process, and the file a power loss.
    OFF: the file may be unusable after a power loss. Raises OtherVersion, sqlite3.Error or OSError.
    """
    os.close(open_private(path, os.O_RDWR))
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={synchronous}")
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, version):
            raise OtherVersion(found)
        connection.executescript(schema)
        connection.execute(f"PRAGMA user_version={version}")
    except BaseException:
        connection.close()
        raise
    return connection
