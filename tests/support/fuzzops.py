"""One system call, done on the mount and on a local disk, and what both answered.

An operation is a list that JSON can hold: its name, then its arguments. `Side` has a method for each name; the paths
are below the top of the side. `SLOT` operations work on an open file by the number of its slot.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import stat
from collections.abc import Collection, Iterator
from typing import Any

Op = list[Any]
Outcome = list[Any]  # ["ok", value] or ["error", name of the errno]
Node = tuple[str, int, bytes, int | None]  # "f" or "d", permissions, content, a time that `utime` has set
Snapshot = dict[str, Node]

DATED_S = 1_000_000_000  # seconds; times from here on, for an hour, were set by `utime`
HIDDEN = ".fuse_hidden"
SLOT = frozenset({"close", "read", "pread", "write", "pwrite", "ftruncate", "fsync", "fstat", "futime"})
RENAME_NOREPLACE, AT_FDCWD = 1, -100
_libc = ctypes.CDLL(None, use_errno=True)


def block(stamp: int, size: int) -> bytes:
    """Bytes that tell the write that they are from, and their place in it."""
    if size <= 64:
        return (b"%d." % stamp).ljust(size, b"=")[:size]
    mark = b"%09d|" % stamp
    return b"".join(mark + b"%06d\n" % number for number in range(size // 17 + 1))[:size]


def digest(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


class Side:
    """One of the two trees, with the files that are open on it."""

    def __init__(self, top: str) -> None:
        self.top = top
        self.open: dict[int, int] = {}

    def do(self, op: Op) -> Outcome:
        try:
            return ["ok", getattr(self, "do_" + op[0])(*op[1:])]
        except OSError as error:
            return ["error", errno.errorcode.get(error.errno or 0, str(error.errno))]

    # -- open files ------------------------------------------------------------------------------------------

    def do_open(self, slot: int, path: str, flags: int) -> None:
        self.open[slot] = os.open(self.top + path, flags, 0o644)

    def do_close(self, slot: int) -> None:
        os.close(self.open.pop(slot))

    def do_read(self, slot: int, size: int) -> str:
        return shown(os.read(self.open[slot], size))

    def do_pread(self, slot: int, size: int, offset: int) -> str:
        return shown(os.pread(self.open[slot], size, offset))

    def do_write(self, slot: int, stamp: int, size: int) -> int:
        return os.write(self.open[slot], block(stamp, size))

    def do_pwrite(self, slot: int, stamp: int, size: int, offset: int) -> int:
        return os.pwrite(self.open[slot], block(stamp, size), offset)

    def do_ftruncate(self, slot: int, size: int) -> None:
        os.ftruncate(self.open[slot], size)

    def do_fsync(self, slot: int) -> None:
        os.fsync(self.open[slot])

    def do_fstat(self, slot: int) -> list[Any]:
        return attributes(os.fstat(self.open[slot]))

    def do_futime(self, slot: int, second: int) -> None:
        os.utime(self.open[slot], ns=(0, (DATED_S + second) * 10**9))

    # -- names -----------------------------------------------------------------------------------------------

    def do_content(self, path: str) -> str:
        fd = os.open(self.top + path, os.O_RDONLY)
        try:
            return shown(read_all(fd))
        finally:
            os.close(fd)

    def do_stat(self, path: str) -> list[Any]:
        return attributes(os.lstat(self.top + path))

    def do_room(self) -> None:
        """The kernel asks the daemon each time: nothing of this is cached."""
        os.statvfs(self.top)

    def do_list(self, path: str) -> list[list[Any]]:
        with os.scandir(self.top + path) as found:
            return sorted([entry.name, entry.is_dir()] for entry in found if not entry.name.startswith(HIDDEN))

    def do_truncate(self, path: str, size: int) -> None:
        os.truncate(self.top + path, size)

    def do_rename(self, old: str, new: str) -> None:
        os.rename(self.top + old, self.top + new)

    def do_rename_new(self, old: str, new: str) -> None:
        """RENAME_NOREPLACE."""
        ends = [os.fsencode(self.top + path) for path in (old, new)]
        if _libc.renameat2(AT_FDCWD, ends[0], AT_FDCWD, ends[1], RENAME_NOREPLACE):
            raise OSError(ctypes.get_errno(), "renameat2")

    def do_unlink(self, path: str) -> None:
        os.unlink(self.top + path)

    def do_mkdir(self, path: str) -> None:
        os.mkdir(self.top + path, 0o755)

    def do_rmdir(self, path: str) -> None:
        os.rmdir(self.top + path)

    def do_chmod(self, path: str, mode: int) -> None:
        os.chmod(self.top + path, mode)

    def do_utime(self, path: str, second: int) -> None:
        os.utime(self.top + path, ns=(0, (DATED_S + second) * 10**9))


def shown(data: bytes) -> str:
    """Short, and different for different bytes."""
    return f"{len(data)} bytes {digest(data)[:12]} {data[:24]!r}"


def attributes(found: os.stat_result) -> list[Any]:
    """Kind, permissions; of a file also its size, and its time if `utime` has set it."""
    if stat.S_ISDIR(found.st_mode):
        return ["d", stat.S_IMODE(found.st_mode)]
    second = found.st_mtime_ns // 10**9 - DATED_S
    return ["f", stat.S_IMODE(found.st_mode), found.st_size, second if 0 <= second < 3600 else None]


def read_all(fd: int) -> bytes:
    parts, offset = [], 0
    while part := os.pread(fd, 1 << 20, offset):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def read_file(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return read_all(fd)
    finally:
        os.close(fd)


def is_writing(flags: int) -> bool:
    return bool(flags & (os.O_WRONLY | os.O_RDWR))


# -- whole trees ---------------------------------------------------------------------------------------------


def snapshot(top: str, folder: str) -> Snapshot:
    """All below `folder`, which need not exist."""
    found: Snapshot = {}
    with contextlib.suppress(FileNotFoundError):
        _add_below(top, folder, found)
    return found


def _add_below(top: str, folder: str, found: Snapshot) -> None:
    with os.scandir(top + folder) as entries:
        below = [(entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith(HIDDEN)]
    for name, is_dir in below:
        path = f"{folder}/{name}"
        kind, mode, *rest = attributes(os.lstat(top + path))
        found[path] = (kind, mode, b"", None) if is_dir else (kind, mode, read_file(top + path), rest[1])
        if is_dir:
            _add_below(top, path, found)


def inodes(top: str, folder: str) -> dict[int, str]:
    """The paths of all files below `folder`, by inode number."""
    return {os.lstat(top + path).st_ino: path for path, is_dir in walk(top, folder) if not is_dir}


def walk(top: str, folder: str) -> Iterator[tuple[str, bool]]:
    """(path, is it a folder) of all below `folder`, in the order of names."""
    with os.scandir(top + folder) as entries:
        below = sorted((entry.name, entry.is_dir()) for entry in entries)
    for name, is_dir in below:
        path = f"{folder}/{name}"
        yield path, is_dir
        if is_dir:
            yield from walk(top, path)


def rebuild(top: str, folder: str, tree: Snapshot) -> None:
    """Make what is below `folder` what the snapshot says."""
    import shutil

    shutil.rmtree(top + folder, ignore_errors=True)
    os.makedirs(top + folder)
    for path, (kind, mode, data, second) in sorted(tree.items()):
        if kind == "d":
            os.mkdir(top + path)
        else:
            with open(top + path, "wb", buffering=0) as file:
                file.write(data)
        os.chmod(top + path, mode)
        if second is not None:
            os.utime(top + path, ns=(0, (DATED_S + second) * 10**9))


def differences(found: Snapshot, expected: Snapshot, *, loose: Collection[str] = ()) -> list[str]:
    """One line for each path that differs, but for `loose` ones."""
    return [
        f"{path}: {_told(found.get(path))}, expected {_told(expected.get(path))}"
        for path in sorted(found.keys() | expected.keys())
        if found.get(path) != expected.get(path) and path not in loose
    ]


def _told(node: Node | None) -> str:
    if node is None:
        return "absent"
    kind, mode, data, second = node
    return f"folder {mode:o}" if kind == "d" else f"file {mode:o} {shown(data)}, time {second}"


def is_between(found: bytes, before: bytes, after: bytes) -> bool:
    """Whether a half-made change can have left these bytes."""
    if len(found) > max(len(before), len(after)):
        return False
    sides = zip(found, before.ljust(len(found), b"\0"), after.ljust(len(found), b"\0"), strict=False)
    return all(byte in (old, new, 0) for byte, old, new in sides)
