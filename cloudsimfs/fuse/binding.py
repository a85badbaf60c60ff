"""The FUSE binding and the kernel behind it. The only module that imports the binding.

Knows no file: `operations` holds the callbacks. Threading: libfuse calls from many threads at once.
"""

from __future__ import annotations

import ctypes.util
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from cloudsimfs.concurrency.waiting import PLACES, bound_this_thread
from cloudsimfs.inode import ST_BLOCK, Attr

# The binding looks for libfuse 2 first unless told (the environment is the only way to tell it).
if "FUSE_LIBRARY_PATH" not in os.environ and ctypes.util.find_library("fuse3"):
    os.environ.setdefault("FUSE_LIBRARY_NAME", "fuse3")
try:
    import mfusepy as binding
except ImportError:
    import fuse as binding

Callbacks: Any = binding.Operations  # what `operations` derives from
READDIR_PLUS, FILL_DIR_PLUS = 1, 2  # fuse.h: enum fuse_readdir_flags, enum fuse_fill_dir_flags
NEGATIVE_TIMEOUT = 1.0  # seconds; a cached "no such file" cannot be invalidated from here (libfuse's fuse.h)
THREADS = PLACES + 128  # callbacks at the same time; libfuse makes a thread when all others are busy
READERS = 256  # of those, at most, serve reads of the kernel's page cache
ASYNC_DIO = 1 << 15  # fuse_common.h: with it, a program that waits for an O_DIRECT read cannot be interrupted
INTERRUPT = signal.SIGURG  # what libfuse sends the thread of an interrupted call; nothing else here uses it
BLOCK_SIZE = 1 << 20  # bytes; what programs like `cp` read at a time


def stay_attached() -> None:
    """Let this thread of libfuse's keep its Python thread state from the first callback on.

    Otherwise Python makes a thread state, with memory from the kernel, for each callback: that costs as much as a
    whole read. Before libfuse 3.12 threads come and go, and each would leave its state behind.
    """
    if not hasattr(_thread, "attached"):
        _thread.attached = True
        bound_this_thread()
        if library_version() >= (3, 12):
            ctypes.pythonapi.PyGILState_Ensure()


_thread = threading.local()


def interrupted() -> bool:
    """Whether the caller of this thread's callback was sent a signal, and waits no longer (fuse.h).

    Only a thread that serves a callback may ask libfuse: the others have no request.
    """
    return hasattr(_thread, "attached") and bool(_ask_interrupted())


def caller() -> int:
    """The thread whose system call this thread's callback answers; 0 if it cannot be seen from here."""
    return int(binding.fuse_get_context()[2])


_ask_interrupted: Callable[[], int] = getattr(getattr(binding, "_libfuse", None), "fuse_interrupted", lambda: 0)


def configure(conn: Any, config: Any, *, timeout: float) -> None:
    """Tell libfuse 3 what the kernel may do; `timeout` is seconds for which it may answer by itself."""
    if config is not None:
        config.attr_timeout = config.entry_timeout = timeout
        config.negative_timeout = min(timeout, NEGATIVE_TIMEOUT)
        config.use_ino = 1
        config.intr, config.intr_signal = (
            1,
            INTERRUPT,
        )  # else libfuse 3.17 has the kernel interrupt no call
    if conn is not None:
        conn.max_background = READERS
        conn.want &= ~ASYNC_DIO


def path_invalidator() -> Callable[[str], None] | None:
    """What makes the kernel drop a path's attributes and pages (`fuse_invalidate_path`, libfuse 3.2); it may block.

    None for libfuse 2: the timeouts alone bound what is stale. Called from `init`, where libfuse's context is that of
    this mount.
    """
    library: Any = getattr(binding, "_libfuse", None)
    if not hasattr(library, "fuse_invalidate_path"):
        return None
    library.fuse_get_context.restype = ctypes.POINTER(binding.fuse_context)
    fuse = ctypes.c_void_p(library.fuse_get_context().contents.fuse)

    def invalidate(path: str) -> None:
        library.fuse_invalidate_path(fuse, f"/{path}".encode("utf-8", "surrogateescape"))

    return invalidate


def _fill(status: Any, attr: Attr) -> None:
    """A C struct stat."""
    status.st_ino, status.st_mode, status.st_nlink = attr.ino, attr.mode, attr.nlink
    status.st_size, status.st_blocks, status.st_blksize = attr.size, -(-attr.size // ST_BLOCK), BLOCK_SIZE
    status.st_uid, status.st_gid = attr.uid, attr.gid
    for spec, nanoseconds in (
        (status.st_atimespec, attr.atime_ns),
        (status.st_mtimespec, attr.mtime_ns),
        (status.st_ctimespec, attr.ctime_ns),
    ):
        spec.tv_sec, spec.tv_nsec = divmod(nanoseconds, 10**9)


class _Fuse(binding.FUSE):  # type: ignore[misc]  # the fallback binding has no types
    """The binding, with four things that it lacks: reads without copies, and, of libfuse 3, rename's flags,
    truncate's handle and readdirplus.
    """

    def read(self, path: bytes, buffer: Any, size: int, offset: int, fip: Any) -> int:
        memory = (ctypes.c_char * size).from_address(ctypes.addressof(buffer.contents))
        return int(self.operations.read(self._text(path), memoryview(memory).cast("B"), offset, fip.contents))

    def readdir_fuse_3(self, path: bytes, buffer: Any, filler: Any, offset: int, fip: Any, flags: int) -> int:
        """With readdirplus the kernel gets the attributes along with the names, and makes no call for them.

        libfuse passes them on only if each entry has the offset of the next one.
        """
        status = binding.c_stat()
        plus = FILL_DIR_PLUS if flags & READDIR_PLUS else 0
        entries = self.operations.entries(self._text(path), fip.contents.fh, offset)
        for following, (name, mode, ino, attr) in enumerate(entries[offset:], offset + 1):
            if attr is None:
                status.st_mode, status.st_ino = mode, ino
            else:
                _fill(status, attr)
            encoded = name.encode(self.encoding, self.errors)
            if filler(buffer, encoded, status, following, plus if attr else 0):
                break
        return 0

    def rename_fuse_3(self, old: bytes, new: bytes, flags: int) -> int:
        return int(self.operations.rename(self._text(old), self._text(new), flags))

    def truncate_fuse_3(self, path: bytes, length: int, fip: Any) -> int:
        fi = fip.contents if fip else None
        return int(self.operations.truncate(self._text(path), length, fi))

    def _text(self, path: bytes) -> str:
        return path.decode(self.encoding, self.errors)


def serve(operations: Any, mountpoint: str, *, options: dict[str, str | bool]) -> None:
    """Mount and serve until unmounted, in this thread. Raises RuntimeError if libfuse refuses."""
    signal.signal(INTERRUPT, signal.SIG_IGN)  # waits poll `interrupted`: no system call needs to be broken off
    if library_version() >= (3, 12):
        # no thread ends; libfuse's own value for that makes libfuse 3.14 complain
        options = {**options, "max_threads": str(THREADS), "max_idle_threads": str(THREADS)}
    _Fuse(operations, mountpoint, raw_fi=True, encoding="utf-8", foreground=True, **options)


def binding_name() -> str:
    return str(binding.__name__)


def library_version() -> tuple[int, int]:
    """The version (major, minor) of the libfuse in use."""
    return (
        int(getattr(binding, "fuse_version_major", 2)),
        int(getattr(binding, "fuse_version_minor", 9)),
    )
