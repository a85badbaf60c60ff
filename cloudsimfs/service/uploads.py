"""Uploads: the link, the transfer, and what a failing object store may cost.

A link is good for about 15 minutes (docs/service.md, "URLs") and for any content: one whose transfer failed is
kept for the next try, so that a store that is down costs one API call per file and not one per try. While the store
itself fails, one upload at a time tries it, at growing distances; the others hear at once why.

Object stores answer with an ETag. A success without one may be the word of a proxy or a portal that has swallowed the
bytes: a listing has to prove it, once; then the store is known as one that gives none.

Thread-safe; the locks are leaves, held for moments. Two uploads of one path at the same time are the caller's affair.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cloudsimfs import backoff
from cloudsimfs.clock import Clock
from cloudsimfs.errors import LinkExpired, ServerFault, ServiceError, TimedOut, Unreachable
from cloudsimfs.service.body import Body, Progress
from cloudsimfs.service.model import Stored
from cloudsimfs.service.objectstore import ObjectStore

_LINK_LIFE = 840.0  # seconds a link is kept; the store has the last word (LinkExpired)
_FIRST = 0.5  # seconds after the first failure of the store until the next try; doubled each time, up to
_LONGEST = 120.0
_OF_THE_STORE = (LinkExpired, ServerFault, TimedOut, Unreachable)

Ask = Callable[[], str]
IsListed = Callable[[Stored], bool]


class Uploads:
    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._gate = Gate(clock)
        self._lock = threading.Lock()  # protects what follows
        self._links: dict[str, tuple[str, float]] = {}  # by path, with the monotonic seconds they were given at
        self._gives_no_etag = False

    def put(
        self, path: str, size: int, body: Body, ask: Ask, is_listed: IsListed, *, progress: Progress | None = None
    ) -> Stored:
        """Store `size` bytes. `ask` gets a link for the path: one API call; `is_listed` looks whether they are there.

        Raises as `ObjectStore.put` and as these two.
        """

        def send(link: tuple[str, float]) -> Stored:
            try:
                stored = self._store.put(link[0], size, body, progress=progress)
                self._check(path, stored, is_listed)
            except BaseException as error:
                if not isinstance(error, LinkExpired):
                    self._keep(path, link)
                if isinstance(error, _OF_THE_STORE):
                    self._gate.failed(failures, error)
                raise
            self._gate.worked()
            return stored

        with self._gate.passing() as failures:
            try:
                return send(self._kept(path) or self._new(ask))
            except LinkExpired:
                return send(self._new(ask))

    def _check(self, path: str, stored: Stored, is_listed: IsListed) -> None:
        with self._lock:
            if stored.etag is not None:
                self._gives_no_etag = False
            if stored.etag is not None or self._gives_no_etag:
                return
        if not is_listed(stored):
            raise ServerFault(f"PUT upload link: it was answered without an ETag, and /{path} is not listed")
        with self._lock:
            self._gives_no_etag = True

    def _new(self, ask: Ask) -> tuple[str, float]:
        return ask(), self._clock.monotonic()

    def _keep(self, path: str, link: tuple[str, float]) -> None:
        with self._lock:
            self._links[path] = link

    def _kept(self, path: str) -> tuple[str, float] | None:
        with self._lock:
            oldest = self._clock.monotonic() - _LINK_LIFE
            self._links = {path: link for path, link in self._links.items() if link[1] > oldest}
            return self._links.pop(path, None)


class Gate:
    """Keeps uploads from a store that fails: after two failures in a row one may pass at a time.

    One failure alone may be the file's own.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # protects what follows
        self._failures = 0  # in a row
        self._next = 0.0  # monotonic seconds; when the next one may pass, if the store fails
        self._error: ServiceError | None = None

    @contextmanager
    def passing(self) -> Iterator[int]:
        """Raises the store's last error if this is not the time; else gives what `failed` needs."""
        with self._lock:
            failures, now = self._failures, self._clock.monotonic()
            if failures > 1:
                if now < self._next:
                    assert self._error is not None
                    raise type(self._error)(f"not tried, since the object store fails: {self._error}")
                self._next = now + _LONGEST  # a long transfer does not keep the others out until its end
        try:
            yield failures
        finally:
            with self._lock:
                if self._failures == failures:  # it came to no end that says anything of the store
                    self._next = 0.0

    def failed(self, failures: int, error: ServiceError) -> None:
        """The store failed. `failures` is what `passing` gave: those that fail together count once."""
        with self._lock:
            if failures == self._failures:
                self._failures += 1
                self._next = self._clock.monotonic() + backoff.ceiling(self._failures, first=_FIRST, longest=_LONGEST)
                self._error = error

    def worked(self) -> None:
        with self._lock:
            self._failures = 0
