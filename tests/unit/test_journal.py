"""The journal by itself: transactions, what each row keeps, what a kill or a full disk leaves, what 0.1.0 wrote."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cloudsimfs.datacache.state import ContentState
from cloudsimfs.errors import FsError, MountError, NoSpace
from cloudsimfs.inode import Base, LocalAttr, Sent
from cloudsimfs.journal.database import Database, rows_of
from cloudsimfs.journal.journal import Journal
from cloudsimfs.journal.rows import DraftRow, FileRow, Kept, TombstoneRow
from cloudsimfs.journal.schema import SCHEMA, SCHEMA_VERSION
from cloudsimfs.service.model import Entry, LaunchRequest
from harness import ROOT, mode_of, need

TABLE = "CREATE TABLE IF NOT EXISTS t (word TEXT PRIMARY KEY)"
WORDS = "SELECT word FROM t ORDER BY rowid"
DUMP = Path(__file__).with_name("journal-0.1.0.sql")


# -- transactions ------------------------------------------------------------------------------------------------


class Told:
    """A database of words, and what was called in which order, with the words committed by then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.db = Database(path, TABLE, 1)
        self.calls: list[tuple[str, list[str]]] = []

    def words(self) -> list[str]:
        """Those committed, as another process sees them."""
        return [word for (word,) in rows_of(self.path, WORDS)]

    def add(self, word: str) -> None:
        self.db.run("INSERT INTO t VALUES (?)", word)

    def on_commit(self, name: str) -> None:
        self.db.on_commit(lambda: self.calls.append((name, self.words())))

    def on_rollback(self, name: str) -> None:
        self.db.on_rollback(lambda: self.calls.append((name, self.words())))


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    made = Told(tmp_path / "db")
    yield made
    made.db.close()


def fail() -> None:
    raise ValueError("as any error of the caller's")


def alone(told: Told) -> None:
    told.add("a")
    told.on_commit("committed")
    told.on_rollback("rolled back")


def one_block(told: Told) -> None:
    with told.db.transaction():
        told.add("a")
        told.on_commit("first")
        told.on_rollback("rolled back")
        told.on_commit("second")
        told.add("b")
        assert told.words() == [], "nothing before the end"


def nested(told: Told) -> None:
    with told.db.transaction():
        told.add("a")
        with told.db.transaction():
            told.add("b")
            told.on_commit("inner")
        assert told.words() == [], "the outermost block decides"
        told.on_commit("outer")


def failure_at_the_end(told: Told) -> None:
    with told.db.transaction():
        told.add("a")
        for name in ("first", "second", "third"):
            told.on_rollback(name)
        told.on_commit("committed")
        fail()


def failure_in_a_nested_block(told: Told) -> None:
    with told.db.transaction():
        told.add("a")
        told.on_rollback("outer")
        with told.db.transaction():
            told.add("b")
            told.on_rollback("inner")
            told.on_commit("committed")
            fail()


def failure_after_a_nested_block(told: Told) -> None:
    with told.db.transaction():
        told.on_rollback("outer")
        with told.db.transaction():
            told.add("a")
            told.on_rollback("inner")
            told.on_commit("committed")
        fail()


def failure_that_the_outer_block_survives(told: Told) -> None:
    with told.db.transaction():
        with contextlib.suppress(ValueError), told.db.transaction():
            told.add("a")
            told.on_rollback("rolled back")
            told.on_commit("inner")
            fail()
        told.add("b")


def failure_of_a_statement(told: Told) -> None:
    """Two words alike: only the end of the block can tell."""
    with told.db.transaction():
        told.on_rollback("first")
        told.on_rollback("second")
        told.on_commit("committed")
        for word in ("a", "b", "a"):
            told.add(word)


def a_block_after_a_failure(told: Told) -> None:
    with contextlib.suppress(ValueError):
        failure_at_the_end(told)
    told.calls.clear()
    with told.db.transaction():
        told.add("b")
        told.on_commit("committed")


def another_threads(told: Told) -> None:
    """A block is its thread's own."""
    with told.db.transaction():
        told.add("a")
        thread = threading.Thread(target=told.add, args=("other",))
        thread.start()
        thread.join()
        assert told.words() == ["other"]


def an_insert(told: Told) -> None:
    """It cannot wait for the end: its number is wanted."""
    with contextlib.suppress(ValueError), told.db.transaction():
        assert told.db.insert("INSERT INTO t VALUES ('a')") == 1
        fail()


