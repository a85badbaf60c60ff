"""Files and directories for the user alone (0600, 0700): opened, replaced in one step, locked.

Whoever shares a directory with other processes replaces whole files, or holds a lock file: flock(2) belongs to the
open file, so that it keeps threads and processes apart, and ends with its holder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path


def make_private(directory: Path) -> None:
    """Make the directory and what is missing above it, all 0700, whatever the umask. They survive a power loss."""
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True, mode=0o700)
        fsync_path(each.parent)  # what is fsynced in a directory without a name is lost


def open_private(path: Path, flags: int) -> int:
    """A descriptor of the file, which is made (0600) if it is not there, and may not be a link. Not inherited."""
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def open_new(path: Path, *, place: int | None = None) -> int:
    """A descriptor of a new file (0600), below the open directory `place`. Raises FileExistsError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600, dir_fd=place)


def open_regular(path: Path) -> int:
    """A descriptor of a file to read; OSError if it is a link, a pipe or a device."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return fd


def open_below(directory: Path, folders: Sequence[str]) -> int:
    """A descriptor of a folder below `directory`; what is missing of it is made. OSError if one of them is a link."""
    directory.mkdir(parents=True, exist_ok=True)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    fd = os.open(directory, flags)
    for name in folders:
        outer = fd
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=outer)
            fd = os.open(name, flags | os.O_NOFOLLOW, dir_fd=outer)
        finally:
            os.close(outer)
    return fd


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
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
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
