"""The cache directory: its file names, its locks, and what is in it, whether it is mounted or not.

    data/<name>             the bytes of one content
    data/<name>.<version>   its log (`rangelog`) while the bytes are the service's; the next mount finds it by name
    data/<name>.local       its log while it holds local truth and a journal row names it
    data/<name>.note        what the journal says of it, where the file has no room for that (`notes`)
    data/journal.stamp      which journal belongs to these files (`journal.stamp`)
    lock                    held by the one mount that may use the directory

The directory is 0700, its files 0600. Threading: none of its own.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import replace
from pathlib import Path

from cloudsimfs.datacache import rangelog
from cloudsimfs.datacache.rangelog import Record, Version
from cloudsimfs.datacache.state import ContentState
from cloudsimfs.errors import ConfigError, MountError
from cloudsimfs.host.disk import disk_usage
from cloudsimfs.host.files import is_locked, lock_file, make_private
from cloudsimfs.host.trust import seclude
from cloudsimfs.prefetch.ranges import RangeSet

LOCAL = "local"
NOTE = "note"
STAMP = "journal.stamp"
KEY_LENGTH = 24  # letters of a version's key
BACKING_NAME = re.compile(r"[0-9a-f]{24}")


def make_directory(directory: Path) -> None:
    """Create the cache directory. Raises ConfigError if that fails, or if others can write there or above."""
    try:
        make_private(directory)
    except OSError as error:
        raise ConfigError(f"{directory}: the cache directory cannot be made: {error.strerror}") from None
    try:
        seclude(directory)
        if os.path.lexists(directory / "data"):
            seclude(directory / "data")
    except PermissionError as error:
        raise ConfigError(f"the cache directory is no safe place: {error}") from None
    except FileNotFoundError:
        pass  # another process has just removed it; who opens it tries again


def with_log(data: Path, state: ContentState) -> tuple[ContentState, Record | None]:
    """The state in a journal row, brought up to date with what its log in the folder `data` says of later fetches and
    cuts. The log's record comes with it; None if there is none for this version.
    """
    record = rangelog.load(log_of(data / state.backing, LOCAL))
    if state.source is None or record is None or record.version != state.source.fingerprint:
        return state, None
    end, present = min(state.remote_end, record.end), (*state.present, *record.present)
    return replace(state, remote_end=end, present=present), record


def missing_bytes(data: Path, state: ContentState) -> int:
    """How many bytes of a content with local truth only the service has. `data` is the folder of its backing file."""
    state, _ = with_log(data, state)
    missing = RangeSet(state.present).missing(0, min(state.remote_end, state.size))
    return sum(end - start for start, end in missing)


def measure(directory: Path) -> tuple[int, int]:
    """(bytes on disk, files) of the cache in `directory`, mounted or not."""
    data = directory / "data"
    files = list(data.iterdir()) if data.is_dir() else []
    return sum(map(disk_usage, files)), sum("." not in file.name for file in files)


def lock_directory(directory: Path, name: str = "lock") -> int:
    """Take the lock, and hold it until the descriptor is closed. Raises MountError if another mount has it."""
    try:
        return lock_file(directory / name)
    except BlockingIOError:
        raise MountError(
            f"{directory}: in use by another mount of this account; unmount it or give --cache-dir"
        ) from None


def is_mounted(directory: Path) -> bool:
    """Whether a mount uses the directory now."""
    return is_locked(directory / "lock")


def key_of(version: Version) -> str:
    """A version as the suffix of its log's name."""
    return hashlib.sha256(repr(version).encode()).hexdigest()[:KEY_LENGTH]


def is_backing_name(name: str) -> bool:
    """Whether the cache gives its files such names."""
    return BACKING_NAME.fullmatch(name) is not None


def is_version_key(key: str) -> bool:
    """Whether it is the suffix of a version's log, and not another word."""
    return len(key) == KEY_LENGTH and key.isalnum()


def log_of(backing: Path, key: str) -> Path:
    return backing.with_name(f"{backing.name}.{key}")


def size_of(file: Path) -> int:
    """The file's size in bytes; -1 if it is not there."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return -1
