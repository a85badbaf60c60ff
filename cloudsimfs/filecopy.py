"""Copies of sparse files: blocks shared where the filesystem can (btrfs, XFS), copied by the kernel where not."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

STEP = 64 << 20  # bytes copied by one system call
BLOCK = 1 << 20  # bytes read and written at a time where the kernel cannot copy


def copy_file(source: Path, target: Path, size: int) -> None:
    """The first `size` bytes of `source` as a new file `target` (0600); holes stay holes."""
    fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        out = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            for start, end in data_parts(fd, size):
                _copy_range(fd, out, start, end)
            os.ftruncate(out, size)
        except BaseException:
            target.unlink()
            raise
        finally:
            os.close(out)
    finally:
        os.close(fd)


def data_parts(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """The parts below `size` that are no holes."""
    end = 0
    while end < size:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        end = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        if start < end:
            yield start, end


def _copy_range(fd: int, out: int, start: int, end: int) -> None:
    # the kernel shares blocks, or copies without this process
    while start < end:
        try:
            done = os.copy_file_range(fd, out, min(STEP, end - start), start, start)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            done = 0
        if not done:  # not between these two filesystems
            block = os.pread(fd, min(BLOCK, end - start), start)
            if not block:
                raise OSError(errno.EIO, "the file is shorter than it was")
            done = os.pwrite(out, block, start)
        start += done
