"""The journal's SQLite file: one connection, and one transaction per thread. A commit survives our death; after
`sync` it survives a power loss, too.

Threading: `_lock` protects the connection. It is the Journal.lock of the lock orders, the last in each; calls are
short local I/O.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloudsimfs.errors import FsError, MountError, NoSpace
from cloudsimfs.host.sqlite import OtherVersion, open_database


@dataclass(slots=True)
class _Batch:
    """A thread's open transaction: its statements, and what to call after the commit or the rollback."""

    statements: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    afterwards: list[Callable[[], object]] = field(default_factory=list)
    undo: list[Callable[[], object]] = field(default_factory=list)


class Misfit(MountError):
    """The journal cannot be the one of the files beside it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path}: the journal does not fit the files beside it ({reason}); mount this account once: "
            "that sets the journal aside and keeps the files"
        )
        self.reason = reason


class Database:
    """Open (and create, 0600) the file at `path`.

    Raises Misfit if it is damaged, else MountError if it cannot be used.
    """

    def __init__(self, path: Path, schema: str, version: int) -> None:
        self._version = version
        self._lock = threading.Lock()
        self._local = threading.local()  # .batch: this thread's open transaction
        try:
            # A commit is in the kernel's hands when it returns: it survives our death. sync() asks for more.
            self._connection = open_database(path, schema, version, synchronous="NORMAL")
            check(self._connection)
        except OtherVersion as error:
            raise MountError(other_version(path, str(error))) from None
        except (sqlite3.Error, OSError) as error:
            _raise_damage(path, error)
            raise MountError(f"{path}: the journal cannot be opened: {error}") from error

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def rows(self, query: str) -> list[Any]:
        with self._lock:
            return self._connection.execute(query).fetchall()

    # -- writing: raises NoSpace, or FsError for what else SQLite cannot do ----------------------------------

    def run(self, sql: str, *values: Any) -> None:
        """Run a statement, or have the transaction run it at its end."""
        batch = self._batch
        if batch is not None:
            batch.statements.append((sql, values))
            return
        with self._writing() as connection:
            connection.execute(sql, values)

    def insert(self, sql: str, *values: Any) -> int:
        """Insert a row at once, outside of any transaction. Returns its id."""
        with self._writing() as connection:
            row = connection.execute(sql, values).lastrowid
        assert row is not None
        return row

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything this thread runs inside happens, or nothing does: `on_rollback` then takes back the rest. Nests.

        Statements are collected and run at the end, so that the lock, the last in the order, is not held while the
        caller takes others.
        """
        if self._batch is not None:
            yield
            return
        batch = self._local.batch = _Batch()
        try:
            try:
                yield
            finally:
                self._local.batch = None
            self._commit(batch)
        except BaseException:
            for act in reversed(batch.undo):
                act()
            raise
        for act in batch.afterwards:
            act()

    def on_rollback(self, act: Callable[[], object]) -> None:
        """Call `act` if this thread's transaction fails, the last `act` first. It must not fail itself."""
        batch = self._batch
        if batch is not None:
            batch.undo.append(act)

    def on_commit(self, act: Callable[[], object]) -> None:
        """Call `act` once this thread's transaction is committed; at once without one. For what cannot be undone."""
        batch = self._batch
        if batch is None:
            act()
        else:
            batch.afterwards.append(act)

    def sync(self) -> None:
        """fsync what was committed so far."""
        with self._writing() as connection:
            connection.execute("PRAGMA synchronous=FULL")
            try:
                # a commit that changes the file is what makes SQLite fsync its log
                connection.execute(f"PRAGMA user_version={self._version}")
            finally:
                connection.execute("PRAGMA synchronous=NORMAL")

    @property
    def _batch(self) -> _Batch | None:
        return getattr(self._local, "batch", None)

    def _commit(self, batch: _Batch) -> None:
        with self._writing() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                for sql, values in batch.statements:
                    connection.execute(sql, values)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._connection
            except sqlite3.Error as error:
                # the module's own errors, as of a closed database, have no code
                if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                    raise NoSpace(f"the journal cannot be written: {error}") from error
                raise FsError(f"the journal cannot be written: {error}") from error


def other_version(path: Path, found: str) -> str:
    """What to say of a journal with another schema."""
    return f"{path}: {found}: use that version of cloudsimfs again, or begin anew with another --cache-dir"


def check(connection: sqlite3.Connection) -> None:
    """Raises sqlite3.DatabaseError if the file is damaged."""
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        error = sqlite3.DatabaseError(found)
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error


def _raise_damage(path: Path, error: Exception) -> None:
    """Raises Misfit if the file itself is wrong: no database, or half of one. A full or failing disk is no damage."""
    if path.is_dir():
        raise Misfit(path, "it is a folder") from error
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    if code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        raise Misfit(path, f"it is damaged: {error}") from error


def first_row(path: Path, table: str, version: int) -> Any:
    """The first row of a table in the file at `path`, which another mount may have open; None if there is none.

    Raises Misfit if the file is damaged, empty or a folder, MountError if it has another schema or cannot be read.
    """
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            (found,) = connection.execute("PRAGMA user_version").fetchone()
            if found not in (0, version):
                raise MountError(other_version(path, str(OtherVersion(found))))
            check(connection)
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            if not tables:
                raise Misfit(path, "it is empty")
            return connection.execute(f"SELECT * FROM {table}").fetchone() if table in tables else None
    except sqlite3.Error as error:
        _raise_damage(path, error)
        raise MountError(f"{path}: the journal cannot be read: {error}") from None


def rows_of(path: Path, query: str) -> list[Any]:
    """The rows of a query in the file at `path`, which another mount may have open. Raises MountError."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            return connection.execute(query).fetchall()
    except sqlite3.Error as error:
        raise MountError(f"{path}: the journal cannot be read: {error}") from None
