"""The service's cache of listings (v2), which does not show what was uploaded until it is deleted.

That is done once after a burst of uploads, or when somebody waits for it. Where there is none (v1), all this is free.

Locks: the queue's lock protects the counters and is a leaf; `_telling` is held over the call, by jobs only, and comes
before it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from cloudsimfs import paths
from cloudsimfs.clock import Clock
from cloudsimfs.errors import NotOffered
from cloudsimfs.service import Client, Urgency
from cloudsimfs.waiting import Interrupted
from cloudsimfs.writeback.queue import Job, WorkQueue

log = logging.getLogger(__name__)

BURST_LOOK = 1.0  # seconds between looks whether a burst of uploads is over


class ViewCache:
    """`in_burst` says whether more uploads are about to end; it is called with no lock held."""

    def __init__(self, client: Client, *, clock: Clock, in_burst: Callable[[], bool]) -> None:
        self._client = client
        self._clock = clock
        self._in_burst = in_burst
        self._queue = WorkQueue(clock=clock, workers=1, name="service-cache")
        self._ended = 0  # uploads that have ended; guarded by the queue's lock
        self._told = 0  # how many of them the service knows; guarded by the queue's lock
        self._wanted = 0  # how many it is to know without delay, for somebody waits; guarded by the queue's lock
        # Held during the call, so that a second caller finds the work done.
        self._telling = threading.Lock()
        self.invalidated_at = 0.0  # monotonic seconds: listings asked for before do not know our uploads

    def start(self) -> None:
        """After the process has forked."""
        self._queue.start({"delete-cache": self._run})

    def stop(self) -> None:
        self._queue.stop(timeout=5)

    def went_stale(self) -> None:
        """An upload has ended."""
        with self._queue.lock:
            self._ended += 1
            self._put_job_locked()

    def invalidate(self) -> None:
        """Delete the service's cache now, if uploads have ended since it was last deleted."""
        with self._telling:
            with self._queue.lock:
                ended = self._ended
                if self._told == ended:
                    return
            try:
                self._client.delete_cache(urgency=Urgency.BACKGROUND)
                self.invalidated_at = self._clock.monotonic()
            except NotOffered:
                log.debug("this account has no cache to delete")
            except BaseException:
                with self._queue.lock:
                    self._put_job_locked()
                raise
            with self._queue.lock:
                self._told = ended

    def drain(self, *, timeout: float | None, interrupted: Interrupted) -> None:
        """Wait until the service knows all uploads that have ended. Raises as `WorkQueue.drain`."""
        with self._queue.lock:
            wanted = self._wanted = self._ended
        self._queue.drain(lambda jobs: jobs if self._told < wanted else [], timeout=timeout, interrupted=interrupted)

    def _put_job_locked(self) -> None:
        if all(job.running for job in self._queue.pending()):  # a running one may have come too early
            self._queue.put(Job("delete-cache", paths.ROOT), delay=BURST_LOOK)

    def _run(self, job: Job) -> None:
        with self._queue.lock:
            if self._told == self._ended:
                return
            somebody_waits = self._told < self._wanted
        if not somebody_waits and self._in_burst():
            job.again = BURST_LOOK
            return
        self.invalidate()
