"""The threads that fetch for all files, and each file's share of them. It knows neither files nor the service.

Locks: `_lock` is a leaf; jobs run without it.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from cloudsimfs.errors import Cancelled

log = logging.getLogger(__name__)

FETCH_THREADS = 64  # requests at the same time, for all files
REQUESTS_AHEAD = 32  # of those, requests ahead of readers
REQUESTS_AHEAD_PER_FILE = 16  # of those, requests for one file


class FetchPool:
    """Threads for flights, started when they are needed. They end with the process, whatever they wait for."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards the rest
        self._threads = 0
        self._busy = 0  # jobs running or queued
        self._files = 0  # files that have jobs
        self._closed = False

    def close(self) -> None:
        """Have each thread end after its present job."""
        with self._lock:
            self._closed = True
            for _ in range(self._threads):
                self._jobs.put(None)

    def submit(self, job: Callable[[], None]) -> None:
        """Run the job on one of the threads. Raises Cancelled once the pool is closed."""
        with self._lock:
            if self._closed:
                raise Cancelled("unmounted")
            self._busy += 1
            start = self._threads < min(self._busy, FETCH_THREADS)
            self._threads += start
            self._jobs.put(job)
        if start:
            threading.Thread(target=self._work, name="fetch", daemon=True).start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:  # a bug costs one flight, not a thread that all files share
                log.exception("fetch: unexpected")
            with self._lock:
                self._busy -= 1

    def count_file(self, change: int) -> None:
        """One more file (1) or one fewer (-1) has flights under way."""
        with self._lock:
            self._files += change

    def share(self) -> int:
        """How many requests ahead of its readers one file may have under way now: files share them equally."""
        with self._lock:
            return min(REQUESTS_AHEAD_PER_FILE, REQUESTS_AHEAD // max(1, self._files))
