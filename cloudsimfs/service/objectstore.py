"""The object store behind signed URLs: one PUT for an upload, ranged GETs for downloads, with constant memory.

Thread-safe: it has no state of its own; a `Fetched` belongs to one thread. A signed URL carries its own signature:
the API key is never sent to it, it is never logged, and it counts against no limit (docs/service.md, "URLs").
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from cloudsimfs.clock import Clock
from cloudsimfs.errors import (
    BadReply,
    LinkExpired,
    NoSuchEntry,
    Refused,
    ServerFault,
    ServiceError,
    TimedOut,
    VersionChanged,
)
from cloudsimfs.service.body import Body, Progress
from cloudsimfs.service.call import Timeouts
from cloudsimfs.service.model import Download, Stored
from cloudsimfs.service.parsing import excerpt
from cloudsimfs.service.retry import Failed, Retrier
from cloudsimfs.service.transport import MAX_REDIRECTS, HttpTransport, Reply, redirect_target
from cloudsimfs.service.v1 import CONTENT_TYPE

_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
_MD5 = re.compile(r"[0-9a-f]{32}")


class Fetched:
    """The open body of a file or a range of it. Use as a context manager; read `blocks` once.

    `offset` and `length` say in bytes what the server really sends; `total` is the size of the whole object. `length`
    and `total` are None if the server did not say. `partial` is False if it ignored the range and sends everything.
    """

    def __init__(
        self, label: str, reply: Reply, *, offset: int, length: int | None, total: int | None, partial: bool
    ) -> None:
        self._label = label
        self._reply = reply
        self.etag = reply.headers.get("etag")
        self.offset = offset
        self.length = length
        self.total = total
        self.partial = partial

    def __enter__(self) -> Fetched:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._reply.close()

    def blocks(self, buffer: memoryview | None = None) -> Iterator[bytes | memoryview]:
        """The bytes, in blocks of at most 256 KiB. With a `buffer`, each block is a view: the next one overwrites it.

        Raises Unreachable or TimedOut if the transfer is cut off, BadReply for other bytes than announced.
        """
        received = 0
        try:
            for block in self._reply.blocks(buffer):
                received += len(block)
                if self.length is not None and received > self.length:
                    raise BadReply(f"{self._label}: more than the announced {self.length} bytes came")
                yield block
        except Failed as failed:
            raise failed.error from None
        if self.length is not None and received < self.length:
            raise BadReply(f"{self._label}: {received} of the announced {self.length} bytes came")


class ObjectStore:
    """Transfers over signed URLs. With `secure`, only https links are used."""

    def __init__(
        self, http: HttpTransport, retrier: Retrier, clock: Clock, timeouts: Timeouts, *, secure: bool
    ) -> None:
        self._http = http
        self._retrier = retrier
        self._clock = clock
        self._timeouts = timeouts
        self._secure = secure

    def put(self, url: str, size: int, body: Body, *, progress: Progress | None) -> Stored:
        """Store `size` bytes. If the store's ETag is the MD5 of other bytes, the attempt has failed.

        Raises LinkExpired, Cancelled, other ServiceErrors, and what `body` raises.
        """
        label = "PUT upload link"
        self._check(label, url)

        def attempt(_: float) -> Stored:
            headers = {"Content-Type": CONTENT_TYPE}
            digest = hashlib.md5(usedforsecurity=False)

            def hashed() -> Iterator[bytes]:
                for block in body():
                    digest.update(block)
                    yield block

            with self._http.upload(label, url, headers, size, hashed, progress) as reply:
                if not 200 <= reply.status < 300:
                    raise self._refusal(label, reply)
                answer = reply.error_content()  # reading it also lets the connection be used again
                return _stored(label, reply.headers, answer, digest.hexdigest())

        # No total time: the transfer itself may take hours. The number of attempts is bounded.
        try:
            return self._retrier.run(label, float("inf"), attempt)
        except Failed as failed:
            raise failed.error from None

    def get(
        self,
        download: Download,
        *,
        offset: int = 0,
        length: int | None = None,
        if_etag: str | None = None,
        if_size: int | None = None,
    ) -> Fetched:
        """Open `length` bytes (None: the rest) from `offset`. The caller closes the result. See `Client.fetch`."""
        label = "GET download link"
        headers: dict[str, str] = {}
        if length is not None and length < 1:
            raise ValueError("a range has at least one byte")
        if offset or length is not None:
            end = "" if length is None else str(offset + length - 1)
            headers["Range"] = f"bytes={offset}-{end}"

        def attempt(deadline: float) -> Fetched:
            reply = self._follow(label, download.url, headers, deadline)
            try:
                if reply.status not in (200, 206):
                    raise self._refusal(label, reply)
                return opened(label, reply, offset, length, if_etag, if_size)
            except BaseException:
                reply.close()
                raise

        try:
            return self._retrier.run(label, self._timeouts.total, attempt)
        except Failed as failed:
            raise failed.error from None

    def _follow(self, label: str, url: str, headers: Mapping[str, str], deadline: float) -> Reply:
        for _ in range(MAX_REDIRECTS + 1):
            self._check(label, url)
            reply = self._http.send(label, "GET", url, headers, deadline=deadline, read=self._timeouts.data)
            if reply.redirect is None:
                return reply
            reply.close()
            url = redirect_target(label, url, reply.redirect)
        raise Failed(Refused(f"{label}: more than {MAX_REDIRECTS} redirects"), again=False)

    def _check(self, label: str, url: str) -> None:
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname)
        except ValueError:
            usable = False
        if not usable:
            raise BadReply(f"{label}: not a usable link")
        if self._secure and parts.scheme != "https":
            raise BadReply(f"{label}: the link is not https, although the API is")

    @staticmethod
    def _refusal(label: str, reply: Reply) -> Failed:
        reason = excerpt(reply.error_content())
        text = f"{label}: HTTP {reply.status}" + (f": {reason}" if reason else "")
        error: ServiceError
        if reply.status in (400, 401, 403):
            error = LinkExpired(text)
        elif reply.status in (404, 410):
            error = NoSuchEntry(text)
        elif reply.status in (412, 416):
            error = VersionChanged(f"{text} (the stored object is not the expected one)")
        elif reply.status == 408:
            error = TimedOut(text)
        elif reply.status >= 500 or reply.status == 429:
            error = ServerFault(text)
        else:
            error = Refused(text)
        return Failed(error, again=isinstance(error, (ServerFault, TimedOut)))


def opened(
    label: str,
    reply: Reply,
    offset: int = 0,
    length: int | None = None,
    if_etag: str | None = None,
    if_size: int | None = None,
) -> Fetched:
    """Check the headers of a 200 or 206 against the request. Raises BadReply, VersionChanged."""
    etag = reply.headers.get("etag")
    if if_etag is not None and etag is not None and etag != if_etag:
        raise VersionChanged(f"{label}: the file was replaced on the service")
    if reply.headers.get("content-encoding", "identity").lower() not in ("", "identity"):
        raise BadReply(f"{label}: the file came compressed, although it was requested uncompressed")
    if reply.status == 200:
        size = reply.content_length
        if etag is None and None not in (size, if_size) and size != if_size:
            raise BadReply(
                f"{label}: {size} bytes without an ETag came: they are not the stored object"
            )  # a proxy's page
        _check_size(label, size, if_size)
        return Fetched(label, reply, offset=0, length=size, total=size, partial=False)
    match = _RANGE.fullmatch(reply.headers.get("content-range", "").strip())
    if match is None:
        raise BadReply(f"{label}: the answer to a range has no usable Content-Range")
    first, last = int(match[1]), int(match[2])
    total = None if match[3] == "*" else int(match[3])
    _check_size(label, total, if_size)
    count = last - first + 1
    fits = length is None or count <= length
    if first != offset or count < 1 or not fits or reply.content_length not in (None, count):
        raise BadReply(f"{label}: the answer is another part of the file than requested (Content-Range {match[0]})")
    if length is not None and count < length and total is not None and last != total - 1:
        raise BadReply(f"{label}: the answer is a shorter part of the file than requested (Content-Range {match[0]})")
    return Fetched(label, reply, offset=first, length=count, total=total, partial=True)


def _check_size(label: str, total: int | None, expected: int | None) -> None:
    if None not in (total, expected) and total != expected:
        raise VersionChanged(f"{label}: the object has {total} bytes, not {expected}")


def _stored(label: str, headers: Mapping[str, str], answer: bytearray, md5: str) -> Stored:
    """Check that a 2xx comes from the store, and that the store has the bytes that were sent. Raises Failed."""
    etag = headers.get("etag")
    plain = (etag or "").strip('"').lower()
    if _MD5.fullmatch(plain) and plain != md5 and not _is_encrypted(headers):
        raise Failed(BadReply(f"{label}: the store has other bytes than were sent"), again=True)
    # A page comes from a proxy or a portal. Its Content-Type does not tell: a store may call an empty body HTML.
    if answer.lstrip()[:1] == b"<" and plain != md5:
        raise Failed(
            ServerFault(f"{label}: a web page came instead of the store's answer: {excerpt(answer)}"), again=True
        )
    stored_ns = None
    try:
        stored_ns = int(parsedate_to_datetime(headers.get("date", "")).timestamp()) * 10**9
    except (ValueError, TypeError, OverflowError):
        pass  # `stored_ns` is optional
    return Stored(etag, stored_ns)


def _is_encrypted(headers: Mapping[str, str]) -> bool:
    """Whether the ETag is of encrypted bytes: S3's then looks like an MD5, but is not that of what was sent."""
    kms = headers.get("x-amz-server-side-encryption", "").startswith("aws:kms")
    return kms or "x-amz-server-side-encryption-customer-algorithm" in headers
