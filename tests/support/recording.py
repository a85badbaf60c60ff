"""A directory whose every change is recorded: `python recording.py MOUNT STORE LOG` serves STORE on MOUNT with FUSE.

Each operation that changes something is done in STORE and appended to LOG, in one step, so that the log has the one
order in which all of it happened. An fsync is recorded and not done. A write to the file `.mark` puts a mark into the
log: what else happened by then, as the program that writes it knows. What STORE has at the start comes first.

SQLite's -shm files are left out. They are mapped memory, and SQLite makes them anew after a crash.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

MARK = ".mark"
ROOT = 1  # the top directory's number
KEEP_SIZE, PUNCH_HOLE = 1, 2  # fallocate(2)
Place = tuple[int, str]  # a directory's number, and a name in it


class Op(NamedTuple):
    """One change. Files and directories have numbers, which no two of them ever share.

    create, mkdir        `ino` appears at `place`
    rename               `ino` moves from `place` to `to`, and replaces what is there
    unlink, rmdir        `ino` goes from `place`
    write                `data` at `offset`
    truncate             to `size`
    punch                a hole of `size` bytes at `offset`
    xattr                `name` is `data`; None removes it
    fsync                all changes of the file's bytes, or of the directory's names, are on the disk
    mark                 `data` is what somebody noted
    """

    kind: str
    ino: int = 0
    place: Place = (0, "")
    to: Place = (0, "")
    name: str = ""
    offset: int = 0
    size: int = 0
    data: bytes | None = None


def load(log: Path) -> list[Op]:
    """The operations of a log, also of one whose recorder was killed."""
    found = []
    with open(log, "rb") as file:
        while True:
            try:
                found.append(Op(*pickle.load(file)))
            except (EOFError, pickle.UnpicklingError):
                return found


class Recorder:
    """A recorded directory, `path`, from construction to `close`."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "recorded"
        self.log = directory / "log"
        self.store = directory / "store"
        self.store.mkdir(exist_ok=True)
        self.path.mkdir()
        command = [sys.executable, __file__, str(self.path), str(self.store), str(self.log)]
        self._errors = directory / "errors"
        with open(self._errors, "wb") as errors:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", "the recording filesystem is not mounted"
        self._mark = os.open(self.path / MARK, os.O_WRONLY)

    def mark(self, text: str) -> None:
        """Note something in the log, from any thread or process."""
        os.write(self._mark, text.encode())

    def close(self) -> list[Op]:
        """Unmount. Returns what was recorded."""
        os.close(self._mark)
        subprocess.run(["fusermount3", "-u", "-z", str(self.path)], check=True, timeout=60)
        self._process.communicate(timeout=60)
        errors = self._errors.read_text()
        assert "Traceback" not in errors, errors
        return load(self.log)


@contextmanager
def recorder(directory: Path) -> Iterator[Recorder]:
    """For what may fail: nothing is left mounted."""
    directory.mkdir(exist_ok=True)
    made = Recorder(directory)
    try:
        yield made
    finally:
        if os.path.ismount(made.path):
            made.close()


def marker(directory: Path) -> int:
    """A descriptor of a recorded directory's marks, for another process."""
    return os.open(directory / MARK, os.O_WRONLY | os.O_CLOEXEC)


# -- the filesystem, in a process of its own -------------------------------------------------------------------


