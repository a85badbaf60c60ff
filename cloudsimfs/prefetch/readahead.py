"""Which bytes to ask for when some are wanted: readers that go on get growing windows, others small blocks.

    up to WHOLE bytes       the whole file in one request
    one from the start      likely wants all: as much as it has already read, and up to START_SURE twice as much
    a reader that goes on   from where it reads on, half as much as it has already read, later more: whoever stops
                            has cost less than twice its bytes, with what the kernel asks for around them
    anybody else            aligned blocks around what was asked for

The kernel sends a sequential reader's requests several at once and out of order, and several readers may share one
file: so reads are matched to streams by place, not by handle. Pure arithmetic, not thread-safe by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

WHOLE = 4 << 20  # bytes; up to here a file comes in one request
BLOCK = 32 << 10  # bytes; random reads are rounded to this
LEAST = 64 << 10  # bytes fetched for a random read
FIRST_AHEAD = 256 << 10  # bytes ahead of a reader that begins to go on
START_AHEAD = 1 << 20  # the same for one that begins at the file's start
START_SURE = 8 << 20  # bytes up to which twice as much is fetched ahead of that one as it has read
SURE = 2 << 20  # bytes after which a reader is likely to go on for long
MOST_AHEAD = 64 << 20  # bytes ahead of any reader
LARGE_READ = 128 << 10  # bytes; the kernel begins with this for who reads large parts (fuse(4), max_readahead)
SLACK = 512 << 10  # bytes by which the requests of one reader come out of order
STREAMS = 16  # readers of one file told apart
LEAST_PIECE, MOST_PIECE = 384 << 10, 4 << 20  # bytes of one request
PIECES = 16  # requests a window is cut into, at most


@dataclass(frozen=True, slots=True)
class Window:
    """`[start, end)` is worth having, in requests of `piece` bytes.

    Not `fresh`: the reader has hardly moved since the last one, and only what it asks for is worth a look.
    """

    start: int
    end: int
    piece: int
    fresh: bool = True


@dataclass(slots=True)
class _Stream:
    """A reader: it began at `first`, has come to `high`, and read `count` bytes in between."""

    first: int
    high: int
    count: int
    goes_on: bool
    looked: int = 0  # where it had come to at the last fresh window


class Readahead:
    """The streams of one file. `most` bounds the bytes ahead of each."""

    def __init__(self, most: int = MOST_AHEAD) -> None:
        self._most = max(most, LEAST)
        self._streams: list[_Stream] = []  # the last used last

    def plan(self, start: int, end: int, size: int, pieces: int = PIECES) -> Window:
        """What is worth having of a file of `size` bytes when `[start, end)` is read, in about `pieces` requests."""
        if size <= min(WHOLE, self._most):
            return Window(0, size, max(1, size))
        stream = self._stream(start, end)
        if stream.goes_on and 2 * stream.count >= stream.high - stream.first:
            high = min(size, max(end, stream.high + self._ahead(stream)))
            piece = piece_size(high - start, pieces)
            fresh = stream.high >= stream.looked + piece // 4
            if fresh:
                stream.looked = stream.high
            return Window(start, high, piece, fresh)
        low = start - start % BLOCK
        high = min(size, max(-(-end // BLOCK) * BLOCK, low + LEAST))
        low = min(low, max(0, high - LEAST))
        return Window(low, high, high - low)

    def _stream(self, start: int, end: int) -> _Stream:
        """The stream a read belongs to, with the read counted in."""
        for stream in reversed(self._streams):
            if stream.high - SLACK <= start <= stream.high + SLACK and start >= stream.first:
                stream.high = max(stream.high, end)
                stream.count = min(stream.count + end - start, stream.high - stream.first)
                stream.goes_on = True
                self._streams.remove(stream)
                self._streams.append(stream)
                return stream
        stream = _Stream(start, end, end - start, goes_on=start == 0 and end - start >= LARGE_READ)
        self._streams = [*self._streams[1 - STREAMS :], stream]
        return stream

    def _ahead(self, stream: _Stream) -> int:
        """Bytes worth having beyond where the stream has come to."""
        if stream.first == 0:
            share = max(stream.count, min(2 * stream.count, START_SURE), START_AHEAD)
        else:
            share = max(stream.count // 2 if stream.count < SURE else stream.count // 4 * 3, FIRST_AHEAD)
        return min(share, self._most)

    def windows(self) -> list[tuple[int, int]]:
        """What the streams are about to read: `[start, end)`, not cut at the file's end."""
        return [
            (max(0, stream.high - SLACK), stream.high + self._ahead(stream))
            for stream in self._streams
            if stream.goes_on
        ]


def piece_size(window: int, pieces: int = PIECES) -> int:
    """Bytes of each request for a window of so many bytes."""
    piece = -(-window // pieces)
    piece = -(-piece // LARGE_READ) * LARGE_READ
    return min(max(piece, LEAST_PIECE), MOST_PIECE)


def cut(start: int, end: int, piece: int) -> list[tuple[int, int]]:
    """`[start, end)` in requests of `piece` bytes; a short rest goes with the last one."""
    cuts = list(range(start, end, piece))
    if len(cuts) > 1 and end - cuts[-1] < piece // 4:
        cuts.pop()
    return list(zip(cuts, [*cuts[1:], end], strict=True))
