"""Files and directories for the user alone (0600, 0700): opened, replaced in one step, locked.

Whoever shares a directory with other processes replaces whole files, or holds a lock file: flock(2) belongs to the
open file, so that it keeps threads and processes apart, and ends with its holder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path


def make_private(directory: Path) -> None:
    """Make the directory and what is missing above it, all 0700, whatever the umask. They survive a power loss."""
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True, mode=0o700)
        fsync_path(each.parent)  # what is fsynced in a directory without a name is lost


def open_private(path: Path, flags: int) -> int:
    """A descriptor of the file, which is made (0600) if it is not there. Not inherited by programs."""
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)


def replace_file(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Give the file (0600) this content: others see the old one or the new one, never a part. Raises OSError.

    `durable`: the bytes are on the disk before the name is. The directory has to be there.
    """
    fd, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # 0600, under a name nobody else uses
    try:
        with open(fd, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(fd)
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def fsync_path(path: Path) -> None:
    """A file's bytes, or a directory's names, survive a power loss."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def lock_file(path: Path, *, wait: bool = False) -> int:
    """A descriptor that holds the lock file, made if need be, for itself until it is closed.

    Raises BlockingIOError if somebody else holds it, unless it is to `wait`.
    """
    fd = open_private(path, os.O_RDWR)
    try:
        lock(fd, wait=wait)
    except BaseException:
        os.close(fd)
        raise
    return fd


def is_locked(path: Path) -> bool:
    """Whether somebody holds the lock file for himself now."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        lock(fd, shared=True)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def lock(fd: int, *, shared: bool = False, wait: bool = False) -> None:
    """Lock an open file or directory until it is closed. Raises BlockingIOError if it is taken, unless to `wait`."""
    fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
