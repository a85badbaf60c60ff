"""The contents of a mount: those of stored versions, those with local truth, a limit on their bytes, and eviction.

Clean contents are kept by version and evicted least recently used first; contents with local truth are never evicted,
those in use only in the parts that nobody is about to read. `cachedir` says what the files are called.

Locks: `_lock` protects the tables of clean contents and the count of bytes; after Content.lock in the order (eviction
only tries those), held over local disk I/O only.
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

from cloudsimfs.datacache import ancestry, rangelog
from cloudsimfs.datacache.content import Content
from cloudsimfs.datacache.directory import LOCAL, key_of, lock_directory, log_of, size_of, with_log
from cloudsimfs.datacache.rangelog import RangeLog, Record, Version
from cloudsimfs.datacache.state import ContentState
from cloudsimfs.errors import NoSpace
from cloudsimfs.host.disk import copy_file, disk_failure, disk_usage, make_private
from cloudsimfs.prefetch.pool import FetchPool
from cloudsimfs.prefetch.readahead import MOST_AHEAD
from cloudsimfs.prefetch.source import Source
from cloudsimfs.service import Client
from cloudsimfs.service.model import Entry

LOADED = 4096  # contents in memory that nobody uses; the others are found by their logs
SLACK = 256 << 20  # bytes freed beyond what is needed, so that not every claim has to measure
RESERVE = 32 << 20  # bytes of the disk left free, or a 32nd of it
SEAL_BOUND = 5.0  # seconds spent at the end to have the cache on the disk


class DataCache:
    """Owns `directory`. `limit` is in bytes. Raises MountError if another mount holds the directory."""

    def __init__(self, directory: Path, *, limit: int, client: Client) -> None:
        self.pool = FetchPool()
        self.most_ahead = min(MOST_AHEAD, max(1 << 20, limit // 16))
        self._client = client
        self._limit = limit
        self._lock = threading.Lock()
        self._clean: OrderedDict[Version, Content] = OrderedDict()  # in memory; oldest use first
        self._kept: OrderedDict[str, str] = OrderedDict()  # on disk only: version's key to name; oldest use first
        self._latest: dict[str, Version] = {}  # of each path in _clean
        self._used = 0  # bytes on the disk when it was last measured, and kept since; guarded by _lock
        self._reserved = 0  # bytes about to be kept; guarded by _lock
        self.data = directory / "data"
        make_private(self.data)
        self._lock_fd = lock_directory(directory)

    def close(self) -> None:
        """Have what is clean on the disk, as far as that is quick, and let the directory go."""
        self.pool.close()
        deadline = time.monotonic() + SEAL_BOUND
        with self._lock:
            contents = list(self._clean.values())
        for content in contents:
            if time.monotonic() > deadline:
                break
            with contextlib.suppress(OSError):  # what is not sealed is good until the machine crashes
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
        backing = self._fresh()
        latest = self._latest.get(entry.path)
        before = None if latest is None else self._clean.get(latest)
        grown = before is not None and before.source is not None and before.size < entry.size
        if before is None or before.source is None or not grown:
            before = link = None
        else:
            link = before.source.link if before.source.entry.id == entry.id else None
        return Content(
            backing,
            self,
            size=entry.size,
            source=Source(self._client, entry, link=link),
            log=RangeLog(log_of(backing, key_of(entry.fingerprint)), entry),
            ancestor=None if before is None or before.size < ancestry.MIN_ANCESTOR else before,
        )

    def _load(self, entry: Entry) -> Content | None:
        """A content that an earlier mount, or this one a while ago, has kept on disk."""
        key = key_of(entry.fingerprint)
        name = self._kept.pop(key, None)
        if name is None:
            return None
        backing = self.data / name
        path = log_of(backing, key)
        record = rangelog.load(path)
        if record is None or record.version != entry.fingerprint or size_of(backing) != entry.size:
            path.unlink(missing_ok=True)
            backing.unlink(missing_ok=True)
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
        """Into the table; what has not been used for long leaves it, and stays on disk."""
        self._clean[entry.fingerprint] = content
        self._latest[entry.path] = entry.fingerprint
        if len(self._clean) > LOADED:
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
            for version, found in self._clean.items():
                if found is content:
                    self._remove(version)
                    break
            for key, name in list(self._kept.items()):
                if name == content.backing.name:
                    del self._kept[key]
        content.make_local(log_of(content.backing, LOCAL))

    def share(self, entry: Entry, content: Content) -> None:
        """It does not differ after all."""
        content.make_shared(log_of(content.backing, key_of(entry.fingerprint)))
        with self._lock:
            self._insert(entry, content)

    def drop_version(self, content: Content) -> None:
        """The service has something else under this version: who opens the file next shall not find it."""
        with self._lock:
            found = [version for version, known in self._clean.items() if known is content]
            for version in found:
                self._remove(version)
        if found:
            content.drop()

    def empty(self) -> Content:
        return Content(self._fresh(), self)

    def accept_as(self, entry: Entry, content: Content) -> None:
        """A content made here turned out to be the service's version `entry`: keep it as its cache."""
        log = RangeLog(log_of(content.backing, key_of(entry.fingerprint)), entry)
        content.make_clean(Source(self._client, entry), log)
        with self._lock:
            replaced = self._clean.get(entry.fingerprint)
            if replaced is not None and replaced is not content:
                replaced.evict()
            self._insert(entry, content)

    def copy_of(self, content: Content, size: int) -> Content:
        """The first `size` bytes of a content that nobody writes to meanwhile, for somebody to write to.

        What is still to be fetched is fetched for each of the two. Raises NoSpace.
        """
        held = content.describe()
        if size == 0:
            return self.empty()
        held = replace(held, backing=self._fresh().name)
        with self.reserve(disk_usage(content.backing)):  # at most; shared blocks are counted twice
            try:
                copy_file(content.backing, self.data / held.backing, size)
            except OSError as error:
                raise disk_failure(error) from error
        return self._local(held, size)

    def is_whole(self, held: ContentState, size: int) -> bool:
        """Whether the backing file a row needs is there, with `size` bytes: zeros must never be read or uploaded.

        After a power loss the row may be on the disk and the bytes not: such a file is shorter.
        """
        needed = held.present or held.size > held.remote_end
        return not needed or self.file_size(held) >= size

    def file_size(self, held: ContentState) -> int:
        """Bytes that were written by the daemon that died, whatever its rows say; -1 if the file is gone."""
        return size_of(self.data / held.backing)

    def restore(self, held: ContentState) -> Content:
        """The content a journal row speaks of."""
        held, record = with_log(self.data, held)
        return self._local(held, held.size, record)

    def _local(self, held: ContentState, size: int, record: Record | None = None) -> Content:
        """A content with local truth in a backing file that is there. `record`: what its log says."""
        backing, source, log = self.data / held.backing, None, None
        path = log_of(backing, LOCAL)
        if held.source is not None:
            source = Source(self._client, held.source, etag=held.etag)
            log = RangeLog(path, held.source, record)
        content = Content(backing, self, size=size, source=source, log=log)
        content.restore(size, held.remote_end, held.present)
        content.make_local(path)
        return content

    def sync(self) -> None:
        """The names of the backing files survive a power loss."""
        fd = os.open(self.data, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sweep(self, keep: set[str]) -> None:
        """At start: find what earlier mounts have kept; remove what neither a journal row nor a log speaks of."""
        with os.scandir(self.data) as found:
            times = {file.name: file.stat().st_mtime for file in found}
        logs = sorted((name for name in times if "." in name), key=lambda name: times[name])
        for log in logs:
            name, _, key = log.partition(".")
            wanted = key == LOCAL if name in keep else name in times and key.isalnum() and key != LOCAL
            if not wanted:
                (self.data / log).unlink(missing_ok=True)
            elif key != LOCAL:
                self._kept[key] = name
        known = keep.union(self._kept.values())
        for name in times:
            if name.partition(".")[0] not in known:
                (self.data / name).unlink(missing_ok=True)
        self._measure()

    def _fresh(self) -> Path:
        return self.data / secrets.token_hex(12)

    # -- the limit -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        """Room for `size` more bytes while they are being kept, made by eviction if need be. Raises NoSpace.

        The disk's last bytes are left to the journal: what is there can be uploaded, or removed, whatever happens.
        """
        with self._lock:
            if self._lacking(size) > 0:
                self._measure()
                lacking = self._lacking(size) + min(SLACK, self._limit // 16)
                if lacking > 0:
                    self._make_room(lacking)
                if self._limit_lacks(size) > 0:
                    raise NoSpace(f"the cache is full of data that waits for upload ({self._limit} bytes)")
                if self._disk_lacks(size) > 0:
                    raise NoSpace("the cache's disk is full")
            self._reserved += size
        try:
            yield
        finally:
            with self._lock:
                self._reserved -= size
                self._used += size

    def _lacking(self, size: int) -> int:
        """Bytes to be freed before there is room for so many more."""
        return max(self._limit_lacks(size), self._disk_lacks(size))

    def _limit_lacks(self, size: int) -> int:
        return self._used + self._reserved + size - self._limit

    def _disk_lacks(self, size: int) -> int:
        disk = os.statvfs(self.data)
        reserve = min(RESERVE, disk.f_blocks * disk.f_frsize // 32)
        return self._reserved + size + reserve - disk.f_bavail * disk.f_frsize

    def _measure(self) -> None:
        self._used = sum(disk_usage(file) for file in self.data.iterdir())

    def _make_room(self, wanted: int) -> None:
        """Evict clean contents: those not used since the mount, then by last use, then parts of those in use."""
        enough = self._used - wanted
        while self._used > enough and self._kept:
            key, name = self._kept.popitem(last=False)
            backing = self.data / name
            self._used -= disk_usage(backing)
            log_of(backing, key).unlink(missing_ok=True)
            backing.unlink(missing_ok=True)
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
    def room(self) -> int:
        """Bytes that can be written before uploads must make room, as far as the disk has them."""
        free = os.statvfs(self.data)
        with self._lock:
            return min(max(0, -self._limit_lacks(0)), free.f_bavail * free.f_frsize)

    @property
    def usage(self) -> tuple[int, int]:
        """(bytes used, limit in bytes), the first an upper estimate."""
        with self._lock:
            return self._used, self._limit
