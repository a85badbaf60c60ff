"""HTTP: pooled connections, timeouts, and the network's failures as errors of `cloudsimfs.errors`.

Only this module imports requests and urllib3. Thread-safe: one `HttpTransport` serves any number of threads; a
`Reply` belongs to one. It keeps no cookies and follows no redirects. It takes proxies from the environment, but no
passwords, and never adds a credential: its callers give the headers.
"""

from __future__ import annotations

import functools
import http.client
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from http.cookiejar import DefaultCookiePolicy
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase

from cloudsimfs.clock import Clock
from cloudsimfs.errors import BadReply, Cancelled, Refused, ServiceError, TimedOut, Unreachable
from cloudsimfs.redact import redact
from cloudsimfs.service.answers import MAX_REFUSAL
from cloudsimfs.service.body import Body, BodyFailed, Progress, UploadBody
from cloudsimfs.service.call import Timeouts
from cloudsimfs.service.deadline import Deadline, TimedResponse
from cloudsimfs.service.retry import Failed

POOL_SIZE = 64  # idle connections kept per host
READ_BLOCK = 1 << 18  # bytes read at once through urllib3
MIN_RECEIVE_BLOCK, FIRST_RECEIVE_BLOCK = 1 << 16, 1 << 18  # bytes received at once into a buffer
RECEIVE_TARGET = 0.01  # seconds that one block should take: readers wait for its end
MAX_REDIRECTS = 5  # followed by one request; callers follow them
_REDIRECTS = (301, 302, 303, 307, 308)


def redirect_target(label: str, url: str, location: str) -> str:
    """The URL that a redirect from `url` leads to. Raises Refused if `location` is no URL at all."""
    try:
        return urljoin(url, location)
    except ValueError:
        raise Refused(f"{label}: redirected to what is not a URL") from None


