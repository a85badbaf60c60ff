"""Keeps the open files of runs up to date: the log that `tail -f` follows, the status that `cloudsimfs wait` follows.

There is one poller. It makes one call at a time, for what was fetched the longest ago; a list serves all followers.
The time between calls is the runs' TTL at first, and grows towards a pace at which the hour's calls last. While
nothing is followed, or only runs that have ended, it makes no calls.

Threading: a thread of its own, from the first follower on. `_lock` is a leaf and never held during a call.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from dataclasses import dataclass

from cloudsimfs.clock import Clock
from cloudsimfs.errors import CloudsimfsError
from cloudsimfs.runs.list import LIST, RunList
from cloudsimfs.runs.logcache import WHOLE
from cloudsimfs.service import Budget

log = logging.getLogger(__name__)

FOLLOWING_SHARE = 0.25  # of the calls left, which following may spend until the hour turns
PACE_GROWTH = 1.3  # factor from one pause between calls to the next, up to that pace
SHORT_PACE_GROWTH = 2.0  # the same, once more than half of the calls are spent


@dataclass(frozen=True, slots=True)
class Followed:
    """What an open file shows: a run's status, or its log."""

    run_id: int
    log: bool


class Poller:
    """`ttl` in seconds: the least time between two calls for the same thing."""

    def __init__(self, runs: RunList, budget: Budget, *, ttl: float, clock: Clock) -> None:
        self._runs = runs
        self._budget = budget
        self._ttl = ttl
        self._clock = clock
        self._woken = threading.Event()
        self._lock = threading.Lock()
        self._followed: Counter[Followed] = Counter()  # guarded by _lock, as all below
        self._calls = 0  # since the first follower came or a command was given
        self._called_at = float("-inf")  # monotonic seconds
        self._thread: threading.Thread | None = None
        self._closed = False

    def follow(self, what: Followed) -> None:
        with self._lock:
            if not self._followed:
                self._calls = 0
            self._followed[what] += 1
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._work, name="poller", daemon=True)
                self._thread.start()
        self._woken.set()

    def unfollow(self, what: Followed) -> None:
        with self._lock:
            self._followed -= Counter([what])

    def hurry(self) -> None:
        """A command was given: poll at the quickest pace again, as the run is about to change."""
        with self._lock:
            self._calls = 0
        self._woken.set()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._woken.set()

    def _work(self) -> None:
        while not self._closed:
            self._woken.clear()
            due = self._due()
            if due is None:
                self._clock.wait(self._woken, None)
                continue
            what, with_logs, when = due
            pause = when - self._clock.monotonic()
            if pause > 0:
                self._clock.wait(self._woken, pause)
            else:
                self._fetch(what, with_logs)

    def _due(self) -> tuple[int, bool, float] | None:
        """What to fetch next (LIST or a run), whether with all logs, and when (monotonic seconds); None: nothing."""
        fetched_at, with_logs = self._wanted()
        if not fetched_at:
            return None
        what = min(fetched_at, key=lambda key: fetched_at[key])
        pace = self._budget.pace(FOLLOWING_SHARE)
        growth = PACE_GROWTH if self._budget.stretch(2.0) == 1.0 else SHORT_PACE_GROWTH
        with self._lock:
            pause = max(self._ttl / len(fetched_at), min(pace, self._ttl * growth ** min(self._calls, 100)))
            return what, with_logs, max(self._called_at + pause, fetched_at[what] + self._ttl)

    def _wanted(self) -> tuple[dict[int, float], bool]:
        """When each thing that must be kept up to date was last fetched; and whether lists are to bring all logs."""
        with self._lock:
            followed = list(self._followed)
        runs = self._runs.cached() or {}
        logs = {
            item.run_id: self._runs.run_fetched_at(item.run_id)
            for item in followed
            if item.log and item.run_id in runs
        }
        logs = {run_id: at for run_id, at in logs.items() if at != WHOLE}
        active = {item.run_id for item in followed if item.run_id in runs and runs[item.run_id].active}
        if self._runs.lists_logs(len(logs)):
            return ({LIST: self._runs.fetched_at} if logs or active else {}), bool(logs)
        return ({LIST: self._runs.fetched_at, **logs} if active - logs.keys() else logs), False

    def _fetch(self, what: int, with_logs: bool) -> None:
        with self._lock:
            self._calls += 1
            self._called_at = self._clock.monotonic()
        try:
            if what == LIST:
                self._runs.fetch(logs=with_logs)
            else:
                self._runs.fetch_run(what)
        except CloudsimfsError as error:
            log.info("an open status or log could not be renewed: %s", error)
        except Exception:  # a bug must not stop the poller for all followers
            log.exception("unexpected")
