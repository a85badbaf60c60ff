"""The rows of removed names. Each says what was removed, and what a file is based on that takes the name again.

Threading: as the database.
"""

from __future__ import annotations

import json
from typing import Any

from cloudsimfs.datacache.state import pack, unpack
from cloudsimfs.inode import Base
from cloudsimfs.journal.database import Database
from cloudsimfs.journal.rows import TombstoneRow, pack_sent, unpack_sent
from cloudsimfs.service.model import Entry

_PackedBase = tuple[str | None, bool, int | None, str]


def _pack_base(base: Base) -> _PackedBase:
    return pack(base.entry), base.uploaded, base.stored_ns, pack_sent(base.sent)


def _unpack_base(entry: str | None, uploaded: int, stored_ns: int | None, sent: str) -> Base:
    return Base(unpack(entry), bool(uploaded), stored_ns, unpack_sent(sent))


def _pack_file(entry: Entry, base: Base | None) -> object:
    """A file of a removed folder: its entry, or a list of that and of what `gone_base` has of a name."""
    return pack(entry) if base is None else [pack(entry), *_pack_base(base)]


def _unpack_file(item: Any) -> Entry | None:
    return unpack(item[0] if isinstance(item, list) else item)


def _unpack_bases(items: list[Any]) -> dict[str, Base]:
    packed = [item for item in items if isinstance(item, list)]
    return {file.path: _unpack_base(*item[1:]) for item in packed if (file := unpack(item[0])) is not None}


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
                json.dumps([_pack_file(entry, row.bases.get(entry.path)) for entry in row.below]),
                json.dumps(row.after),
                row.done,
            )
            if base is not None:
                self._db.run("INSERT INTO gone_base VALUES (?,?,?,?,?)", row.path, *_pack_base(base))

    def drop(self, path: str) -> None:
        self._db.run("DELETE FROM gone WHERE path = ?", path)

    def rows(self) -> list[TombstoneRow]:
        rows = self._db.rows("SELECT * FROM gone ORDER BY rowid")
        bases = {path: _unpack_base(*values) for path, *values in self._db.rows("SELECT * FROM gone_base")}
        return [
            TombstoneRow(
                path=path,
                entry=unpack(entry),
                is_dir=bool(is_dir),
                below=tuple(file for item in json.loads(below) if (file := _unpack_file(item)) is not None),
                after=tuple(json.loads(after)),
                done=bool(done),
                base=bases.get(path),
                bases=_unpack_bases(json.loads(below)),
            )
            for path, entry, is_dir, below, after, done in rows
        ]
