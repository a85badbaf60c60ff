"""Time as a parameter: the real clock, and one that a test moves by hand.

Thread-safe. Code whose tests have to pass a TTL, a retry or an hour takes its time from here, never from `time`.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """The clock that everything that waits or ages is given."""

    def now(self) -> float:
        """Wall time, seconds since the epoch; may jump."""

    def monotonic(self) -> float:
        """Seconds that only grow, for measuring."""

    def sleep(self, seconds: float) -> None:
        """Wait `seconds`."""

    def wait(self, event: threading.Event, timeout: float | None) -> bool:
        """Wait until `event` is set or `timeout` seconds are over (None: for ever). Returns whether it is set."""


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))

    def wait(self, event: threading.Event, timeout: float | None) -> bool:
        return event.wait(timeout)


class ForwardClock:
    """Wall time that is never set back: a count towards a full hour continues as if nobody had touched the clock.

    A step forward is taken: it may be a suspended machine waking up. Not thread-safe.
    """

    _STEP = 1.0  # seconds; a smaller difference is the two clocks' drift

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = 0.0  # seconds by which the wall clock was set back so far
        self._wall, self._monotonic = clock.now(), clock.monotonic()

    def now(self) -> float:
        wall, monotonic = self._clock.now(), self._clock.monotonic()
        lost = (monotonic - self._monotonic) - (wall - self._wall)
        if lost > self._STEP:
            self._ahead += lost
        self._wall, self._monotonic = wall, monotonic
        return wall + self._ahead

    def shown(self, moment: float) -> float:
        """A moment of this clock by the wall clock as it is now."""
        return moment - self._ahead


class ManualClock:
    """A clock for tests. With `auto` every wait ends at once and moves the clock by its length.

    Without `auto` waiters block until another thread calls `advance` (or sets their event).
    """

    _TICK = 0.002  # seconds; how soon a blocked waiter sees its event

    def __init__(self, start: float = 1_700_000_000.0, *, auto: bool = True) -> None:
        self._changed = threading.Condition()
        self._elapsed = 0.0  # guarded by _changed
        self._waiting = 0  # guarded by _changed
        self._start = start
        self._auto = auto

    def now(self) -> float:
        with self._changed:
            return self._start + self._elapsed

    def monotonic(self) -> float:
        with self._changed:
            return self._elapsed

    def advance(self, seconds: float) -> None:
        """Move the clock forward, and wake the threads that wait for it."""
        with self._changed:
            self._elapsed += seconds
            self._changed.notify_all()

    @property
    def waiting(self) -> int:
        """How many threads are blocked on this clock now."""
        with self._changed:
            return self._waiting

    def sleep(self, seconds: float) -> None:
        self.wait(threading.Event(), max(0.0, seconds))

    def wait(self, event: threading.Event, timeout: float | None) -> bool:
        with self._changed:
            if event.is_set():
                return True
            if timeout is not None and (self._auto or timeout <= 0):
                self._elapsed += max(0.0, timeout)
                self._changed.notify_all()
                return event.is_set()
            until = None if timeout is None else self._elapsed + timeout
            self._waiting += 1
            try:
                while not event.is_set() and (until is None or self._elapsed < until):
                    self._changed.wait(self._TICK)
            finally:
                self._waiting -= 1
            return event.is_set()
