"""One version of a file on the service: a signed URL and the ranges read from it.

All bytes come from one version (docs/architecture.md, invariant 5): its ETag and size are checked on every
reply. Threading: a `Source` may be read by any number of threads; its lock is a leaf, not held across
the network.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from cloudsimfs.errors import (
    BadReply,
    LinkExpired,
    NoSuchEntry,
    ServiceError,
    TimedOut,
    Unreachable,
    VersionChanged,
)
from cloudsimfs.service import Client, Download, Fetched
from cloudsimfs.service.model import Entry


class Source:
    """One version of a file on the service, readable by ranges: one signed URL, used until it expires.

    `link` is one given out for an earlier version: it may well serve this one, and costs no call.
    """

    def __init__(
        self, client: Client, entry: Entry, *, etag: str | None = None, link: Future[Download] | None = None
    ) -> None:
        self.entry = entry
        self._client = client
        self._lock = threading.Lock()  # protects the rest
        self._etag = etag
        self._link = link
        self._inherited = link

    @contextmanager
    def open(self, offset: int, length: int) -> Iterator[Fetched]:
        """`length` bytes from `offset` on; from 0, and all of them, if the server ignores ranges.

        Raises VersionChanged if the object is no longer the pinned one, else a ServiceError.
        """
        link = self._linked()
        try:
            fetched = self._fetch(link, offset, length)
        except (LinkExpired, VersionChanged, NoSuchEntry) as error:
            if not isinstance(error, LinkExpired) and link is not self._inherited:
                raise
            self._forget(link)
            fetched = self._fetch(self._linked(), offset, length)
        with fetched:
            yield fetched

    def read(self, start: int, end: int) -> bytes:
        """Exactly `[start, end)`, in memory."""
        with self.open(start, end - start) as fetched:
            position = fetched.offset
            found = bytearray()
            for block in fetched.blocks():
                found += block[max(0, start - position) : max(0, end - position)]
                position += len(block)
                if position >= end:
                    break
        if len(found) != end - start:
            raise BadReply(f"/{self.entry.path}: the service sent less than it announced")
        return bytes(found)

    def _fetch(self, link: Future[Download], offset: int, length: int) -> Fetched:
        try:
            fetched = self._client.fetch(
                link.result(), offset=offset, length=length, if_etag=self.etag, if_size=self.entry.size
            )
        except (Unreachable, TimedOut) as error:  # tried several times already; the API may well be there
            raise ServiceError(f"{error}") from error
        with self._lock:
            self._etag = self._etag or fetched.etag
            # two first replies may come from two versions; an earlier version's link has to prove which it serves
            same = fetched.etag in (None, self._etag) and (fetched.total is not None or link is not self._inherited)
        if not same:
            fetched.close()
            raise VersionChanged("the file was replaced on the service")
        return fetched

    @property
    def etag(self) -> str | None:
        """The version's ETag, once a reply has told it."""
        with self._lock:
            return self._etag

    @property
    def link(self) -> Future[Download] | None:
        """The signed URL in use, for the file's next version."""
        with self._lock:
            return self._link if self._link is not None and self._link.done() else None

    def _linked(self) -> Future[Download]:
        """The signed URL; who comes first asks for it, the others wait for the answer."""
        with self._lock:
            link = self._link
            mine = link is None
            if link is None:
                link = self._link = Future()
        if mine:
            try:
                link.set_result(self._client.download(self.entry.id))
            except BaseException as error:
                self._forget(link)
                link.set_exception(error)
                raise
        link.result()
        return link

    def _forget(self, link: Future[Download]) -> None:
        with self._lock:
            if self._link is link:
                self._link = None
