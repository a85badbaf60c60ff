"""One file's bytes on this disk: a sparse file, which ranges of it are present, and who has it open.

    [0, remote_end)       bytes of one version on the service; those that are missing have to be filled
    [remote_end, size)    bytes written here; holes read as zeros

A `Content` reads, writes and evicts it; a `Fetcher` fills it. It knows neither the service nor the cache's limit.

The file is open while it has users or borrowers. A borrower reads or fills without the lock: its descriptor stays
valid until it is given back, even if the last user leaves first. A fill writes only where nothing is present, so
fetched bytes never overwrite what was written here; any other change of those bytes waits until the fill has ended.

Locks: `lock` guards every field. It is the Content.lock of the lock orders: a content has no other. It is held over
local disk I/O only. Order: Content.lock, then DataCache._lock. `_filling` is a leaf, taken without `lock`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path

from cloudsimfs.datacache.notes import note_of
from cloudsimfs.datacache.presence import Presence
from cloudsimfs.datacache.rangelog import RangeLog
from cloudsimfs.errors import BadHandle, FsError
from cloudsimfs.host.disk import PAGE, data_parts, disk_failure, disk_usage, punch, write_all
from cloudsimfs.host.files import open_private
from cloudsimfs.prefetch.ranges import RangeSet

REWRITE_BLOCK = 1 << 20  # bytes written anew at a time after a failed fsync

Ranges = Iterable[tuple[int, int]]


class SparseFile:
    def __init__(self, path: Path, *, size: int, remote_end: int, log: RangeLog | None) -> None:
        """Sizes in bytes. `log` records what is present for the next mount; a file without a version has none."""
        self.lock = threading.Lock()  # the Content.lock: after Inode.lock, before DataCache._lock; guards all fields
        self.path = path
        self.size = size
        self.punches = 0  # times that parts were given back while the file was open
        self._presence = Presence(remote_end, log)
        self._fd = -1  # open while there are users or borrowers
        self._users = 0
        self._borrowers = 0
        self._fills: list[tuple[int, int]] = []  # where fetched bytes are being written now
        self._filled = threading.Condition(self.lock)  # notified when a fill ends
        self._filling = threading.Lock()  # a leaf. One fill writes at a time: the kernel would have the others spin
        self._unwritten = False  # fsync has failed: the disk may not have what the kernel shows

    def restore(self, size: int, remote_end: int, present: Ranges) -> None:
        """Take the state of a journal row or a log, before anybody uses the file."""
        self.size = size
        self._presence.restore(min(remote_end, size), present)

    # -- open while used ---------------------------------------------------------------------------------

    @property
    def in_use(self) -> bool:
        """A hint if it is asked for without the lock."""
        return self._users > 0

    @property
    def fd(self) -> int:
        """Raises BadHandle."""
        if self._fd < 0:
            raise BadHandle(f"{self.path.name} is not open")
        return self._fd

    def acquire_locked(self, *, is_local: bool) -> None:
        """Add a user. `is_local`: the bytes differ from the version, so that bytes lost here are lost for good.

        Raises FsError if such bytes are lost, else CloudsimfsError if the disk fails.
        """
        if not self._users:
            if self._fd < 0:
                self._open_locked(is_local=is_local)
            os.ftruncate(self._fd, self.size)
            self._presence.touch()
        self._users += 1

    def _open_locked(self, *, is_local: bool) -> None:
        """Open the file, or create it. Another program or a power loss may have taken bytes that should be present.
        They must never be read or uploaded as zeros: what the service has is fetched again, the rest is an error.
        """
        try:
            self._fd = open_private(self.path, os.O_RDWR)
        except OSError as error:
            raise disk_failure(error) from error
        size_on_disk = os.fstat(self._fd).st_size
        if size_on_disk < self.size and (self._presence.ranges or self.size > self._presence.remote_end):
            if is_local:
                self._close_unused_locked()
                raise FsError(f"{self.path}: removed or cut short by another program; its bytes are lost")
            self._presence.lose()

    def release_locked(self) -> None:
        """Remove a user."""
        self._users -= 1
        if not self._users:
            self._presence.close()
            self._close_unused_locked()

    def borrow_locked(self) -> int:
        """Return the descriptor, for use without the lock. The caller has to give it back."""
        fd = self.fd
        self._borrowers += 1
        return fd

    def _give_back_locked(self) -> None:
        self._borrowers -= 1
        self._close_unused_locked()

    def _close_unused_locked(self) -> None:
        if self._users == 0 and self._borrowers == 0:
            os.close(self._fd)
            self._fd = -1

    # -- what is present -----------------------------------------------------------------------------------

    def remote_end_locked(self) -> int:
        """Where the version's bytes end."""
        return self._presence.remote_end

    def missing_locked(self, start: int, end: int) -> Ranges:
        """The parts of `[start, end)` that only the service has."""
        return self._presence.missing(start, end)

    def is_missing_locked(self, start: int, end: int) -> bool:
        """Whether there is any such part."""
        return self._presence.is_missing(start, end)

    def is_whole_locked(self) -> bool:
        """Whether nothing is missing."""
        return self._presence.is_whole

    def has_locked(self, start: int, end: int) -> bool:
        """Whether all of `[start, end)` is present."""
        return self._presence.ranges.covers(start, end)

    def present_locked(self) -> list[tuple[int, int]]:
        """The ranges of the version that are present."""
        return list(self._presence.ranges)

    # -- reading -------------------------------------------------------------------------------------------

    def read_borrowed(self, fd: int, buffer: memoryview, offset: int) -> int:
        """Read without the lock, and give the descriptor back. Returns the number of bytes."""
        try:
            return os.preadv(fd, [buffer], offset)
        finally:
            with self.lock:
                self._give_back_locked()

    def read_locked(self, start: int, end: int) -> bytes:
        return os.pread(self.fd, end - start, start)

    # -- changing ------------------------------------------------------------------------------------------

    def fill(self, position: int, block: bytes | memoryview, etag: str | None) -> bool:
        """Write fetched bytes of the version with this ETag where they are missing.

        False if nobody uses the file any more. Raises OSError.
        """
        with self.lock:
            if not self._users:
                return False
            self._presence.expect()
            holes = list(self._presence.missing(position, position + len(block)))
            fd = self.borrow_locked()
            self._fills += holes
        filled: list[tuple[int, int]] = []
        try:
            with self._filling:
                for start, end in holes:
                    write_all(fd, memoryview(block)[start - position : end - position], start)
                    filled.append((start, end))
        finally:
            with self.lock:
                for start, end in filled if self._users else []:
                    self._presence.add(start, end, etag)
                for hole in holes:
                    self._fills.remove(hole)
                self._filled.notify_all()
                self._give_back_locked()
        return True

    def wait_for_fills_locked(self, start: int, end: int) -> None:
        """To be called before anything else changes `[start, end)`: a fill there needs it to stay missing."""
        while any(first < end and start < last for first, last in self._fills):
            self._filled.wait()

    def write_locked(self, data: memoryview, offset: int) -> int:
        """Write once no fill is under way there. Returns the number of bytes written. Raises NoSpace."""
        try:
            return os.pwrite(self.fd, data, offset)
        except OSError as error:
            raise disk_failure(error) from error

    def add_written_locked(self, start: int, end: int, etag: str | None) -> None:
        """`[start, end)` was written here; the version it lies over has this ETag."""
        if start < self._presence.remote_end:
            self._presence.add(start, min(end, self._presence.remote_end), etag)
        self.size = max(self.size, end)

    def truncate_locked(self, size: int) -> None:
        self.wait_for_fills_locked(size, self._presence.remote_end)
        os.ftruncate(self.fd, size)
        self.size = size
        self._presence.cut(size)

    # -- giving disk space back ------------------------------------------------------------------------------

    def remove_locked(self) -> None:
        """Remove the file, and then what is said of it. Whoever has it open goes on reading what is present."""
        self.path.unlink(missing_ok=True)
        self._presence.remove_log()
        note_of(self.path).unlink(missing_ok=True)

    def evict(self) -> int | None:
        """Remove the file unless it is open or its lock is taken. Returns the bytes freed, or None."""
        if not self.lock.acquire(blocking=False):
            return None
        try:
            if self._fd >= 0:
                return None
            freed = disk_usage(self.path)
            self.remove_locked()
            self._presence.ranges = RangeSet()
            return freed
        finally:
            self.lock.release()

    def punch_locked(self, busy: RangeSet) -> int:
        """Give back what is present outside `busy`, if the file is open. Returns the bytes freed."""
        if self._fd < 0:
            return 0
        before = disk_usage(self.path)
        idle = [
            _whole_pages(*part, self.size) for present in self._presence.ranges for part in busy.missing(*present)
        ]
        left = RangeSet(self._presence.ranges)
        for start, end in idle:
            left.remove(start, end)
        self._presence.keep_only(left)
        self.punches += 1
        for start, end in idle:
            punch(self._fd, start, end)
        return max(0, before - disk_usage(self.path))

    # -- the log ---------------------------------------------------------------------------------------------

    def move_log_locked(self, path: Path) -> None:
        """Keep the log under another name from now on."""
        self._presence.move(path)

    def begin_log_locked(self, log: RangeLog) -> None:
        """All bytes turned out to be a version's, whose log is this."""
        self._presence.begin(log, self.size)
        note_of(self.path).unlink(missing_ok=True)

    # -- on the disk -----------------------------------------------------------------------------------------

    def seal(self) -> None:
        """Have the bytes on the disk, so that the cache also survives a crash of the machine. Raises OSError."""
        with self.lock:
            if self._presence.is_sealed:
                return
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fdatasync(fd)
            finally:
                os.close(fd)
            self._presence.seal()
            if self._fd < 0:
                self._presence.close()

    def fsync(self) -> None:
        """Have the bytes survive a power loss. Does nothing if the file is gone. Raises OSError.

        After a failure the kernel takes pages for written that are not (fsync(2)): the next call writes all anew.
        """
        size = self.size
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            if self._unwritten:
                self._write_again(fd, size)
            os.fsync(fd)
            self._unwritten = False
        except OSError:
            self._unwritten = True
            raise
        finally:
            os.close(fd)

    def _write_again(self, fd: int, size: int) -> None:
        for start, end in data_parts(fd, size):
            for position in range(start, end, REWRITE_BLOCK):
                with self.lock:
                    stop = min(end, position + REWRITE_BLOCK)
                    self.wait_for_fills_locked(position, stop)
                    os.pwrite(fd, os.pread(fd, stop - position, position), position)


def _whole_pages(start: int, end: int, size: int) -> tuple[int, int]:
    """The whole pages of `[start, end)` in a file of `size` bytes: a hole consists of whole pages."""
    return -(-start // PAGE) * PAGE, end if end == size else end // PAGE * PAGE
