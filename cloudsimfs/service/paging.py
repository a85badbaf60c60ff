"""Lists in pages, when the service does not say how many there are. The caller fetches the pages.

A list that others change while its pages are read can lose a name that was there all the time: a delete on an earlier
page pulls it over the boundary, from a page that is still to be read to one that was read already. `Pager` shows that
this has not happened, or says that it may have (docs/architecture.md, invariant 4b).

A folder that fits a page costs one call, once it is known how many entries a page holds (`PageSize`).
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cloudsimfs.clock import Clock
from cloudsimfs.errors import BadReply
from cloudsimfs.service.answers import MAX_ELEMENTS
from cloudsimfs.service.model import Entry, Listed, Simulation

MAX_PAGES = 20_000  # of one list; a service that sends more would never end
LISTING_TIME = 600.0  # seconds for all pages of a list that somebody waits for
PASSES = 3  # how often a folder is read whose pages change meanwhile

VERIFIED = 600.0  # seconds for which a length stays known to be no page's
LOOKING = 60.0  # seconds; a look behind a page of this length will tell: until then others are believed
LOOK_LENGTHS = 100  # of pages that were seen last
ROUND = 10  # entries; the lengths of pages are often multiples of this

LABEL = "GET /storage/index"
Order = Literal["asc", "desc"]
MayLack = Callable[[Sequence[Entry]], bool]  # whether a folder is known to have had names after these


@dataclass(frozen=True, slots=True)
class Page:
    """`sent` counts the entries as they came; some may have been refused, and are not in `entries`."""

    sent: int
    entries: list[Entry]


class PageSize:
    """How many entries a page holds, learnt from the pages themselves: a page with fewer is the last of its folder.

    The service may change it. Then a full page would be taken for a last one, and names be missing. So a page is
    looked behind, in spite of what was learnt, if

      * the folder is known to have had further names;
      * its length is round, or two folders have it: pages may have this length now. Once a folder of that length has
        proved to be whole, it is believed for VERIFIED seconds;
      * pages of several lengths were seen that were not the last: nothing is believed then.

    None of this within one look at many folders: a longer page of the same look shows what pages hold now.

    Thread-safe; `_lock` protects all.
    """

    def __init__(self, clock: Clock) -> None:
        self._lock = threading.Lock()
        self._most = 0  # entries that a page was seen to hold
        self._irregular = False
        self._shrinks = 0
        # By length, each with monotonic seconds until which that holds:
        self._believed: dict[int, tuple[int, float]] = {}  # the one folder that was not looked behind
        self._looking: dict[int, float] = {}  # a folder is being looked behind
        self._whole: dict[int, float] = {}  # one has proved to be whole
        # When a page was asked for (monotonic seconds), and its length; of two, the later one is the shorter.
        self._seen: deque[tuple[float, int]] = deque(maxlen=LOOK_LENGTHS)
        self._clock = clock
        # Monotonic seconds: when pages were found to hold fewer entries than was believed until then.
        self.shrunk_at = -math.inf

    def saw(self, length: int, asked_at: float) -> None:
        """Note the length of a page that was asked for then (monotonic seconds)."""
        with self._lock:
            while self._seen and self._seen[-1][1] <= length:
                self._seen.pop()
            self._seen.append((asked_at, length))

    def is_last(self, folder: int, length: int, since: float = math.inf) -> bool:
        """Whether a first page with so many entries is the only one of a folder (its id).

        Of a look that began at `since` (monotonic seconds), the pages have one size.
        """
        with self._lock:
            if self._irregular:
                return False
            if any(longer > length for asked_at, longer in self._seen if asked_at >= since):
                return True
            if length >= self._most:
                return False
            now = self._clock.monotonic()
            if now < max(self._whole.get(length, 0.0), self._looking.get(length, 0.0)):
                return True
            if length % ROUND:
                known, until = self._believed.get(length, (folder, 0.0))
                if known == folder or now >= until:
                    self._believed[length] = folder, now + VERIFIED
                    return True
            self._looking[length] = now + LOOKING
            return False

    def learn(self, full: Sequence[int], last: int) -> None:
        """Note the lengths of the pages of a complete folder: those in `full` were followed by others."""
        with self._lock:
            if not full:
                self._whole[last] = self._clock.monotonic() + VERIFIED
            elif min(full) < self._most:
                self.shrunk_at = self._clock.monotonic()
                self._believed.clear()
                self._looking.clear()
                self._whole.clear()
                self._seen.clear()
                self._most = 0
                self._shrinks += 1
            self._irregular = self._irregular or len(set(full)) > 1 or self._shrinks > 1
            self._most = max(self._most, last, *full)

    @property
    def most(self) -> int:
        """How many entries a page was seen to hold; 0: no page was seen."""
        with self._lock:
            return self._most

    def recall(self, most: int) -> None:
        """Begin with what an earlier mount has learnt."""
        with self._lock:
            self._most = max(self._most, most)


class Pager:
    """Lists folders in pages. Thread-safe: what it learns of the service changes only what a listing costs."""

    def __init__(self, clock: Clock) -> None:
        self.size = PageSize(clock)
        self._clock = clock
        self._mirrored = True  # the service's descending order is the reverse of its ascending one

    def list_folder(
        self,
        folder: int,
        page: Callable[[Order, int], Page],
        may_lack: MayLack = lambda _: False,
        since: float = math.inf,
    ) -> Listed:
        """The entries of a folder (its id). Raises BadReply if its pages never end.

        `page(order, number)` fetches one page, from 1. A folder that changes in each of PASSES passes is returned as
        not complete. `since`: as for `PageSize.is_last`.
        """
        found: dict[int, Entry] = {}
        for _ in range(PASSES):
            listed = self._pass(page, lambda first: self._is_whole(folder, first, may_lack, since))
            if listed.complete:
                return listed
            found.update((entry.id, entry) for entry in listed.entries)
        return Listed(list(found.values()), complete=False)

    def _is_whole(self, folder: int, first: Page, may_lack: MayLack, since: float) -> bool:
        """Whether there is no page after the first one."""
        return not first.sent or (self.size.is_last(folder, first.sent, since) and not may_lack(first.entries))

    def _pass(self, page: Callable[[Order, int], Page], is_whole: Callable[[Page], bool]) -> Listed:
        """Read all pages once. If complete, every name that was there all the time is in the result.

        The proof. The order is fixed, and each page holds all names between its first and its last. Let x be a name
        that was there all the time, and was read nowhere.

          * The page holds fewer entries than pages do (`PageSize`), so there is no other.
          * The first and the last page of the folder share a name e. If x comes after e, the last page had it. If it
            comes before e, the first page had it. So there is no such x, and two calls are enough.
          * Otherwise pages are read on, until one shares a name e with the last page, or is empty. Then all pages
            before that one are read again, and are the same, without a name twice. So all their entries were there in
            the meantime. An empty page is read again, too: it has ended the pass although no name was shared. x is
            not in page 1, so it came after all of page 1, which was full. These entries, a page full, still came
            before x when page 2 was read. So x was not on an earlier page than the second, and since it was not on
            that one, it came after page 2, which was full. And so on to the page that ends the pass: x came after it.
            If that page is empty, nothing did. If it shares e with the last page, x comes after e, so the last page
            had it.

        An entry that is the same (id, time, size) when it is read again is taken to have been there in between.
        """
        asked_at, first = self._clock.monotonic(), page("asc", 1)
        self.size.saw(first.sent, asked_at)
        if is_whole(first):
            return Listed(first.entries)
        last = page("desc", 1) if self._mirrored else Page(0, [])
        met = _meet(first, last)
        pages, sent = [first], first.sent
        while not met and pages[-1].sent:
            if len(pages) == MAX_PAGES:
                raise BadReply(f"{LABEL}: more than {MAX_PAGES} pages")
            pages.append(page("asc", len(pages) + 1))
            sent += pages[-1].sent
            if sent > MAX_ELEMENTS:
                raise BadReply(f"{LABEL}: more than {MAX_ELEMENTS} entries")
            if pages[-1].entries and pages[-1] == pages[-2]:
                raise BadReply(f"{LABEL}: page {len(pages)} repeats the page before it")
            met = _meet(pages[-1], last)
        ids = [entry.id for part in pages[:-1] for entry in part.entries]
        same = (page("asc", number) == part for number, part in enumerate(pages[: -1 if met else None], 1))
        proven = len(set(ids)) == len(ids) and all(same)
        if proven and not met:
            self._mirrored = False  # the folder did not change, so the last page would have met one of these
        if proven:
            self._learn([part for part in pages if part.sent], last)
        entries = {entry.id: entry for part in (last, *pages) for entry in part.entries}
        return Listed(list(entries.values()), proven)

    def _learn(self, pages: list[Page], last: Page) -> None:
        """`last` is the first page of the descending order: if there are several pages, it is full, too."""
        read = {entry.id for part in pages for entry in part.entries}
        full = [part.sent for part in pages]
        end = 0 if any(entry.id not in read for entry in last.entries) else full.pop()
        self.size.learn([*full, last.sent] if full and last.sent else full, end)


def _meet(page: Page, last: Page) -> bool:
    """Whether a page of the ascending order ends where the first page of the descending order ends.

    One shared name would do. All are compared, so that a service that takes no notice of the order is found out.
    """
    shared = {entry.id for entry in page.entries} & {entry.id for entry in last.entries}
    ends = page.entries[len(page.entries) - len(shared) :], last.entries[len(last.entries) - len(shared) :]
    return bool(shared) and [entry.id for entry in ends[0]] == [entry.id for entry in reversed(ends[1])]


def all_pages(
    label: str,
    page: Callable[[int], tuple[list[Any], list[Simulation]]],
    enough: Callable[[list[Simulation]], bool] | None = None,
) -> list[Simulation]:
    """The runs of all pages up to the first empty one, or until `enough(runs)` is true. Raises BadReply.

    `page(number)` fetches one page, from 1, and returns it as sent and parsed. A run that moves to the next page
    between two calls is returned once. None moves the other way: the newest come first, and the service deletes none.
    """
    count = 0
    runs: dict[int, Simulation] = {}
    previous: list[Any] = []
    for number in range(1, MAX_PAGES + 1):
        sent, parsed = page(number)
        if not sent:
            return list(runs.values())
        if sent == previous:
            raise BadReply(f"{label}: page {number} repeats the page before it")
        previous = sent
        count += len(sent)
        if count > MAX_ELEMENTS:
            raise BadReply(f"{label}: more than {MAX_ELEMENTS} runs")
        runs.update((run.id, run) for run in parsed)
        if enough is not None and enough(list(runs.values())):
            return list(runs.values())
    raise BadReply(f"{label}: more than {MAX_PAGES} pages")
