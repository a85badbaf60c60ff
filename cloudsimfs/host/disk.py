"""The cache's disk: sparse files (copies, holes, the bytes they take), and the disk's failures as errors.

A copy shares blocks where the filesystem can (btrfs, XFS); where not, the kernel copies.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from cloudsimfs.errors import CloudsimfsError, NoSpace
from cloudsimfs.host.files import open_new, open_regular

WRITE_SLICE = 64 << 10  # bytes written at once: for more the kernel looks for large pages, which can be dear
PAGE = 4096  # bytes; what a hole in a file consists of
PUNCH_HOLE = 3  # fallocate(2): FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
COPY_STEP = 64 << 20  # bytes copied by one system call
COPY_BLOCK = 1 << 20  # bytes read and written at a time where the kernel cannot copy


def copy_file(source: Path, target: Path, size: int, *, place: int | None = None) -> None:
    """Copy the first `size` bytes of `source` into a new file `target` (0600). Holes stay holes.

    `target` is below the open directory `place`, if there is one. Neither may be a link. Raises FileExistsError.
    """
    fd = open_regular(source)
    try:
        out = open_new(target, place=place)
        try:
            for start, end in data_parts(fd, size):
                _copy_range(fd, out, start, end)
            os.ftruncate(out, size)
        except BaseException:
            os.unlink(target, dir_fd=place)
            raise
        finally:
            os.close(out)
    finally:
        os.close(fd)


def data_parts(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """The parts `[start, end)` of the file below `size` that are not holes."""
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
            done = os.copy_file_range(fd, out, min(COPY_STEP, end - start), start, start)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            done = 0
        if not done:  # not between these two filesystems
            block = os.pread(fd, min(COPY_BLOCK, end - start), start)
            if not block:
                raise OSError(errno.EIO, "the file is shorter than it was")
            done = os.pwrite(out, block, start)
        start += done


def write_all(fd: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):  # a nearly full disk may take a part of a slice only
        done += os.pwrite(fd, data[done : done + WRITE_SLICE], offset + done)


def punch(fd: int, start: int, end: int) -> None:
    """Free the blocks of `[start, end)`. A filesystem that cannot do so keeps them until the file is evicted."""
    if start < end:
        _libc.fallocate(fd, PUNCH_HOLE, ctypes.c_int64(start), ctypes.c_int64(end - start))


_libc = ctypes.CDLL(None, use_errno=True)


def disk_usage(file: Path) -> int:
    """Bytes that a file takes on the disk; 0 if there is no such file."""
    try:
        return file.stat().st_blocks * 512
    except FileNotFoundError:
        return 0


def disk_failure(error: OSError) -> CloudsimfsError:
    """The error of ours for a failure of the cache's disk."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace(f"the cache's disk is full: {error}")
    return CloudsimfsError(f"the cache's disk failed: {error}")
