"""Which bytes to ask for when some are read: sequential readers get growing windows, others small blocks.

    a file up to WHOLE_FILE    the whole file in one request
    a reader from offset 0     the whole file is assumed to be wanted: as much ahead as it has read, and twice as much
                               at first (START_SURE)
    a sequential reader        half as much ahead as it has read, later three quarters: if it stops, less than twice
                               its bytes were fetched, including what the kernel asks for around them
    any other reader           aligned blocks around what it reads

The kernel sends the requests of a sequential reader several at once and out of order, and several readers may share
one file. So reads are matched to streams by offset, not by handle. Pure arithmetic, not thread-safe by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

WHOLE_FILE = 4 << 20  # bytes; up to this size a file comes in one request
RANDOM_BLOCK = 32 << 10  # bytes; random reads are rounded to this
MIN_RANDOM = 64 << 10  # bytes fetched for a random read
FIRST_AHEAD = 256 << 10  # bytes ahead of a reader that has just become sequential
START_AHEAD = 1 << 20  # the same for a reader from offset 0
START_SURE = 8 << 20  # bytes ahead of a reader from offset 0 up to which it gets twice as much as it has read
LONG_READ = 2 << 20  # bytes after which a reader is likely to go on for long
MAX_AHEAD = 64 << 20  # bytes ahead of any reader
LARGE_READ = 128 << 10  # bytes; the kernel begins with this for a reader of large parts (fuse(4), max_readahead)
STREAM_SLACK = 512 << 10  # bytes by which the requests of one reader come out of order
MAX_STREAMS = 16  # readers of one file that are told apart
MIN_PIECE, MAX_PIECE = 384 << 10, 4 << 20  # bytes of one request
MAX_PIECES = 16  # requests that a window is cut into


@dataclass(frozen=True, slots=True)
class Window:
    """`[start, end)` is worth having, in requests of `piece` bytes.

    Unless it is `fresh`, the reader has hardly moved since the last window: only what it reads needs a look.
    """

    start: int
    end: int
    piece: int
    fresh: bool = True


@dataclass(slots=True)
class _Stream:
    """A reader that began at `first`, has come as far as `high`, and has read `count` bytes in between."""

    first: int
    high: int
    count: int
    is_sequential: bool
    planned_at: int = 0  # `high` at the last fresh window


class Readahead:
    """The streams of one file. Each has at most `max_ahead` bytes fetched ahead of it."""

    def __init__(self, max_ahead: int = MAX_AHEAD) -> None:
        self._max_ahead = max(max_ahead, MIN_RANDOM)
        self._streams: list[_Stream] = []  # the one used last stands last

    def plan(self, start: int, end: int, size: int, pieces: int = MAX_PIECES) -> Window:
        """The window for a read of `[start, end)` in a file of `size` bytes, for about `pieces` requests."""
        if size <= min(WHOLE_FILE, self._max_ahead):
            return Window(0, size, max(1, size))
        stream = self._stream(start, end)
        if stream.is_sequential and 2 * stream.count >= stream.high - stream.first:
            high = min(size, max(end, stream.high + self._ahead(stream)))
            piece = piece_size(high - start, pieces)
            fresh = stream.high >= stream.planned_at + piece // 4
            if fresh:
                stream.planned_at = stream.high
            return Window(start, high, piece, fresh)
        low = start - start % RANDOM_BLOCK
        high = min(size, max(-(-end // RANDOM_BLOCK) * RANDOM_BLOCK, low + MIN_RANDOM))
        low = min(low, max(0, high - MIN_RANDOM))
        return Window(low, high, high - low)

    def _stream(self, start: int, end: int) -> _Stream:
        """The stream that a read belongs to; the read is already counted."""
        for stream in reversed(self._streams):
            if stream.high - STREAM_SLACK <= start <= stream.high + STREAM_SLACK and start >= stream.first:
                stream.high = max(stream.high, end)
                stream.count = min(stream.count + end - start, stream.high - stream.first)
                stream.is_sequential = True
                self._streams.remove(stream)
                self._streams.append(stream)
                return stream
        stream = _Stream(start, end, end - start, is_sequential=start == 0 and end - start >= LARGE_READ)
        self._streams = [*self._streams[1 - MAX_STREAMS :], stream]
        return stream

    def _ahead(self, stream: _Stream) -> int:
        """Bytes worth having beyond `high`."""
        if stream.first == 0:
            share = max(stream.count, min(2 * stream.count, START_SURE), START_AHEAD)
        else:
            share = max(stream.count // 2 if stream.count < LONG_READ else stream.count // 4 * 3, FIRST_AHEAD)
        return min(share, self._max_ahead)

    def windows(self) -> list[tuple[int, int]]:
        """The ranges that sequential readers are about to read. They may reach beyond the file's end."""
        return [
            (max(0, stream.high - STREAM_SLACK), stream.high + self._ahead(stream))
            for stream in self._streams
            if stream.is_sequential
        ]


def piece_size(window: int, pieces: int = MAX_PIECES) -> int:
    """Bytes of each request for a window of `window` bytes."""
    piece = -(-window // pieces)
    piece = -(-piece // LARGE_READ) * LARGE_READ
    return min(max(piece, MIN_PIECE), MAX_PIECE)


def cut(start: int, end: int, piece: int) -> list[tuple[int, int]]:
    """`[start, end)` in requests of `piece` bytes. A short rest is added to the last one."""
    cuts = list(range(start, end, piece))
    if len(cuts) > 1 and end - cuts[-1] < piece // 4:
        cuts.pop()
    return list(zip(cuts, [*cuts[1:], end], strict=True))
