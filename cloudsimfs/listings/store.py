"""Listings on disk, so that a mount starts warm and can be read offline.

The file can be deleted: what is missing, also after a crash, is fetched again.

Threading: one connection under one lock, a leaf; a thread of this module collects saves and writes every second.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from cloudsimfs import paths
from cloudsimfs.errors import MountError
from cloudsimfs.host.sqlite import open_database
from cloudsimfs.service.model import Entry

log = logging.getLogger(__name__)

SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE IF NOT EXISTS listing (
  path     TEXT PRIMARY KEY,               -- the directory
  asked_at REAL NOT NULL,                  -- wall seconds, from before the call
  entries  BLOB NOT NULL                   -- zlib of a JSON list of [id, name, is_dir, size or null, mtime_ns]
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS learnt (        -- one row at most: of the service (v2)
  page_size INTEGER NOT NULL,              -- entries that a page was seen to hold; 0: none was seen
  lags INTEGER                             -- whether listings lag: 0 or 1; NULL: not known
);
"""
CLEAN = 1  # the application_id of a database that was closed in order
WRITE_INTERVAL = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class Learnt:
    """What is known of the service's listings: the columns of its table."""

    page_size: int = 0
    lags: bool | None = None


def _learnt(db: sqlite3.Connection) -> Learnt:
    row = db.execute("SELECT page_size, lags FROM learnt").fetchone()
    return Learnt() if row is None else Learnt(row[0], None if row[1] is None else bool(row[1]))


def read_learnt(path: Path) -> Learnt:
    """What mounts have learnt whose listings are in the database at `path`; nothing if it cannot be read."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as db:
            return _learnt(db)
    except sqlite3.Error:
        return Learnt()


def inherit(path: Path, other: Path, folders: Iterable[str]) -> None:
    """Copy the listings of these folders from the database at `other` to the one at `path`.

    They are marked as out of date, so they serve only while the service cannot be asked. Neither database may be in
    use by a mount. Raises MountError.
    """
    chosen = [(folder,) for folder in folders]
    try:
        with contextlib.closing(ListingStore.open(path)) as db:
            if other.exists():
                ListingStore.open(other).close()  # made anew if it cannot be read
                db.execute("ATTACH ? AS other", (str(other),))
                copy = "INSERT OR IGNORE INTO listing SELECT path, -9e999, entries FROM other.listing WHERE path = ?"
                db.executemany(copy, chosen)
            db.executemany("UPDATE listing SET asked_at = -9e999 WHERE path = ?", chosen)
    except sqlite3.Error as error:
        raise MountError(f"{path}: the listings cannot be kept: {error}") from error


class ListingStore:
    """The database at `path` (0600). One that cannot be read is made anew."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()  # protects _db
        self._db = self.open(path)
        if self._db.execute("PRAGMA application_id").fetchone()[0] != CLEAN:
            # After a crash these listings may be older than what we have done since, and what the journal has
            # dropped, relying on a newer listing. They serve only while the service cannot be asked, from now on.
            self._db.execute("UPDATE listing SET asked_at = -9e999 WHERE asked_at > -9e999")
        self.learnt = self._written = _learnt(self._db)
        self._wake = threading.Condition()  # protects the two below
        # the listings to write, by directory; None: to be deleted with all below it
        self._pending: dict[str, tuple[float, Mapping[str, Entry]] | None] = {}
        self._closing = False
        self._writer: threading.Thread | None = None

    @staticmethod
    def open(path: Path) -> sqlite3.Connection:
        for may_be_old in (True, False):
            try:
                return open_database(path, SCHEMA, SCHEMA_VERSION, synchronous="OFF")
            except sqlite3.DatabaseError as error:
                if not may_be_old:
                    raise MountError(f"{path}: the listings cannot be kept: {error}; is the disk full?") from None
                log.warning("%s is made anew: %s", path, error)
                path.unlink()
        raise AssertionError

    def start(self) -> None:
        """Start the writer. Called after the process has forked."""
        with self._lock:
            self._db.execute("PRAGMA application_id=0")
        self._writer = threading.Thread(target=self._write_for_ever, name="listings", daemon=True)
        self._writer.start()

    def close(self) -> None:
        """Write what is pending."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._writer is not None:
            self._writer.join()
        with self._lock:
            self._db.execute(f"PRAGMA application_id={CLEAN}")
            self._db.close()

    def load(self, path: str) -> tuple[float, dict[str, Entry]] | None:
        """When a directory was listed (wall seconds, from before the call), and its entries by name; None if never.

        The time is -inf if a mount did not end in order since.
        """
        with self._wake:
            pending = self._pending.get(path)
            if pending is not None:
                return pending[0], dict(pending[1])
            if any(item is None and paths.is_within(path, gone) for gone, item in self._pending.items()):
                return None
        with self._lock:
            row = self._db.execute("SELECT asked_at, entries FROM listing WHERE path = ?", (path,)).fetchone()
        if row is None:
            return None
        items = json.loads(zlib.decompress(row[1]))
        return row[0], {
            name: Entry(entry_id, path, name, is_dir, size or 0, mtime_ns, size is not None)
            for entry_id, name, is_dir, size, mtime_ns in items
        }

    def save(self, path: str, asked_at: float, names: Mapping[str, Entry]) -> None:
        with self._wake:
            self._pending[path] = (asked_at, names)
            self._wake.notify()

    def learn(self, learnt: Learnt) -> None:
        """Keep what is known of the service's listings; it is written with the next of them."""
        self.learnt = learnt

    def forget(self, path: str) -> None:
        """Delete the listings of a directory and all inside it."""
        with self._wake:
            for key in [key for key in self._pending if key == path or key.startswith(path + "/")]:
                del self._pending[key]
            self._pending[path] = None
            self._wake.notify()

    def _write_for_ever(self) -> None:
        while True:
            with self._wake:
                while not self._pending and not self._closing:
                    self._wake.wait()
                self._wake.wait_for(lambda: self._closing, WRITE_INTERVAL)  # more may come, to be written in one go
                batch, closing = dict(self._pending), self._closing
            try:
                self._write(batch)
            except sqlite3.Error as error:
                log.warning("listings could not be kept for the next mount: %s", error)
            with self._wake:
                for path, item in batch.items():
                    if path in self._pending and self._pending[path] is item:
                        del self._pending[path]
                if closing and not self._pending:
                    return

    def _write(self, batch: Mapping[str, tuple[float, Mapping[str, Entry]] | None]) -> None:
        with self._lock:
            self._db.execute("BEGIN")
            if self.learnt != self._written:
                self._written = self.learnt
                self._db.execute("DELETE FROM learnt")
                self._db.execute("INSERT INTO learnt VALUES (?, ?)", (self._written.page_size, self._written.lags))
            for path, item in batch.items():
                if item is None:
                    inside = (path, path + "/", path + "0")  # "0" comes right after "/"
                    self._db.execute("DELETE FROM listing WHERE path = ? OR (path > ? AND path < ?)", inside)
                    continue
                asked_at, names = item
                rows = [[e.id, e.name, e.is_dir, e.size if e.sized else None, e.mtime_ns] for e in names.values()]
                blob = zlib.compress(json.dumps(rows, ensure_ascii=False).encode(), 1)
                self._db.execute("INSERT OR REPLACE INTO listing VALUES (?,?,?)", (path, asked_at, blob))
            self._db.execute("COMMIT")
