"""Listings in pages of a folder that changes between them: no name that was there all the time may be lost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudsimfs.clock import ManualClock
from cloudsimfs.errors import BadReply
from cloudsimfs.service.model import Entry, Listed
from cloudsimfs.service.paging import LOOKING, PASSES, VERIFIED, Order, Page, Pager

KINDS = ("delete", "insert")


@dataclass(frozen=True, slots=True)
class Change:
    """Just before the call with this number (from 0): the entry at a place goes, or a new one comes before it."""

    call: int
    kind: str
    place: int


FOLDERS = itertools.count(1)


def make_pager() -> Pager:
    return Pager(ManualClock())


class Folder:
    """A folder that changes between the calls, and remembers which entries it had."""

    def __init__(self, count: int, page_size: int, changes: Sequence[Change] = ()) -> None:
        self.id = next(FOLDERS)
        self.entries = [_entry(number, float(number)) for number in range(count)]
        self.page_size = page_size
        self.changes = changes
        self.calls = 0
        self.ever = {entry.id for entry in self.entries}
        self.always = set(self.ever)
        self.reverse: Callable[[list[Entry]], list[Entry]] = lambda entries: entries[::-1]

    def page(self, order: Order, number: int) -> Page:
        for change in self.changes:
            if change.call == self.calls:
                self._apply(change)
        self.calls += 1
        entries = self.entries if order == "asc" else self.reverse(self.entries)
        part = entries[(number - 1) * self.page_size : number * self.page_size]
        return Page(len(part), part)

    def _apply(self, change: Change) -> None:
        place = min(change.place, len(self.entries))
        if change.kind == "delete":
            self.always -= {entry.id for entry in self.entries[place : place + 1]}
            del self.entries[place : place + 1]
            return
        below = float(self.entries[place - 1].name) if place else -1000.0
        above = float(self.entries[place].name) if place < len(self.entries) else below + 1000.0
        self.entries.insert(place, _entry(len(self.ever), (below + above) / 2))
        self.ever.add(len(self.ever) + 1)

    def listed(self, pager: Pager | None = None) -> Listed:
        listed = (pager or make_pager()).list_folder(self.id, self.page)
        ids = {entry.id for entry in listed.entries}
        assert ids <= self.ever
        assert not listed.complete or self.always <= ids, f"lost {self.always - ids}"
        return listed


def _entry(number: int, place: float) -> Entry:
    return Entry(number + 1, "d", repr(place), is_dir=False)


# -- what it costs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "calls"), [(0, 1), (1, 2), (9, 2), (10, 2), (11, 2), (19, 2), (20, 4), (29, 4), (30, 6), (100, 20)]
)
def test_calls_for_a_quiet_folder(count: int, calls: int) -> None:
    folder = Folder(count, 10)
    listed = folder.listed()
    assert listed.complete
    assert len(listed.entries) == count
    assert folder.calls == calls


# -- what is learnt of the length of pages ------------------------------------------------------------------------


@pytest.mark.parametrize("first", [9, 13, 25])
def test_a_page_shorter_than_another_is_the_last(first: int) -> None:
    """Also one that was the last itself: a page holds as many, at least."""
    pager = make_pager()
    Folder(first, 10).listed(pager)
    for count in (1, 2, 8, 0):
        folder = Folder(count, 10)
        assert len(folder.listed(pager).entries) == count
        assert folder.calls == 1
    full = Folder(10, 10)
    full.listed(pager)
    assert full.calls == 2, "there might be another page"


def test_a_longer_page_of_the_same_look_shows_how_long_pages_are() -> None:
    """Round lengths, and those that several folders have, are not looked behind then. A look may not be long ago."""
    clock = ManualClock()
    pager = Pager(clock)
    Folder(60, 50).listed(pager)

    def calls(count: int, since: float) -> int:
        folder = Folder(count, 50)
        assert len(pager.list_folder(folder.id, folder.page, since=since).entries) == count
        return folder.calls

    clock.advance(1)
    since = clock.monotonic()
    assert [calls(count, since) for count in (20, 15, 15, 10, 10, 20)] == [2, 1, 1, 1, 1, 1]
    clock.advance(1)
    assert [calls(count, clock.monotonic()) for count in (40, 30, 40)] == [2, 1, 1]
    clock.advance(VERIFIED + 1)
    assert calls(10, clock.monotonic()) == 2, "that was another look"


def test_what_an_earlier_mount_has_learnt() -> None:
    pager = make_pager()
    pager.size.recall(10)
    folder = Folder(9, 10)
    folder.listed(pager)
    assert folder.calls == 1
    assert pager.size.most == 10


@pytest.mark.parametrize("count", [20, 33])
def test_pages_that_have_a_round_length_now_lose_no_name(count: int) -> None:
    """Such a length is looked behind; once it was no page's, it is believed for a while."""
    clock = ManualClock()
    pager = Pager(clock)
    Folder(60, 50).listed(pager)
    for calls in (2, 1):
        (whole := Folder(10, 50)).listed(pager)
        assert whole.calls == calls
    clock.advance(VERIFIED + 1)
    folder = Folder(count, 10)
    assert len(folder.listed(pager).entries) == count
    assert pager.size.most == 10