class Recording:
    """The callbacks. Paths are those of libfuse, which begin with a slash."""

    use_ns = True
    flag_nopath = flag_nullpath_ok = True  # an open file that was unlinked has no path

    def __init__(self, store: Path, log: Path) -> None:
        self._store = store
        self._log = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        self._lock = threading.Lock()  # held from an operation to its line in the log; protects what follows
        self._inos: dict[str, int] = {"/": ROOT}
        self._last = ROOT
        self._open: dict[int, int] = {}  # descriptor -> number; 0: not recorded
        self._marks = os.open(os.devnull, os.O_RDWR)
        self._take_stock()

    def _take_stock(self) -> None:
        for directory, folders, files in os.walk(self._store):
            above = "/" + os.path.relpath(directory, self._store)
            for kind, names in (("mkdir", sorted(folders)), ("create", sorted(files))):
                for name in names:
                    path = os.path.normpath(f"{above}/{name}")
                    self._note_new(kind, path)
                    if kind == "create":
                        data = self._real(path).read_bytes()
                        self._note("write", self._inos[path], data=data)
                        for attribute in os.listxattr(self._real(path)):
                            value = os.getxattr(self._real(path), attribute)
                            self._note("xattr", self._inos[path], name=attribute, data=value)
        for ino in self._inos.values():
            self._note("fsync", ino)

    def _real(self, path: str) -> Path:
        return self._store / path.lstrip("/")

    def _place(self, path: str) -> Place:
        above, _, name = path.rpartition("/")
        return self._inos[above or "/"], name

    def _note(self, kind: str, ino: int = 0, **values: Any) -> None:
        if ino or kind == "mark":
            os.write(self._log, pickle.dumps(tuple(Op(kind, ino, **values))))

    def _note_new(self, kind: str, path: str) -> int:
        self._last += 1
        self._inos[path] = self._last
        self._note(kind, self._last, place=self._place(path))
        return self._last

    def init_with_config(self, _conn: Any, config: Any) -> None:
        if config is not None:
            config.attr_timeout = config.entry_timeout = config.negative_timeout = 0.0
            config.use_ino = config.hard_remove = 1
        print("ready", flush=True)

    # -- looking -----------------------------------------------------------------------------------------------

    def getattr(self, path: str | None, fh: int | None = None) -> dict[str, int]:
        if path == f"/{MARK}":
            found = os.stat(self._store)
            return {"st_mode": 0o100600, "st_nlink": 1, "st_size": 0, "st_uid": found.st_uid, "st_gid": found.st_gid}
        if path is None and fh is None:
            raise OSError(errno.ESTALE, "unlinked")
        found = os.fstat(fh) if path is None and fh is not None else os.lstat(self._real(path or "/"))
        names = ("mode", "ino", "nlink", "uid", "gid", "size", "blocks")
        kept = {f"st_{name}": getattr(found, f"st_{name}") for name in names}
        times = {f"st_{name}": getattr(found, f"st_{name}_ns") for name in ("atime", "mtime", "ctime")}
        return {**kept, **times}

    def readdir(self, _path: str | None, fh: int) -> list[tuple[str, dict[str, int], int]]:
        """With inode numbers: what has number 0 is not listed (readdir(3))."""
        return [
            (name, {"st_mode": found.st_mode, "st_ino": found.st_ino}, 0)
            for name in (".", "..", *os.listdir(fh))
            for found in [os.lstat(name, dir_fd=fh)]
        ]

    def opendir(self, path: str) -> int:
        with self._lock:
            fd = os.open(self._real(path), os.O_RDONLY | os.O_DIRECTORY)
            self._open[fd] = self._inos[path]
            return fd

    def releasedir(self, path: str | None, fh: int) -> int:
        return self.release(path, fh)

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._real(path))
        return {name: getattr(found, name) for name in dir(found) if name.startswith("f_")}

    def read(self, _path: str | None, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def getxattr(self, path: str, name: str, _position: int = 0) -> bytes:
        return os.getxattr(self._real(path), name)

    def listxattr(self, path: str) -> list[str]:
        return os.listxattr(self._real(path))

    # -- opening -----------------------------------------------------------------------------------------------

    def open(self, path: str, flags: int) -> int:
        if path == f"/{MARK}":
            return self._marks
        with self._lock:
            fd = os.open(self._real(path), flags & ~(os.O_APPEND | os.O_NOFOLLOW | os.O_DIRECT))
            self._open[fd] = self._recorded(path)
            if flags & os.O_TRUNC:
                self._note("truncate", self._open[fd])
            return fd

    def _recorded(self, path: str) -> int:
        return 0 if path.endswith("-shm") else self._inos[path]

    def create(self, path: str, mode: int, flags: int) -> int:
        with self._lock:
            fd = os.open(self._real(path), flags & ~os.O_APPEND | os.O_CREAT, mode)
            self._open[fd] = 0 if path.endswith("-shm") else self._note_new("create", path)
            return fd

    def release(self, _path: str | None, fh: int) -> int:
        if fh != self._marks:
            with self._lock:
                del self._open[fh]
                os.close(fh)
        return 0

    # -- bytes -------------------------------------------------------------------------------------------------

    def write(self, _path: str | None, data: bytes, offset: int, fh: int) -> int:
        with self._lock:
            if fh == self._marks:
                self._note("mark", data=data)
                return len(data)
            done = os.pwrite(fh, data, offset)
            self._note("write", self._open[fh], offset=offset, data=data[:done])
            return done

    def truncate(self, path: str | None, length: int, fh: int | None = None) -> int:
        if path == f"/{MARK}":
            return 0
        with self._lock:
            if fh is None:
                assert path is not None
                os.truncate(self._real(path), length)
                self._note("truncate", self._recorded(path), size=length)
            else:
                os.ftruncate(fh, length)
                self._note("truncate", self._open[fh], size=length)
        return 0

    def fallocate(self, _path: str | None, mode: int, offset: int, size: int, fh: int) -> int:
        if mode != KEEP_SIZE | PUNCH_HOLE:
            raise OSError(errno.EOPNOTSUPP, "only holes")
        with self._lock:
            if _libc.fallocate(fh, mode, ctypes.c_int64(offset), ctypes.c_int64(size)):
                raise OSError(ctypes.get_errno(), "fallocate")
            self._note("punch", self._open[fh], offset=offset, size=size)
        return 0

    def fsync(self, _path: str | None, _datasync: int, fh: int) -> int:
        with self._lock:
            self._note("fsync", self._open[fh])
        return 0

    def fsyncdir(self, path: str | None, datasync: int, fh: int) -> int:
        return self.fsync(path, datasync, fh)

    def setxattr(self, path: str, name: str, value: bytes, flags: int, _position: int = 0) -> int:
        with self._lock:
            os.setxattr(self._real(path), name, value, flags)
            self._note("xattr", self._recorded(path), name=name, data=value)
        return 0

    def removexattr(self, path: str, name: str) -> int:
        with self._lock:
            os.removexattr(self._real(path), name)
            self._note("xattr", self._recorded(path), name=name)
        return 0

    # -- names -------------------------------------------------------------------------------------------------

    def mkdir(self, path: str, mode: int) -> int:
        with self._lock:
            os.mkdir(self._real(path), mode)
            self._note_new("mkdir", path)
        return 0

    def unlink(self, path: str) -> int:
        with self._lock:
            os.unlink(self._real(path))
            if path in self._inos:
                self._note("unlink", self._inos.pop(path), place=self._place(path))
        return 0

    def rmdir(self, path: str) -> int:
        with self._lock:
            os.rmdir(self._real(path))
            self._note("rmdir", self._inos.pop(path), place=self._place(path))
        return 0

    def rename(self, old: str, new: str) -> int:
        with self._lock:
            os.rename(self._real(old), self._real(new))
            self._note("rename", self._inos[old], place=self._place(old), to=self._place(new))
            for path in [path for path in self._inos if path == old or path.startswith(f"{old}/")]:
                self._inos[new + path[len(old) :]] = self._inos.pop(path)
        return 0

    def link(self, _target: str, _source: str) -> int:
        raise OSError(errno.EOPNOTSUPP, "no links")

    def chmod(self, path: str, mode: int) -> int:
        os.chmod(self._real(path), mode)
        return 0

    def utimens(self, path: str | None, times: tuple[int, int] | None = None) -> int:
        if path is not None:
            os.utime(self._real(path), ns=times) if times is not None else os.utime(self._real(path))
        return 0


_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    from cloudsimfs.fuse import binding as ours

    binding: Any = vars(ours)["binding"]  # the one that the product uses

    class Operations(Recording, binding.Operations):  # type: ignore[misc]  # the fallback binding has no types
        pass

    class Fuse(binding.FUSE):  # type: ignore[misc]  # as above
        def truncate_fuse_3(self, path: bytes | None, length: int, fip: Any) -> int:
            """With the handle, which the binding drops."""
            text = None if path is None else path.decode(errors="surrogateescape")
            return int(self.operations.truncate(text, length, fip.contents.fh if fip else None))

    mount, store, log = sys.argv[1:]
    with contextlib.suppress(RuntimeError):  # libfuse would unmount by itself
        Fuse(Operations(Path(store), Path(log)), mount, foreground=True, hard_remove=True, max_threads="64")


if __name__ == "__main__":
    main()
