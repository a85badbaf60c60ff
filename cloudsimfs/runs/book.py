"""The launches of an account, on disk: what was asked for and which run came of it, so that none is repeated.

There is one book per service and key, in the state directory, whatever cache directory a mount or a command uses:
`launches.db`, and `launch.lock`, which is held by the process that launches. It is made by the first launch.

Threading: `_opening` protects the connection while it is opened; nothing but that is done under it.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path

from cloudsimfs.errors import MountError
from cloudsimfs.host.files import lock_file, make_private
from cloudsimfs.host.trust import seclude
from cloudsimfs.journal.database import Database
from cloudsimfs.journal.journal import Journal
from cloudsimfs.journal.rows import LaunchRow
from cloudsimfs.service import LaunchRequest

FILE, LOCK = "launches.db", "launch.lock"
MOST_UNNAMED = 1000  # launches without a key that are remembered, so that their runs are known as launched here
SCHEMA_VERSION = 1

SCHEMA = """
CREATE TABLE IF NOT EXISTS launch (
  id         INTEGER PRIMARY KEY,
  request    TEXT NOT NULL,                -- JSON [cpu, ram, script, folder, nopre, mesh]
  token      TEXT,                         -- the `key=` it was asked for with; NULL: none
  known      TEXT NOT NULL,                -- JSON list of the runs there were before the POST
  run        INTEGER,                      -- the run it started; NULL: none that is known of
  refused    TEXT,                         -- the service's refusal; NULL: it started a run, or nobody knows yet
  refused_at REAL NOT NULL DEFAULT 0       -- when, in wall seconds
);
"""


class LaunchBook:
    """The book in `directory`. If it cannot be used, MountError or FsError is raised, and nothing is launched."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._opening = threading.Lock()
        self._database: Database | None = None  # guarded by _opening

    def close(self) -> None:
        with self._opening:
            if self._database is not None:
                self._database.close()
                self._database = None

    @contextmanager
    def alone(self, *, wait: bool = True) -> Iterator[None]:
        """One launch at a time, of all the account's threads and processes. Raises MountError instead of a `wait`."""
        self._make()
        try:
            fd = lock_file(self._directory / LOCK, wait=wait)
        except BlockingIOError:
            raise MountError(f"{self._directory}: another process launches a run just now") from None
        try:
            yield
        finally:
            os.close(fd)

    # -- a launch's life ----------------------------------------------------------------------------------

    def intend(self, request: LaunchRequest, token: str | None, known: Iterable[int]) -> LaunchRow:
        """Record that a launch is about to be sent, so that it survives a power loss."""
        known = frozenset(known)
        database = self._open()
        row = database.insert(
            "INSERT INTO launch (request, token, known) VALUES (?,?,?)",
            json.dumps(astuple(request)),
            token,
            json.dumps(sorted(known)),
        )
        database.sync()
        return LaunchRow(row, request, token, known, None)

    def resolve(self, row: LaunchRow, run: int) -> None:
        """The launch started this run."""
        database = self._open()
        with database.transaction():
            database.run("UPDATE launch SET run = ?, refused = NULL, known = '[]' WHERE id = ?", run, row.id)
            database.run(
                "DELETE FROM launch WHERE token IS NULL AND run IS NOT NULL AND id <= "
                "(SELECT max(id) FROM launch) - ?",
                MOST_UNNAMED,
            )

    def refuse(self, row: LaunchRow, reason: str, at: float) -> None:
        """The service said no, `at` wall seconds. Before the same is sent again, the list of runs must confirm it."""
        self._open().run("UPDATE launch SET refused = ?, refused_at = ? WHERE id = ?", reason, at, row.id)

    def drop(self, row: LaunchRow) -> None:
        """The launch started nothing."""
        self._open().run("DELETE FROM launch WHERE id = ?", row.id)

    def rows(self) -> list[LaunchRow]:
        """All launches, the first first."""
        if not (self._directory / FILE).exists():
            return []
        rows = self._open().rows("SELECT id, request, token, known, run, refused, refused_at FROM launch ORDER BY id")
        return [
            LaunchRow(row, LaunchRequest(*json.loads(request)), token, frozenset(json.loads(known)), *outcome)
            for row, request, token, known, *outcome in rows
        ]

    # -- from other places ----------------------------------------------------------------------------------

    def take_over(self, rows: Iterable[LaunchRow]) -> None:
        """Record launches that another book had, or a journal of an older version; each of them once."""
        database = self._open()
        with database.transaction():
            for row in rows:
                values = (json.dumps(astuple(row.request)), row.token, row.run)
                database.run(
                    "INSERT INTO launch (request, token, known, run, refused, refused_at) SELECT ?,?,?,?,?,? "
                    "WHERE NOT EXISTS (SELECT 1 FROM launch WHERE request = ? AND token IS ? AND run IS ?)",
                    *values[:2],
                    json.dumps(sorted(row.known)),
                    row.run,
                    row.refused,
                    row.refused_at,
                    *values,
                )
        database.sync()

    def clear(self) -> None:
        """Forget everything: it belongs to another key now."""
        if (self._directory / FILE).exists():
            self._open().run("DELETE FROM launch")

    # -- the file -------------------------------------------------------------------------------------------

    def _make(self) -> None:
        try:
            make_private(self._directory)
            seclude(self._directory)
        except OSError as error:
            raise MountError(
                f"{self._directory}: launches are recorded there, and it cannot be made ({error.strerror or error}): "
                "nothing is launched; set XDG_STATE_HOME to a directory of yours"
            ) from None

    def _open(self) -> Database:
        with self._opening:
            if self._database is None:
                self._make()
                self._database = Database(self._directory / FILE, SCHEMA, SCHEMA_VERSION)
            return self._database


def take_from_journal(journal: Journal, book: LaunchBook) -> None:
    """Move the launches that an older version kept in the journal of a cache directory."""
    rows = journal.launches()
    if rows:
        book.take_over(rows)
        for row in rows:
            journal.drop_launch(row.id)
