"""A content's sparse file on disk: open only while somebody uses it, filled and read without the content's lock.

Users keep it open. A borrower reads or fills it just now: the descriptor stays its own until it is given back, also
if the last user has gone meanwhile. A fill writes fetched bytes where none are present: what else changes those
bytes waits for it first.

Locks: all fields are guarded by the content's lock, methods ending in `_locked` need it held. `filling` is a leaf.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path

from cloudsimfs.errors import BadHandle
from cloudsimfs.host.disk import data_parts, disk_failure

BLOCK = 1 << 20  # bytes written anew at a time

Parts = Iterable[tuple[int, int]]


class BackingFile:
    def __init__(self, path: Path, lock: threading.Lock) -> None:
        self.path = path
        self._lock = lock
        self._fd = -1  # open while there are users or borrowers
        self._users = 0
        self._borrowers = 0
        self._fills: list[tuple[int, int]] = []  # where fetched bytes are being written now
        self._filled = threading.Condition(lock)  # one of them less
        self.filling = threading.Lock()  # one fill writes at a time: the kernel would have the others spin
        self._unwritten = False  # fsync has failed: the disk may not have what the kernel shows

    # -- open while used ---------------------------------------------------------------------------------

    @property
    def in_use(self) -> bool:
        """Without the lock, a hint."""
        return self._users > 0

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    @property
    def fd(self) -> int:
        """Raises BadHandle."""
        if self._fd < 0:
            raise BadHandle("the file is not open")
        return self._fd

    def open_locked(self) -> int:
        """Open it, or make it. Its size."""
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise disk_failure(error) from error
        return os.fstat(self._fd).st_size

    def add_user_locked(self) -> None:
        self._users += 1

    def remove_user_locked(self) -> None:
        self._users -= 1

    def borrow_locked(self) -> int:
        """The descriptor, for use without the lock; to be given back."""
        fd = self.fd
        self._borrowers += 1
        return fd

    def give_back_locked(self) -> None:
        self._borrowers -= 1
        self.close_unused_locked()

    def close_unused_locked(self) -> None:
        if self._users == 0 and self._borrowers == 0:
            os.close(self._fd)
            self._fd = -1

    def read_borrowed(self, fd: int, buffer: memoryview, offset: int) -> int:
        """Read, and give the descriptor back."""
        try:
            return os.preadv(fd, [buffer], offset)
        finally:
            with self._lock:
                self.give_back_locked()

    # -- writing -------------------------------------------------------------------------------------------

    def write_locked(self, data: memoryview, offset: int) -> int:
        """The number of bytes written. Raises NoSpace."""
        try:
            return os.pwrite(self.fd, data, offset)
        except OSError as error:
            raise disk_failure(error) from error

    def begin_fill_locked(self, holes: Parts) -> int:
        """Borrow it to write into `holes`, in which nothing is present."""
        fd = self.borrow_locked()
        self._fills += holes
        return fd

    def end_fill_locked(self, holes: Parts) -> None:
        for hole in holes:
            self._fills.remove(hole)
        self._filled.notify_all()
        self.give_back_locked()

    def wait_for_fills_locked(self, start: int, end: int) -> None:
        """Before anything else changes `[start, end)`: the fills there found it missing, and it has to stay so."""
        while any(first < end and start < last for first, last in self._fills):
            self._filled.wait()

    # -- on the disk ---------------------------------------------------------------------------------------

    def datasync(self) -> None:
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def fsync(self, size: int) -> None:
        """Its bytes, `size` of them, survive a power loss. Nothing to do for a file that is gone.

        When that has failed, the kernel takes for written what is not (fsync(2)): next time all is written anew.
        """
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
            for position in range(start, end, BLOCK):
                with self._lock:
                    stop = min(end, position + BLOCK)
                    self.wait_for_fills_locked(position, stop)
                    os.pwrite(fd, os.pread(fd, stop - position, position), position)
