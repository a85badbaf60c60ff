"""What reading is made of, without a mount: ranges, read-ahead, the log of ranges."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudsimfs.datacache import rangelog
from cloudsimfs.datacache.rangelog import RangeLog
from cloudsimfs.prefetch.ranges import RangeSet
from cloudsimfs.prefetch.readahead import (
    MAX_AHEAD,
    START_AHEAD,
    START_SURE,
    WHOLE_FILE,
    Readahead,
    Window,
    cut,
    piece_size,
)
from cloudsimfs.service.model import Entry

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
REQUEST = 128 * KIB
ENTRY = Entry(7, "case", "log", is_dir=False, size=1000, mtime_ns=5)

spans = st.tuples(st.integers(0, 60), st.integers(0, 60))


@given(st.lists(st.tuples(st.booleans(), spans)), spans)
def test_ranges_are_what_a_set_of_offsets_is(
    steps: list[tuple[bool, tuple[int, int]]], asked: tuple[int, int]
) -> None:
    ranges, model = RangeSet(), set[int]()
    for adds, (start, end) in steps:
        if adds:
            ranges.add(start, end)
            model |= set(range(start, end))
        else:
            ranges.remove(start, end)
            model -= set(range(start, end))
        assert {at for held in ranges for at in range(*held)} == model
        assert all(before[1] < after[0] for before, after in pairwise(ranges))
    missing = {at for hole in ranges.missing(*asked) for at in range(*hole)}
    assert missing == set(range(*asked)) - model
    assert ranges.covers(*asked) == (not missing)
    assert bool(ranges) == bool(model)
    assert ranges.total == len(model)


# -- read-ahead ----------------------------------------------------------------------------------------------


def sequential(size: int, count: int) -> list[Window]:
    readahead = Readahead()
    return [readahead.plan(at, at + REQUEST, size) for at in range(0, count * REQUEST, REQUEST)]


def test_a_small_file_comes_whole() -> None:
    assert Readahead().plan(WHOLE_FILE - 10, WHOLE_FILE, WHOLE_FILE) == Window(0, WHOLE_FILE, WHOLE_FILE)
    assert Readahead().plan(0, 1, WHOLE_FILE + 1).end < WHOLE_FILE


def test_windows_of_a_sequential_reader_grow_and_are_bounded() -> None:
    windows = sequential(GIB, 4096)
    assert windows[0] == Window(0, REQUEST + START_AHEAD, 384 * KIB)
    for number, window in enumerate(windows, 1):
        read = number * REQUEST
        assert window.end - read <= max(read, min(2 * read, START_SURE), START_AHEAD)
        assert window.end - read <= MAX_AHEAD
    assert windows[-1].end == 4096 * REQUEST + MAX_AHEAD
    assert sequential(10 * MIB, 80)[-1].end == 10 * MIB


def test_requests_out_of_order_are_one_reader() -> None:
    offsets = list(range(0, 64 * MIB, REQUEST))
    dice = random.Random(1)
    for at in range(0, len(offsets), 3):
        part = offsets[at : at + 3]
        dice.shuffle(part)
        offsets[at : at + 3] = part
    readahead = Readahead()
    ends = [readahead.plan(at, at + REQUEST, GIB).end for at in offsets]
    assert ends[-1] > 90 * MIB


def test_two_readers_of_one_file_are_told_apart() -> None:
    readahead = Readahead()
    for at in range(0, 8 * MIB, REQUEST):
        first = readahead.plan(at, at + REQUEST, GIB)
        second = readahead.plan(512 * MIB + at, 512 * MIB + at + REQUEST, GIB)
    assert first.end == 16 * MIB, "who begins at the start likely wants all"
    assert 525 * MIB < second.end <= 526 * MIB


@pytest.mark.parametrize("length", [4 * KIB, 64 * KIB, 128 * KIB])
def test_random_reads_get_what_they_ask_for(length: int) -> None:
    readahead, dice = Readahead(), random.Random(2)
    asked = fetched = 0
    for _ in range(500):
        start = dice.randrange(4 * GIB - length) // 4096 * 4096
        window = readahead.plan(start, start + length, 4 * GIB)
        assert window.start <= start
        assert window.end >= start + length
        asked += max(length, 64 * KIB)
        fetched += window.end - window.start
    assert fetched <= 2 * asked


def test_a_window_is_looked_at_again_only_when_the_reader_has_moved() -> None:
    windows = sequential(GIB, 4096)
    assert windows[0].fresh
    fresh = [number for number, window in enumerate(windows) if window.fresh]
    assert len(fresh) < len(windows) / 4
    assert max(after - before for before, after in pairwise(fresh)) * REQUEST <= MIB


def test_a_strided_reader_is_not_read_ahead_of() -> None:
    readahead = Readahead()
    windows = [readahead.plan(at, at + 16 * KIB, GIB) for at in range(0, 64 * MIB, 200 * KIB)]
    assert max(window.end - window.start for window in windows[1:]) <= 128 * KIB


def test_the_tail_of_a_file_is_fetched_to_its_end() -> None:
    window = Readahead().plan(4 * GIB - 10, 4 * GIB, 4 * GIB)
    assert window == Window(4 * GIB - 64 * KIB, 4 * GIB, 64 * KIB)


def test_a_small_cache_bounds_the_window() -> None:
    readahead = Readahead(max_ahead=MIB)
    for at in range(0, 32 * MIB, REQUEST):
        assert readahead.plan(at, at + REQUEST, GIB).end <= at + REQUEST + MIB


@given(st.integers(0, 10**10), st.integers(1, 200 * MIB))
def test_pieces_cover_a_window(start: int, length: int) -> None:
    piece = piece_size(length)
    pieces = cut(start, start + length, piece)
    assert pieces[0][0] == start
    assert pieces[-1][1] == start + length
    assert all(before[1] == after[0] for before, after in pairwise(pieces))
    assert all(0 < end - first <= piece + piece // 4 for first, end in pieces)


# -- the log of ranges ---------------------------------------------------------------------------------------


def present(path: Path) -> list[tuple[int, int]]:
    record = rangelog.load(path)
    assert record is not None
    return list(record.present)


def test_a_log_says_what_was_added(tmp_path: Path) -> None:
    log = RangeLog(tmp_path / "log", ENTRY)
    log.add(0, 100, None)
    log.add(100, 200, '"tag"')
    log.add(500, 2000, '"tag"')
    log.close()
    record = rangelog.load(tmp_path / "log")
    assert record is not None
    assert record.version == ENTRY.fingerprint
    assert (list(record.present), record.end, record.etag) == ([(0, 200), (500, 1000)], 1000, '"tag"')


def test_a_cut_file_keeps_only_what_is_left(tmp_path: Path) -> None:
    log = RangeLog(tmp_path / "log", ENTRY)
    log.add(0, 900, None)
    log.cut(500)
    log.add(600, 700, None)  # beyond the cut these are local bytes
    log.close()
    record = rangelog.load(tmp_path / "log")
    assert record is not None
    assert (list(record.present), record.end) == ([(0, 500)], 500)


def test_what_was_evicted_is_not_there(tmp_path: Path) -> None:
    log = RangeLog(tmp_path / "log", ENTRY)
    log.add(0, 900, None)
    log.evicted([(100, 200)])
    log.add(300, 400, None)
    log.close()
    assert present(tmp_path / "log") == [(100, 200), (300, 400)]


@pytest.mark.parametrize("cut_off", range(1, 11))
def test_a_torn_last_line_is_ignored_and_mended(tmp_path: Path, cut_off: int) -> None:
    path = tmp_path / "log"
    log = RangeLog(path, ENTRY)
    log.add(0, 100, None)
    log.add(200, 800, None)
    log.close()
    path.write_bytes(path.read_bytes()[:-cut_off])
    record = rangelog.load(path)
    assert record is not None
    assert list(record.present) == [(0, 100)]
    log = RangeLog(path, ENTRY, record)
    log.add(300, 400, None)
    log.close()
    assert present(path) == [(0, 100), (300, 400)]


def test_after_a_crash_of_the_machine_only_what_was_sealed_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    log = RangeLog(path, ENTRY)
    log.add(0, 100, None)
    log.seal()
    log.add(200, 300, None)
    log.close()
    assert present(path) == [(0, 100), (200, 300)]
    monkeypatch.setattr(rangelog, "boot_id", lambda: "another")
    record = rangelog.load(path)
    assert record is not None
    assert list(record.present) == [(0, 100)]
    log = RangeLog(path, ENTRY, record)
    log.add(500, 600, None)
    log.close()
    assert present(path) == [(0, 100), (500, 600)]


@pytest.mark.parametrize("damage", [b"", b"{", b"[]\n", b"\0\n", b'{"version": 3, "boot": ""}\nr 0 9\n'])
def test_a_damaged_log_is_none(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "log").write_bytes(damage)
    assert rangelog.load(tmp_path / "log") is None
    assert rangelog.load(tmp_path / "absent") is None


def test_a_log_that_cannot_be_written_is_given_up(tmp_path: Path) -> None:
    log = RangeLog(tmp_path / "absent/log", ENTRY)
    log.add(0, 100, None)
    log.seal()
    log.close()
    assert not (tmp_path / "absent").exists()
