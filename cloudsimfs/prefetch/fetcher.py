"""Fetching a file's missing bytes: many range requests, and readers that wait for their own bytes only.

A `Fetcher` knows what is under way for one file, and who waits for it. A request is a `Flight`. Bytes under way are
not asked for twice. A reader is woken when its bytes are there, or when the flight that was to bring them has failed.

Locks: the target's lock (Content.lock) guards a Fetcher's fields; methods ending in `_locked` need it held. It is not
held across the network. Order: Content.lock, then the lock of the pool or of the source, which are leaves.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Protocol

from cloudsimfs.concurrency import backoff
from cloudsimfs.concurrency.waiting import Interrupted, never, wait_for
from cloudsimfs.errors import (
    BadReply,
    CloudsimfsError,
    ServiceError,
    TimedOut,
    Unreachable,
)
from cloudsimfs.host.disk import disk_failure
from cloudsimfs.prefetch.pool import FetchPool
from cloudsimfs.prefetch.ranges import RangeSet
from cloudsimfs.prefetch.readahead import Readahead, Window, cut
from cloudsimfs.prefetch.source import Source, as_filesystem_error
from cloudsimfs.service.model import Entry

log = logging.getLogger(__name__)

FLIGHT_ATTEMPTS = 4  # requests in a row that bring no byte, until a flight is given up
RETRY_PAUSE = 0.2  # seconds before the second of them; twice as long before each further one
RECEIVE_BUFFER = 1 << 19  # bytes that a thread receives at once, at most
READ_STALL = 60.0  # seconds a read waits while nothing of its file arrives
LONG_WAIT = 20.0  # seconds; whoever comes after a reader that waited longer for nothing does not wait as well:
SOON = 2.0  # seconds after that; the kernel sends the next reader of the same pages only then


class Target(Protocol):
    """What a Fetcher fills: the file, and which of its bytes are missing."""

    lock: threading.Lock

    def missing_locked(self, start: int, end: int) -> Iterable[tuple[int, int]]:
        """The parts of `[start, end)` that only the service has."""

    def is_missing_locked(self, start: int, end: int) -> bool:
        """Whether there is any such part."""

    def remote_end_locked(self) -> int:
        """Where the version's bytes end."""

    def fill(self, position: int, block: bytes | memoryview, etag: str | None) -> bool:
        """Keep fetched bytes of the version with this ETag where they are missing; False if nobody wants them."""


class CacheSpace(Protocol):
    """What fetching needs of the cache that all targets share."""

    pool: FetchPool
    max_ahead: int  # bytes fetched ahead of one reader, at most

    def reserve(self, size: int) -> AbstractContextManager[None]:
        """Space for bytes while they are being kept. Entering it raises NoSpace."""