class _NoAuth(AuthBase):
    """Stops requests from looking for a password in ~/.netrc."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        return request


class Reply:
    """An answer whose body has not been read yet. Close it, or use it as a context manager."""

    def __init__(
        self, label: str, response: requests.Response, clock: Clock, stop: threading.Event, deadline: Deadline
    ) -> None:
        self._label = label
        self._response = response
        self._clock = clock
        self._deadline = deadline
        self._stop = stop
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers

    def __enter__(self) -> Reply:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Return the connection to the pool, or drop it if the body is not read to its end."""
        self._response.close()

    @property
    def content_length(self) -> int | None:
        """The announced length of the body in bytes; None without a usable header."""
        value = self.headers.get("content-length", "")
        return int(value) if value.isascii() and value.isdigit() and len(value) < 19 else None

    @property
    def redirect(self) -> str | None:
        """The Location header of a redirect, as it was sent; None if the reply is no redirect."""
        return (self.headers.get("location") or None) if self.status in _REDIRECTS else None

    def content(self, most: int) -> bytearray:
        """Read the whole decoded body. Raises Failed if it is cut off, late or larger than `most` bytes."""
        content = bytearray()  # not a list of blocks: joining it would need twice the memory
        for block in self.decoded(most):
            content += block
        return content

    def decoded(self, most: int) -> Iterator[bytes]:
        """The decoded body in blocks. Raises Failed as `content` does."""
        count = 0
        for block in self._read(decode=True):
            count += len(block)
            if count > most:
                raise Failed(BadReply(f"{self._label}: the answer is larger than {most} bytes"), again=False)
            yield block

    def refusal(self) -> bytearray:
        """Read the first MAX_REFUSAL bytes of an answer that is no success. Raises Failed if it is cut off before."""
        content = bytearray()
        for block in self._read(decode=True, most=MAX_REFUSAL):
            content += block
            if len(content) >= MAX_REFUSAL:
                break
        return content[:MAX_REFUSAL]

    def error_content(self) -> bytearray:
        """The same, or nothing if it is cut off: the status already says what happened."""
        try:
            return self.refusal()
        except Failed:
            return bytearray()

    def blocks(self, buffer: memoryview | None = None) -> Iterator[bytes | memoryview]:
        """The body as it came over the wire, not decompressed. Raises Failed if it is cut off.

        With a `buffer`, the blocks are views of it: each is valid until the next one is read. A body that goes on
        coming has no deadline: it may be a large file.
        """
        self._deadline.lift()
        body = getattr(self._response.raw, "_fp", None)
        size = self.content_length
        if buffer is None or size is None or not isinstance(body, http.client.HTTPResponse) or body.chunked:
            return self._read(decode=False)
        return self._receive(body, size, buffer)

    def _receive(self, body: http.client.HTTPResponse, left: int, buffer: memoryview) -> Iterator[memoryview]:
        """Read past urllib3, which would copy every byte twice more. The block size follows the speed."""
        size = FIRST_RECEIVE_BLOCK
        while left:
            if self._stop.is_set():
                raise Cancelled(f"{self._label}: stopped")
            started = self._clock.monotonic()
            try:
                count = body.readinto(buffer[: min(size, left)])
            except TimeoutError:
                raise Failed(TimedOut(f"{self._label}: the answer stopped coming"), again=True) from None
            except (http.client.HTTPException, OSError, ValueError) as error:
                raise Failed(self._cut(_cause(error)), again=True) from None
            if not count:
                raise Failed(self._cut("connection closed"), again=True)
            took = self._clock.monotonic() - started
            size = min(size * 2, len(buffer)) if took < RECEIVE_TARGET else max(size // 2, MIN_RECEIVE_BLOCK)
            left -= count
            yield buffer[:count]
        self._response.raw.release_conn()  # urllib3 did not see the end of the body

    def _read(self, *, decode: bool, most: int = READ_BLOCK) -> Iterator[bytes]:
        raw = self._response.raw
        while True:
            if self._stop.is_set():
                raise Cancelled(f"{self._label}: stopped")
            try:
                block = raw.read(most, decode_content=decode)
            except urllib3.exceptions.ReadTimeoutError:
                raise Failed(TimedOut(f"{self._label}: the answer stopped coming"), again=True) from None
            except urllib3.exceptions.DecodeError:
                error = BadReply(f"{self._label}: the answer's compression is broken")
                raise Failed(error, again=False) from None
            except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
                # http.client raises ValueError for a chunk size that is no number
                raise Failed(self._cut(_cause(error)), again=True) from None
            if not block:
                break
            yield block

    def _cut(self, cause: str) -> ServiceError:
        return Unreachable(f"{self._label}: the answer was cut off ({cause})")


class _Session(requests.Session):
    """Follows no redirect, and does not look where it leads: requests would read its whole body for that."""

    def get_redirect_target(self, resp: requests.Response) -> None:
        return None


class _Adapter(HTTPAdapter):
    """Its connections read each answer under the Deadline of the thread that sends the request."""

    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
        pool: Any = super().get_connection_with_tls_context(*args, **kwargs)
        pool.ConnectionCls = _timed(pool.ConnectionCls)
        return pool


@functools.cache
def _timed(connection: type[Any]) -> type[Any]:
    """The connection class with answers that keep a Deadline."""
    if connection.response_class is TimedResponse:
        return connection
    return type(connection.__name__, (connection,), {"response_class": TimedResponse})


class HttpTransport:
    """Sends single requests over pooled connections. Setting `stop` ends transfers with Cancelled."""

    def __init__(self, timeouts: Timeouts, clock: Clock, stop: threading.Event) -> None:
        self._timeouts = timeouts
        self._clock = clock
        self._stop = stop
        self._pooled = self._session()

    @staticmethod
    def _session() -> requests.Session:
        session = _Session()
        adapter = _Adapter(pool_connections=POOL_SIZE, pool_maxsize=POOL_SIZE, pool_block=False)
        session.mount("https://", adapter)
        session.mount("http://", adapter)
        session.auth = _NoAuth()
        session.headers["User-Agent"] = "cloudsimfs"
        session.headers["Accept-Encoding"] = "identity"  # what comes is what takes memory
        session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        return session

    def close(self) -> None:
        """Drop the idle connections."""
        self._pooled.close()

    def send(
        self,
        label: str,
        method: str,
        url: str,
        headers: Mapping[str, str],
        *,
        deadline: float | None = None,
        read: float | None = None,
        fresh: bool = False,
        **content: Any,
    ) -> Reply:
        """Send one request; `content` is requests' json, data, files or params. Raises Failed.

        `deadline` is in seconds of the clock's monotonic scale. `read` replaces the read timeout (seconds). `fresh`
        uses a new connection: a pooled one may have died unnoticed, and the answer would seem lost.
        """
        read = self._timeouts.read if read is None else read
        connect = self._timeouts.connect
        if deadline is not None:
            left = max(0.05, deadline - self._clock.monotonic())
            connect, read = min(connect, left), min(read, left)
        session = self._session() if fresh else self._pooled
        answer = Deadline(self._clock, deadline, self._timeouts.total)
        try:
            with answer.of_this_thread():
                response = session.request(
                    method,
                    url,
                    headers=dict(headers),
                    timeout=(connect, read),
                    allow_redirects=False,
                    stream=True,
                    **content,
                )
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            # urllib3's own errors and ValueError escape requests on hostile status lines and headers
            raise _failed(f"{label}: {urlsplit(url).netloc.rpartition('@')[2]}", error) from None
        finally:
            if fresh:
                session.close()
        return Reply(label, response, self._clock, self._stop, answer)

    def upload(
        self,
        label: str,
        url: str,
        headers: Mapping[str, str],
        size: int,
        body: Body,
        progress: Progress | None,
    ) -> Reply:
        """PUT `size` bytes from `body`. An error of `body` drops the connection and passes through."""
        upload = UploadBody(label, size, body, progress, self._stop)
        try:
            data = upload if size else b"".join(upload)  # requests never reads an empty body
            return self.send(label, "PUT", url, headers, data=data)
        except BodyFailed:
            if upload.failure is None:
                raise
            raise upload.failure from None


def _failed(label: str, error: Exception) -> Failed:
    """The Failed that a network failure stands for."""
    cause = _cause(error)
    if isinstance(error, (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema)):
        return Failed(BadReply(f"{label}: not a usable address"), again=False, sent=False)
    if isinstance(error, requests.ConnectTimeout):
        return Failed(TimedOut(f"{label}: no connection in time"), again=True, sent=False)
    if isinstance(error, (requests.Timeout, TimeoutError)) or "timed out" in cause:
        return Failed(TimedOut(f"{label}: no answer in time"), again=True)
    if isinstance(error, requests.exceptions.SSLError):
        sent = not any(isinstance(link, ssl.SSLCertVerificationError) for link in _chain(error))
        return Failed(Unreachable(f"{label}: the TLS connection failed ({cause})"), again=False, sent=sent)
    if isinstance(error, requests.exceptions.ProxyError):
        # urllib3 also raises it when the connection breaks after the proxy has taken the whole request
        sent = not _never_connected(error)
        return Failed(Unreachable(f"{label}: the proxy failed ({cause})"), again=True, sent=sent)
    if isinstance(error, requests.exceptions.InvalidHeader):
        return Failed(BadReply(f"{label}: a header could not be sent"), again=False, sent=False)
    return Failed(Unreachable(f"{label}: {cause}"), again=True, sent=not _never_connected(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and every error inside it: in its arguments, its `reason` or its cause. The libraries use all three.

    An error's context is left out: it may be an older failure that the caller was handling when it sent this request.
    """
    chain: list[BaseException] = [error]
    for link in chain:
        wrapped = (*link.args, getattr(link, "reason", None), link.__cause__)
        chain.extend(inner for inner in wrapped if isinstance(inner, BaseException) and inner not in chain)
        yield link


def _never_connected(error: BaseException) -> bool:
    """Whether the request was never sent: there was no connection, or the proxy refused one (http.client's text)."""
    return any(
        isinstance(link, urllib3.exceptions.NewConnectionError) or str(link).startswith("Tunnel connection failed")
        for link in _chain(error)
    )


def _cause(error: BaseException) -> str:
    """The innermost reason in a few words, without addresses or links."""
    for link in _chain(error):
        if isinstance(link, socket.gaierror):
            return "the host name is not known"
        if isinstance(link, TimeoutError):
            return "timed out"
        if isinstance(link, OSError) and link.strerror:
            return redact(link.strerror.lower())
    last = list(_chain(error))[-1]
    return redact(str(last))[:120] or type(last).__name__
