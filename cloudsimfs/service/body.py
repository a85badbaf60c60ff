"""The body of an upload: sliced for the wire, checked against its announced size, stopped with the client.

Each `UploadBody` serves one attempt in one thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

from cloudsimfs.errors import Cancelled

SEND_BLOCK = 1 << 16  # bytes sent at once: one send has to end within the connect timeout

Body = Callable[[], Iterable[bytes]]
"""Gives the bytes of an upload, from the start, for each attempt."""

Progress = Callable[[int], None]
"""Gets the number of bytes sent so far."""


class BodyFailed(Exception):
    """Carries an error of the body past the HTTP library, which would take an OSError for the network's."""


class UploadBody:
    """A body of known size in slices. Its length makes requests set Content-Length."""

    def __init__(self, label: str, size: int, body: Body, progress: Progress | None, stop: threading.Event) -> None:
        self._label = label
        self._size = size
        self._body = body
        self._progress = progress
        self._stop = stop
        self.failure: BaseException | None = None  # what `body` or `progress` raised

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[memoryview]:
        try:
            yield from self._slices()
        except GeneratorExit:
            raise
        except BaseException as error:
            self.failure = error
            raise BodyFailed from error

    def _slices(self) -> Iterator[memoryview]:
        sent = 0
        chunks = iter(self._body())
        try:
            for chunk in chunks:
                whole = memoryview(chunk)
                for start in range(0, len(whole), SEND_BLOCK):
                    if self._stop.is_set():
                        raise Cancelled(f"{self._label}: stopped")
                    part = whole[start : start + SEND_BLOCK]
                    if sent + len(part) > self._size:
                        raise Cancelled(f"{self._label}: the content has more than its {self._size} bytes")
                    yield part
                    sent += len(part)
                if self._progress is not None:
                    self._progress(sent)
        finally:
            close = getattr(chunks, "close", None)
            if close is not None:
                close()  # now, not when a traceback lets go of it: it may hold a file
        if sent < self._size:
            raise Cancelled(f"{self._label}: the content ended after {sent} of {self._size} bytes")
