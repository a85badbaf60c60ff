"""Which rows speak of bytes that may not be on the disk yet, and what was on the disk before them.

A disk may write a row of the journal before the bytes it speaks of. So a row comes with the number of the round of
fsync that has its bytes, in the same transaction. A round that has ended says so. If the machine goes down before,
the next mount does not believe the row (`vfs.doubt`). It goes back to the last closed state that needed no such
round, if there was one. The bytes of that are kept until the round has ended.

Threading: as the database.
"""

from __future__ import annotations

from dataclasses import dataclass

from cloudsimfs.datacache import rangelog
from cloudsimfs.datacache.state import ContentState, pack_bytes, unpack_bytes
from cloudsimfs.journal.database import Database

_STATE = "path, backing, size, source, etag, remote_end, present"


@dataclass(frozen=True, slots=True)
class Proved:
    """A closed state that is on the disk, and the path that the file had then."""

    path: str
    bytes: ContentState


class Proofs:
    """The table `unproved` of `db`."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def awaits(self, ino: int, number: int, held: ContentState) -> None:
        """A file's row is about to be replaced, in the same transaction, by one whose bytes that round has.

        If the row names the same bytes already, as after a rename, they are as much on the disk as they were: they
        are not touched as long as the row is there.
        """
        backing, size, source, _, remote_end, present = pack_bytes(held)
        same = "backing = ? AND size = ? AND source IS ? AND remote_end = ? AND present = ?"
        self._db.run(
            f"INSERT OR IGNORE INTO unproved SELECT ino, 0, '', {_STATE} FROM file WHERE ino = ? AND NOT ({same})",
            *(ino, backing, size, source, remote_end, present),
        )
        self._db.run(
            "INSERT OR IGNORE INTO unproved (ino, round, boot) "
            "SELECT ?, 0, '' WHERE NOT EXISTS (SELECT 1 FROM file WHERE ino = ?)",
            *(ino, ino),
        )
        self._db.run("UPDATE unproved SET round = ?, boot = ? WHERE ino = ?", number, rangelog.boot_id(), ino)

    def settle(self, ino: int) -> None:
        """What the rows of a file say needs no proof."""
        self._db.run("DELETE FROM unproved WHERE ino = ?", ino)

    def ended(self, number: int) -> None:
        """That round of fsync is about to end; all before it have, or have left their files to it."""
        self._db.run("DELETE FROM unproved WHERE round <= ?", number)

    def awaited(self) -> dict[int, int]:
        """The rounds that have not ended, by inode number."""
        return dict(self._db.rows("SELECT ino, round FROM unproved"))

    def backing_names(self) -> set[str]:
        """The backing files of what was on the disk before."""
        return {name for (name,) in self._db.rows("SELECT backing FROM unproved WHERE backing IS NOT NULL")}

    def doubted(self) -> dict[int, Proved | None]:
        """The files, by inode number, for which the machine went down before that round had ended.

        With the closed state that was on the disk before, if there was one.
        """
        now = rangelog.boot_id()
        return {
            ino: None if path is None else Proved(path, unpack_bytes(*held))
            for ino, boot, path, *held in self._db.rows(f"SELECT ino, boot, {_STATE} FROM unproved")
            if boot != now or not now
        }