Case = tuple[Callable[[Told], None], type[Exception] | None, list[str], list[tuple[str, list[str]]]]
CASES: list[Case] = [  # what is done, what it raises, the words there are then, and the calls with the words at each
    (alone, None, ["a"], [("committed", ["a"])]),
    (one_block, None, ["a", "b"], [("first", ["a", "b"]), ("second", ["a", "b"])]),
    (nested, None, ["a", "b"], [("inner", ["a", "b"]), ("outer", ["a", "b"])]),
    (failure_at_the_end, ValueError, [], [("third", []), ("second", []), ("first", [])]),
    (failure_in_a_nested_block, ValueError, [], [("inner", []), ("outer", [])]),
    (failure_after_a_nested_block, ValueError, [], [("inner", []), ("outer", [])]),
    (failure_that_the_outer_block_survives, None, ["a", "b"], [("inner", ["a", "b"])]),
    (failure_of_a_statement, FsError, [], [("second", []), ("first", [])]),
    (a_block_after_a_failure, None, ["b"], [("committed", ["b"])]),
    (another_threads, None, ["other", "a"], []),
    (an_insert, None, ["a"], []),
]


@pytest.mark.parametrize(("act", "error", "words", "calls"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_transactions(
    told: Told,
    act: Callable[[Told], None],
    error: type[Exception] | None,
    words: list[str],
    calls: list[tuple[str, list[str]]],
) -> None:
    with pytest.raises(error) if error is not None else contextlib.nullcontext():
        act(told)
    assert told.words() == words
    assert told.calls == calls


# -- what a kill leaves ------------------------------------------------------------------------------------------

KILL_POINTS: dict[str, list[str]] = {  # the words there are after a SIGKILL at each
    "in the block": [],
    "after the nested block": [],
    "in the callback": ["a", "b"],
    "after the block": ["a", "b"],
}
TO_BE_KILLED = """
import os, signal, sys
from pathlib import Path
from cloudsimfs.journal.database import Database
def reach(point):
    if point == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
db = Database(Path(sys.argv[1]), sys.argv[3], 1)
with db.transaction():
    db.run("INSERT INTO t VALUES ('a')")
    reach("in the block")
    with db.transaction():
        db.run("INSERT INTO t VALUES ('b')")
    reach("after the nested block")
    db.on_commit(lambda: reach("in the callback"))
reach("after the block")
"""


@pytest.mark.parametrize("point", KILL_POINTS)
def test_a_kill_leaves_all_or_nothing(tmp_path: Path, point: str) -> None:
    command = [sys.executable, "-c", TO_BE_KILLED, str(tmp_path / "db"), point, TABLE]
    done = subprocess.run(command, cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    db = Database(tmp_path / "db", TABLE, 1)
    assert [word for (word,) in db.rows(WORDS)] == KILL_POINTS[point]
    db.close()


TO_BE_TRACED = """
import os, sys
from pathlib import Path
from cloudsimfs.journal.journal import Journal
journal = Journal(Path(sys.argv[1]))
journal.save_folder("a")  # has SQLite sync the header of a new log
os.write(1, b"opened\\n")
journal.save_folder("b")
os.write(1, b"committed\\n")
journal.sync()
os.write(1, b"synced\\n")
os._exit(0)
"""


def test_sync_has_the_log_written(tmp_path: Path) -> None:
    """By the kernel's own account: a commit syncs nothing, `sync` the log of SQLite that the commit went to."""
    trace = tmp_path / "trace"
    strace = [need("strace"), "-f", "-y", "-e", "trace=fsync,fdatasync,write", "-o", str(trace)]
    command = [*strace, sys.executable, "-c", TO_BE_TRACED, str(tmp_path / "journal.db")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if "PTRACE" in done.stderr:
        pytest.skip("strace may not trace here")
    _, _, rest = trace.read_text().partition('"opened\\n"')
    commit, _, rest = rest.partition('"committed\\n"')
    sync, _, _ = rest.partition('"synced\\n"')
    assert "sync(" not in commit
    assert "journal.db-wal" in sync


# -- failures ----------------------------------------------------------------------------------------------------


def test_a_closed_journal_is_an_error_of_ours(tmp_path: Path) -> None:
    """What ends late at an unmount must not die of an AttributeError."""
    journal = Journal(tmp_path / "journal.db")
    journal.close()
    with pytest.raises(FsError):
        journal.drop_folder("d")


def test_a_full_disk_is_told_apart(told: Told) -> None:
    told.db.run("PRAGMA max_page_count = 1")  # no less than there are

    def fill_it() -> None:
        with told.db.transaction():
            told.add("a")
            told.add("x" * 100_000)

    with pytest.raises(NoSpace):
        fill_it()
    assert told.words() == []


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        journal = Journal(tmp_path / "journal.db")
    finally:
        os.umask(before)
    journal.save_folder("d")
    assert {mode_of(file) for file in tmp_path.glob("journal.db*")} == {0o600}
    journal.close()


def test_one_of_another_schema_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    Database(path, TABLE, SCHEMA_VERSION + 1).close()
    with pytest.raises(MountError, match="written by another version"):
        Journal(path)
    assert rows_of(path, "SELECT name FROM sqlite_master WHERE type = 'table'") == [("t",)]


# -- rows --------------------------------------------------------------------------------------------------------

ENTRY = Entry(17, "d", "f", is_dir=False, size=5, mtime_ns=1_600_000_000_000_000_000)
UNSIZED = Entry(18, "d", "ü 'f\"", is_dir=False, sized=False)
FOLDER = Entry(0, "", "d", is_dir=True)
LOCAL = ContentState("local", 7, None, None, 0, ())
PARTLY = ContentState("partly", 9_000_000_000, ENTRY, '"etag"', 5, ((0, 2), (3, 5)))
FILES = [
    FileRow(1, "d/f", "closed", 3, True, ENTRY, None, PARTLY),
    FileRow(2, "new", "stored", 1, False, None, 1_600_000_000_000_000_001, LOCAL),
    FileRow(3, "d/ü 'f\"", "closed", 1, False, UNSIZED, None, LOCAL),
]
DRAFTS = [
    DraftRow(1, "d/f", 4, True, ENTRY, 5, Kept.NO, PARTLY),
    DraftRow(4, "kept", 1, False, None, 6, Kept.DRAFT, LOCAL),
]
TOMBSTONES = [
    TombstoneRow("gone", ENTRY, False, (), (1, 2), False),
    TombstoneRow("unknown", None, False, (), (), True),
    TombstoneRow("folder", FOLDER, True, (ENTRY, UNSIZED), (), False),
]
REQUEST = LaunchRequest("8", "highcore", "heat2d-1.0", "case", 1, "mesh")
PLAIN = LaunchRequest("2", "standard", "heat2d-1.0", "case", None, None)
ATTRS = {
    "all": LocalAttr(9, 0o640, 1, 2, 3, 4, ENTRY.fingerprint),
    "none": LocalAttr(),
    "some": LocalAttr(ino=10, mtime_ns=5),
}


def fill(journal: Journal) -> None:
    """Rows of each kind."""
    for file in FILES:
        journal.save_file(file)
    for draft in DRAFTS:
        journal.save_draft(draft, closed=True)
    for path in ("made", "made/deeper"):
        journal.save_folder(path)
    for tombstone in TOMBSTONES:
        journal.save_tombstone(tombstone)
    for path, attr in ATTRS.items():
        journal.save_attr(path, attr)
    journal.begin_handover("id", "/target")
    journal.save_adopted("another")


def check_filled(journal: Journal) -> None:
    assert journal.files() == FILES
    assert journal.drafts() == DRAFTS
    assert journal.folders() == ["made", "made/deeper"]
    assert journal.tombstones() == TOMBSTONES
    assert journal.attrs() == ATTRS
    assert journal.handovers() == [("id", "/target")]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path / "journal.db")
    yield made
    made.close()


def test_each_kind_of_row_is_read_as_it_was_saved(tmp_path: Path) -> None:
    first = Journal(tmp_path / "journal.db")
    assert first.is_empty()
    fill(first)
    first.close()
    again = Journal(tmp_path / "journal.db")
    check_filled(again)
    assert not again.is_empty()
    again.clear()
    assert again.is_empty()
    again.close()
    assert rows_of(tmp_path / "journal.db", "SELECT id FROM adopted") == [("another",)], "what was taken in stays so"


def test_a_journal_of_0_1_0_is_read(tmp_path: Path) -> None:
    """Who changes a row's meaning or the schema changes SCHEMA_VERSION, and says here how the old one is read."""
    path = tmp_path / "journal.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(DUMP.read_text())
    journal = Journal(path)
    check_filled(journal)
    journal.close()


def test_the_schema_has_that_of_0_1_0() -> None:
    """What `IF NOT EXISTS` would hide: an old table with other columns than a new one."""

    def columns(script: str) -> dict[str, list[tuple[object, ...]]]:
        with contextlib.closing(sqlite3.connect(":memory:")) as connection:
            connection.executescript(script)
            tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return {table: connection.execute(f"PRAGMA table_info({table})").fetchall() for table in tables}

    now, then = columns(SCHEMA), columns(DUMP.read_text())
    assert {table: now[table] for table in then} == then


# -- one row in the place of another -------------------------------------------------------------------------------


def test_a_close_takes_the_place_of_what_was_there(journal: Journal) -> None:
    """Of the file's last state, of its draft, and of another file's state under the path; a kept draft stays."""
    journal.save_file(replace(FILES[0], ino=5, path="target"))
    for row in DRAFTS:
        journal.save_draft(replace(row, ino=1), closed=True)
    closed = replace(FILES[0], path="target", generation=4)
    journal.save_file(closed)
    assert journal.files() == [closed]
    assert journal.drafts() == [replace(DRAFTS[1], ino=1)]


@pytest.mark.parametrize("closed", [True, False])
def test_a_draft_leaves_the_closed_state_only_if_that_is_whole(journal: Journal, closed: bool) -> None:
    journal.save_file(FILES[0])
    journal.save_draft(DRAFTS[0], closed=closed)
    assert journal.files() == ([FILES[0]] if closed else [])
    assert journal.drafts() == [DRAFTS[0]]


def test_a_moved_file_is_to_be_uploaded_under_its_new_name(journal: Journal) -> None:
    journal.save_file(FILES[1])
    journal.save_file(FILES[0])
    sent = (Sent(0, 7, answered=True), Sent(0, 9))
    journal.move_file(2, "d/f", Base(ENTRY, uploaded=True, stored_ns=5, sent=sent))
    assert journal.files() == [
        replace(FILES[1], path="d/f", state="closed", base=ENTRY, uploaded=True, stored_ns=5, sent=sent)
    ]


def test_what_was_sent_of_a_file_is_kept_as_long_as_its_row(journal: Journal) -> None:
    for row in FILES:
        journal.save_file(row)
    sent = (Sent(1, 7, answered=True), Sent(2, 9))
    journal.mark_uploaded(FILES[0].ino, sent)
    marked = replace(FILES[0], uploaded=True, sent=sent)
    assert journal.files() == [marked, *FILES[1:]]
    journal.save_file(marked)
    assert marked in journal.files()
    journal.drop_file(marked.ino)
    journal.save_file(FILES[0])
    assert FILES[0] in journal.files()


SENT = (Sent(0, 9, answered=True), Sent(1, 0))


def test_what_a_removed_name_is_based_on_goes_with_its_row(journal: Journal) -> None:
    plain = TOMBSTONES[1]
    row = replace(plain, base=Base(UNSIZED, uploaded=True, stored_ns=7, sent=SENT))
    journal.save_tombstone(row)
    assert journal.tombstones() == [row]
    journal.save_tombstone(plain)
    assert journal.tombstones() == [plain]
    journal.save_tombstone(row)
    journal.drop_tombstone(row.path)
    journal.save_tombstone(plain)
    assert journal.tombstones() == [plain]


def test_what_a_draft_is_based_on_goes_with_its_row(journal: Journal) -> None:
    plain = DRAFTS[0]
    row = replace(plain, stored_ns=7, sent=SENT)
    journal.save_draft(row, closed=False)
    assert journal.drafts() == [row]
    journal.save_draft(replace(row, kept=Kept.DRAFT), closed=False)
    journal.save_draft(plain, closed=False)
    assert journal.drafts() == [replace(plain, kept=Kept.DRAFT), plain]
    journal.save_draft(row, closed=False)
    journal.drop_file(row.ino)
    journal.save_draft(plain, closed=False)
    assert journal.drafts() == [replace(plain, kept=Kept.DRAFT), plain]


def test_what_a_draft_is_based_on_does_not_stay_when_it_is_kept(journal: Journal) -> None:
    plain = DRAFTS[0]
    for following in (plain, replace(plain, stored_ns=8, sent=SENT)):
        journal.save_draft(replace(plain, stored_ns=7, sent=SENT), closed=False)
        journal.keep_draft(plain, plain.bytes)
        journal.save_draft(following, closed=False)
        assert journal.drafts()[-1] == following
