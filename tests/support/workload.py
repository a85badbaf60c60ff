"""Random file operations that depend on a seed alone, done on a mount and, for the proof, on a dict of bytes.

    python workload.py DIRECTORY PROGRESS SEED COUNT      does them, and notes in PROGRESS how many are done

Who knows seed and progress knows what a disk would hold, also when the mount died half-way: `state_at`. It runs
in a process of its own, as users' programs do, so that it waits for nothing but the mount.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from shared_file import publish

Tree = dict[str, bytes]
NAMES = "abc"
LARGEST = 400_000  # bytes
SIZES = (0, 1, 4096, 5000, 70_000, 131_073, LARGEST)


def block(random_bytes: random.Random, size: int) -> bytes:
    return random_bytes.randbytes(size)


def stored_before(seed: int) -> Tree:
    """What is on the service before the first operation."""
    source = random.Random(f"stored {seed}")
    paths = ("a", "c/a", "c/b", "c/c/a", "c/c/b")
    return {path: block(source, source.choice(SIZES)) for path in paths}


@dataclass
class Operation:
    """What is done on the disk, and to the model of it.

    `path` is the file whose bytes it changes, if it is one; `closed` what that file holds at a close on the way.
    With `atomic` nothing in between is ever seen.
    """

    text: str
    act: Callable[[Path], object]
    apply: Callable[[Tree], object]
    path: str = ""
    closed: bytes | None = None
    atomic: bool = False


@dataclass
class Workload:
    """Yields operations, each fit for the state the ones before have led to."""

    seed: int
    files: Tree = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self.files = stored_before(self.seed)

    def next(self) -> Operation:
        """The next operation, already applied to `files`."""
        kinds = [self._write, self._write, self._append, self._pwrite, self._truncate, self._save, self._unlink]
        kinds += [self._rename, self._rename, self._rename_folder, self._remove_folder, self._write_twice]
        while True:
            operation = self._random.choice(kinds)()
            if operation is not None:
                operation.apply(self.files)
                return operation

    # -- choices -----------------------------------------------------------------------------------------

    def _bytes(self) -> bytes:
        return block(self._random, self._random.choice(SIZES))

    def _any_path(self) -> str:
        """A path of a file, there or not; folders are `c` and `d` of every level, so the two never meet."""
        folders = [self._random.choice("cd") for _ in range(self._random.randrange(3))]
        return "/".join([*folders, self._random.choice("ab")])

    def _old_path(self) -> str | None:
        return self._random.choice(sorted(self.files)) if self.files else None

    def _folder(self) -> str | None:
        folders = sorted({path.rpartition("/")[0] for path in self.files} - {""})
        return self._random.choice(folders) if folders else None

    # -- operations on one file ----------------------------------------------------------------------------

    def _write(self) -> Operation:
        path, data = self._any_path(), self._bytes()

        def act(top: Path) -> None:
            (top / path).parent.mkdir(parents=True, exist_ok=True)
            with open(top / path, "wb", buffering=0) as file:
                write_all(file.fileno(), data)

        return Operation(f"write {path} {len(data)}", act, lambda files: files.update({path: data}), path)

    def _write_twice(self) -> Operation:
        """By two descriptors, one closed before the other goes on."""
        path, first, second = self._any_path(), self._bytes(), self._bytes()

        def act(top: Path) -> None:
            (top / path).parent.mkdir(parents=True, exist_ok=True)
            with open(top / path, "wb", buffering=0) as file:
                write_all(file.fileno(), first)
                os.close(os.dup(file.fileno()))
                write_all(file.fileno(), second)

        return Operation(f"write twice {path}", act, lambda files: files.update({path: first + second}), path, first)

    def _append(self) -> Operation | None:
        path, data = self._old_path(), self._bytes()
        if path is None:
            return None

        def act(top: Path) -> None:
            with open(top / path, "ab", buffering=0) as file:
                write_all(file.fileno(), data)

        return Operation(
            f"append {path} {len(data)}", act, lambda files: files.update({path: files[path] + data}), path
        )

    def _pwrite(self) -> Operation | None:
        path, data, offset = self._old_path(), self._bytes(), self._random.choice(SIZES)
        if path is None or not data:
            return None

        def act(top: Path) -> None:
            with open(top / path, "r+b", buffering=0) as file:
                os.lseek(file.fileno(), offset, os.SEEK_SET)
                write_all(file.fileno(), data)

        def apply(files: Tree) -> None:
            old = files[path].ljust(offset, b"\0")
            files[path] = old[:offset] + data + old[offset + len(data) :]

        return Operation(f"pwrite {path} {offset} {len(data)}", act, apply, path)

    def _truncate(self) -> Operation | None:
        path, size = self._old_path(), self._random.choice(SIZES)
        if path is None:
            return None

        def apply(files: Tree) -> None:
            files[path] = files[path][:size].ljust(size, b"\0")

        return Operation(f"truncate {path} {size}", lambda top: os.truncate(top / path, size), apply, path)

    def _save(self) -> Operation | None:
        """As editors do: a temporary file, fsync, rename."""
        path, data = self._old_path(), self._bytes()
        if path is None:
            return None

        def act(top: Path) -> None:
            temporary = top / f"{path}.{len(data)}~"
            with open(temporary, "wb", buffering=0) as file:
                write_all(file.fileno(), data)
                os.fsync(file.fileno())
            os.rename(temporary, top / path)

        return Operation(f"save {path} {len(data)}", act, lambda files: files.update({path: data}), atomic=True)

    # -- operations on names -------------------------------------------------------------------------------

    def _unlink(self) -> Operation | None:
        path = self._old_path()
        if path is None:
            return None
        return Operation(f"unlink {path}", lambda top: (top / path).unlink(), lambda files: files.pop(path))

    def _rename(self) -> Operation | None:
        old, new = self._old_path(), self._any_path()
        if old is None or old == new:
            return None

        def act(top: Path) -> None:
            (top / new).parent.mkdir(parents=True, exist_ok=True)
            os.rename(top / old, top / new)

        return Operation(f"rename {old} {new}", act, lambda files: files.update({new: files.pop(old)}), atomic=True)

    def _rename_folder(self) -> Operation | None:
        old, new = self._folder(), self._any_path().replace("a", "c").replace("b", "d")
        if (
            old is None
            or f"{new}/".startswith(f"{old}/")
            or f"{old}/".startswith(f"{new}/")
            or below(self.files, new)
        ):
            return None

        def act(top: Path) -> None:
            (top / new).parent.mkdir(parents=True, exist_ok=True)
            for folder in sorted((top / new).glob("**/"), reverse=True):
                folder.rmdir()  # what was emptied before
            os.rename(top / old, top / new)

        def apply(files: Tree) -> None:
            files.update({new + path[len(old) :]: files.pop(path) for path in below(files, old)})

        return Operation(f"rename folder {old} {new}", act, apply, atomic=True)

    def _remove_folder(self) -> Operation | None:
        """The files of the innermost folder, then the folder."""
        folder = self._folder()
        paths = below(self.files, folder or "")
        if folder is None or len(paths) > 3:
            return None

        def act(top: Path) -> None:
            for path in paths:
                (top / path).unlink()
            for found in sorted((top / folder).glob("**/"), reverse=True):
                found.rmdir()

        def apply(files: Tree) -> None:
            for path in paths:
                del files[path]

        return Operation(f"remove folder {folder}", act, apply)


def below(files: Tree, folder: str) -> list[str]:
    return [path for path in sorted(files) if path.startswith(f"{folder}/")]


def write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


# -- what is known afterwards ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """What a disk holds before and after an operation, and every (path, digest) that was a closed state till then."""

    before: Tree
    after: Tree
    operation: Operation
    closed: frozenset[tuple[str, str]]


def state_at(seed: int, done: int) -> State:
    """Around the operation that is under way when `done` of them are done."""
    workload = Workload(seed)
    closed = set(versions(workload.files))
    for _ in range(done + 1):
        before = dict(workload.files)
        operation = workload.next()
        closed.update(versions(workload.files))
        if operation.closed is not None:
            closed.add((operation.path, digest(operation.closed)))
    return State(before, workload.files, operation, frozenset(closed))


def versions(files: Tree) -> list[tuple[str, str]]:
    return [(path, digest(data)) for path, data in files.items()]


def digest(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def main() -> None:
    top, progress, seed, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    workload = Workload(seed)
    for done in range(1, count + 1):
        operation = workload.next()
        operation.act(top)
        publish(progress, b"%d" % done)


if __name__ == "__main__":
    main()
