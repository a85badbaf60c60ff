"""The service's cache of listings (v2): uploads are not listed until it is deleted.

It is deleted once after a burst of uploads, or as soon as somebody waits for it. v1 has no such cache: nothing here
then costs a call.

Locks: the queue's lock protects the counters and is a leaf. `_calling` comes before it, and is held over the call, by
jobs only.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from cloudsimfs import paths
from cloudsimfs.clock import Clock
from cloudsimfs.concurrency.waiting import Interrupted
from cloudsimfs.service import Client, Urgency
from cloudsimfs.writeback.queue import Job, WorkQueue

log = logging.getLogger(__name__)

BURST_LOOK = 1.0  # seconds between two checks whether a burst of uploads is over


class ViewCache:
    """`in_burst` says whether more uploads are about to end; it is called with no lock held."""

    def __init__(self, client: Client, *, clock: Clock, in_burst: Callable[[], bool]) -> None:
        self._cache = client.server_cache
        self._clock = clock
        self._in_burst = in_burst
        self._queue = WorkQueue(clock=clock, workers=1, name="service-cache")
        self._ended = 0  # uploads that have ended; guarded by the queue's lock
        self._shown = 0  # how many of them the service's listings show; guarded by the queue's lock
        self._wanted = 0  # how many of them somebody waits to see listed; guarded by the queue's lock
        # Held during the call, so that a second caller finds the work done.
        self._calling = threading.Lock()
        self.invalidated_at = 0.0  # monotonic seconds; listings asked for earlier may lack our uploads

    def start(self) -> None:
        """Start the worker, after the process has forked."""
        self._queue.start({"delete-cache": self._run})

    def stop(self) -> None:
        self._queue.stop(timeout=5)

    def went_stale(self) -> None:
        """Note that an upload has ended, which the cache does not show."""
        self._cache.upload_ended()
        with self._queue.lock:
            self._ended += 1
            self._put_job_locked()

    def invalidate(self) -> None:
        """Delete the service's cache now, if uploads have ended since that was last done. Raises ServiceError."""
        with self._calling:
            with self._queue.lock:
                ended = self._ended
                if self._shown == ended:
                    return
            try:
                self._cache.delete(Urgency.BACKGROUND)
                self.invalidated_at = self._clock.monotonic()
            except BaseException:
                with self._queue.lock:
                    self._put_job_locked()
                raise
            with self._queue.lock:
                self._shown = ended

    def drain(self, *, timeout: float | None, interrupted: Interrupted) -> None:
        """Wait until the service's listings show all uploads that have ended. Raises as `WorkQueue.drain`."""
        with self._queue.lock:
            wanted = self._wanted = self._ended
        self._queue.drain(lambda jobs: jobs if self._shown < wanted else [], timeout=timeout, interrupted=interrupted)

    def _put_job_locked(self) -> None:
        if all(job.running for job in self._queue.pending()):  # a running one may have begun too early
            self._queue.put(Job("delete-cache", paths.ROOT), delay=BURST_LOOK)

    def _run(self, job: Job) -> None:
        with self._queue.lock:
            if self._shown == self._ended:
                return
            somebody_waits = self._shown < self._wanted
        if not somebody_waits and self._in_burst():
            job.again = BURST_LOOK
            return
        self.invalidate()