@pytest.mark.parametrize("length", [3, 7, 49])
def test_a_length_that_two_folders_have_is_looked_behind(length: int) -> None:
    """Pages may have this length now. The first folder was believed; `shrunk_at` has it listed again."""
    clock = ManualClock()
    pager = Pager(clock)
    Folder(60, 50).listed(pager)
    cut = Folder(50, length)
    assert len(pager.list_folder(cut.id, cut.page).entries) == length
    clock.advance(1)
    other = Folder(50, length)
    assert len(other.listed(pager).entries) == 50
    assert pager.size.shrunk_at == clock.monotonic()
    assert len(cut.listed(pager).entries) == 50
    whole = [Folder(length - 1, length) for _ in range(10)]
    for folder in whole:
        folder.listed(pager)
    assert sum(folder.calls for folder in whole) == len(whole) + 1


def test_what_a_folder_is_known_to_have_is_looked_for_behind_its_page() -> None:
    pager = make_pager()
    Folder(60, 50).listed(pager)
    folder = Folder(30, 7)
    listed = pager.list_folder(folder.id, folder.page, lambda entries: len(entries) < 30)
    assert len(listed.entries) == 30


@pytest.mark.parametrize("learnt", [0, 10])
@pytest.mark.parametrize("repeated", [2, 3])
def test_repeated_pages_end_in_an_error(learnt: int, repeated: int) -> None:
    """A service that takes no notice of the number of a page would never end."""
    pager, folder = make_pager(), Folder(45, 10)
    pager.size.recall(learnt)

    def page(order: Order, number: int) -> Page:
        return folder.page(order, min(number, repeated - 1))

    with pytest.raises(BadReply, match="repeats"):
        pager.list_folder(folder.id, page)
    assert folder.calls <= repeated + 1
    assert len(Folder(45, 10).listed(pager).entries) == 45


@pytest.mark.parametrize("since", [0.0, math.inf])
@pytest.mark.parametrize("sizes", [(50, 10, 50), (10, 50, 7, 20), (50, 20, 10, 50, 20)])
def test_page_sizes_that_change_lose_no_name_of_a_known_folder(sizes: Sequence[int], since: float) -> None:
    """Whichever look it is, and whatever was learnt before."""
    clock = ManualClock()
    pager = Pager(clock)
    for size in sizes:
        for count in (60, 33, 33, 12, 5):
            folder = Folder(count, size)
            clock.advance(LOOKING + 1)

            def may_lack(seen: Sequence[Entry], count: int = count) -> bool:
                return len(seen) < count

            whole = pager.list_folder(folder.id, folder.page, may_lack, clock.monotonic() + since)
            assert len(whole.entries) == count


def test_pages_of_many_lengths_are_never_believed() -> None:
    pager = make_pager()
    folder = Folder(29, 5)
    chunks = [folder.entries[:4], folder.entries[4:11], folder.entries[11:14], folder.entries[14:]]
    pages = {("asc", number): Page(len(part), part) for number, part in enumerate(chunks, 1)}
    pages["desc", 1] = Page(2, folder.entries[:-3:-1])
    listed = pager.list_folder(folder.id, lambda order, number: pages.get((order, number), Page(0, [])))
    assert len(listed.entries) == 29
    (small := Folder(3, 5)).listed(pager)
    assert small.calls == 2


