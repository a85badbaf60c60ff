"""FUSE callbacks: path to inode, fh to handle, error to errno. Read me first; `fuse.binding` has the binding.

Threading: libfuse calls from many threads at once. A callback returns a result or raises an OSError with an errno:
the binding turns anything else into EINVAL.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from typing import Any

from cloudsimfs import paths
from cloudsimfs.concurrency.handletable import HandleTable
from cloudsimfs.control.files import ControlFiles, is_control, is_control_handle
from cloudsimfs.errors import Invalid, NotPermitted, NotSupported
from cloudsimfs.fuse.binding import (
    BLOCK_SIZE,
    Callbacks,
    caller,
    configure,
    interrupted,
    path_invalidator,
)
from cloudsimfs.fuse.callback import callback
from cloudsimfs.fuse.pagecache import KernelCache
from cloudsimfs.fuse.previews import is_preview
from cloudsimfs.inode import ST_BLOCK, Attr
from cloudsimfs.vfs.filesystem import FileSystem
from cloudsimfs.vfs.localattrs import path_ino

# name, file type, inode number, and the attributes if they are at hand
Dirent = tuple[str, int, int, Attr | None]
MOST_NS = (1 << 63) - 1  # nanoseconds; the year 2262, beyond which the journal cannot keep a time
UTIME_NOW, UTIME_OMIT = 0x3FFFFFFF, 0x3FFFFFFE  # utimensat(2); libfuse sends them as nanoseconds of second 0
RENAME_NOREPLACE = 1  # renameat2(2)
FALLOC_FL_KEEP_SIZE = 1  # fallocate(2)
REFUSED_PREFIX = ".Trash"  # so that file managers offer a real delete (docs/architecture.md, "Namespace")


class Operations(Callbacks):  # type: ignore[misc]  # the fallback binding has no types
    use_ns = True

    def __init__(
        self,
        filesystem: FileSystem,
        control: ControlFiles,
        kernel_cache: KernelCache,
        *,
        timeout: float,
        on_init: Callable[[], None],
        on_destroy: Callable[[], None],
    ) -> None:
        """`timeout` is how long the kernel may answer by itself, in seconds. `on_init` runs when the kernel mounts,
        `on_destroy` when it unmounts.
        """
        self._filesystem = filesystem
        self._tree = filesystem.tree
        self._handles = filesystem.handles
        self._control = control
        self._kernel_cache = kernel_cache
        self._timeout = timeout
        self._directories = HandleTable[list[Dirent]]()  # the entries of an open directory, as it was last read
        self._on_init = on_init
        self._on_destroy = on_destroy

    # -- life ----------------------------------------------------------------------------------------------

    def init_with_config(self, conn: Any, config: Any) -> None:
        """Called by libfuse 3, in the process that serves: threads may start from here on."""
        configure(conn, config, timeout=self._timeout)
        self._kernel_cache.start(path_invalidator())
        self._on_init()

    def init(self, _path: str) -> None:
        """Called by libfuse 2."""
        self._on_init()

    def destroy(self, _path: str) -> None:
        self._kernel_cache.stop()
        self._on_destroy()

    # -- names and attributes ------------------------------------------------------------------------------

    @callback
    def getattr(self, path: str, _fi: Any = None) -> dict[str, int]:
        path = paths.from_kernel(path)
        if is_control(path):
            return _stat(self._control.getattr(path))
        return _stat(self._tree.getattr(path))

    @callback
    def opendir(self, _path: str) -> int:
        return self._directories.add([])

    @callback
    def releasedir(self, _path: str, fh: int) -> int:
        self._directories.pop(fh)
        return 0

    @callback
    def readdir(self, path: str, _fh: int) -> Iterator[tuple[str, dict[str, int], int]]:
        """Names with their type and inode number only, for the binding of libfuse 2."""
        return iter([(name, {"st_mode": mode, "st_ino": ino}, 0) for name, mode, ino, _ in self._entries(path)])

    @callback
    def entries(self, path: str, fh: int, offset: int) -> list[Dirent]:
        """All entries, as they were when this handle was last read from the beginning. An offset is an index."""
        if offset == 0:
            entries = self._entries(path)
            self._directories.replace(fh, self._directories.get(fh), entries)
            return entries
        return self._directories.get(fh)

    def _entries(self, path: str) -> list[Dirent]:
        path = paths.from_kernel(path)
        folder = stat.S_IFDIR
        entries: list[Dirent] = [
            (".", folder, path_ino(path), None),
            ("..", folder, path_ino(paths.parent(path)), None),
        ]
        if is_control(path):
            entries += [(name, mode, ino, None) for name, mode, ino in self._control.readdir(path)]
        else:
            stored = self._tree.readdir(path)  # a stored name may be that of a folder of ours, which is not listed
            entries += [(name, a.mode, a.ino, a) for name, a in stored if not is_control(paths.join(path, name))]
        return entries

    @callback
    def readlink(self, path: str) -> str:
        path = paths.from_kernel(path)
        if is_control(path):
            return self._control.readlink(path)
        raise Invalid(f"/{path} is not a symbolic link")

    @callback
    def chmod(self, path: str, mode: int) -> int:
        self._tree.set_attr(_stored_path(path), perm=mode & 0o7777)
        return 0

    @callback
    def chown(self, path: str, uid: int, gid: int) -> int:
        owner = {"uid": uid, "gid": gid}
        self._tree.set_attr(_stored_path(path), **{name: value for name, value in owner.items() if value != -1})
        return 0

    @callback
    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        path = paths.from_kernel(path)
        if is_control(path):
            return 0  # `touch` of a control file does nothing
        now = self._tree.now_ns()
        changed: dict[str, int] = {}
        for name, value in zip(("atime_ns", "mtime_ns"), times or (UTIME_NOW, UTIME_NOW), strict=True):
            if value != UTIME_OMIT:
                changed[name] = now if value == UTIME_NOW else max(-MOST_NS, min(value, MOST_NS))
        self._tree.set_attr(path, **changed)
        return 0

    @callback
    def statfs(self, _path: str) -> dict[str, int]:
        used, room = self._filesystem.usage()
        block = 4096  # bytes; the unit of the counts below
        return {
            "f_bsize": block,
            "f_frsize": block,
            "f_blocks": (used + room) // block,
            "f_bfree": room // block,
            "f_bavail": room // block,
            "f_namemax": paths.NAME_MAX,
        }

    @callback
    def mkdir(self, path: str, mode: int) -> int:
        self._filesystem.mkdir(_new_path(path), mode & 0o7777)
        return 0

    @callback
    def rmdir(self, path: str) -> int:
        self._filesystem.rmdir(_stored_path(path))
        return 0

    @callback
    def unlink(self, path: str) -> int:
        self._filesystem.unlink(_stored_path(path))
        return 0

    @callback
    def rename(self, old: str, new: str, flags: int = 0) -> int:
        if flags & ~RENAME_NOREPLACE:
            raise Invalid("RENAME_EXCHANGE and RENAME_WHITEOUT are not supported")
        replace_target = not flags & RENAME_NOREPLACE
        self._filesystem.rename(_stored_path(old), _new_path(new), replace_target=replace_target)
        return 0

    @callback
    def symlink(self, _target: str, _source: str) -> int:
        raise NotSupported("the service stores no symbolic links")

    @callback
    def link(self, _target: str, _source: str) -> int:
        raise NotSupported("the service stores no hard links")

    @callback
    def mknod(self, path: str, mode: int, _dev: int) -> int:
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            raise NotSupported("the service stores regular files only")
        fh = self._handles.create(_new_path(path), mode & 0o7777, os.O_WRONLY)
        self._handles.flush(fh)
        self._handles.release(fh)
        return 0

    # -- open files ----------------------------------------------------------------------------------------

    @callback
    def open(self, path: str, fi: Any) -> int:
        path = paths.from_kernel(path)
        if is_control(path):
            fi.fh = self._control.open(path, fi.flags)
            fi.direct_io = 1  # its size may change without the kernel's knowledge
        else:
            fi.fh = self._handles.open(path, fi.flags, is_preview=lambda: is_preview(fi.flags, caller()))
            # the kernel has one page cache per path: an older version's pages must not get into this handle
            fi.direct_io = int(self._handles.is_mixed(fi.fh))
            fi.keep_cache = int(self._kernel_cache.fill(path, self._handles.identity(fi.fh)))
        # wait until the kernel has dropped the stale size: fstat(2) and read(2) use it
        self._kernel_cache.settle(path)
        return 0

    @callback
    def create(self, path: str, mode: int, fi: Any) -> int:
        path = _new_path(path)
        fi.fh = self._handles.create(path, mode & 0o7777, fi.flags)
        self._kernel_cache.fill(path, self._handles.identity(fi.fh))
        return 0

    @callback
    def read(self, _path: str, buffer: memoryview, offset: int, fi: Any) -> int:
        """Read into `buffer`, which is libfuse's own. Returns the number of bytes."""
        if not is_control_handle(fi.fh):
            return self._handles.read(fi.fh, buffer, offset, interrupted)
        data = self._control.read(fi.fh, len(buffer), offset)
        buffer[: len(data)] = data
        return len(data)

    @callback
    def write(self, _path: str, data: bytes, offset: int, fi: Any) -> int:
        if not is_control_handle(fi.fh):
            return self._handles.write(fi.fh, data, offset)
        self._control.write(fi.fh, data)
        return len(data)

    @callback
    def truncate(self, path: str, length: int, fi: Any = None) -> int:
        path = paths.from_kernel(path)
        if is_control(path):
            return 0  # the shell's `>` does this before it writes
        if fi is not None:
            self._handles.truncate(fi.fh, length)
        else:
            self._handles.truncate_path(path, length)
        return 0

    @callback
    def fallocate(self, _path: str, mode: int, offset: int, length: int, fi: Any) -> int:
        if mode & ~FALLOC_FL_KEEP_SIZE or is_control_handle(fi.fh):
            raise NotSupported("only fallocate modes 0 and KEEP_SIZE are supported")
        self._handles.allocate(fi.fh, offset, length, keep_size=bool(mode & FALLOC_FL_KEEP_SIZE))
        return 0

    @callback
    def flush(self, _path: str, fi: Any) -> int:
        if not is_control_handle(fi.fh):
            self._handles.flush(fi.fh)
        return 0

    @callback
    def fsync(self, _path: str, _datasync: int, fi: Any) -> int:
        if not is_control_handle(fi.fh):
            self._handles.fsync(fi.fh, interrupted)
        return 0

    @callback
    def fsyncdir(self, _path: str, _datasync: int, _fh: int) -> int:
        self._handles.sync()
        return 0

    @callback
    def release(self, _path: str, fi: Any) -> int:
        if not is_control_handle(fi.fh):
            self._handles.release(fi.fh)
        else:
            self._control.release(fi.fh)
        return 0


def _stored_path(path: str) -> str:
    """The path of a file or folder that may be changed or removed. Raises NotPermitted for a virtual one."""
    path = paths.from_kernel(path)
    if is_control(path):
        raise NotPermitted(f"/{path} belongs to the mount")
    return path


def _new_path(path: str) -> str:
    """The same for a path that a create or a rename makes."""
    path = _stored_path(path)
    if paths.name(path).startswith(REFUSED_PREFIX):
        raise NotPermitted("there is no trash here: what is deleted cannot be restored")
    return path


def _stat(attr: Attr) -> dict[str, int]:
    return {
        "st_ino": attr.ino,
        "st_mode": attr.mode,
        "st_nlink": attr.nlink,
        "st_size": attr.size,
        "st_blocks": -(-attr.size // ST_BLOCK),
        "st_blksize": BLOCK_SIZE,
        "st_uid": attr.uid,
        "st_gid": attr.gid,
        "st_atime": attr.atime_ns,
        "st_mtime": attr.mtime_ns,
        "st_ctime": attr.ctime_ns,
    }
