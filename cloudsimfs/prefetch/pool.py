"""The threads that fetch, of all files, and each file's share of them. Knows nothing of files or the service.

Threading: `_lock` is a leaf; jobs run without it.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from cloudsimfs.errors import Cancelled

log = logging.getLogger(__name__)

THREADS = 64  # requests at the same time, of all files
AHEAD = 32  # of those, requests ahead of readers
AHEAD_EACH = 16  # of those, for one file


class FetchPool:
    """Threads for flights, started when they are needed; they die with the process, whatever they wait for."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # protects the rest
        self._threads = 0
        self._busy = 0  # jobs running or queued
        self._files = 0  # that have jobs
        self._closed = False

    def close(self) -> None:
        """End the threads, each after the job it has."""
        with self._lock:
            self._closed = True
            for _ in range(self._threads):
                self._jobs.put(None)

    def submit(self, job: Callable[[], None]) -> None:
        """Raises Cancelled once it is closed."""
        with self._lock:
            if self._closed:
                raise Cancelled("unmounted")
            self._busy += 1
            start = self._threads < min(self._busy, THREADS)
            self._threads += start
            self._jobs.put(job)
        if start:
            threading.Thread(target=self._work, name="fetch", daemon=True).start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:  # a bug must cost one flight, not a thread of all files
                log.exception("fetch: unexpected")
            with self._lock:
                self._busy -= 1

    def count_file(self, change: int) -> None:
        """One file more (1) or less (-1) has something under way."""
        with self._lock:
            self._files += change

    def share(self) -> int:
        """Requests ahead of its readers one file may have under way, so that several read at once get on alike."""
        with self._lock:
            return min(AHEAD_EACH, AHEAD // max(1, self._files))
