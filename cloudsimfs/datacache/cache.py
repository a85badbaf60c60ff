"""The contents of a mount: those of stored versions, those with local truth, the limit on their bytes, and eviction.

Clean contents are kept by version, and the least recently used is evicted first. Contents with local truth are never
evicted. An open clean content only loses the parts that nobody is about to read. `directory` names the files.

Locks: `_lock` guards the tables of clean contents and the count of bytes. It is held over local disk I/O only.
Order: Content.lock, then DataCache._lock, then Source._lock. Eviction holds `_lock`, so it only tries Content.lock.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from cloudsimfs.datacache import ancestry, notes, rangelog
from cloudsimfs.datacache.content import Content
from cloudsimfs.datacache.directory import (
    LOCAL,
    NOTE,
    STAMP,
    is_version_key,
    key_of,
    lock_directory,
    log_of,
    size_of,
    with_log,
)
from cloudsimfs.datacache.rangelog import RangeLog, Record, Version
from cloudsimfs.datacache.state import ContentState
from cloudsimfs.errors import MountError, NoSpace
from cloudsimfs.host.disk import copy_file, disk_failure, disk_usage
from cloudsimfs.host.files import fsync_path, make_private
from cloudsimfs.prefetch.pool import FetchPool
from cloudsimfs.prefetch.readahead import MAX_AHEAD
from cloudsimfs.prefetch.source import Source
from cloudsimfs.service import Client
from cloudsimfs.service.model import Entry

MAX_LOADED = 4096  # contents in memory; beyond that the oldest unused ones are found by their logs
EVICTION_SLACK = 256 << 20  # bytes freed beyond what is needed, so that not every reservation has to measure
DISK_RESERVE = 32 << 20  # bytes of the disk left free; on a small disk a 32nd of it
SEAL_BOUND = 5.0  # seconds spent at unmount on having the cache on the disk


class DataCache:
    """Owns `directory`. `limit` is in bytes. Raises MountError if another mount holds it, or it cannot be used."""

    def __init__(self, directory: Path, *, limit: int, client: Client) -> None:
        self.pool = FetchPool()
        self.max_ahead = min(MAX_AHEAD, max(1 << 20, limit // 16))
        self._client = client
        self._limit = limit
        self._lock = threading.Lock()  # after Content.lock, before the locks of sources; guards what follows
        self._clean: OrderedDict[Version, Content] = OrderedDict()  # in memory; oldest use first
        self._kept: OrderedDict[str, str] = OrderedDict()  # on disk only: a version's key to its name; oldest first
        self._latest: dict[str, Version] = {}  # for each path in _clean, the version inserted last
        self._discarded: set[Content] = set()  # to be removed once the disk has the rows that do not name them
        self._used = 0  # bytes on the disk when it was last measured, and those kept since
        self._reserved = 0  # bytes about to be kept
        self.data = directory / "data"
        try:
            make_private(self.data)
            self._lock_fd = lock_directory(directory)
        except OSError as error:
            raise MountError(f"{directory}: the cache directory cannot be used: {error.strerror}") from error

    def close(self) -> None:
        """Have clean contents on the disk, as far as that is quick, and unlock the directory."""
        self.pool.close()
        deadline = time.monotonic() + SEAL_BOUND
        with self._lock:
            contents = list(self._clean.values())
        for content in contents:
            if time.monotonic() > deadline:
                break
            with contextlib.suppress(OSError):  # an unsealed content is good until the machine crashes
                content.seal()
        os.close(self._lock_fd)

    # -- contents --------------------------------------------------------------------------------------

    def for_entry(self, entry: Entry) -> Content:
        """The content of a stored version, shared by all who open it."""
        with self._lock:
            content = self._clean.get(entry.fingerprint)
            if content is None:
                content = self._load(entry) or self._new(entry)
                self._insert(entry, content)
            self._clean.move_to_end(entry.fingerprint)
            return content

    def _new(self, entry: Entry) -> Content:
        backing = self._new_path()
        older = self._shorter_version(entry)
        return Content(
            backing,
            self,
            size=entry.size,
            source=Source(self._client, entry, earlier=None if older is None else older.source),
            log=RangeLog(log_of(backing, key_of(entry.fingerprint)), entry),
            ancestor=None if older is None or older.size < ancestry.MIN_ANCESTOR else older,
        )

    def _shorter_version(self, entry: Entry) -> Content | None:
        """The last version of the same path in memory, if it is shorter."""
        version = self._latest.get(entry.path)
        older = None if version is None else self._clean.get(version)
        if older is None or older.source is None or older.size >= entry.size:
            return None
        return older

    def _load(self, entry: Entry) -> Content | None:
        """A content that was kept on disk, by an earlier mount or by this one a while ago."""
        key = key_of(entry.fingerprint)
        name = self._kept.pop(key, None)
        if name is None:
            return None
        backing = self.data / name
        path = log_of(backing, key)
        record = rangelog.load(path)
        if record is None or record.version != entry.fingerprint or size_of(backing) != entry.size:
            backing.unlink(missing_ok=True)  # first: without its log it would look like the only copy of something
            path.unlink(missing_ok=True)
            return None
        content = Content(
            backing,
            self,
            size=entry.size,
            source=Source(self._client, entry, etag=record.etag),
            log=RangeLog(path, entry, record),
        )
        content.restore(entry.size, record.end, record.present)
        return content

    def _insert(self, entry: Entry, content: Content) -> None:
        """Put it into the table. The content not used for longest may leave the table; it stays on disk."""
        self._clean[entry.fingerprint] = content
        self._latest[entry.path] = entry.fingerprint
        if len(self._clean) > MAX_LOADED:
            version, oldest = next(iter(self._clean.items()))
            if not oldest.in_use:
                self._remove(version)
                self._kept[key_of(version)] = oldest.backing.name

    def _remove(self, version: Version) -> None:
        content = self._clean.pop(version)
        path = None if content.source is None else content.source.entry.path
        if path is not None and self._latest.get(path) == version:
            del self._latest[path]

    def unshare(self, content: Content) -> None:
        """The content is about to differ from the stored version: others must not find it any more."""
        with self._lock:
            for version, clean in self._clean.items():
                if clean is content:
                    self._remove(version)
                    break
            for key, name in list(self._kept.items()):
                if name == content.backing.name:
                    del self._kept[key]
        content.make_local(log_of(content.backing, LOCAL))

    def share(self, entry: Entry, content: Content) -> None:
        """The content does not differ from the stored version after all: `unshare` undone."""
        content.make_shared(log_of(content.backing, key_of(entry.fingerprint)))
        with self._lock:
            self._insert(entry, content)

    def drop_version(self, content: Content) -> None:
        """The service has other bytes for this version now: the next open must not find the content."""
        with self._lock:
            versions = [version for version, clean in self._clean.items() if clean is content]
            for version in versions:
                self._remove(version)
        if versions:
            content.drop()

    def discard(self, content: Content) -> None:
        """The journal names the content no more. Once that survives a power loss, the file goes (`remove`)."""
        content.abandon()
        with self._lock:
            self._discarded.add(content)

    def discarded(self) -> set[Content]:
        with self._lock:
            return set(self._discarded)

    def remove(self, discarded: set[Content]) -> None:
        for content in discarded:
            content.drop()
        with self._lock:
            self._discarded.difference_update(discarded)

    def empty(self) -> Content:
        """A new content without bytes."""
        return Content(self._new_path(), self)

    def accept_as(self, entry: Entry, content: Content) -> None:
        """A content written here turned out to be the service's version `entry`: keep it as that version's cache."""
        log = RangeLog(log_of(content.backing, key_of(entry.fingerprint)), entry)
        content.make_clean(Source(self._client, entry), log)
        with self._lock:
            replaced = self._clean.get(entry.fingerprint)
            if replaced is not None and replaced is not content:
                replaced.evict()
            self._insert(entry, content)

    def copy_of(self, content: Content, size: int) -> Content:
        """Copy the first `size` bytes of a content, to be written to. Nobody may write to the content meanwhile.

        Bytes that are missing are fetched for each of the two. Raises NoSpace.
        """
        state = content.describe()
        if size == 0:
            return self.empty()
        state = replace(state, backing=self._new_path().name)
        with self.reserve(disk_usage(content.backing)):  # an upper bound: shared blocks are counted twice
            try:
                notes.give_up(str(self.data / state.backing))  # as long as no row names the copy
                copy_file(content.backing, self.data / state.backing, size)
            except OSError as error:
                raise disk_failure(error) from error
        return self._local(state, size)

    def is_whole(self, state: ContentState, size: int) -> bool:
        """Whether the backing file that a row needs is there, with `size` bytes.

        After a power loss the row may be on the disk and the bytes not: then the file is shorter, and the absent
        bytes must never be read or uploaded as zeros.
        """
        return not state.needs_file or self.file_size(state) >= size

    def file_size(self, state: ContentState) -> int:
        """Bytes in the backing file that the last daemon left, whatever its rows say; -1 if the file is gone."""
        return size_of(self.data / state.backing)

    def restore(self, state: ContentState) -> Content:
        """The content that a journal row describes."""
        state, record = with_log(self.data, state)
        return self._local(state, state.size, record)

    def _local(self, state: ContentState, size: int, record: Record | None = None) -> Content:
        """A content with local truth in a backing file that exists. `record` is what its log says."""
        backing, source, log = self.data / state.backing, None, None
        path = log_of(backing, LOCAL)
        if state.source is not None:
            source = Source(self._client, state.source, etag=state.etag)
            log = RangeLog(path, state.source, record)
        content = Content(backing, self, size=size, source=source, log=log)
        content.restore(size, state.remote_end, state.present)
        content.make_local(path)
        return content

    def sync(self) -> None:
        """Have the names of the backing files survive a power loss. Raises OSError."""
        fsync_path(self.data)

    def sweep(self, keep: set[str]) -> None:
        """At start: find what earlier mounts have kept, and remove what is known to be of no use.

        `keep` are the names of the backing files that journal rows name. A file that nothing is known of stays, too.
        """
        keep = keep.union(notes.unclaimed(self.data, keep))
        wanted = keep.union([STAMP], *([f"{name}.{LOCAL}", f"{name}.{NOTE}"] for name in keep))
        with os.scandir(self.data) as files:
            times = {file.name: file.stat().st_mtime for file in files}
        for log in sorted(times, key=lambda name: times[name]):
            name, _, key = log.partition(".")
            if name not in keep and name in times and is_version_key(key):
                self._kept[key] = name
                wanted |= {name, log}
        for name in sorted(times.keys() - wanted):  # a backing file goes before what is said of it
            (self.data / name).unlink(missing_ok=True)
        self._measure()

    def _new_path(self) -> Path:
        return self.data / secrets.token_hex(12)

    # -- the limit -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        """Space for `size` more bytes while they are being kept. Evicts if there is too little. Raises NoSpace.

        The disk's last bytes are left to the journal, so that files can be uploaded or removed whatever happens.
        """
        with self._lock:
            if self._shortage(size) > 0:
                self._measure()
                shortage = self._shortage(size) + min(EVICTION_SLACK, self._limit // 16)
                if shortage > 0:
                    self._evict(shortage)
                if self._limit_shortage(size) > 0:
                    raise NoSpace(f"the cache is full of data that waits for upload ({self._limit} bytes)")
                if self._disk_shortage(size) > 0:
                    raise NoSpace("the cache's disk is full")
            self._reserved += size
        try:
            yield
        finally:
            with self._lock:
                self._reserved -= size
                self._used += size

    def _shortage(self, size: int) -> int:
        """Bytes to be freed before `size` more can be kept; none if it is negative."""
        return max(self._limit_shortage(size), self._disk_shortage(size))

    def _limit_shortage(self, size: int) -> int:
        return self._used + self._reserved + size - self._limit

    def _disk_shortage(self, size: int) -> int:
        disk = os.statvfs(self.data)
        reserve = min(DISK_RESERVE, disk.f_blocks * disk.f_frsize // 32)
        return self._reserved + size + reserve - disk.f_bavail * disk.f_frsize

    def _measure(self) -> None:
        self._used = sum(disk_usage(file) for file in self.data.iterdir())

    def _evict(self, wanted: int) -> None:
        """Free `wanted` bytes: first what was discarded, last parts of open files, else by last use."""
        enough = self._used - wanted
        for content in self._discarded:
            self._used -= content.evict() or 0
        while self._used > enough and self._kept:
            key, name = self._kept.popitem(last=False)
            backing = self.data / name
            self._used -= disk_usage(backing)
            backing.unlink(missing_ok=True)
            log_of(backing, key).unlink(missing_ok=True)
        for version, content in list(self._clean.items()):
            if self._used <= enough:
                return
            freed = content.evict()
            if freed is not None:
                self._remove(version)
                self._used -= freed
        for content in self._clean.values():
            if self._used <= enough:
                return
            self._used -= content.shrink()

    @property
    def free_space(self) -> int:
        """Bytes that can be written before writers have to wait for uploads, as far as the disk has them."""
        disk = os.statvfs(self.data)
        with self._lock:
            return min(max(0, -self._limit_shortage(0)), disk.f_bavail * disk.f_frsize)

    @property
    def usage(self) -> tuple[int, int]:
        """(bytes used, limit in bytes). The bytes used are an upper estimate."""
        with self._lock:
            return self._used, self._limit