# -- changes between the pages --------------------------------------------------------------------------------


def _schedules(count: int, page_size: int, calls: int) -> Iterator[tuple[Change, Change]]:
    """Every two changes, each in front of any call and on any page. What shifts a page is which one has the place."""
    places = sorted({0, *range(page_size - 1, count + 1, page_size), *range(0, count + 1, page_size), count})
    single = [Change(call, kind, place) for call in range(calls) for kind in KINDS for place in places]
    return itertools.product(single, single)


@pytest.mark.parametrize(
    ("page_size", "pages"), [(1, 3), (1, 4), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (5, 1), (5, 2)]
)
def test_two_changes_anywhere_lose_no_name(page_size: int, pages: int) -> None:
    for count in {page_size * pages - 1, page_size * pages, page_size * pages + 1}:
        calls = 2 * pages + 1
        for changes in _schedules(count, page_size, calls):
            folder = Folder(count, page_size, changes)
            try:
                listed = folder.listed()
            except BadReply:  # others have put a page full before the boundary: nothing is said about any name
                assert page_size <= sum(change.kind == "insert" for change in changes)
                continue
            assert listed.complete, changes  # two passes may be spoilt: the third one is quiet


@settings(max_examples=2000, deadline=None)
@given(
    count=st.integers(0, 24),
    page_size=st.integers(1, 5),
    changes=st.lists(st.builds(Change, st.integers(0, 30), st.sampled_from(KINDS), st.integers(0, 25)), max_size=12),
)
def test_any_changes_lose_no_name(count: int, page_size: int, changes: list[Change]) -> None:
    try:
        Folder(count, page_size, changes).listed()
    except BadReply:
        assert sum(change.kind == "insert" for change in changes) >= page_size


def test_pages_that_are_the_same_again_by_changes_that_cancel_out() -> None:
    """A name comes and goes twice: page 2 is shifted both times it is read, and page 3 never."""
    kinds = {2: "insert", 3: "delete", 6: "insert", 7: "delete"}
    folder = Folder(8, 2, [Change(call, kind, 0) for call, kind in kinds.items()])
    assert folder.listed().complete  # by the second pass
    assert folder.calls > 8


def test_a_folder_that_never_rests_is_not_complete() -> None:
    changes = [Change(call, KINDS[call % 2], 0) for call in range(200)]
    folder = Folder(50, 5, changes)
    assert not folder.listed().complete
    assert folder.calls <= PASSES * 20


@pytest.mark.parametrize("mirrored", [True, False])
@pytest.mark.parametrize("count", [5, 6, 10, 15, 23, 25])
@pytest.mark.parametrize("call", range(1, 16))
def test_one_page_that_comes_empty_loses_no_name(count: int, call: int, mirrored: bool) -> None:
    """But the first one: of that, `listings.asking` asks again if the folder is known to hold names."""
    folder, pager = Folder(count, 5), make_pager()
    if not mirrored:
        folder.reverse = lambda entries: entries
        folder.listed(pager)
        folder.calls = 0

    def page(order: Order, number: int) -> Page:
        sent = folder.page(order, number)
        return Page(0, []) if folder.calls == call + 1 else sent

    listed = pager.list_folder(folder.id, page)
    assert listed.complete
    assert len(listed.entries) == count


# -- services that sort in another way ------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 5, 6, 10, 23])
@pytest.mark.parametrize("order", ["ignored", "folders first"])
def test_a_descending_order_that_is_no_mirror_loses_nothing(count: int, order: str) -> None:
    pager = make_pager()

    def make() -> Folder:
        folder = Folder(count, 5)
        folder.reverse = (lambda all_: all_) if order == "ignored" else (lambda all_: all_[:2][::-1] + all_[:1:-1])
        return folder

    first, second = make(), make()
    for folder in (first, second):
        listed = folder.listed(pager)
        assert listed.complete
        assert len(listed.entries) == count
    assert second.calls <= first.calls, "what the first listing has shown is not asked again"
