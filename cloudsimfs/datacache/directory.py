"""The cache directory: what its files are called, who may use it, and what is in it, mounted or not.

    data/<name>             one content's bytes
    data/<name>.<version>   its log, while it is what the service has: found again by the next mount (`rangelog`)
    data/<name>.local       its log, while it holds local truth and a journal row names it
    lock                    held by the one mount that may use the directory
    launch.lock             held by who launches a run, by a mount or without

The directory is 0700, its files 0600. Threading: none of its own.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from dataclasses import replace
from pathlib import Path

from cloudsimfs.datacache import rangelog
from cloudsimfs.datacache.rangelog import Record, Version
from cloudsimfs.datacache.state import ContentState
from cloudsimfs.errors import ConfigError, MountError
from cloudsimfs.host.disk import disk_usage, make_private
from cloudsimfs.prefetch.ranges import RangeSet

LOCAL = "local"
LAUNCH_LOCK = "launch.lock"


def make_directory(directory: Path) -> None:
    """Raises ConfigError if it cannot be."""
    try:
        make_private(directory)
    except OSError as error:
        raise ConfigError(f"{directory}: the cache directory cannot be made: {error.strerror}") from None


def with_log(data: Path, held: ContentState) -> tuple[ContentState, Record | None]:
    """What a journal row tells of bytes in the folder `data`, and what was fetched and cut off since: the log's."""
    record = rangelog.load(log_of(data / held.backing, LOCAL))
    if held.source is None or record is None or record.version != held.source.fingerprint:
        return held, None
    end, present = min(held.remote_end, record.end), (*held.present, *record.present)
    return replace(held, remote_end=end, present=present), record


def missing_bytes(data: Path, held: ContentState) -> int:
    """How many bytes of a content with local truth in the folder `data` are only on the service."""
    held, _ = with_log(data, held)
    missing = RangeSet(held.present).missing(0, min(held.remote_end, held.size))
    return sum(end - start for start, end in missing)


def measure(directory: Path) -> tuple[int, int]:
    """(bytes on disk, files) of the cache in `directory`, mounted or not."""
    data = directory / "data"
    files = list(data.iterdir()) if data.is_dir() else []
    return sum(map(disk_usage, files)), sum("." not in file.name for file in files)


def lock_directory(directory: Path, name: str = "lock") -> int:
    """A descriptor that holds the lock until it is closed. Raises MountError if another mount has it."""
    fd = os.open(directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise MountError(
            f"{directory}: in use by another mount of this account; unmount it or give --cache-dir"
        ) from None
    return fd


def is_mounted(directory: Path) -> bool:
    """Whether a mount uses the directory now."""
    try:
        fd = os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def key_of(version: Version) -> str:
    """What a log is called by."""
    return hashlib.sha256(repr(version).encode()).hexdigest()[:24]


def log_of(backing: Path, key: str) -> Path:
    return backing.with_name(f"{backing.name}.{key}")


def size_of(file: Path) -> int:
    """-1 if it is not there."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return -1
