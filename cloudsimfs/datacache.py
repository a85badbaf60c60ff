"""The cache directory: backing files and their logs, a limit on their bytes, and eviction.

    <name>              one content's bytes
    <name>.<version>    its log, while it is what the service has: found again by the next mount (`rangelog`)
    <name>.local        its log, while it holds local truth and a journal row names it

Clean contents are kept by version and evicted least recently used first; contents with local truth are never evicted,
those in use only in the parts that nobody is about to read. The directory belongs to one mount at a time (a lock
file), is 0700, its files 0600.

Locks: `_lock` protects the tables of clean contents and the count of bytes; after Content.lock in the order (eviction
only tries those), held over local disk I/O only.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from cloudsimfs import growth, rangelog
from cloudsimfs.content import Content, disk_usage
from cloudsimfs.errors import MountError, NoSpace
from cloudsimfs.fetching import FetchPool, Source, disk_failure
from cloudsimfs.filecopy import copy_file
from cloudsimfs.journal import Journal
from cloudsimfs.rangelog import RangeLog, Record, Version
from cloudsimfs.ranges import RangeSet
from cloudsimfs.readahead import MOST_AHEAD
from cloudsimfs.rows import Bytes
from cloudsimfs.service import Client
from cloudsimfs.service.model import Entry

LOCAL = "local"
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
        self._claimed = 0  # bytes about to be kept; guarded by _lock
        self.data = directory / "data"
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.data.mkdir(exist_ok=True, mode=0o700)
        self._lock_fd = _lock_directory(directory)

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
            content = self._clean.get(entry.version)
            if content is None:
                content = self._load(entry) or self._new(entry)
                self._insert(entry, content)
            self._clean.move_to_end(entry.version)
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
            log=RangeLog(_log_of(backing, _key(entry.version)), entry),
            ancestor=None if before is None or before.size < growth.LEAST else before,
        )

    def _load(self, entry: Entry) -> Content | None:
        """A content that an earlier mount, or this one a while ago, has kept on disk."""
        key = _key(entry.version)
        name = self._kept.pop(key, None)
        if name is None:
            return None
        backing = self.data / name
        path = _log_of(backing, key)
        record = rangelog.load(path)
        if record is None or record.version != entry.version or _size(backing) != entry.size:
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
        self._clean[entry.version] = content
        self._latest[entry.path] = entry.version
        if len(self._clean) > LOADED:
            version, oldest = next(iter(self._clean.items()))
            if not oldest.in_use:
                self._remove(version)
                self._kept[_key(version)] = oldest.backing.name

    def _remove(self, version: Version) -> None:
        content = self._clean.pop(version)
        path = None if content.source is None else content.source.entry.path
        if path is not None and self._latest.get(path) == version:
            del self._latest[path]

    def disown(self, content: Content) -> None:
        """The content is about to differ from the stored version: others must not find it any more."""
        with self._lock:
            for version, found in self._clean.items():
                if found is content:
                    self._remove(version)
                    break
            for key, name in list(self._kept.items()):
                if name == content.backing.name:
                    del self._kept[key]
        content.make_local(_log_of(content.backing, LOCAL))

    def discard(self, content: Content) -> None:
        """The service has something else under this version: who opens the file next shall not find it."""
        with self._lock:
            found = [version for version, known in self._clean.items() if known is content]
            for version in found:
                self._remove(version)
        if found:
            content.drop()

    def empty(self) -> Content:
        return Content(self._fresh(), self)

    def adopt(self, entry: Entry, content: Content) -> None:
        """A content made here turned out to be the service's version `entry`: keep it as its cache."""
        log = RangeLog(_log_of(content.backing, _key(entry.version)), entry)
        content.make_clean(Source(self._client, entry), log)
        with self._lock:
            replaced = self._clean.get(entry.version)
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
        with self.claim(disk_usage(content.backing)):  # at most; shared blocks are counted twice
            try:
                copy_file(content.backing, self.data / held.backing, size)
            except OSError as error:
                raise disk_failure(error) from error
        return self._local(held, size)

    def is_whole(self, held: Bytes, size: int) -> bool:
        """Whether the backing file a row needs is there, with `size` bytes: zeros must never be read or uploaded.

        After a power loss the row may be on the disk and the bytes not: such a file is shorter.
        """
        needed = held.present or held.size > held.remote_end
        return not needed or self.file_size(held) >= size

    def file_size(self, held: Bytes) -> int:
        """Bytes that were written by the daemon that died, whatever its rows say; -1 if the file is gone."""
        return _size(self.data / held.backing)

    def restore(self, held: Bytes) -> Content:
        """The content a journal row speaks of. What was fetched and cut off since the row is in the log."""
        record = rangelog.load(_log_of(self.data / held.backing, LOCAL))
        if held.source is None or record is None or record.version != held.source.version:
            return self._local(held, held.size)
        end, present = min(held.remote_end, record.end), (*held.present, *record.present)
        return self._local(replace(held, remote_end=end, present=present), held.size, record)

    def _local(self, held: Bytes, size: int, record: Record | None = None) -> Content:
        """A content with local truth in a backing file that is there. `record`: what its log says."""
        backing, source, log = self.data / held.backing, None, None
        path = _log_of(backing, LOCAL)
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
    def claim(self, size: int) -> Iterator[None]:
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
            self._claimed += size
        try:
            yield
        finally:
            with self._lock:
                self._claimed -= size
                self._used += size

    def _lacking(self, size: int) -> int:
        """Bytes to be freed before there is room for so many more."""
        return max(self._limit_lacks(size), self._disk_lacks(size))

    def _limit_lacks(self, size: int) -> int:
        return self._used + self._claimed + size - self._limit

    def _disk_lacks(self, size: int) -> int:
        disk = os.statvfs(self.data)
        reserve = min(RESERVE, disk.f_blocks * disk.f_frsize // 32)
        return self._claimed + size + reserve - disk.f_bavail * disk.f_frsize

    def _measure(self) -> None:
        self._used = sum(disk_usage(file) for file in self.data.iterdir())

    def _make_room(self, wanted: int) -> None:
        """Evict clean contents: those not used since the mount, then by last use, then parts of those in use."""
        enough = self._used - wanted
        while self._used > enough and self._kept:
            key, name = self._kept.popitem(last=False)
            backing = self.data / name
            self._used -= disk_usage(backing)
            _log_of(backing, key).unlink(missing_ok=True)
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


# -- the directory, with and without a mount -----------------------------------------------------------------


def clear(directory: Path) -> int:
    """Remove what is cached there and stored on the service; the bytes freed. Raises MountError if it is mounted."""
    if not (directory / "data").is_dir():
        return 0
    lock = _lock_directory(directory)
    try:
        journal = Journal(directory / "journal.db")
        keep = {row.bytes.backing for row in journal.files()} | {row.bytes.backing for row in journal.drafts()}
        journal.close()
        freed = 0
        for file in (directory / "data").iterdir():
            if file.name.partition(".")[0] not in keep:
                freed += disk_usage(file)
                file.unlink()
        return freed
    finally:
        os.close(lock)


def missing_bytes(data: Path, held: Bytes) -> int:
    """How many bytes of a content with local truth in the folder `data` are only on the service."""
    if held.source is None:
        return 0
    record = rangelog.load(_log_of(data / held.backing, LOCAL))
    present, end = RangeSet(held.present), min(held.remote_end, held.size)
    if record is not None and record.version == held.source.version:
        end = min(end, record.end)
        for start, stop in record.present:
            present.add(start, stop)
    return sum(stop - start for start, stop in present.missing(0, end))


def measure(directory: Path) -> tuple[int, int]:
    """(bytes on disk, files) of the cache in `directory`, mounted or not."""
    data = directory / "data"
    files = list(data.iterdir()) if data.is_dir() else []
    return sum(map(disk_usage, files)), sum("." not in file.name for file in files)


def _lock_directory(directory: Path) -> int:
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise MountError(
            f"{directory}: in use by another mount of this account; unmount that, or give another --cache-dir"
        ) from None
    return fd


def _key(version: Version) -> str:
    """What a log is called by."""
    return hashlib.sha256(repr(version).encode()).hexdigest()[:24]


def _log_of(backing: Path, key: str) -> Path:
    return backing.with_name(f"{backing.name}.{key}")


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return -1
