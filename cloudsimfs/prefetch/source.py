"""One version of a file on the service: a signed URL and the ranges read from it.

All bytes come from one version (docs/architecture.md, invariant 5a): every reply's ETag and size are checked.

Threading: any number of threads may read a `Source`. Its lock is a leaf and is not held across the network.
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
    Stale,
    TimedOut,
    Unreachable,
    VersionChanged,
)
from cloudsimfs.service import Client, Download, Fetched
from cloudsimfs.service.model import Entry


@contextmanager
def as_filesystem_error(entry: Entry) -> Iterator[None]:
    """Raise Stale where the object of a listed file is not found, or is another version. A listing tells which."""
    try:
        yield
    except (NoSuchEntry, VersionChanged) as error:
        raise Stale(f"/{entry.path}: {error}") from error


class Source:
    """One version of a file on the service, readable by ranges. A signed URL is used until it expires.

    `earlier` is an earlier version. If it is of the same entry, its signed URL is tried first: that often serves this
    version too, and costs no call.
    """

    def __init__(
        self, client: Client, entry: Entry, *, etag: str | None = None, earlier: Source | None = None
    ) -> None:
        self.entry = entry
        link = earlier.link if earlier is not None and earlier.entry.id == entry.id else None
        self._client = client
        self._inherited = link
        self._lock = threading.Lock()  # guards the rest
        self._etag = etag
        self._link = link
        self._trusted = False  # a link of this version has served it, or one was asked for anew

    @contextmanager
    def open(self, offset: int, length: int) -> Iterator[Fetched]:
        """`length` bytes from `offset` on; the whole file from 0 on if the server ignores ranges.

        Raises VersionChanged if the object is another version now, else a ServiceError.
        """
        link = self._get_link()
        try:
            fetched = self._fetch(link, offset, length)
        except (LinkExpired, VersionChanged, NoSuchEntry) as error:
            if not isinstance(error, LinkExpired) and not self._may_be_wrong(link):
                raise
            self._drop_link(link)
            fetched = self._fetch(self._get_link(), offset, length)
        with fetched:
            yield fetched

    def read(self, start: int, end: int) -> bytes:
        """Exactly `[start, end)`, in memory. Raises BadReply if the service sends less, else as `open`."""
        with self.open(start, end - start) as fetched:
            position = fetched.offset
            data = bytearray()
            for block in fetched.blocks():
                data += block[max(0, start - position) : max(0, end - position)]
                position += len(block)
                if position >= end:
                    break
        if len(data) != end - start:
            raise BadReply(f"/{self.entry.path}: the service sent less than it announced")
        return bytes(data)

    def _fetch(self, link: Future[Download], offset: int, length: int) -> Fetched:
        try:
            fetched = self._client.fetch(
                link.result(), offset=offset, length=length, if_etag=self.etag, if_size=self.entry.size
            )
        except (Unreachable, TimedOut) as error:  # the client has retried; the API itself may be reachable
            raise ServiceError(f"{error}") from error
        with self._lock:
            self._etag = self._etag or fetched.etag
            # two first replies may come from two versions; an inherited link has to prove which version it serves
            same = fetched.etag in (None, self._etag) and (fetched.total is not None or link is not self._inherited)
            self._trusted = self._trusted or (same and link is not self._inherited)
        if not same:
            fetched.close()
            raise VersionChanged("the file was replaced on the service")
        return fetched

    @property
    def etag(self) -> str | None:
        """The version's ETag; None until a reply has brought it."""
        with self._lock:
            return self._etag

    @property
    def link(self) -> Future[Download] | None:
        """The signed URL in use, for the file's next version; None while there is none."""
        with self._lock:
            return self._link if self._link is not None and self._link.done() else None

    def _get_link(self) -> Future[Download]:
        """The signed URL. The first caller asks for it, the others wait for the answer."""
        with self._lock:
            link = self._link
            is_first = link is None
            if link is None:
                link = self._link = Future()
        if is_first:
            try:
                link.set_result(self._client.download(self.entry.id))
            except BaseException as error:
                self._drop_link(link)
                link.set_exception(error)
                raise
        link.result()
        return link

    def _may_be_wrong(self, link: Future[Download]) -> bool:
        """Whether another link may lead to this version: this one is of an earlier version, or has never served it.

        Of the latter there is one only, so that reading what is gone costs no calls.
        """
        with self._lock:
            if link is self._inherited:
                return True
            doubted, self._trusted = not self._trusted, True
            return doubted

    def _drop_link(self, link: Future[Download]) -> None:
        with self._lock:
            if self._link is link:
                self._link = None
