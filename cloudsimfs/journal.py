"""The SQLite record of everything that is not yet on the service.

The order of the steps of one write, which makes `close()` a promise (design.md, invariant 1):

    1  bytes in the backing file             (Content.write)
    2  row committed                         (Journal.save_file, from flush)
    3  close() returns
    4  file, directory and row fsynced       (at once for fsync)
    5  upload of that generation             (Writeback)
    6  marked stored, if the generation is unchanged
    7  a listing confirms it: row deleted    (Tree)
    8  the backing file may be evicted

What is written after 2 must not touch the bytes of that row, which is all there is of the closed state until 5:

    appended            the same backing file; the row's size says where the closed state ends
    anything else       the next generation begins in a copy of its own (`Handles`), and the row keeps the old file

The copy costs nothing where the disk can share blocks (btrfs, XFS), else about a second per GiB, once, and only for a
file that is rewritten in place before its last state was stored and listed. An undo log of the overwritten ranges
would be cheaper, but its bytes would have to be on the disk before every write to be right after a power loss.
fsync(2) is no close: who writes on after it overwrites the synced bytes, as on any disk, and so does who writes on
through a duplicate of a descriptor that was closed. What was written since the last close is a `draft`: the next
mount restores the closed state, if there is one, and `recover` deals with the draft.

Threading: one connection under one lock (`Journal.lock`, the last in the order); calls are short local I/O.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from cloudsimfs.attrs import LocalAttr
from cloudsimfs.errors import FsError, MountError, NoSpace
from cloudsimfs.rows import (
    Bytes,
    DraftRow,
    FileRow,
    GoneRow,
    pack,
    pack_bytes,
    unpack,
    unpack_bytes,
    unpack_version,
)
from cloudsimfs.service.model import Entry, LaunchRequest

SCHEMA_VERSION = 2

SCHEMA = """
CREATE TABLE IF NOT EXISTS file (          -- the last closed state of each file that is not known to be listed
  ino        INTEGER PRIMARY KEY,          -- the inode number, also after a rename
  path       TEXT NOT NULL UNIQUE,         -- where it is now
  state      TEXT NOT NULL CHECK (state IN (
               'closed',                   -- to be uploaded
               'stored')),                 -- uploaded, not yet seen in a listing
  generation INTEGER NOT NULL,
  uploaded   INTEGER NOT NULL,             -- 1: an upload under this path has begun since base was listed
  base       TEXT,                         -- JSON entry under this path before our upload; NULL: none
  stored_ns  INTEGER,                      -- the store's clock at our last upload; NULL: not known
  backing    TEXT NOT NULL,                -- name of the backing file in the cache directory
  size       INTEGER NOT NULL,             -- bytes; what the backing file has beyond is a draft's
  source     TEXT,                         -- JSON entry that absent ranges are fetched from; NULL: all is local
  etag       TEXT,                         -- the source's ETag, if a reply has told it
  remote_end INTEGER NOT NULL,             -- bytes beyond this are local (0 if source is NULL)
  present    TEXT NOT NULL                 -- JSON list of [start, end) below remote_end that the backing file holds
);
CREATE TABLE IF NOT EXISTS draft (         -- bytes written since the last close; the names as in file
  ino        INTEGER NOT NULL,
  path       TEXT NOT NULL,
  generation INTEGER NOT NULL,
  uploaded   INTEGER NOT NULL,
  base       TEXT,
  since_ns   INTEGER NOT NULL,             -- when it was first written to
  kept       INTEGER NOT NULL,             -- 1: of a daemon that died, and its name has the closed state again
  backing    TEXT NOT NULL,                -- the same as the closed state's while bytes were only appended to that
  size       INTEGER NOT NULL,             -- when the row was made; the backing file has the true one
  source     TEXT,
  etag       TEXT,
  remote_end INTEGER NOT NULL,
  present    TEXT NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS live_draft ON draft (ino) WHERE NOT kept;
CREATE TABLE IF NOT EXISTS folder (        -- folders made here that the service does not have (it has no mkdir)
  path       TEXT PRIMARY KEY
);
CREATE TABLE IF NOT EXISTS gone (          -- names removed here: a delete to be sent, or a listing still to catch up
  path       TEXT PRIMARY KEY,
  entry      TEXT,                         -- JSON entry that was removed; NULL: whatever is stored there
  is_dir     INTEGER NOT NULL,
  below      TEXT NOT NULL,                -- JSON list of the entries under a removed folder
  after      TEXT NOT NULL,                -- JSON list of inode numbers to be stored first (rename)
  done       INTEGER NOT NULL              -- 1: the service has acknowledged the delete
);
CREATE TABLE IF NOT EXISTS launch (        -- launches whose outcome is not known yet, and those made with a key
  id         INTEGER PRIMARY KEY,
  request    TEXT NOT NULL,                -- JSON [cpu, ram, script, folder, nopre, mesh]
  token      TEXT,                         -- the `key=` it was asked for with; NULL: none
  known      TEXT NOT NULL,                -- JSON list of the runs there were before the POST
  run        INTEGER                       -- the run it started; NULL: the POST may or may not have arrived
);
CREATE TABLE IF NOT EXISTS attr (          -- attributes the service has no place for
  path       TEXT PRIMARY KEY,
  ino INTEGER, perm INTEGER, uid INTEGER, gid INTEGER, mtime_ns INTEGER, atime_ns INTEGER, -- NULL: the default
  version    TEXT                          -- JSON [id, size, mtime_ns] the times belong to; NULL: any
);
"""


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """One row of `launch`; see the schema."""

    id: int
    request: LaunchRequest
    token: str | None
    known: frozenset[int]
    run: int | None


def count_pending(path: Path) -> int:
    """How many files wait for their upload in the journal at `path`, which another mount may have open."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            return int(db.execute("SELECT count(*) FROM file WHERE state <> 'stored'").fetchone()[0])
    except sqlite3.Error:
        return 0


def read_drafts(path: Path) -> list[DraftRow]:
    """The drafts in the journal at `path`, which another mount may have open. Raises MountError."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            return _drafts(db)
    except sqlite3.Error as error:
        raise MountError(f"{path}: the journal cannot be read: {error}") from None


def _drafts(db: sqlite3.Connection) -> list[DraftRow]:
    return [
        DraftRow(ino, path, generation, bool(uploaded), unpack(base), since, bool(kept), unpack_bytes(*held))
        for ino, path, generation, uploaded, base, since, kept, *held in db.execute(
            "SELECT * FROM draft ORDER BY rowid"
        )
    ]


class Journal:
    """Open (and create, 0600) the journal at `path`. Raises MountError if it cannot be used."""

    def __init__(self, path: Path) -> None:
        self.lock = threading.Lock()  # protects _db
        self._local = threading.local()  # this thread's open transaction, and what follows it
        try:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            # A commit is in the kernel's hands when it returns: it survives our death. fsync() asks for more.
            self._db.execute("PRAGMA synchronous=NORMAL")
            found = self._db.execute("PRAGMA user_version").fetchone()[0]
            if found not in (0, SCHEMA_VERSION):
                raise MountError(f"{path}: written by another version of cloudsimfs (schema {found})")
            self._db.executescript(SCHEMA)
            self._db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        except (sqlite3.Error, OSError) as error:
            raise MountError(f"{path}: the journal cannot be opened: {error}") from error

    def close(self) -> None:
        with self.lock:
            self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing of what this thread saves inside, and of what it has said in `if_undone`; nests.

        Statements are collected and run at the end, so that the lock, the last in the order, is not held while the
        caller takes others.
        """
        outer: list[tuple[str, tuple[Any, ...]]] | None = getattr(self._local, "batch", None)
        if outer is not None:
            yield
            return
        batch: list[tuple[str, tuple[Any, ...]]] = []
        afterwards: list[Callable[[], object]] = []
        undo: list[Callable[[], object]] = []
        self._local.batch, self._local.afterwards, self._local.undo = batch, afterwards, undo
        try:
            try:
                yield
            finally:
                self._local.batch = None
            self._commit(batch)
        except BaseException:
            for act in reversed(undo):
                act()
            raise
        for act in afterwards:
            act()

    def _commit(self, batch: list[tuple[str, tuple[Any, ...]]]) -> None:
        with self._database() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                for sql, values in batch:
                    db.execute(sql, values)
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    def if_undone(self, act: Callable[[], object]) -> None:
        """Call `act` if the transaction this thread is in comes to nothing, the last one first; it must not fail."""
        if getattr(self._local, "batch", None) is not None:
            self._local.undo.append(act)

    def after_commit(self, act: Callable[[], object]) -> None:
        """Call `act` when what this thread has saved is committed: what cannot be undone comes last."""
        if getattr(self._local, "batch", None) is None:
            act()
        else:
            self._local.afterwards.append(act)

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """The connection, locked. Raises NoSpace, or FsError for what else SQLite cannot do."""
        with self.lock:
            try:
                yield self._db
            except sqlite3.Error as error:
                # the module's own errors, as of a closed database, have no code
                if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                    raise NoSpace(f"the journal cannot be written: {error}") from error
                raise FsError(f"the journal cannot be written: {error}") from error

    def sync(self) -> None:
        """fsync what was committed so far (step 4)."""
        with self._database() as db:
            db.execute("PRAGMA synchronous=FULL")
            try:
                # a commit that changes the file is what makes SQLite fsync its log
                db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            finally:
                db.execute("PRAGMA synchronous=NORMAL")

    def _run(self, sql: str, *values: Any) -> None:
        batch = getattr(self._local, "batch", None)
        if batch is not None:
            batch.append((sql, values))
            return
        with self._database() as db:
            db.execute(sql, values)

    # -- files ----------------------------------------------------------------------------------------

    def save_file(self, row: FileRow) -> None:
        """A closed state: it takes the place of the last one and of what was written since."""
        with self.transaction():
            # a rename over another unsaved file replaces that one's row
            self._run("DELETE FROM file WHERE path = ? AND ino <> ?", row.path, row.ino)
            self._run("DELETE FROM draft WHERE ino = ? AND NOT kept", row.ino)
            self._run(
                "INSERT OR REPLACE INTO file VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
                row.ino,
                row.path,
                row.state,
                row.generation,
                row.uploaded,
                pack(row.base),
                row.stored_ns,
                *pack_bytes(row.bytes),
            )

    def save_draft(self, row: DraftRow, *, closed: bool) -> None:
        """What is being written. `closed`: the file's row stays; else its bytes are no more."""
        with self.transaction():
            self._run("DELETE FROM draft WHERE ino = ? AND NOT kept", row.ino)
            if not closed:
                self._run("DELETE FROM file WHERE ino = ?", row.ino)
            self._run(
                "INSERT INTO draft VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
                row.ino,
                row.path,
                row.generation,
                row.uploaded,
                pack(row.base),
                row.since_ns,
                row.kept,
                *pack_bytes(row.bytes),
            )

    def move_file(self, ino: int, path: str, base: Entry | None, *, uploaded: bool) -> None:
        """A closed state has a new name, under which it is to be uploaded."""
        with self.transaction():
            self._run("DELETE FROM file WHERE path = ? AND ino <> ?", path, ino)
            self._run(
                "UPDATE file SET path = ?, state = 'closed', base = ?, uploaded = ?, stored_ns = NULL WHERE ino = ?",
                path,
                pack(base),
                uploaded,
                ino,
            )

    def mark_uploaded(self, ino: int) -> None:
        self._run("UPDATE file SET uploaded = 1 WHERE ino = ?", ino)

    def drop_file(self, ino: int) -> None:
        """Nothing of the file is only here any more, or shall be."""
        with self.transaction():
            self._run("DELETE FROM file WHERE ino = ?", ino)
            self._run("DELETE FROM draft WHERE ino = ? AND NOT kept", ino)

    def files(self) -> list[FileRow]:
        with self.lock:
            rows = self._db.execute("SELECT * FROM file ORDER BY rowid").fetchall()
        return [
            FileRow(ino, path, state, generation, bool(uploaded), unpack(base), stored_ns, unpack_bytes(*held))
            for ino, path, state, generation, uploaded, base, stored_ns, *held in rows
        ]

    def drafts(self) -> list[DraftRow]:
        with self.lock:
            return _drafts(self._db)

    def keep_draft(self, ino: int, held: Bytes) -> None:
        """The daemon that wrote it died. `held`: where its bytes are from now on."""
        self._run(
            "UPDATE draft SET kept = 1, backing = ?, size = ?, source = ?, etag = ?, remote_end = ?, present = ? "
            "WHERE ino = ? AND NOT kept",
            *pack_bytes(held),
            ino,
        )

    def drop_draft(self, ino: int) -> None:
        self._run("DELETE FROM draft WHERE ino = ? AND NOT kept", ino)

    def drop_kept(self, backing: str) -> None:
        self._run("DELETE FROM draft WHERE backing = ? AND kept", backing)

    # -- folders and tombstones -----------------------------------------------------------------------

    def save_folder(self, path: str) -> None:
        self._run("INSERT OR REPLACE INTO folder VALUES (?)", path)

    def drop_folder(self, path: str) -> None:
        self._run("DELETE FROM folder WHERE path = ?", path)

    def folders(self) -> list[str]:
        with self.lock:
            return [row[0] for row in self._db.execute("SELECT path FROM folder ORDER BY path")]

    def save_gone(self, row: GoneRow) -> None:
        self._run(
            "INSERT OR REPLACE INTO gone VALUES (?,?,?,?,?,?)",
            row.path,
            pack(row.entry),
            row.is_dir,
            json.dumps([pack(entry) for entry in row.below]),
            json.dumps(row.after),
            row.done,
        )

    def drop_gone(self, path: str) -> None:
        self._run("DELETE FROM gone WHERE path = ?", path)

    def gone(self) -> list[GoneRow]:
        with self.lock:
            rows = self._db.execute("SELECT * FROM gone ORDER BY rowid").fetchall()
        return [
            GoneRow(
                path=path,
                entry=unpack(entry),
                is_dir=bool(is_dir),
                below=tuple(found for item in json.loads(below) if (found := unpack(item)) is not None),
                after=tuple(json.loads(after)),
                done=bool(done),
            )
            for path, entry, is_dir, below, after, done in rows
        ]

    # -- launches -------------------------------------------------------------------------------------

    def intend_launch(self, request: LaunchRequest, token: str | None, known: Iterable[int]) -> int:
        """Record, as fsync does, that a launch is about to be sent. Returns the row's id."""
        text = json.dumps(astuple(request))
        with self._database() as db:
            cursor = db.execute(
                "INSERT INTO launch (request, token, known) VALUES (?,?,?)", (text, token, json.dumps(list(known)))
            )
            row = cursor.lastrowid
        self.sync()
        assert row is not None
        return row

    def resolve_launch(self, row: int, run: int) -> None:
        """The launch started this run. Kept if it had a token, which must never launch again."""
        with self.transaction():
            self._run("UPDATE launch SET run = ? WHERE id = ?", run, row)
            self._run("DELETE FROM launch WHERE id = ? AND token IS NULL", row)

    def drop_launch(self, row: int) -> None:
        """The launch started nothing."""
        self._run("DELETE FROM launch WHERE id = ?", row)

    def launches(self) -> list[LaunchRow]:
        with self.lock:
            rows = self._db.execute("SELECT id, request, token, known, run FROM launch ORDER BY id").fetchall()
        return [
            LaunchRow(row, LaunchRequest(*json.loads(request)), token, frozenset(json.loads(known)), run)
            for row, request, token, known, run in rows
        ]

    # -- attributes -----------------------------------------------------------------------------------

    def save_attr(self, path: str, attr: LocalAttr) -> None:
        version = None if attr.version is None else json.dumps(attr.version)
        self._run(
            "INSERT OR REPLACE INTO attr VALUES (?,?,?,?,?,?,?,?)",
            path,
            attr.ino,
            attr.perm,
            attr.uid,
            attr.gid,
            attr.mtime_ns,
            attr.atime_ns,
            version,
        )

    def drop_attr(self, path: str) -> None:
        self._run("DELETE FROM attr WHERE path = ?", path)

    def attrs(self) -> dict[str, LocalAttr]:
        with self.lock:
            rows = self._db.execute("SELECT * FROM attr").fetchall()
        return {
            path: LocalAttr(ino, perm, uid, gid, mtime_ns, atime_ns, unpack_version(version))
            for path, ino, perm, uid, gid, mtime_ns, atime_ns, version in rows
        }
