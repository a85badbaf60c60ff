"""The book of launches by itself: what it keeps, what an older journal hands over, what it refuses."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudsimfs.errors import CloudsimfsError, MountError
from cloudsimfs.journal.journal import Journal
from cloudsimfs.runs.book import FILE, MOST_UNNAMED, LaunchBook, take_from_journal
from cloudsimfs.service import LaunchRequest

DUMP = Path(__file__).with_name("journal-0.1.0.sql")
PLAIN = LaunchRequest("2", "standard", "heat2d-1.0", "case")
FULL = LaunchRequest("8", "highcore", "heat2d-1.0", "case", 1, "mesh")


@pytest.fixture
def book(tmp_path: Path) -> Iterator[LaunchBook]:
    with contextlib.closing(LaunchBook(tmp_path / "state")) as opened:
        yield opened


def test_looking_makes_no_file(book: LaunchBook, tmp_path: Path) -> None:
    assert book.rows() == []
    book.clear()
    assert not (tmp_path / "state").exists()


def test_what_it_keeps(book: LaunchBook, tmp_path: Path) -> None:
    lost = book.intend(PLAIN, None, [3, 1])
    book.resolve(book.intend(FULL, "key", []), 4711)
    book.refuse(book.intend(FULL, "other", [4711]), "no", 12.5)
    book.drop(book.intend(PLAIN, None, []))
    with contextlib.closing(LaunchBook(tmp_path / "state")) as again:
        first, second, third = again.rows()
    assert first == lost
    assert (first.request, first.token, first.known, first.run, first.refused) == (
        PLAIN,
        None,
        frozenset({1, 3}),
        None,
        None,
    )
    assert (second.request, second.token, second.run) == (FULL, "key", 4711)
    assert (third.token, third.known, third.run) == ("other", frozenset({4711}), None)
    assert (third.refused, third.refused_at) == ("no", 12.5)
    assert (tmp_path / "state" / FILE).stat().st_mode & 0o077 == 0


def test_launches_without_a_key_are_forgotten_in_the_end(book: LaunchBook) -> None:
    book.resolve(book.intend(PLAIN, "key", []), 1)
    lost = book.intend(PLAIN, None, [])
    for run in range(2, MOST_UNNAMED + 10):
        book.resolve(book.intend(PLAIN, None, []), run)
    rows = book.rows()
    assert len(rows) == MOST_UNNAMED + 2
    assert rows[0].token == "key"
    assert lost in rows, "nobody knows yet what became of it"


def test_an_older_journal_hands_its_launches_over(book: LaunchBook, tmp_path: Path) -> None:
    for name in ("journal.db", "again.db"):  # killed before the journal forgot them, say
        with contextlib.closing(sqlite3.connect(tmp_path / name)) as connection:
            connection.executescript(DUMP.read_text())
        with contextlib.closing(Journal(tmp_path / name)) as journal:
            take_from_journal(journal, book)
            assert journal.launches() == []
    found = [(row.request, row.token, row.known, row.run) for row in book.rows()]
    assert found == [(PLAIN, None, frozenset({1, 3}), None), (FULL, "key", frozenset(), 4711)]


def test_one_at_a_time(book: LaunchBook, tmp_path: Path) -> None:
    with (
        contextlib.closing(LaunchBook(tmp_path / "state")) as other,
        other.alone(),
        pytest.raises(MountError, match="another process launches"),
        book.alone(wait=False),
    ):
        pass


def test_a_book_that_cannot_be_read_launches_nothing(book: LaunchBook, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / FILE).write_bytes(b"garbage" * 1000)
    with pytest.raises(CloudsimfsError):
        book.intend(PLAIN, None, [])
    with pytest.raises(CloudsimfsError):
        book.rows()


def test_a_place_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    book = LaunchBook(tmp_path / "file/state")
    assert book.rows() == []
    with pytest.raises(MountError, match="XDG_STATE_HOME"), book.alone():
        pass