class Waiter:
    """A reader of `[start, end)`."""

    __slots__ = ("done", "end", "error", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.done = threading.Event()
        self.error: CloudsimfsError | None = None

    def finish(self, error: CloudsimfsError | None = None) -> None:
        self.error = error
        self.done.set()


class Flight:
    """A request under way: `[position, end)` has not come yet."""

    __slots__ = ("cancelled", "end", "position", "reserved", "start", "whole", "work")

    def __init__(self, start: int, end: int, work: Callable[[Flight], None]) -> None:
        self.start = start
        self.position = start
        self.end = end
        self.work = work
        self.cancelled = False
        self.whole = False  # the server ignores ranges, so this flight brings the whole file
        self.reserved = ExitStack()  # space in the cache for its bytes, until it has landed


class Fetcher:
    """Keeps `target` filled from `source` as its readers need it."""

    def __init__(self, target: Target, source: Source, space: CacheSpace) -> None:
        self.source = source
        self._target = target
        self._space = space
        self._pool = space.pool
        self._readahead = Readahead(space.max_ahead)
        self._flights: list[Flight] = []
        self._waiters: list[Waiter] = []
        self._arrived = 0.0  # when bytes came last, in monotonic seconds
        self._stall: tuple[float, CloudsimfsError] | None = None  # when a wait for nothing ended, and with what

    # -- readers -----------------------------------------------------------------------------------------

    def plan_locked(self, start: int, end: int) -> Window:
        """The window worth having for a read of `[start, end)`."""
        return self._readahead.plan(start, end, self._target.remote_end_locked(), self._pool.share())

    def want_locked(self, start: int, end: int, window: Window) -> Waiter | None:
        """Have `[start, end)` fetched, and as much of the window as there are requests for.

        Returns the waiter for that range, or None if all of it is there. Raises the error of a long wait for nothing
        that has just ended: else all who read the same pages would wait as long, one after another.
        """
        missing = self._target.is_missing_locked(start, end)
        if missing and self._stall is not None and time.monotonic() - self._stall[0] < SOON:
            raise self._stall[1]
        if missing or window.fresh:
            self._launch_missing_locked(start, end, window)
        if not missing:
            return None
        waiter = Waiter(start, end)
        self._waiters.append(waiter)
        return waiter

    def wait(self, waiter: Waiter, interrupted: Interrupted = never) -> None:
        """Wait until the bytes are there, or may be asked for again. Raises what the flight did, Cancelled if
        `interrupted` says so, or ServiceError when nothing has come for READ_STALL seconds.
        """
        since = time.monotonic()
        path = self.source.entry.path

        def is_stalled() -> bool:
            return time.monotonic() - max(since, self._arrived) > READ_STALL

        try:
            message = f"/{path}: the reader was interrupted"
            if not wait_for(waiter.done.wait, interrupted, message, is_late=is_stalled):
                waiter.error = ServiceError(f"/{path}: no data for {READ_STALL:.0f} s")
        finally:
            with self._target.lock:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        if waiter.error is not None:
            if time.monotonic() - since > LONG_WAIT and isinstance(waiter.error, ServiceError):
                with self._target.lock:
                    self._stall = time.monotonic(), waiter.error
            raise waiter.error

    def busy_locked(self) -> RangeSet:
        """The ranges that readers wait for, those under way, and those that will be read next."""
        busy = RangeSet((waiter.start, waiter.end) for waiter in self._waiters)
        for start, end in [*self._coming_locked(), *self._readahead.windows()]:
            busy.add(start, end)
        return busy

    def cancel_locked(self) -> None:
        """Nobody reads any more: each flight ends with its next block."""
        for flight in self._flights:
            flight.cancelled = True

    # -- flights -----------------------------------------------------------------------------------------

    def _coming_locked(self) -> RangeSet:
        return RangeSet((flight.position, flight.end) for flight in self._flights if not flight.cancelled)

    def _launch_missing_locked(self, start: int, end: int, window: Window) -> None:
        coming = self._coming_locked()
        free = self._pool.share() - len(self._flights)
        low, high = min(start, window.start), max(end, window.end)
        for missing in self._target.missing_locked(low, high):
            for hole in coming.missing(*missing):
                for first, last in cut(*hole, window.piece):
                    if last <= start:
                        continue
                    if first >= end:  # ahead of the reader: it may wait, and a short request is not worth making yet
                        short = last - first < window.piece and last == high < self._target.remote_end_locked()
                        if short or free <= 0:
                            return
                    free -= 1
                    self.launch_locked(first, last, self._transfer)

    def launch_locked(self, start: int, end: int, work: Callable[[Flight], None]) -> None:
        """Have `work` bring `[start, end)` on a thread of the pool. What it leaves missing is asked for again."""
        flight = Flight(start, end, work)
        self._pool.submit(lambda: self._fly(flight))
        if not self._flights:
            self._pool.count_file(1)
        self._flights.append(flight)

    def _fly(self, flight: Flight) -> None:
        error: CloudsimfsError | None = None
        try:
            with flight.reserved:
                flight.work(flight)
        except CloudsimfsError as failure:
            error = failure
        except OSError as failure:
            error = disk_failure(failure)
        except Exception as failure:  # a bug: its readers would ask again for ever
            log.exception("/%s: reading it failed", self.source.entry.path)
            error = ServiceError(f"/{self.source.entry.path}: {type(failure).__name__} (a bug: see the log)")
        finally:
            with self._target.lock:
                self._land_locked(flight, error)

    def _land_locked(self, flight: Flight, error: CloudsimfsError | None) -> None:
        self._flights.remove(flight)
        if not self._flights:
            self._pool.count_file(-1)
        if flight.cancelled:
            error = None  # whoever waits came after the cancellation, and asks again
        for waiter in list(self._waiters):
            if waiter.start >= flight.end or flight.start >= waiter.end:
                continue
            failed = self._target.is_missing_locked(max(waiter.start, flight.start), min(waiter.end, flight.end))
            if failed or not self._target.is_missing_locked(waiter.start, waiter.end):
                self._waiters.remove(waiter)
                waiter.finish(error if failed else None)

    def _transfer(self, flight: Flight) -> None:
        """Bring the flight's bytes, and go on where a connection broke. Raises CloudsimfsError."""
        self.reserve(flight, flight.end - flight.start)
        failures = 0
        while True:
            before = flight.position
            opened = False
            try:
                length = flight.end - flight.position
                with as_filesystem_error(self.source.entry), self.source.open(flight.position, length) as fetched:
                    opened = True
                    if not fetched.partial and not self._takes_whole(flight):
                        return
                    position = fetched.offset
                    for block in fetched.blocks(_buffer()):
                        if not self.arrive(flight, position, block):
                            return
                        position += len(block)
                    if position >= flight.end:
                        return
                    raise BadReply(f"/{self.source.entry.path}: the service sent less than it announced")
            except (BadReply, Unreachable, TimedOut) as error:
                failures = failures + 1 if flight.position <= before else 1
                # the client has already retried a request that could not even be opened
                final = not opened and not isinstance(error, BadReply)
                if final or failures >= FLIGHT_ATTEMPTS or flight.cancelled:
                    raise _final(error, self.source.entry, opened=opened) from error
                log.info("/%s: asking again from byte %d on: %s", self.source.entry.path, flight.position, error)
            time.sleep(backoff.pause(failures, first=RETRY_PAUSE))

    def _takes_whole(self, flight: Flight) -> bool:
        """The server sends the whole file: one flight takes it, for the others this is False. Raises NoSpace."""
        with self._target.lock:
            if any(other.whole for other in self._flights if other is not flight and not other.cancelled):
                return False
            size = flight.end - flight.start
            flight.whole = True
            flight.start = flight.position = 0
            flight.end = self._target.remote_end_locked()
        self.reserve(flight, max(0, flight.end - size))
        return True

    def reserve(self, flight: Flight, size: int) -> None:
        """Reserve space for `size` bytes of the flight until it has landed. Raises NoSpace."""
        flight.reserved.enter_context(self._space.reserve(size))

    def arrive(self, flight: Flight, position: int, block: bytes | memoryview) -> bool:
        """Keep a block, and wake the readers that have all their bytes now. False if nobody wants more."""
        kept = not flight.cancelled and self._target.fill(position, block, self.source.etag)
        with self._target.lock:
            if not kept:
                flight.cancelled = True
                return False
            flight.position = end = position + len(block)
            self._arrived = time.monotonic()
            for waiter in list(self._waiters):
                touched = waiter.start < end and position < waiter.end
                if touched and not self._target.is_missing_locked(waiter.start, waiter.end):
                    self._waiters.remove(waiter)
                    waiter.finish()
            return True


def _buffer() -> memoryview:
    """This thread's own receive buffer."""
    if not hasattr(_thread, "buffer"):
        _thread.buffer = memoryview(bytearray(RECEIVE_BUFFER))
    buffer: memoryview = _thread.buffer
    return buffer


_thread = threading.local()


def _final(error: ServiceError, entry: Entry, *, opened: bool) -> ServiceError:
    """The error for readers: EIO if a data connection failed, else the API's own failure with its errno."""
    return ServiceError(f"/{entry.path}: {error}") if opened else error
