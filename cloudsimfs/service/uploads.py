"""Uploads: the link, the transfer, and the circuit breaker for an object store that fails.

A link is valid for about 15 minutes (docs/service.md, "URLs") and for any content. If the transfer fails, the link is
kept for the next attempt: a store that is down costs one API call per file, not one per attempt. While the store
fails, one upload at a time tries it, with growing pauses; the others fail at once, with the store's error.

Object stores answer with an ETag. A success without one may come from a proxy or a portal that dropped the bytes. So
the first such upload must be found in a listing; after that the store is known to send no ETags.

Thread-safe; the locks are leaves, held for moments. The caller must not upload one path twice at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cloudsimfs.clock import Clock
from cloudsimfs.concurrency import backoff
from cloudsimfs.errors import LinkExpired, ServerFault, ServiceError, TimedOut, Unreachable
from cloudsimfs.service.body import Body, Progress
from cloudsimfs.service.model import Stored
from cloudsimfs.service.objectstore import ObjectStore

_LINK_LIFETIME = 840.0  # seconds a link is kept; the store may refuse it earlier (LinkExpired)
_FIRST_PAUSE = 0.5  # seconds after the first failure of the store until the next try; doubled each time, up to
_LONGEST_PAUSE = 120.0
_STORE_ERRORS = (LinkExpired, ServerFault, TimedOut, Unreachable)

RequestLink = Callable[[], str]
IsListed = Callable[[Stored], bool]


class Uploads:
    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._breaker = CircuitBreaker(clock)
        self._lock = threading.Lock()  # leaf; guards everything below
        self._links: dict[str, tuple[str, float]] = {}  # by path: the link, and when it was given (monotonic seconds)
        self._sends_no_etag = False

    def put(
        self,
        path: str,
        size: int,
        body: Body,
        request_link: RequestLink,
        is_listed: IsListed,
        *,
        progress: Progress | None = None,
    ) -> Stored:
        """Store `size` bytes. `request_link` makes the API call for a link; `is_listed` looks for the stored file.

        Raises what `ObjectStore.put` and these two raise.
        """

        def send(link: tuple[str, float]) -> Stored:
            try:
                stored = self._store.put(link[0], size, body, progress=progress)
                self._check(path, stored, is_listed)
            except BaseException as error:
                if not isinstance(error, LinkExpired):
                    self._keep(path, link)
                if isinstance(error, _STORE_ERRORS):
                    self._breaker.failed(failures, error)
                raise
            self._breaker.worked()
            return stored

        with self._breaker.passing() as failures:
            try:
                return send(self._take_kept(path) or self._new(request_link))
            except LinkExpired:
                return send(self._new(request_link))

    def _check(self, path: str, stored: Stored, is_listed: IsListed) -> None:
        with self._lock:
            if stored.etag is not None:
                self._sends_no_etag = False
            if stored.etag is not None or self._sends_no_etag:
                return
        if not is_listed(stored):
            raise ServerFault(f"PUT upload link: it was answered without an ETag, and /{path} is not listed")
        with self._lock:
            self._sends_no_etag = True

    def _new(self, request_link: RequestLink) -> tuple[str, float]:
        return request_link(), self._clock.monotonic()

    def _keep(self, path: str, link: tuple[str, float]) -> None:
        with self._lock:
            self._links[path] = link

    def _take_kept(self, path: str) -> tuple[str, float] | None:
        with self._lock:
            oldest = self._clock.monotonic() - _LINK_LIFETIME
            self._links = {path: link for path, link in self._links.items() if link[1] > oldest}
            return self._links.pop(path, None)


class CircuitBreaker:
    """After two failures of the store in a row, lets one upload pass at a time.

    One failure alone may be due to the file.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # leaf; guards everything below
        self._failures = 0  # in a row
        self._next = 0.0  # monotonic seconds; when the next upload may pass while the store fails
        self._error: ServiceError | None = None

    @contextmanager
    def passing(self) -> Iterator[int]:
        """Yields what `failed` needs. Raises the store's last error if no upload may pass now."""
        with self._lock:
            failures, now = self._failures, self._clock.monotonic()
            if failures > 1:
                if now < self._next:
                    assert self._error is not None
                    raise type(self._error)(f"not tried, since the object store fails: {self._error}")
                # not until the end: a long transfer must not keep the others out
                self._next = now + _LONGEST_PAUSE
        try:
            yield failures
        finally:
            with self._lock:
                if self._failures == failures:  # this upload proved nothing about the store
                    self._next = 0.0

    def failed(self, failures: int, error: ServiceError) -> None:
        """Note a failure of the store. `failures` comes from `passing`: uploads that fail together count once."""
        with self._lock:
            if failures == self._failures:
                self._failures += 1
                pause = backoff.ceiling(self._failures, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE)
                self._next = self._clock.monotonic() + pause
                self._error = error

    def worked(self) -> None:
        """Note a success of the store."""
        with self._lock:
            self._failures = 0
