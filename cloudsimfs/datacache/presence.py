"""Which bytes of a pinned version are in the backing file: in memory, and for the next mount in the log (`rangelog`).

Threading: none of its own; guarded by Content.lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from cloudsimfs.datacache.rangelog import RangeLog
from cloudsimfs.prefetch.ranges import RangeSet


class Presence:
    """`end`: where the version's bytes end, 0 if there is no version; then there is no log, either."""

    def __init__(self, end: int, log: RangeLog | None) -> None:
        self.end = end
        self.ranges = RangeSet()
        self._log = log

    def missing(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts of `[start, end)` that are only on the service."""
        return self.ranges.missing(start, min(end, self.end))

    def is_missing(self, start: int, end: int) -> bool:
        """Whether there is any such part."""
        return not self.ranges.covers(start, min(end, self.end))

    @property
    def is_whole(self) -> bool:
        return not self.is_missing(0, self.end)

    # -- what changes; the log is written after the bytes, and before they go ---------------------------------

    def restore(self, end: int, ranges: Iterable[tuple[int, int]]) -> None:
        """What the log, or a journal row, says already."""
        self.end = end
        self.ranges = RangeSet(ranges)
        self.ranges.clip(end)

    def add(self, start: int, end: int, etag: str | None) -> None:
        """The bytes `[start, end)` of the version with this ETag are there now."""
        self.ranges.add(start, end)
        if self._log is not None:
            self._log.add(start, end, etag)

    def cut(self, end: int) -> None:
        """Of the version's bytes nothing beyond `end` is wanted."""
        if end < self.end:
            self.end = end
            self.ranges.clip(end)
            if self._log is not None:
                self._log.cut(end)

    def keep_only(self, ranges: RangeSet) -> None:
        """The other bytes are about to go."""
        if self._log is not None:
            self._log.evicted(ranges)
        self.ranges = ranges

    def lose(self) -> None:
        """Nothing is there any more: others have taken it."""
        self.ranges = RangeSet()
        if self._log is not None:
            self._log.begin()

    # -- the log -------------------------------------------------------------------------------------------

    def begin(self, log: RangeLog, end: int) -> None:
        """All bytes below `end` are there, and are a version's whose log is this."""
        self.end = end
        self.ranges = RangeSet([(0, end)])
        log.begin(self.ranges)
        if self._log is not None and self._log.path != log.path:
            self._log.remove()
        self._log = log

    def remove_log(self) -> None:
        """The backing file is about to be removed: the log must not speak of bytes that are not there."""
        if self._log is not None:
            self._log.remove()

    def touch(self) -> None:
        """Somebody uses the file now."""
        if self._log is not None:
            self._log.touch()

    def move(self, path: Path) -> None:
        """Log under another name from now on."""
        if self._log is not None:
            self._log.move(path)

    @property
    def is_sealed(self) -> bool:
        """Whether a crash of the machine takes nothing from the cache."""
        return self._log is None or self._log.sealed or not self.ranges

    def seal(self) -> None:
        """The bytes are on the disk."""
        if self._log is not None:
            self._log.seal()

    def close(self) -> None:
        """Nobody uses the file now."""
        if self._log is not None:
            self._log.close()
