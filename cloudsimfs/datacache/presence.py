"""Which bytes of a version are in the backing file: in memory, and for the next mount in the log (`rangelog`).

The log begins before bytes come, and has them after they have come and until they go: it never claims more than there
is.

Threading: none of its own; guarded by Content.lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from cloudsimfs.datacache.rangelog import RangeLog
from cloudsimfs.prefetch.ranges import RangeSet


class Presence:
    """`remote_end`: where the version's bytes end. It is 0 if there is no version, and then there is no log."""

    def __init__(self, remote_end: int, log: RangeLog | None) -> None:
        self.remote_end = remote_end
        self.ranges = RangeSet()
        self._log = log

    def missing(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts of `[start, end)` that only the service has."""
        return self.ranges.missing(start, min(end, self.remote_end))

    def is_missing(self, start: int, end: int) -> bool:
        """Whether there is any such part."""
        return not self.ranges.covers(start, min(end, self.remote_end))

    @property
    def is_whole(self) -> bool:
        return self.ranges.covers(0, self.remote_end)

    # -- changes -------------------------------------------------------------------------------------------

    def restore(self, remote_end: int, ranges: Iterable[tuple[int, int]]) -> None:
        """Take what the log or a journal row says; the log is not written."""
        self.remote_end = remote_end
        self.ranges = RangeSet(ranges)
        self.ranges.clip(remote_end)

    def expect(self) -> None:
        """Bytes of the version are about to come."""
        if self._log is not None:
            self._log.open()

    def add(self, start: int, end: int, etag: str | None) -> None:
        """The bytes `[start, end)` of the version with this ETag are there now."""
        self.ranges.add(start, end)
        if self._log is not None:
            self._log.add(start, end, etag)

    def cut(self, end: int) -> None:
        """The version's bytes beyond `end` are no longer wanted."""
        if end < self.remote_end:
            self.remote_end = end
            self.ranges.clip(end)
            if self._log is not None:
                self._log.cut(end)

    def keep_only(self, ranges: RangeSet) -> None:
        """The other bytes are about to go."""
        if self._log is not None:
            self._log.evicted(ranges)
        self.ranges = ranges

    def lose(self) -> None:
        """Nothing is there any more: somebody else has taken it."""
        self.ranges = RangeSet()
        if self._log is not None:
            self._log.begin()

    # -- the log -------------------------------------------------------------------------------------------

    def begin(self, log: RangeLog, end: int) -> None:
        """All bytes below `end` are there, and are those of the version that `log` is for."""
        self.remote_end = end
        self.ranges = RangeSet([(0, end)])
        log.begin(self.ranges)
        if self._log is not None and self._log.path != log.path:
            self._log.remove()
        self._log = log

    def remove_log(self) -> None:
        """The backing file is gone: the log must not claim bytes that are not there."""
        if self._log is not None:
            self._log.remove()

    def touch(self) -> None:
        """The file is in use from now on."""
        if self._log is not None:
            self._log.touch()

    def move(self, path: Path) -> None:
        """Keep the log under another name from now on."""
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
        """Nobody uses the file any more."""
        if self._log is not None:
            self._log.close()
