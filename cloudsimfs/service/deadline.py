"""When an answer has to be there as a whole: a service that sends a byte now and then is not waited for.

The timeouts of sockets are for one receive, so such a service could hold a call for ever. Here each receive gets what
is left of the call's time at most. A `Deadline` belongs to one request and the thread that uses it.
"""

from __future__ import annotations

import http.client
import io
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cloudsimfs.clock import Clock

_sending = threading.local()  # its `deadline` is that of the request that this thread sends now


class Deadline:
    """`at` is in seconds of the clock's monotonic scale. None: `answer` seconds after the request was sent."""

    def __init__(self, clock: Clock, at: float | None, answer: float) -> None:
        self._clock = clock
        self._at = at
        self._answer = None if at is not None else answer
        self._lifted = False

    def begin(self) -> None:
        """A request was sent: this one, or before it that for the proxy's tunnel."""
        if self._answer is not None:
            self._at = self._clock.monotonic() + self._answer

    def lift(self) -> None:
        """The rest of the answer may take as long as it likes."""
        self._lifted = True

    @property
    def left(self) -> float | None:
        """Seconds; None without a bound. Raises TimeoutError if none are left."""
        if self._lifted or self._at is None:
            return None
        left = self._at - self._clock.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        return left

    @contextmanager
    def of_this_thread(self) -> Iterator[None]:
        """Answers to requests that this thread sends meanwhile keep this deadline."""
        _sending.deadline = self
        try:
            yield
        finally:
            _sending.deadline = None


class TimedResponse(http.client.HTTPResponse):
    """An answer, from its first byte on under the deadline of the thread that sent the request."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        deadline: Deadline | None = getattr(_sending, "deadline", None)
        if deadline is not None:
            deadline.begin()
            self.fp = io.BufferedReader(_TimedSocket(self.fp.detach(), sock, deadline))


class _TimedSocket(io.RawIOBase):
    """Reads from a socket. No receive takes longer than the deadline leaves."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, deadline: Deadline) -> None:
        self._raw = raw
        self._sock = sock
        self._deadline = deadline
        self._most = sock.gettimeout()  # seconds for one receive
        self._set = self._most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline.left
        wait = self._most if left is None or (self._most is not None and self._most < left) else left
        if wait != self._set:
            self._sock.settimeout(wait)
            self._set = wait
        return self._raw.readinto(buffer)

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()
