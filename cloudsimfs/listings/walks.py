"""Recognise tree walkers (`find`, `du`, `cp -r`, a file manager that counts), and decide what to fetch for them.

A walker reads a directory and at once asks for one inside it. Where one call lists everything (v1) that call is made;
otherwise the listings that the walker will need next are fetched ahead of it. A person who goes from folder to folder
is no walker, but from the third folder on that one call is cheaper, too.

Threading: `_lock` protects all; a leaf.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from cloudsimfs import paths
from cloudsimfs.clock import Clock

WALK_GAP = 1.0  # seconds between reading a directory and asking for one inside; a person takes longer
FETCH_AHEAD = 8  # listings
ALL_ENTRIES_PAUSE = 10.0  # seconds from one all-entries call to the next, where listing one folder costs no more
ALL_ENTRIES_SLOW = 5.0  # seconds; after an all-entries call that took longer, it is made for long walks only
ALL_ENTRIES_LARGE = 20_000  # entries; the same after a reply with more
NEVER = float("-inf")
LONG_WALK = 20  # folders
STROLL, STROLL_PAGED = 3, 2  # listings in STROLL_TIME that make a stroll, if each costs one call, or several
STROLL_TIME = 60.0  # seconds


class Walks:
    """`bulk`: whether the all-entries call may be made."""

    def __init__(self, clock: Clock, *, bulk: bool) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._bulk = bulk
        self._missed_at: deque[float] = deque(maxlen=STROLL)  # when listings were asked for, monotonic seconds
        self._read_at: dict[str, float] = {}  # when a directory was last read, monotonic seconds
        self._dear = False  # whether the last all-entries call took long, or brought much
        self._taken_at = self._failed_at = NEVER  # monotonic seconds

    def was_read(self, path: str) -> None:
        now = self._clock.monotonic()
        with self._lock:
            if len(self._read_at) > 10_000:
                self._read_at = {key: at for key, at in self._read_at.items() if now - at < WALK_GAP}
            self._read_at[path] = now
            while self._is_walked(path):  # the walk goes on, however long ago it came through the folders above
                path = paths.parent(path)
                self._read_at[path] = now

    def _is_walked(self, path: str) -> bool:
        """Whether the directory above was read a moment ago."""
        at = None if path == paths.ROOT else self._read_at.get(paths.parent(path))
        return at is not None and self._clock.monotonic() - at < WALK_GAP

    def wants_everything(self, path: str, siblings: Sequence[str], *, paged: bool) -> bool:
        """Whether to make the all-entries call for this missing listing; `siblings` are the folders beside it.

        `paged`: a listing costs several calls (v2), so that one call for everything is cheaper even for one folder.
        """
        with self._lock:
            now = self._clock.monotonic()
            self._missed_at.append(now)
            tried_at = self._failed_at if paged else max(self._failed_at, self._taken_at)
            if not self._bulk or now - tried_at < ALL_ENTRIES_PAUSE:
                return False
            if self._dear:
                return self._is_walked(path) and len(siblings) >= LONG_WALK
            length = STROLL_PAGED if paged else STROLL
            strolls = len(self._missed_at) >= length and now - self._missed_at[-length] < STROLL_TIME
            known_to_be_cheap = self._taken_at != NEVER
            return strolls or (paged and known_to_be_cheap) or (self._is_walked(path) and len(siblings) >= 2)

    def may_list_everything(self) -> bool:
        """Whether the all-entries call is quick, so that it may replace those for several pages or folders."""
        with self._lock:
            return self._bulk and not self._dear

    def took_everything(self, seconds: float, entries: int) -> None:
        with self._lock:
            self._dear, self._taken_at = (
                seconds > ALL_ENTRIES_SLOW or entries > ALL_ENTRIES_LARGE,
                self._clock.monotonic(),
            )

    def failed(self, *, for_good: bool) -> None:
        """The all-entries call was not answered; `for_good`: the service does not offer it."""
        with self._lock:
            self._bulk = self._bulk and not for_good
            self._failed_at = self._clock.monotonic()

    def has_failed(self, since: float) -> bool:
        """Whether an all-entries call has failed after `since` (monotonic seconds)."""
        with self._lock:
            return self._failed_at > since

    def ahead(self, path: str, siblings: Sequence[str], inside: Sequence[str]) -> list[str]:
        """The directories that a walker reading `path` now will need next: those inside, then those after it."""
        with self._lock:
            if self._bulk or not self._is_walked(path):
                return []
        position = siblings.index(path) + 1 if path in siblings else len(siblings)
        return [*inside[:FETCH_AHEAD], *siblings[position : position + FETCH_AHEAD]][:FETCH_AHEAD]
