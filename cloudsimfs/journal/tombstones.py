"""The rows of removed names. Each says what was removed, and what a file is based on that takes the name again.

Threading: as the database.
"""

from __future__ import annotations

import json

from cloudsimfs.datacache.state import pack, unpack
from cloudsimfs.inode import Base
from cloudsimfs.journal.database import Database
from cloudsimfs.journal.rows import TombstoneRow, pack_sent, unpack_sent


class Tombstones:
    """The tables `gone` and `gone_base` of `db`."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def save(self, row: TombstoneRow) -> None:
        base = row.base
        with self._db.transaction():
            self._db.run("DELETE FROM gone WHERE path = ?", row.path)
            self._db.run(
                "INSERT INTO gone VALUES (?,?,?,?,?,?)",
                row.path,
                pack(row.entry),
                row.is_dir,
                json.dumps([pack(entry) for entry in row.below]),
                json.dumps(row.after),
                row.done,
            )
            if base is not None:
                values = (pack(base.entry), base.uploaded, base.stored_ns, pack_sent(base.sent))
                self._db.run("INSERT INTO gone_base VALUES (?,?,?,?,?)", row.path, *values)

    def drop(self, path: str) -> None:
        self._db.run("DELETE FROM gone WHERE path = ?", path)

    def rows(self) -> list[TombstoneRow]:
        rows = self._db.rows("SELECT * FROM gone ORDER BY rowid")
        bases = {
            path: Base(unpack(entry), bool(uploaded), stored_ns, unpack_sent(sent))
            for path, entry, uploaded, stored_ns, sent in self._db.rows("SELECT * FROM gone_base")
        }
        return [
            TombstoneRow(
                path=path,
                entry=unpack(entry),
                is_dir=bool(is_dir),
                below=tuple(file for item in json.loads(below) if (file := unpack(item)) is not None),
                after=tuple(json.loads(after)),
                done=bool(done),
                base=bases.get(path),
            )
            for path, entry, is_dir, below, after, done in rows
        ]
