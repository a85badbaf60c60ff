"""Replies on the wire: sent whole, slowly or broken, and connection resets.

Threading: the event loop only. Must never hold a whole object in memory: sendfile sends stored files.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO
from xml.sax.saxutils import escape

from aiohttp import web

from cloudsimfs.sandbox.faults import ActiveFaults, Fault
from cloudsimfs.sandbox.log import Call
from cloudsimfs.sandbox.settings import Settings

_SEND_CHUNK = 256 * 1024  # bytes sent at once
_RECEIVE_CHUNK = 1024 * 1024  # bytes received at once
_ZEROS_READ = 16 * 1024 * 1024  # bytes of a sparse file that are really read
_HANG_INTERVAL = 0.02  # seconds between checks whether a hanging request may continue
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 s: close() sends RST
_PAGE = "<!DOCTYPE html><html><head><title>Sign in</title></head><body><h1>Sign in</h1></body></html>\n"


@dataclass(slots=True)
class Reply:
    """An answer to be sent. The body is `body`, or `count` bytes of `file` from `offset`.

    `stream` is that file, opened early: the file may be replaced before it is sent. `send` closes it.
    """

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    file: Path | None = None
    stream: BinaryIO | None = None
    offset: int = 0
    count: int = 0
    zeros: bool = False

    @property
    def length(self) -> int:
        return self.count if self.file is not None else len(self.body)


class Dropped(Exception):
    """The connection was reset, so no answer can be sent."""


def json_reply(status: int, value: Any, headers: dict[str, str] | None = None) -> Reply:
    return Reply(status, json.dumps(value).encode(), headers=dict(headers or {}))


def xml_reply(status: int, code: str, message: str) -> Reply:
    """An error as object stores send it."""
    body = (
        f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code>"
        f"<Message>{escape(message)}</Message></Error>"
    )
    return Reply(status, body.encode(), "application/xml")


def reset(request: web.BaseRequest) -> Dropped:
    """Reset the connection. The caller raises the result."""
    if request.transport is not None:
        request.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        request.transport.abort()
    return Dropped()


async def before(request: web.BaseRequest, faults: ActiveFaults, settings: Settings) -> Reply | None:
    """Apply the faults that come before a request is processed. Raises Dropped."""
    delay = settings.latency + sum(fault.seconds or 0.0 for fault in faults.all("latency"))
    if delay:
        await asyncio.sleep(delay)
    for hang in faults.all("hang"):
        await _hang(request, hang)
    if faults.get("reset"):
        raise reset(request)
    return _instead(faults)


def _instead(faults: ActiveFaults) -> Reply | None:
    """The answer of a fault that replaces the request's own."""
    if fault := faults.get("redirect"):
        return Reply(fault.status, headers={"Location": fault.url or ""})
    if fault := faults.get("expired"):
        return xml_reply(fault.status, "ExpiredToken", "The provided token has expired.")
    if fault := faults.get("html"):
        return Reply(fault.status, (fault.body or _PAGE).encode(), "text/html")
    if fault := faults.get("errors200"):
        return json_reply(200, {"errors": [fault.body or "A technical problem has occurred, try again later."]})
    if fault := faults.get("status"):
        return _error(fault)
    return None


def _error(fault: Fault) -> Reply:
    headers = {} if fault.retry_after is None else {"Retry-After": f"{fault.retry_after}"}
    return Reply(fault.status, (fault.body or "").encode(), headers=headers)


async def send(
    request: web.BaseRequest, reply: Reply, faults: ActiveFaults, settings: Settings, call: Call
) -> web.StreamResponse:
    """Send a reply, changed by the faults. Raises Dropped."""
    late = faults.get("late")
    lie = late or faults.get("lie")
    as_done = (200, None)  # status and body: the answer to what is done
    try:
        if late is not None and not late.status:
            raise reset(request)
        told = reply if lie is None or (lie.status, lie.body) == as_done else _error(lie)
        return await _send(request, told, faults, settings, call)
    finally:
        if reply.stream is not None:
            reply.stream.close()


async def _send(
    request: web.BaseRequest, reply: Reply, faults: ActiveFaults, settings: Settings, call: Call
) -> web.StreamResponse:
    if faults.get("drop_reply"):
        raise reset(request)
    response = web.StreamResponse(status=reply.status, headers=reply.headers)
    if reply.status not in (204, 304):
        response.content_type = reply.content_type
        response.content_length = reply.length
    length, cut = reply.length, faults.get("truncate")
    if cut:
        length = min(length, reply.length // 2 if cut.amount is None else cut.amount)
        response.force_close()
    await response.prepare(request)
    if request.method != "HEAD" and length:
        await _send_body(request, response, reply, length, _rate(faults, settings), call)
    if cut and request.transport is not None:
        request.transport.close()
    return response


async def receive(
    request: web.BaseRequest, faults: ActiveFaults, settings: Settings, call: Call
) -> AsyncIterator[bytes]:
    """The request's body in chunks, at the rate of the faults. Raises Dropped, or aiohttp's error for a cut body."""
    pace, cut = _Pace(_rate(faults, settings)), faults.get("truncate")
    async for chunk in request.content.iter_chunked(_RECEIVE_CHUNK):
        call.bytes += len(chunk)
        if cut and call.bytes > (cut.amount or 0):
            raise reset(request)
        await pace.spent(len(chunk))
        if faults.get("corrupt") and call.bytes == len(chunk):
            chunk = bytes([chunk[0] ^ 1]) + chunk[1:]
        yield chunk


async def _send_body(
    request: web.BaseRequest, response: web.StreamResponse, reply: Reply, length: int, rate: float, call: Call
) -> None:
    if reply.stream is None:
        await _send_paced(response, reply.body[:length], rate, call)
        return
    loop, pace, sent = asyncio.get_running_loop(), _Pace(rate), 0
    while sent < length and request.transport is not None:
        count = min(length - sent, pace.chunk) if rate else length - sent
        offset = reply.offset + sent
        if reply.zeros:  # always the same zeros: reading new holes is slow and fills the page cache
            offset %= _ZEROS_READ
            count = min(count, _ZEROS_READ - offset)
        sent += await loop.sendfile(request.transport, reply.stream, offset, count)
        call.bytes += count
        await pace.spent(count)


async def _send_paced(response: web.StreamResponse, body: bytes, rate: float, call: Call) -> None:
    pace = _Pace(rate)
    for start in range(0, len(body), pace.chunk):
        chunk = body[start : start + pace.chunk]
        await response.write(chunk)
        call.bytes += len(chunk)
        await pace.spent(len(chunk))


async def _hang(request: web.BaseRequest, fault: Fault) -> None:
    end = None if fault.seconds is None else time.monotonic() + fault.seconds
    while not fault.removed and (end is None or time.monotonic() < end):
        if request.transport is None or request.transport.is_closing():
            raise Dropped
        await asyncio.sleep(_HANG_INTERVAL)


def _rate(faults: ActiveFaults, settings: Settings) -> float:
    rates = [fault.rate for fault in faults.all("slow")]
    if settings.bandwidth:
        rates.append(settings.bandwidth)
    return min(rates, default=0.0)


class _Pace:
    """Keeps a stream of bytes at a rate in bytes per second; 0 means no limit."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._start = time.monotonic()
        self._bytes = 0
        self.chunk = max(1, min(_SEND_CHUNK, int(rate / 50))) if rate else _SEND_CHUNK

    async def spent(self, count: int) -> None:
        self._bytes += count
        if self._rate:
            ahead = self._start + self._bytes / self._rate - time.monotonic()
            if ahead > 0:
                await asyncio.sleep(ahead)
