"""One file's bytes, as the namespace and the uploads see them: read, write, truncate, complete, evict.

`sparsefile` holds the bytes that are on this disk; `prefetch` brings the missing ones; `ancestry` takes over those of
an earlier version. The content itself knows where its bytes come from, and whether they differ from the service's.

All fetched bytes come from one version (docs/architecture.md, invariant 5a): another ETag ends in Stale, never in
mixed bytes.

Locks: `Content.lock` guards the fields here, the sparse file and the fetcher. It is held over local disk I/O only.
Order: Content.lock, then DataCache._lock.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from cloudsimfs.concurrency.waiting import Interrupted, never
from cloudsimfs.datacache.ancestry import Ancestry
from cloudsimfs.datacache.rangelog import RangeLog
from cloudsimfs.datacache.sparsefile import SparseFile
from cloudsimfs.datacache.state import ContentState
from cloudsimfs.errors import (
    BadHandle,
    Cancelled,
    CloudsimfsError,
    NoSpace,
    Refused,
    ServiceError,
    Stale,
)
from cloudsimfs.host.disk import WRITE_SLICE
from cloudsimfs.prefetch.fetcher import CacheSpace, Fetcher, Waiter
from cloudsimfs.prefetch.ranges import RangeSet
from cloudsimfs.prefetch.readahead import MAX_AHEAD, MAX_PIECE, Window
from cloudsimfs.prefetch.source import Source, as_filesystem_error

UPLOAD_BLOCK = 1 << 20  # bytes read from disk at a time for an upload
MAX_COMPARED = 4 << 20  # bytes; what was read of an old version and may be fetched of the new one to compare


class Content:
    """The bytes of one file. Create it through `DataCache`."""

    _serials = itertools.count(1)

    def __init__(
        self,
        backing: Path,
        space: CacheSpace,
        *,
        size: int = 0,
        source: Source | None = None,
        log: RangeLog | None = None,
        ancestor: Content | None = None,
    ) -> None:
        """`ancestor` is an earlier, shorter version, whose bytes are taken over if this one begins with them."""
        self._file = SparseFile(backing, size=size, remote_end=0 if source is None else size, log=log)
        self.lock = self._file.lock  # one lock for all of a content's bytes; see `sparsefile`
        # What a program could not write because the disk was full, and has not written since. Not part of the file.
        self.lacking = RangeSet()  # guarded by lock
        # Names the kernel's cached pages. The kernel sees every write: they are right as long as the content lives.
        self.identity = next(self._serials)
        self.dropped = False  # its file is removed or will be: nobody will want these bytes; guarded by lock
        self._is_local = source is None  # its bytes differ from the version; guarded by lock
        self._space = space
        self._ancestry = Ancestry(ancestor)  # guarded by lock
        self._fetcher: Fetcher | None = None  # guarded by lock
        if source is not None:
            self._fetcher = Fetcher(self._file, source, space)

    @property
    def size(self) -> int:
        """Bytes."""
        return self._file.size

    @property
    def backing(self) -> Path:
        return self._file.path

    @property
    def source(self) -> Source | None:
        return None if self._fetcher is None else self._fetcher.source

    @property
    def _etag(self) -> str | None:
        return None if self._fetcher is None else self._fetcher.source.etag

    # -- in use or not -----------------------------------------------------------------------------------

    def acquire(self) -> None:
        """Open it for one more user. Raises FsError if local bytes are lost, CloudsimfsError if the disk fails."""
        with self.lock:
            self._file.acquire_locked(is_local=self._is_local)

    def release(self) -> None:
        with self.lock:
            self._file.release_locked()
            if not self._file.in_use and self._fetcher is not None:
                self._fetcher.cancel_locked()

    @property
    def in_use(self) -> bool:
        """A hint, asked for without the lock."""
        return self._file.in_use

    @property
    def is_whole(self) -> bool:
        """Whether reading it needs nothing from the service."""
        with self.lock:
            return self._file.is_whole_locked()

    # -- what the cache directory asks ---------------------------------------------------------------------

    def abandon(self) -> None:
        """Nothing refers to the content any more, and its file is about to be removed."""
        with self.lock:
            self.dropped = True

    def drop(self) -> None:
        """Remove the backing file of a content that nothing refers to any more."""
        with self.lock:
            self.dropped = True
            self._file.remove_locked()

    def evict(self) -> int | None:
        """Give back the disk space of a clean content. Returns the bytes freed, or None if it is in use just now.

        Whoever refers to it without having it open finds nothing present, and fetches again.
        """
        return self._file.evict()

    def shrink(self) -> int:
        """Give back what an open clean content has and nobody is about to read. Returns the bytes freed."""
        if not self.lock.acquire(blocking=False):
            return 0
        try:
            return 0 if self._fetcher is None else self._file.punch_locked(self._fetcher.busy_locked())
        finally:
            self.lock.release()

    def seal(self) -> None:
        """Have the bytes on the disk, so that the cache also survives a crash of the machine. Raises OSError."""
        self._file.seal()

    # -- local bytes -----------------------------------------------------------------------------------

    def make_local(self, log: Path) -> None:
        """The bytes are about to differ from the version. The log of what is present moves to the path `log`."""
        with self.lock:
            self._file.move_log_locked(log)
            self._is_local = True

    def make_shared(self, log: Path) -> None:
        """The bytes do not differ after all: `make_local` undone."""
        with self.lock:
            self._file.move_log_locked(log)
            self._is_local = False

    def make_clean(self, source: Source, log: RangeLog) -> None:
        """The bytes turned out to be those of a version on the service."""
        with self.lock:
            if self._fetcher is not None:
                self._fetcher.cancel_locked()
            self._fetcher = Fetcher(self._file, source, self._space)
            self._file.begin_log_locked(log)
            self._is_local = False

    def describe(self) -> ContentState:
        """What the journal has to know of it."""
        with self.lock:
            source = self.source
            return ContentState(
                backing=self.backing.name,
                size=self.size,
                source=None if source is None else source.entry,
                etag=self._etag,
                remote_end=self._file.remote_end_locked(),
                present=tuple(self._file.present_locked()),
            )

    def restore(self, size: int, remote_end: int, present: Iterable[tuple[int, int]]) -> None:
        """Take the state of a journal row or a log, before anybody uses the content."""
        self._file.restore(size, remote_end, present)

    def write(self, data: bytes, offset: int) -> int:
        """Returns the number of bytes written, fewer than given if the disk fills up. Raises NoSpace."""
        with self.lock:
            self._file.wait_for_fills_locked(offset, offset + len(data))
            view, done = memoryview(data), 0
            try:
                with self._space.reserve(len(data)):
                    while done < len(data):  # a nearly full disk may take a part only
                        done += self._file.write_locked(view[done : done + WRITE_SLICE], offset + done)
            except CloudsimfsError:
                self.lacking.add(offset + done, offset + len(data))
                if not done:
                    raise
            self._file.add_written_locked(offset, offset + done, self._etag)
            self.lacking.remove(offset, offset + done)
        return done

    def truncate(self, size: int) -> None:
        with self.lock:
            self._file.truncate_locked(size)
            self.lacking.clip(size)

    def fsync(self) -> None:
        """Have the bytes survive a power loss. Raises OSError."""
        self._file.fsync()

    # -- reading ---------------------------------------------------------------------------------------

    def read(self, offset: int, length: int, interrupted: Interrupted = never) -> bytes:
        """Up to `length` bytes at `offset`. Raises as `read_into`."""
        buffer = bytearray(length)
        return bytes(buffer[: self.read_into(memoryview(buffer), offset, interrupted)])

    def read_into(self, buffer: memoryview, offset: int, interrupted: Interrupted = never) -> int:
        """Fill `buffer` from `offset` on, and return how many bytes there were.

        Raises Stale if the version is gone, BadHandle if nobody has the content open any more (a writer may have gone
        on in a copy), Cancelled if the reader was interrupted, else a ServiceError.
        """
        file = self._file
        window: Window | None = None
        while True:
            with self.lock:
                end = min(offset + len(buffer), file.size)
                waiter = None
                if self._fetcher is not None and not file.is_whole_locked():
                    waiter, window = self._want_read_locked(self._fetcher, offset, end, window)
                if waiter is None:
                    fd, punches = file.borrow_locked(), file.punches
            if waiter is None:
                count = file.read_borrowed(fd, buffer[: max(0, end - offset)], offset)
                if punches == file.punches:  # else the bytes may have gone before they were read
                    return count
                continue
            assert self._fetcher is not None
            try:
                self._fetcher.wait(waiter, interrupted)
            except NoSpace:
                return self._read_through(buffer[: end - offset], offset)

    def _want_read_locked(
        self, fetcher: Fetcher, start: int, end: int, window: Window | None
    ) -> tuple[Waiter | None, Window | None]:
        """What a read of `[start, end)` has to wait for, and the window that was planned for it."""
        end = min(end, self._file.remote_end_locked())
        if start >= end:
            return None, window
        if not self._file.in_use:  # the bytes would not be kept, and be asked for again and again
            raise BadHandle(f"{self.backing.name} is not open")
        window = window or fetcher.plan_locked(start, end)
        return self._want_locked(fetcher, start, end, window), window

    def _want_locked(self, fetcher: Fetcher, start: int, end: int, window: Window) -> Waiter | None:
        """Have bytes fetched. The first time, have them looked for in the ancestor."""
        if self._ancestry.older is not None and self._file.is_missing_locked(start, end):
            self._ancestry.look_locked(self._file, fetcher)
        return fetcher.want_locked(start, end, window)

    def _read_through(self, buffer: memoryview, offset: int) -> int:
        """Read without keeping the bytes: all of the cache is taken by what must not be evicted."""
        with self.lock:
            count = os.preadv(self._file.fd, [buffer], offset)
            holes = list(self._file.missing_locked(offset, offset + count))
        assert self.source is not None
        with as_filesystem_error(self.source.entry):
            for start, stop in holes:
                buffer[start - offset : stop - offset] = self.source.read(start, stop)
        return count

    def complete(self, interrupted: Interrupted = never) -> None:
        """Fetch all that is missing, before an upload or before the version disappears.

        Raises as `read_into`. A refusal is raised as Stale: v2 refuses an unknown id without a reason
        (docs/service.md, "Envelopes").
        """
        while True:
            with self.lock:
                remote_end = self._file.remote_end_locked()
                hole = next(iter(self._file.missing_locked(0, remote_end)), None)
                if hole is None or self._fetcher is None:
                    return
                start, end = hole[0], min(hole[1], hole[0] + MAX_PIECE)
                window = Window(start, min(remote_end, start + MAX_AHEAD), MAX_PIECE)
                waiter = self._want_locked(self._fetcher, start, end, window)
            if waiter is not None:
                try:
                    self._fetcher.wait(waiter, interrupted)
                except Refused as error:
                    raise Stale(str(error)) from error

    def blocks(self, still_wanted: Callable[[], bool]) -> Iterator[bytes]:
        """The whole file for an upload. Raises Cancelled as soon as `still_wanted` returns False.

        It is asked under the lock of each read, and a change marks the inode before it touches a byte: so no byte of
        a later generation gets into this one's upload.
        """
        position = 0
        while position < self.size:
            with self.lock:
                if not still_wanted():
                    raise Cancelled("the file was changed again")
                # bytes beyond the size are left from a write that failed: they are not the file's
                block = self._file.read_locked(position, min(self.size, position + UPLOAD_BLOCK))
            if not block:
                raise ServiceError(f"{self.backing.name}: the backing file is shorter than it should be")
            yield block
            position += len(block)

    # -- versions that begin with others ---------------------------------------------------------------------

    def present(self) -> list[tuple[int, int]]:
        """The ranges of the version that are present."""
        with self.lock:
            return self._file.present_locked()

    def has(self, start: int, end: int) -> bool:
        """Whether all of `[start, end)` is present."""
        with self.lock:
            return self._file.has_locked(start, end)

    def version_bytes(self, start: int, end: int) -> bytes | None:
        """Bytes of the version, or None if they are not present or something was written here."""
        with self.lock:
            if self._is_local or not self._file.has_locked(start, end):
                return None
            return self._file.read_locked(start, end)

    def begins_with(self, old: Content) -> bool:
        """Whether all that anybody has read of an older version is the same in this one. Raises as `read_into`."""
        seen = old.present()
        if sum(end - start for start, end in seen) <= MAX_COMPARED:
            return all(self.read(start, end - start) == old.version_bytes(start, end) for start, end in seen)
        self.read(self.size - 1, 1)  # waits until the ancestor was looked at
        return self._ancestry.proved == old.identity
