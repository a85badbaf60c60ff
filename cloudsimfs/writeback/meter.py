"""The rate of a transfer: bytes per second over the last seconds. Thread-safe; its lock is a leaf."""

from __future__ import annotations

import threading
from collections import deque

from cloudsimfs.clock import Clock

SPAN = 10.0  # seconds over which the rate is averaged
SAMPLE_SECONDS = 0.2  # seconds that are counted as one sample


class Meter:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._total = 0  # bytes since the start; guarded by _lock
        self._steps: deque[tuple[float, int]] = deque()  # seconds and bytes of each sample; guarded by _lock

    def add(self, count: int) -> None:
        now = self._clock.monotonic()
        with self._lock:
            self._total += count
            if self._steps and now - self._steps[-1][0] < SAMPLE_SECONDS:
                when, before = self._steps[-1]
                self._steps[-1] = (when, before + count)
            else:
                self._steps.append((now, count))
            self._forget_locked(now)

    @property
    def total(self) -> int:
        with self._lock:
            return self._total

    def rate(self) -> float:
        """Bytes per second; 0 if nothing has moved for SPAN seconds."""
        now = self._clock.monotonic()
        with self._lock:
            self._forget_locked(now)
            if not self._steps:
                return 0.0
            return sum(count for _, count in self._steps) / max(SAMPLE_SECONDS, now - self._steps[0][0])

    def _forget_locked(self, now: float) -> None:
        while self._steps and now - self._steps[0][0] > SPAN:
            self._steps.popleft()
