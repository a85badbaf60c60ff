"""One file's bytes: a sparse backing file, the ranges of it that are present, and where the rest comes from.

    [0, remote_end)         bytes of the pinned service version; those not in `present` are fetched when read
    [remote_end, size)      local bytes; holes read as zeros

A fetch fills holes only: it can never overwrite what was written here. All fetched bytes come from one version
(design.md, invariant 5): another ETag ends in Stale, never in mixed bytes. What is present is logged beside the
backing file (`rangelog`), after the bytes.

Locks: `Content.lock` protects the fields below and is held over local disk I/O only. Order: Content.lock before the
data cache's.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from cloudsimfs import growth
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
from cloudsimfs.fetching import Fetcher, FetchPool, Flight, Interrupted, Source, Waiter, disk_failure, never
from cloudsimfs.filecopy import data_parts
from cloudsimfs.rangelog import RangeLog
from cloudsimfs.ranges import RangeSet
from cloudsimfs.readahead import MOST_AHEAD, MOST_PIECE, Window
from cloudsimfs.rows import Bytes

BLOCK = 1 << 20  # bytes read from disk at a time for an upload
SLICE = 64 << 10  # bytes written at once: for more the kernel looks for large pages, which can be dear
PAGE = 4096  # bytes; what a hole in a file consists of
PUNCH_HOLE = 3  # fallocate(2): FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE


class Room(Protocol):
    """What a content asks of the cache directory."""

    pool: FetchPool
    most_ahead: int  # bytes a reader's window may have

    def claim(self, size: int) -> AbstractContextManager[None]:
        """Space for bytes while they are being kept. Entering it raises NoSpace."""


class Content:
    """The bytes of one file; see the module's text. Create through `DataCache`."""

    _serials = itertools.count(1)

    def __init__(
        self,
        backing: Path,
        room: Room,
        *,
        size: int = 0,
        source: Source | None = None,
        log: RangeLog | None = None,
        ancestor: Content | None = None,
    ) -> None:
        """`ancestor` is an earlier, shorter version, whose bytes are taken over if this one begins with them."""
        self.backing = backing
        self.lock = threading.Lock()
        self.size = size  # bytes; guarded by lock
        self.remote_end = size if source is not None else 0  # guarded by lock
        self.present = RangeSet()  # guarded by lock
        # What a program could not write, the disk being full, and did not write since: it is no state of the file.
        self.lacking = RangeSet()  # guarded by lock
        # What the kernel's pages are known by: it sees every write, so they are right as long as the content lives.
        self.identity = next(self._serials)
        self._is_local = source is None  # its bytes differ from the version; guarded by lock
        self._room = room
        self._log = log  # guarded by lock
        self._ancestor = ancestor  # guarded by lock; None once it was looked at
        self._begins_with: int | None = None  # identity of the ancestor whose bytes this one was found to begin with
        self._fetcher: Fetcher | None = None
        self._users = 0  # guarded by lock
        self._evictions = 0  # guarded by lock; counts them while in use
        self._unwritten = False  # fsync has failed: the disk may not have what the kernel shows
        self.dropped = False  # its file was removed: nobody will want these bytes; guarded by lock
        self._fd = -1  # open while there are users or borrowers; guarded by lock
        self._borrowers = 0  # who reads or fills it just now, outside of the lock; guarded by lock
        self._fills: list[tuple[int, int]] = []  # where fetched bytes are being written now; guarded by lock
        self._disk = threading.Lock()  # one fill writes at a time: the kernel would have the others spin; a leaf
        self._filled = threading.Condition(self.lock)  # one of them less
        if source is not None:
            self._fetch_from(source)

    def _fetch_from(self, source: Source) -> None:
        self._fetcher = Fetcher(self, source, self._room.pool, most=min(MOST_AHEAD, self._room.most_ahead))

    @property
    def source(self) -> Source | None:
        return None if self._fetcher is None else self._fetcher.source

    # -- the backing file is open only while somebody uses it ------------------------------------------

    def acquire(self) -> None:
        with self.lock:
            if self._users == 0:
                if self._fd < 0:
                    self._open_locked()
                os.ftruncate(self._fd, self.size)
                if self._log is not None:
                    self._log.touch()
            self._users += 1

    def _open_locked(self) -> None:
        """Open the backing file, or make it. Bytes it should have and has not, because somebody or a power loss took
        them, must never be read or uploaded as zeros: what the service has is fetched anew, the rest is an error.
        """
        try:
            fd = os.open(self.backing, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise disk_failure(error) from error
        if (self.present or self.size > self.remote_end) and os.fstat(fd).st_size < self.size:
            if self._is_local:
                os.close(fd)
                raise FsError(f"{self.backing}: removed or cut short by another program; its bytes are lost")
            self.present = RangeSet()
            if self._log is not None:
                self._log.begin()
        self._fd = fd

    def release(self) -> None:
        with self.lock:
            self._users -= 1
            if self._users == 0:
                if self._fetcher is not None:
                    self._fetcher.cancel_locked()
                if self._log is not None:
                    self._log.close()
                self._close_unused_locked()

    def _borrow_locked(self) -> int:
        """The descriptor, for use without the lock; to be returned."""
        fd = self._open_fd()
        self._borrowers += 1
        return fd

    def _return_locked(self) -> None:
        self._borrowers -= 1
        self._close_unused_locked()

    def _close_unused_locked(self) -> None:
        if self._users == 0 and self._borrowers == 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def in_use(self) -> bool:
        """A hint, asked for without the lock."""
        return self._users > 0

    @property
    def is_whole(self) -> bool:
        """Whether reading it needs nothing from the service."""
        with self.lock:
            return not any(True for _ in self.missing_locked(0, self.remote_end))

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
            if self._fd >= 0:
                return None
            freed = disk_usage(self.backing)
            self._remove_locked()
            self.present = RangeSet()
            return freed
        finally:
            self.lock.release()

    def _remove_locked(self) -> None:
        if self._log is not None:
            self._log.remove()  # first: it must not speak of bytes that are not there
        self.backing.unlink(missing_ok=True)

    def shrink(self) -> int:
        """Give back what an open clean content holds and nobody is about to read. Returns the bytes freed."""
        if not self.lock.acquire(blocking=False):
            return 0
        try:
            if self._fd < 0 or self._fetcher is None:
                return 0
            before = disk_usage(self.backing)
            busy = self._fetcher.busy_locked()
            freed = [part for held in self.present for part in busy.missing(*held)]
            freed = [
                (-(-start // PAGE) * PAGE, end if end == self.size else end // PAGE * PAGE) for start, end in freed
            ]
            left = RangeSet(self.present)
            for start, end in freed:
                left.remove(start, end)
            if self._log is not None:
                self._log.evicted(left)
            self.present = left
            self._evictions += 1
            for start, end in freed:
                _punch(self._fd, start, end)
            return max(0, before - disk_usage(self.backing))
        finally:
            self.lock.release()

    def seal(self) -> None:
        """Have the bytes on the disk, so that the cache outlives a crash of the machine too."""
        with self.lock:
            if self._log is None or self._log.sealed or not self.present:
                return
            fd = os.open(self.backing, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fdatasync(fd)
            finally:
                os.close(fd)
            self._log.seal()
            if self._fd < 0:
                self._log.close()

    def _open_fd(self) -> int:
        if self._fd < 0:
            raise BadHandle("the file is not open")
        return self._fd

    # -- local bytes -----------------------------------------------------------------------------------

    def make_local(self, log: Path) -> None:
        """The bytes are about to differ from the version: what is present is logged under another name."""
        with self.lock:
            if self._log is not None:
                self._log.move(log)
            self._is_local = True

    def make_shared(self, log: Path) -> None:
        """They have not come to differ: `make_local` undone."""
        with self.lock:
            if self._log is not None:
                self._log.move(log)
            self._is_local = False

    def make_clean(self, source: Source, log: RangeLog) -> None:
        """The bytes turned out to be those of a version on the service."""
        with self.lock:
            if self._fetcher is not None:
                self._fetcher.cancel_locked()
            self._fetch_from(source)
            self.remote_end = self.size
            self.present = RangeSet([(0, self.size)])
            self._is_local = False
            log.begin(self.present)
            if self._log is not None and self._log.path != log.path:
                self._log.remove()
            self._log = log

    def describe(self) -> Bytes:
        """What the journal is to know of it."""
        with self.lock:
            return Bytes(
                backing=self.backing.name,
                size=self.size,
                source=None if self.source is None else self.source.entry,
                etag=None if self.source is None else self.source.etag,
                remote_end=self.remote_end,
                present=tuple(self.present),
            )

    def restore(self, size: int, remote_end: int, present: Iterable[tuple[int, int]]) -> None:
        """The state a journal row or a log speaks of; before anybody uses it."""
        self.size = size
        self.remote_end = min(remote_end, size)
        self.present = RangeSet(present)
        self.present.clip(self.remote_end)

    def write(self, data: bytes, offset: int) -> int:
        """The number of bytes written, less than all of them if the disk is full then. Raises NoSpace."""
        with self.lock:
            self._wait_for_fills_locked(offset, offset + len(data))
            view, done = memoryview(data), 0
            try:
                with self._room.claim(len(data)):
                    while done < len(data):  # a nearly full disk may take a part only
                        done += self._write_locked(view[done : done + SLICE], offset + done)
            except CloudsimfsError:
                self.lacking.add(offset + done, offset + len(data))
                if not done:
                    raise
            end = offset + done
            if offset < self.remote_end:
                self._add_locked(offset, min(end, self.remote_end))
            self.lacking.remove(offset, end)
            self.size = max(self.size, end)
        return done

    def _write_locked(self, data: memoryview, offset: int) -> int:
        try:
            return os.pwrite(self._open_fd(), data, offset)
        except OSError as error:
            raise disk_failure(error) from error

    def truncate(self, size: int) -> None:
        with self.lock:
            self._wait_for_fills_locked(size, self.remote_end)
            os.ftruncate(self._open_fd(), size)
            self.size = size
            self.lacking.clip(size)
            if size < self.remote_end:
                self.remote_end = size
                self.present.clip(size)
                if self._log is not None:
                    self._log.cut(size)

    def fsync(self) -> None:
        """The bytes survive a power loss. Nothing to do for a file that is gone.

        When that has failed, the kernel takes for written what is not (fsync(2)): next time all is written anew.
        """
        try:
            fd = os.open(self.backing, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            if self._unwritten:
                self._write_again(fd)
            os.fsync(fd)
            self._unwritten = False
        except OSError:
            self._unwritten = True
            raise
        finally:
            os.close(fd)

    def _write_again(self, fd: int) -> None:
        for start, end in data_parts(fd, self.size):
            for position in range(start, end, BLOCK):
                with self.lock:
                    stop = min(end, position + BLOCK)
                    self._wait_for_fills_locked(position, stop)
                    os.pwrite(fd, os.pread(fd, stop - position, position), position)

    # -- reading ---------------------------------------------------------------------------------------

    def read(self, offset: int, length: int, interrupted: Interrupted = never) -> bytes:
        """Up to `length` bytes at `offset`. Raises as `read_into`."""
        buffer = bytearray(length)
        return bytes(buffer[: self.read_into(memoryview(buffer), offset, interrupted)])

    def read_into(self, buffer: memoryview, offset: int, interrupted: Interrupted = never) -> int:
        """Fill `buffer` from `offset` on; how many bytes there were. Raises Stale if the version is gone, else a
        ServiceError.
        """
        window: Window | None = None
        while True:
            with self.lock:
                end = min(offset + len(buffer), self.size)
                stop = min(end, self.remote_end)
                waiter = None
                if offset < stop and self._fetcher is not None and not self.present.covers(0, self.remote_end):
                    window = window or self._fetcher.plan_locked(offset, stop)
                    waiter = self._want_locked(offset, stop, window)
                if waiter is None:
                    fd, evictions = self._borrow_locked(), self._evictions
            if waiter is None:
                count = self._read_present(fd, buffer[: max(0, end - offset)], offset)
                if evictions == self._evictions:  # else it may have been punched out before it was read
                    return count
                continue
            assert self._fetcher is not None
            try:
                self._fetcher.wait(waiter, interrupted)
            except NoSpace:
                return self._read_through(buffer[: end - offset], offset)

    def _read_present(self, fd: int, buffer: memoryview, offset: int) -> int:
        try:
            return os.preadv(fd, [buffer], offset)
        finally:
            with self.lock:
                self._return_locked()

    def _read_through(self, buffer: memoryview, offset: int) -> int:
        """Read without keeping: all of the cache is taken by what must not be evicted."""
        with self.lock:
            count = os.preadv(self._open_fd(), [buffer], offset)
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
                hole = next(iter(self.missing_locked(0, self.remote_end)), None)
                if hole is None or self._fetcher is None:
                    return
                start, end = hole[0], min(hole[1], hole[0] + MOST_PIECE)
                waiter = self._want_locked(
                    start, end, Window(start, min(self.remote_end, start + MOST_AHEAD), MOST_PIECE)
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
                block = os.pread(self._open_fd(), min(BLOCK, self.size - position), position)
            if not block:
                raise ServiceError(f"{self.backing.name}: the backing file is shorter than it should be")
            yield block
            position += len(block)

    # -- what the fetcher asks ---------------------------------------------------------------------------

    def missing_locked(self, start: int, end: int) -> Iterable[tuple[int, int]]:
        return self.present.missing(start, min(end, self.remote_end))

    def end_locked(self) -> int:
        return self.remote_end

    def claim(self, size: int) -> AbstractContextManager[None]:
        return self._room.claim(size)

    def keep(self, position: int, block: bytes | memoryview) -> bool:
        with self.lock:
            if self._users == 0:
                return False
            fd = self._borrow_locked()
            holes = list(self.missing_locked(position, position + len(block)))
            self._fills += holes
        filled: list[tuple[int, int]] = []
        try:
            with self._disk:
                for start, stop in holes:
                    _write(fd, memoryview(block)[start - position : stop - position], start)
                    filled.append((start, stop))
        finally:
            with self.lock:
                for hole in holes:
                    self._fills.remove(hole)
                for start, stop in filled if self._users else []:
                    self._add_locked(start, stop)
                self._filled.notify_all()
                self._return_locked()
        return True

    def _wait_for_fills_locked(self, start: int, end: int) -> None:
        """Before anything else changes `[start, end)`: the fills there found it missing, and it has to stay so."""
        while any(first < end and start < last for first, last in self._fills):
            self._filled.wait()

    def _add_locked(self, start: int, end: int) -> None:
        self.present.add(start, end)
        if self._log is not None:
            self._log.add(start, end, None if self.source is None else self.source.etag)

    # -- files that grow -----------------------------------------------------------------------------------

    def _want_locked(self, start: int, end: int, window: Window) -> Waiter | None:
        """Have bytes fetched; the first time, look whether the ancestor has them already."""
        assert self._fetcher is not None
        if self._ancestor is not None and any(True for _ in self.missing_locked(start, end)):
            ancestor, self._ancestor = self._ancestor, None
            self._fetcher.launch_locked(0, self.remote_end, lambda flight: self._take_over(flight, ancestor))
        return self._fetcher.want_locked(start, end, window)

    def _take_over(self, flight: Flight, ancestor: Content) -> None:
        """Copy the ancestor, if this version is proved to begin with it (`growth`)."""
        assert self._fetcher is not None
        fetcher, size = self._fetcher, ancestor.size
        with ancestor.lock:
            whole = ancestor.present.covers(0, size)
        if not whole or not growth.is_worth_trying(size, self.size):
            return
        ancestor.acquire()
        try:
            added = fetcher.source.read(size, self.size)
            flight.claims.enter_context(self.claim(self.size))
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
            if self._is_local or not self.present.covers(start, end):
                return None
            return os.pread(self._open_fd(), end - start, start)

    def begins_with(self, old: Content) -> bool:
        """Whether all that anybody has read of an older version is the same in this one. Raises as `read`."""
        with old.lock:
            seen = list(old.present)
        if sum(end - start for start, end in seen) <= growth.MOST_COMPARED:
            return all(self.read(start, end - start) == old.clean_bytes(start, end) for start, end in seen)
        self.read(self.size - 1, 1)  # has the ancestor looked at
        return self._begins_with == old.identity


def _write(fd: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):  # a nearly full disk may take a part of a slice only
        done += os.pwrite(fd, data[done : done + SLICE], offset + done)


def _punch(fd: int, start: int, end: int) -> None:
    """Give the blocks of `[start, end)` back; a filesystem that cannot keeps them until the file is evicted."""
    if start < end:
        _libc.fallocate(fd, PUNCH_HOLE, ctypes.c_int64(start), ctypes.c_int64(end - start))


_libc = ctypes.CDLL(None, use_errno=True)


def disk_usage(file: Path) -> int:
    """Bytes a file takes on disk; 0 if it is not there."""
    try:
        return file.stat().st_blocks * 512
    except FileNotFoundError:
        return 0
