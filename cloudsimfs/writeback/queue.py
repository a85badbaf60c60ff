"""A queue of jobs that run in the background: due times, order by path, retry with growing delay, draining.

It knows neither files nor services: a job is data, and `start` is given the function that runs each kind.
One job per path runs at a time, and none below a folder that a running job holds as a whole. A job that fails is run
again without end, after growing pauses. Its error is shown in the meantime.

Lock: `WorkQueue.lock` is a condition. It protects the queue and every field of its jobs. Jobs run with no lock held.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cloudsimfs import paths
from cloudsimfs.clock import Clock
from cloudsimfs.concurrency import backoff
from cloudsimfs.errors import Cancelled, CloudsimfsError, NotFinished, TryAgain
from cloudsimfs.text import agree, count

log = logging.getLogger(__name__)

FIRST_RETRY = 1.0  # seconds; doubled at every failure, up to LAST_RETRY
LAST_RETRY = 300.0  # seconds
DRAIN_LOOK = 0.05  # seconds between two looks at what is still pending
IDLE_WAIT = 60.0  # seconds a worker sleeps at most; it is woken earlier when there is work


@dataclass(eq=False)
class Job:
    """One pending operation on one path. Its runner may set `first_pause`, `outcome` and `again`."""

    kind: str
    path: str
    item: Any = None  # what the runner works on; the queue does not look at it
    whole_folder: bool = False  # nothing else may run below the path at the same time
    size: int = 0  # bytes to transfer
    sent: int = 0  # bytes transferred by the running attempt
    due: float = 0.0  # monotonic seconds
    held: bool = False  # not to be run until released
    fsync: int = 0  # the round of fsync that has what the job is based on (`fsyncer`)
    attempts: int = 0
    first_pause: float = FIRST_RETRY  # seconds after the first failure
    error: str = ""
    failure: CloudsimfsError | None = None  # the same error, if it is a CloudsimfsError
    running: bool = False
    cancelled: bool = False
    outcome: Any = None  # what the runner keeps from one attempt to the next
    again: float | None = None  # run once more in this many seconds, although it did not fail
    waiting: list[Job] = field(default_factory=list)  # jobs that may run when this one has ended


# Runs one job. Raises Cancelled if the job is no longer wanted. After any other error the job is run again.
Runner = Callable[[Job], None]


class WorkQueue:
    def __init__(self, *, clock: Clock, workers: int, name: str) -> None:
        lock = threading.RLock()
        self.lock = threading.Condition(lock)  # notified when there may be work
        self._news = threading.Condition(lock)  # notified when a job fails, is called off, or is the last to end
        self._clock = clock
        self._workers = workers
        self._runners: Mapping[str, Runner] = {}  # by kind; set once, before the workers start
        self._name = name
        self._jobs: dict[Job, None] = {}  # all that are pending, in order of arrival
        self._heap: list[tuple[float, int, Job]] = []  # those that may run; cancelled ones are skipped
        self._order = itertools.count()
        self._running: dict[str, Job] = {}  # by path
        self.last_error: tuple[float, str] | None = None  # seconds since the epoch, and the text; guarded by lock
        self._stopping = False
        self._threads: list[threading.Thread] = []

    def start(self, runners: Mapping[str, Runner]) -> None:
        """Start the workers, after the process has forked. `runners` has a function for each kind of job."""
        self._runners = runners
        for number in range(self._workers):
            thread = threading.Thread(target=self._work, name=f"{self._name}-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self, *, timeout: float) -> None:
        """Call off the running jobs and end the workers. Waits at most `timeout` seconds for all of them together."""
        with self.lock:
            self._stopping = True
            for job in self._running.values():
                job.cancelled = True
            self.lock.notify_all()
        deadline = self._clock.monotonic() + timeout
        for thread in self._threads:
            thread.join(timeout=max(0.0, deadline - self._clock.monotonic()))

    # -- what is pending ---------------------------------------------------------------------------------

    def put(self, job: Job, *, delay: float) -> None:
        """Add a job, which is due in `delay` seconds."""
        with self.lock:
            job.due = self._clock.monotonic() + delay
            self._jobs[job] = None
            if not job.held:
                self._push_locked(job)

    def release(self, job: Job) -> None:
        """Hold the job no longer: it runs when it is due."""
        with self.lock:
            job.held = False
            self._push_locked(job)

    def cancel(self, job: Job) -> bool:
        """Call the job off. True if it was not running yet."""
        with self.lock:
            job.cancelled = True
            self._jobs.pop(job, None)
            self.lock.notify_all()
            self._news.notify_all()
            return not job.running

    def pending(self) -> list[Job]:
        """The jobs that have not ended. Their fields go on changing."""
        with self.lock:
            return list(dict.fromkeys([*self._running.values(), *self._jobs]))

    def drain(
        self,
        select: Callable[[list[Job]], list[Job]],
        *,
        timeout: float | None = None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        """Run the jobs that `select` picks now, as if none had failed before, and wait for them.

        Raises TryAgain as soon as one of them fails, NotFinished after `timeout` seconds or when the queue stops,
        Cancelled if `interrupted` says so.
        """
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        hurried: set[Job] = set()
        with self.lock:
            while pending := select(self.pending()):
                for job in pending:
                    if job not in hurried and not job.running and not job.held:
                        hurried.add(job)
                        job.error, job.due = "", 0.0
                        self._push_locked(job)
                failed = next((job for job in pending if job.error and job in hurried), None)
                if failed is not None:
                    raise TryAgain(f"{failed.kind} of /{failed.path} has not succeeded yet: {failed.error}")
                if self._stopping or (deadline is not None and self._clock.monotonic() >= deadline):
                    raise NotFinished(
                        f"{count(len(pending), 'operation')} {agree(len(pending), 'is', 'are')} not finished yet"
                    )
                if interrupted():
                    raise Cancelled("interrupted; the pending operations go on")
                self._news.wait(DRAIN_LOOK)

    # -- the workers -------------------------------------------------------------------------------------

    def _push_locked(self, job: Job) -> None:
        heapq.heappush(self._heap, (job.due, next(self._order), job))
        self.lock.notify()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            error, job.failure = "", None
            try:
                self._runners[job.kind](job)
            except Cancelled:
                pass
            except CloudsimfsError as failure:
                error, job.failure = str(failure), failure
            except Exception as failure:  # a worker must outlive a bug in one job, which stays pending
                log.exception("%s of /%s: unexpected", job.kind, job.path)
                error = repr(failure)
            self._finished(job, error)

    def _next(self) -> Job | None:
        """The next job, marked running; None when the queue stops."""
        with self.lock:
            while not self._stopping:
                now = self._clock.monotonic()
                if not self._heap or self._heap[0][0] > now:
                    self.lock.wait(min(self._heap[0][0] - now, IDLE_WAIT) if self._heap else IDLE_WAIT)
                    continue
                job = heapq.heappop(self._heap)[2]
                if job.cancelled or job.running or job.held or job not in self._jobs:
                    continue
                blocker = self._blocker_locked(job)
                if blocker is not None:
                    blocker.waiting.append(job)
                    continue
                job.running = True
                self._running[job.path] = job
                return job
            return None

    def _blocker_locked(self, job: Job) -> Job | None:
        """The running job that must end before this one may start."""
        path = job.path
        while path:
            blocker = self._running.get(path)
            if blocker is not None:
                return blocker
            path = paths.parent(path)
        if job.whole_folder:
            return next((other for other in self._running.values() if paths.is_within(other.path, job.path)), None)
        return None

    def _finished(self, job: Job, error: str) -> None:
        with self.lock:
            job.running = False
            job.sent = 0
            del self._running[job.path]
            if error and not job.cancelled:
                job.error = error
                self.last_error = (self._clock.now(), f"{job.kind} of /{job.path}: {error}")
                job.attempts += 1
                pause = backoff.pause(job.attempts, first=job.first_pause, longest=LAST_RETRY)
                job.due = self._clock.monotonic() + pause
                self._push_locked(job)
                log.warning("%s of /%s: again in %.0f s: %s", job.kind, job.path, pause, error)
            elif job.again is not None and not job.cancelled:
                job.due = self._clock.monotonic() + job.again
                job.again = None
                self._push_locked(job)
            else:
                self._jobs.pop(job, None)
            for waiting in job.waiting:
                self._push_locked(waiting)
            job.waiting.clear()
            self.lock.notify_all()
            if error or not self._jobs:
                self._news.notify_all()
