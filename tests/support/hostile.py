"""A server that sends what it likes, for as long as anybody reads: a socket, a head and blocks of a body."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable

Answer = Callable[[bytes], Iterable[bytes]]
"""The blocks to send for a request, of which it gets the head."""


class Hostile:
    """Answers each connection with `answer`, in a thread of its own, until the peer hangs up.

    `sent` counts the bytes that left, which are those that the peer read and a few MiB in the sockets' buffers.
    """

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.sent = 0
        self.requests: list[bytes] = []
        self.stopped = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(peer,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError):
            peer.settimeout(0.5)
            request = b""
            while b"\r\n\r\n" not in request:
                block = peer.recv(65536)
                if not block:
                    return
                request += block
            self.requests.append(request.partition(b"\r\n\r\n")[0])
            for block in self.answer(self.requests[-1]):
                self._send(peer, block)
                if self.stopped.is_set():
                    return

    def _send(self, peer: socket.socket, block: bytes) -> None:
        view = memoryview(block)
        while view and not self.stopped.is_set():
            with contextlib.suppress(TimeoutError):
                count = peer.send(view)
                self.sent += count
                view = view[count:]

    def drip(self, data: bytes, seconds: float) -> Iterable[bytes]:
        """One byte at a time."""
        for byte in data:
            yield bytes([byte])
            self.stopped.wait(seconds)

    def __enter__(self) -> Hostile:
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()


def head(status: str = "200 OK", *headers: str) -> bytes:
    """A head without a length: the body ends when the connection does."""
    return "\r\n".join([f"HTTP/1.1 {status}", "Connection: close", *headers]).encode() + b"\r\n\r\n"
