"""One file's bytes: a sparse file (`backing`), what of it is there (`presence`), and where the rest comes from.

    [0, presence.end)       bytes of the pinned service version; those that are missing are fetched when read
    [presence.end, size)    local bytes; holes read as zeros

A fetch fills holes only: it can never overwrite what was written here. All fetched bytes come from one version
(docs/architecture.md, invariant 5): another ETag ends in Stale, never in mixed bytes.

Locks: `Content.lock` protects the fields below, those of the backing file and of the fetcher too, and is held over
local disk I/O only. Order: Content.lock before the data cache's.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from cloudsimfs.datacache import growth
from cloudsimfs.datacache.backing import BackingFile
from cloudsimfs.datacache.presence import Presence
from cloudsimfs.datacache.rangelog import RangeLog
from cloudsimfs.datacache.state import ContentState
from cloudsimfs.errors import (
    BadHandle,
    Cancelled,
    CloudsimfsError,
    FsError,
    NoSpace,
    ServiceError,
    Stale,
    VersionChanged,
)
from cloudsimfs.host.disk import PAGE, SLICE, disk_usage, punch, write_all
from cloudsimfs.prefetch.fetcher import Fetcher, Flight, Waiter
from cloudsimfs.prefetch.pool import FetchPool
from cloudsimfs.prefetch.ranges import RangeSet
from cloudsimfs.prefetch.readahead import MOST_AHEAD, MOST_PIECE, Window
from cloudsimfs.prefetch.source import Source
from cloudsimfs.waiting import Interrupted, never

BLOCK = 1 << 20  # bytes read from disk at a time for an upload


class CacheSpace(Protocol):
    """What a content asks of the cache directory."""

    pool: FetchPool
    most_ahead: int  # bytes a reader's window may have

    def reserve(self, size: int) -> AbstractContextManager[None]:
        """Space for bytes while they are being kept. Entering it raises NoSpace."""


class Content:
    """The bytes of one file; see the module's text. Create through `DataCache`."""

    _serials = itertools.count(1)

    def __init__(
        self,
        backing: Path,
        room: CacheSpace,
        *,
        size: int = 0,
        source: Source | None = None,
        log: RangeLog | None = None,
        ancestor: Content | None = None,
    ) -> None:
        """`ancestor` is an earlier, shorter version, whose bytes are taken over if this one begins with them."""
        self.lock = threading.Lock()
        self.size = size  # bytes; guarded by lock
        self._file = BackingFile(backing, self.lock)
        self._presence = Presence(size if source is not None else 0, log)  # guarded by lock
        # What a program could not write, the disk being full, and did not write since: it is no state of the file.
        self.lacking = RangeSet()  # guarded by lock
        # What the kernel's pages are known by: it sees every write, so they are right as long as the content lives.
        self.identity = next(self._serials)
        self._is_local = source is None  # its bytes differ from the version; guarded by lock
        self._room = room
        self._ancestor = ancestor  # guarded by lock; None once it was looked at
        self._begins_with: int | None = None  # identity of the ancestor whose bytes this one was found to begin with
        self._fetcher: Fetcher | None = None
        self._evictions = 0  # guarded by lock; counts them while in use
        self.dropped = False  # its file was removed: nobody will want these bytes; guarded by lock
        if source is not None:
            self._fetch_from(source)

    def _fetch_from(self, source: Source) -> None:
        self._fetcher = Fetcher(self, source, self._room.pool, most=min(MOST_AHEAD, self._room.most_ahead))

    @property
    def backing(self) -> Path:
        return self._file.path

    @property
    def source(self) -> Source | None:
        return None if self._fetcher is None else self._fetcher.source

    @property
    def _etag(self) -> str | None:
        return None if self.source is None else self.source.etag

    # -- in use or not -----------------------------------------------------------------------------------

    def acquire(self) -> None:
        with self.lock:
            if not self._file.in_use:
                if not self._file.is_open:
                    self._open_locked()
                os.ftruncate(self._file.fd, self.size)
                self._presence.touch()
            self._file.add_user_locked()

    def _open_locked(self) -> None:
        """Open the backing file, or make it. Bytes it should have and has not, because somebody or a power loss took
        them, must never be read or uploaded as zeros: what the service has is fetched anew, the rest is an error.
        """
        found = self._file.open_locked()
        if found < self.size and (self._presence.ranges or self.size > self._presence.end):
            if self._is_local:
                self._file.close_unused_locked()
                raise FsError(f"{self.backing}: removed or cut short by another program; its bytes are lost")
            self._presence.lose()

    def release(self) -> None:
        with self.lock:
            self._file.remove_user_locked()
            if not self._file.in_use:
                if self._fetcher is not None:
                    self._fetcher.cancel_locked()
                self._presence.close()
                self._file.close_unused_locked()

    @property
    def in_use(self) -> bool:
        """A hint, asked for without the lock."""
        return self._file.in_use

    @property
    def is_whole(self) -> bool:
        """Whether reading it needs nothing from the service."""
        with self.lock:
            return self._presence.is_whole

    # -- what the cache directory asks ---------------------------------------------------------------------

    def drop(self) -> None:
        """Remove the backing file of a content that nothing refers to any more."""
        with self.lock:
            self.dropped = True
            self._remove_locked()

    def evict(self) -> int | None:
        """Give the disk space of a clean content back. The bytes freed, None if it is in use just now.

        Who holds it without having opened it yet finds nothing present, and fetches anew.
        """
        if not self.lock.acquire(blocking=False):
            return None
        try:
            if self._file.is_open:
                return None
            freed = disk_usage(self.backing)
            self._remove_locked()
            self._presence.ranges = RangeSet()
            return freed
        finally:
            self.lock.release()

    def _remove_locked(self) -> None:
        self._presence.remove_log()
        self.backing.unlink(missing_ok=True)

    def shrink(self) -> int:
        """Give back what an open clean content holds and nobody is about to read. Returns the bytes freed."""
        if not self.lock.acquire(blocking=False):
            return 0
        try:
            if not self._file.is_open or self._fetcher is None:
                return 0
            before = disk_usage(self.backing)
            busy = self._fetcher.busy_locked()
            freed = [_pages(*part, self.size) for held in self._presence.ranges for part in busy.missing(*held)]
            left = RangeSet(self._presence.ranges)
            for start, end in freed:
                left.remove(start, end)
            self._presence.keep_only(left)
            self._evictions += 1
            for start, end in freed:
                punch(self._file.fd, start, end)
            return max(0, before - disk_usage(self.backing))
        finally:
            self.lock.release()

    def seal(self) -> None:
        """Have the bytes on the disk, so that the cache outlives a crash of the machine too."""
        with self.lock:
            if self._presence.is_sealed:
                return
            self._file.datasync()
            self._presence.seal()
            if not self._file.is_open:
                self._presence.close()

    # -- local bytes -----------------------------------------------------------------------------------

    def make_local(self, log: Path) -> None:
        """The bytes are about to differ from the version: what is present is logged under another name."""
        with self.lock:
            self._presence.move(log)
            self._is_local = True

    def make_shared(self, log: Path) -> None:
        """They have not come to differ: `make_local` undone."""
        with self.lock:
            self._presence.move(log)
            self._is_local = False

    def make_clean(self, source: Source, log: RangeLog) -> None:
        """The bytes turned out to be those of a version on the service."""
        with self.lock:
            if self._fetcher is not None:
                self._fetcher.cancel_locked()
            self._fetch_from(source)
            self._presence.begin(log, self.size)
            self._is_local = False

    def describe(self) -> ContentState:
        """What the journal is to know of it."""
        with self.lock:
            return ContentState(
                backing=self.backing.name,
                size=self.size,
                source=None if self.source is None else self.source.entry,
                etag=self._etag,
                remote_end=self._presence.end,
                present=tuple(self._presence.ranges),
            )

    def restore(self, size: int, remote_end: int, present: Iterable[tuple[int, int]]) -> None:
        """The state a journal row or a log speaks of; before anybody uses it."""
        self.size = size
        self._presence.restore(min(remote_end, size), present)

    def write(self, data: bytes, offset: int) -> int:
        """The number of bytes written, less than all of them if the disk is full then. Raises NoSpace."""
        with self.lock:
            self._file.wait_for_fills_locked(offset, offset + len(data))
            view, done = memoryview(data), 0
            try:
                with self._room.reserve(len(data)):
                    while done < len(data):  # a nearly full disk may take a part only
                        done += self._file.write_locked(view[done : done + SLICE], offset + done)
            except CloudsimfsError:
                self.lacking.add(offset + done, offset + len(data))
                if not done:
                    raise
            end = offset + done
            if offset < self._presence.end:
                self._presence.add(offset, min(end, self._presence.end), self._etag)
            self.lacking.remove(offset, end)
            self.size = max(self.size, end)
        return done

    def truncate(self, size: int) -> None:
        with self.lock:
            self._file.wait_for_fills_locked(size, self._presence.end)
            os.ftruncate(self._file.fd, size)
            self.size = size
            self.lacking.clip(size)
            self._presence.cut(size)

    def fsync(self) -> None:
        """The bytes survive a power loss. Raises OSError."""
        self._file.fsync(self.size)

    # -- reading ---------------------------------------------------------------------------------------

    def read(self, offset: int, length: int, interrupted: Interrupted = never) -> bytes:
        """Up to `length` bytes at `offset`. Raises as `read_into`."""
        buffer = bytearray(length)
        return bytes(buffer[: self.read_into(memoryview(buffer), offset, interrupted)])

    def read_into(self, buffer: memoryview, offset: int, interrupted: Interrupted = never) -> int:
        """Fill `buffer` from `offset` on; how many bytes there were. Raises Stale if the version is gone, BadHandle
        if nobody has the content open any more, as when a writer has gone on in a copy, else a ServiceError.
        """
        window: Window | None = None
        while True:
            with self.lock:
                end = min(offset + len(buffer), self.size)
                stop = min(end, self._presence.end)
                waiter = None
                if offset < stop and self._fetcher is not None and not self._presence.is_whole:
                    if not self._file.in_use:  # what comes would not be kept, and be asked for again and again
                        raise BadHandle(f"{self._file.path.name} is not open")
                    window = window or self._fetcher.plan_locked(offset, stop)
                    waiter = self._want_locked(offset, stop, window)
                if waiter is None:
                    fd, evictions = self._file.borrow_locked(), self._evictions
            if waiter is None:
                count = self._file.read_borrowed(fd, buffer[: max(0, end - offset)], offset)
                if evictions == self._evictions:  # else it may have been punched out before it was read
                    return count
                continue
            assert self._fetcher is not None
            try:
                self._fetcher.wait(waiter, interrupted)
            except NoSpace:
                return self._read_through(buffer[: end - offset], offset)

    def _read_through(self, buffer: memoryview, offset: int) -> int:
        """Read without keeping: all of the cache is taken by what must not be evicted."""
        with self.lock:
            count = os.preadv(self._file.fd, [buffer], offset)
            holes = list(self.missing_locked(offset, offset + count))
        assert self.source is not None
        try:
            for start, stop in holes:
                buffer[start - offset : stop - offset] = self.source.read(start, stop)
        except VersionChanged as error:
            raise Stale(str(error)) from error
        return count

    def complete(self, interrupted: Interrupted = never) -> None:
        """Fetch all that is still absent, before an upload or before the version disappears. Raises as `read`."""
        while True:
            with self.lock:
                hole = next(iter(self.missing_locked(0, self._presence.end)), None)
                if hole is None or self._fetcher is None:
                    return
                start, end = hole[0], min(hole[1], hole[0] + MOST_PIECE)
                waiter = self._want_locked(
                    start, end, Window(start, min(self._presence.end, start + MOST_AHEAD), MOST_PIECE)
                )
            if waiter is not None:
                self._fetcher.wait(waiter, interrupted)

    def blocks(self, still_wanted: Callable[[], bool]) -> Iterator[bytes]:
        """The whole file for an upload. Raises Cancelled as soon as `still_wanted` says no.

        The question is asked under the lock of each read, and a change marks the inode before it touches a byte:
        so no byte of a later generation gets into this one's upload.
        """
        position = 0
        while position < self.size:
            with self.lock:
                if not still_wanted():
                    raise Cancelled("the file was changed again")
                # what a write that failed has left beyond the end is not the file's
                block = os.pread(self._file.fd, min(BLOCK, self.size - position), position)
            if not block:
                raise ServiceError(f"{self.backing.name}: the backing file is shorter than it should be")
            yield block
            position += len(block)

    # -- what the fetcher asks ---------------------------------------------------------------------------

    def missing_locked(self, start: int, end: int) -> Iterable[tuple[int, int]]:
        return self._presence.missing(start, end)

    def is_missing_locked(self, start: int, end: int) -> bool:
        return self._presence.is_missing(start, end)

    def end_locked(self) -> int:
        return self._presence.end

    def reserve(self, size: int) -> AbstractContextManager[None]:
        return self._room.reserve(size)

    def keep(self, position: int, block: bytes | memoryview) -> bool:
        with self.lock:
            if not self._file.in_use:
                return False
            holes = list(self.missing_locked(position, position + len(block)))
            fd = self._file.begin_fill_locked(holes)
        filled: list[tuple[int, int]] = []
        try:
            with self._file.filling:
                for start, stop in holes:
                    write_all(fd, memoryview(block)[start - position : stop - position], start)
                    filled.append((start, stop))
        finally:
            with self.lock:
                for start, stop in filled if self._file.in_use else []:
                    self._presence.add(start, stop, self._etag)
                self._file.end_fill_locked(holes)
        return True

    # -- files that grow -----------------------------------------------------------------------------------

    def _want_locked(self, start: int, end: int, window: Window) -> Waiter | None:
        """Have bytes fetched; the first time, look whether the ancestor has them already."""
        assert self._fetcher is not None
        if self._ancestor is not None and self.is_missing_locked(start, end):
            ancestor, self._ancestor = self._ancestor, None
            self._fetcher.launch_locked(0, self._presence.end, lambda flight: self._take_over(flight, ancestor))
        return self._fetcher.want_locked(start, end, window)

    def _take_over(self, flight: Flight, ancestor: Content) -> None:
        """Copy the ancestor, if this version is proved to begin with it (`growth`)."""
        assert self._fetcher is not None
        fetcher, size = self._fetcher, ancestor.size
        with ancestor.lock:
            whole = ancestor._presence.ranges.covers(0, size)
        if not whole or not growth.is_worth_trying(size, self.size):
            return
        ancestor.acquire()
        try:
            added = fetcher.source.read(size, self.size)
            flight.claims.enter_context(self.reserve(self.size))
            if growth.proves(fetcher.source.etag, itertools.chain(ancestor.clean_blocks(), [added])):
                for number, block in enumerate(ancestor.clean_blocks()):
                    fetcher.arrive(flight, number * BLOCK, block)
                self._begins_with = ancestor.identity
            fetcher.arrive(flight, size, added)
        except VersionChanged as error:
            raise Stale(str(error)) from error
        finally:
            ancestor.release()

    def clean_blocks(self) -> Iterator[bytes]:
        """All of a version that is present, as long as nothing is written to it."""
        for position in range(0, self.size, BLOCK):
            block = self.clean_bytes(position, min(self.size, position + BLOCK))
            if block is None:
                return
            yield block

    def clean_bytes(self, start: int, end: int) -> bytes | None:
        """Bytes of the version, None if they are not present or something was written here."""
        with self.lock:
            if self._is_local or not self._presence.ranges.covers(start, end):
                return None
            return os.pread(self._file.fd, end - start, start)

    def begins_with(self, old: Content) -> bool:
        """Whether all that anybody has read of an older version is the same in this one. Raises as `read`."""
        with old.lock:
            seen = list(old._presence.ranges)
        if sum(end - start for start, end in seen) <= growth.MOST_COMPARED:
            return all(self.read(start, end - start) == old.clean_bytes(start, end) for start, end in seen)
        self.read(self.size - 1, 1)  # has the ancestor looked at
        return self._begins_with == old.identity


def _pages(start: int, end: int, size: int) -> tuple[int, int]:
    """The whole pages of `[start, end)` in a file of `size` bytes: what a hole can be made of."""
    return -(-start // PAGE) * PAGE, end if end == size else end // PAGE * PAGE
