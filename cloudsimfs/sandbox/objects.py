"""The object store: signed URLs under `/objects/`, their GET, HEAD and PUT.

A link is for a storage path, so an old link serves the newest version there. Threading: `Objects` runs in the event
loop; `Links` may be used from any thread. Must never store an upload that was cut off.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import re
import secrets
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlencode

from aiohttp import ClientError, web

from cloudsimfs.sandbox import wire
from cloudsimfs.sandbox.blobs import Blob, etag_of
from cloudsimfs.sandbox.faults import ActiveFaults
from cloudsimfs.sandbox.log import Call
from cloudsimfs.sandbox.settings import Clock, Settings
from cloudsimfs.sandbox.store import Store, Visible
from cloudsimfs.sandbox.wire import Reply, xml_reply

UPLOAD_TYPE = "application/octet-stream"  # docs/service.md, "URLs"
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})$")


@dataclass(frozen=True, slots=True)
class Link:
    """What a signed URL allows: PUT to or GET of a storage path, or GET of a run's image in `file`."""

    method: str
    path: str
    expires: float
    visible: Visible = Visible.NOW
    file: Path | None = None


class Links:
    """The signed URLs that are valid, and the signing of new ones."""

    def __init__(self, base: str, clock: Clock, settings: Settings) -> None:
        self._base = base  # "http://host:port"
        self._clock = clock
        self._settings = settings
        self._secret = secrets.token_bytes(16)
        self._lock = threading.Lock()
        self._links: dict[str, Link] = {}  # guarded by _lock; oldest first

    def upload(self, path: str, visible: Visible) -> str:
        """A URL that takes one file by PUT."""
        return self._sign(Link("PUT", path, self._expiry(), visible))

    def download(self, path: str, file: Path | None = None) -> str:
        """A URL that serves the file at `path`, or the local `file`."""
        return self._sign(Link("GET", path, self._expiry(), file=file))

    def find(self, token: str) -> Link | None:
        with self._lock:
            return self._links.get(token)

    def allows(self, link: Link | None, token: str, method: str, signature: str, expires: str) -> bool:
        """Whether the link is known, unchanged, not expired, and for this method."""
        return (
            link is not None
            and link.method == ("GET" if method == "HEAD" else method)
            and expires == str(int(link.expires))
            and hmac.compare_digest(signature.encode(), self._signature(token, expires).encode())
            and self._clock.now() < link.expires
        )

    def _expiry(self) -> float:
        return self._clock.now() + self._settings.link_seconds

    def _sign(self, link: Link) -> str:
        token = secrets.token_urlsafe(18)
        with self._lock:
            self._links[token] = link
            now = self._clock.now()
            stale = itertools.takewhile(lambda item: item[1].expires < now, self._links.items())
            for old, _ in list(stale):
                del self._links[old]
        expires = str(int(link.expires))
        query = urlencode({"signature": self._signature(token, expires), "expires": expires})
        return f"{self._base}/objects/{token}?{query}"

    def _signature(self, token: str, expires: str) -> str:
        return hmac.new(self._secret, f"{token} {expires}".encode(), hashlib.sha256).hexdigest()


class Objects:
    """Answers requests to signed URLs."""

    def __init__(self, store: Store, links: Links, clock: Clock, settings: Settings) -> None:
        self._store = store
        self._links = links
        self._clock = clock
        self._settings = settings

    def path_of(self, token: str) -> str:
        """The storage path that a link is for; empty for an unknown link."""
        link = self._links.find(token)
        return link.path if link else ""

    async def answer(self, request: web.BaseRequest, token: str, fired: ActiveFaults, call: Call) -> Reply:
        """Process one request. Raises Dropped if its body was cut off."""
        link = self._links.find(token)
        query = request.query
        signature, expires = query.get("signature", ""), query.get("expires", "")
        if link is None or not self._links.allows(link, token, request.method, signature, expires):
            return xml_reply(403, "ExpiredToken", "The link is unknown, has expired, or was changed.")
        if request.method == "PUT":
            return await self._put(request, link, fired, call)
        fault = fired.get("odd")
        whole = fault is not None and fault.variation == "ignore-range"
        blob, stream = self._open(link)
        if blob is None:
            return xml_reply(404, "NoSuchKey", "The specified key does not exist.")
        reply = self._get(request, blob, whole=whole)
        if stream is not None and reply.file is not None:
            reply.stream = stream
        elif stream is not None:
            stream.close()
        return reply

    def _get(self, request: web.BaseRequest, blob: Blob, *, whole: bool) -> Reply:
        match = request.headers.get("If-Match", "*")
        if match != "*" and blob.etag not in [tag.strip() for tag in match.split(",")]:
            return xml_reply(412, "PreconditionFailed", "At least one precondition did not hold.")
        headers = {"ETag": blob.etag, "Accept-Ranges": "bytes"}
        reply = Reply(200, blob.data or b"", UPLOAD_TYPE, headers, blob.file, count=blob.size, zeros=blob.zeros)
        wanted = None if whole else _RANGE.match(request.headers.get("Range", ""))
        if wanted is None or request.headers.get("If-Range", blob.etag) != blob.etag:
            return reply
        bounds = _bounds(wanted[1], wanted[2], blob.size)
        if bounds is None:
            reply = xml_reply(416, "InvalidRange", "The requested range cannot be satisfied.")
            reply.headers["Content-Range"] = f"bytes */{blob.size}"
            return reply
        start, stop = bounds
        reply.status, reply.offset, reply.count = 206, start, stop - start
        reply.body = reply.body[start:stop]
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{blob.size}"
        return reply

    def _open(self, link: Link) -> tuple[Blob | None, BinaryIO | None]:
        if link.file is None:
            return self._store.open(link.path)
        try:
            data = link.file.read_bytes()  # all of it: the run may replace the file at any time
        except FileNotFoundError:
            return None, None
        return Blob(len(data), etag_of(data), data=data), None

    async def _put(self, request: web.BaseRequest, link: Link, fired: ActiveFaults, call: Call) -> Reply:
        if request.headers.get("Content-Type") != UPLOAD_TYPE:
            return xml_reply(403, "SignatureDoesNotMatch", f"Content-Type must be {UPLOAD_TYPE}.")
        if request.content_length is None:
            return xml_reply(411, "MissingContentLength", "You must provide the Content-Length header.")
        file, digest, size = self._store.new_file(), hashlib.md5(usedforsecurity=False), 0
        stored = False
        try:
            with file.open("wb") as stream:
                async for chunk in wire.receive(request, fired, self._settings, call):
                    stream.write(chunk)
                    digest.update(chunk)
                    size += len(chunk)
            blob = Blob(size, f'"{digest.hexdigest()}"', file=file)
            if fired.get("pretend"):
                return _stored(blob)
            if not fired.late(partial(self._store.put, link.path, blob, link.visible)):
                self._store.put(link.path, blob, link.visible)
            stored = True
        except (ClientError, ConnectionError):
            raise wire.reset(request) from None
        finally:
            if not stored:
                file.unlink()
        return _stored(blob)


def _stored(blob: Blob) -> Reply:
    return Reply(200, b"", "text/plain", {"ETag": blob.etag})


def _bounds(first: str, last: str, size: int) -> tuple[int, int] | None:
    """A byte range as (start, stop), or None if it cannot be satisfied."""
    if not first:
        length = int(last or 0)
        return (max(0, size - length), size) if length and size else None
    start = int(first)
    stop = min(int(last) + 1, size) if last else size
    return (start, stop) if start < stop else None
