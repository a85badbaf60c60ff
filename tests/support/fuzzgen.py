"""Which operation comes next: chosen by a seed, and by what the local tree holds, so that much of it succeeds.

Few names and few levels, so that names clash: a folder takes the name of a file, and the other way round.
"""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Callable

from fuzzops import Op, walk

NAMES, FILES, FOLDERS = "abcd", "ab", "cd"
SIZES = (0, 1, 9, 100, 100, 1000, 4096, 5000, 20_000, 70_000, 140_000)  # bytes
MODES = (0o644, 0o600, 0o755, 0o640)
SLOTS = range(4)
LOOKS_EVERY = 8  # choices between two looks at what there is
WHOLE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
HOW = (
    os.O_RDONLY,
    os.O_RDWR,
    os.O_RDWR | os.O_CREAT,
    os.O_WRONLY | os.O_APPEND | os.O_CREAT,
    WHOLE,
    os.O_RDWR | os.O_CREAT | os.O_EXCL,
    os.O_RDWR | os.O_TRUNC,
)
SCRATCH = 9  # the slot of what is opened and closed at once


class Generator:
    """Yields the operations of one process. `folders` are those it works in, the first its own."""

    def __init__(
        self, seed: str, top: str, folders: list[str], *, first_stamp: int, clashes: bool, leaving: bool
    ) -> None:
        """Without `clashes`, no file ever has the name that a folder had, nor the other way round. Without `leaving`,
        folders stay where they are.
        """
        self._random = random.Random(seed)
        self._top = top
        self._folders = folders
        self._stamp = first_stamp
        self._clashes = clashes
        self._leaving = leaving
        self._coming: deque[Op] = deque()
        self._known: dict[str, list[str]] = {}  # by folder: what was in it at the last look
        self._known_folders: dict[str, list[str]] = {}
        self._looked = 0
        self._open: dict[int, str] = {}
        self._folder = folders[0]
        weights: list[tuple[int, Callable[[], list[Op]]]] = [
            (12, self._write), (7, self._append), (5, self._pwrite), (12, self._content), (12, self._stat),
            (10, self._list), (9, self._rename), (2, self._rename_new), (8, self._unlink), (8, self._mkdir),
            (5, self._rmdir), (3, self._remove_all), (4, self._truncate), (2, self._chmod), (2, self._utime),
            (3, self._save), (1, self._save_with_backup), (8, self._open_slot), (18, self._use_slot), (1, self._wait),
            (2, self._swap_kind),
        ]  # fmt: skip
        if not leaving:
            weights = [(weight, kind) for weight, kind in weights if kind not in self._leavings()]
        self._kinds = [kind for _, kind in weights]
        self._weights = [weight for weight, _ in weights]

    def _leavings(self) -> list[Callable[[], list[Op]]]:
        return [self._rmdir, self._remove_all, self._swap_kind]

    def next(self, folders: int) -> Op:
        """The next operation, in one of the first so many folders."""
        while not self._coming:
            self._folder = self._folders[self._random.randrange(folders)]
            self._look()
            (kind,) = self._random.choices(self._kinds, self._weights)
            self._coming.extend(kind())
        return self._coming.popleft()

    def forget(self) -> None:
        """The mount was gone: no file is open, and nothing goes on where it was."""
        self._coming.clear()
        self._open.clear()
        self._looked = 0

    def closings(self) -> list[Op]:
        """What closes all that is open, after the operations that belong together are done."""
        ops: list[Op] = [*self._coming, *(["close", slot] for slot in sorted(self._open))]
        self.forget()
        return ops

    # -- choices ---------------------------------------------------------------------------------------------

    def _look(self) -> None:
        self._looked -= 1
        if self._looked < 0:
            self._looked = LOOKS_EVERY
            self._known, self._known_folders = {}, {}
        if self._folder not in self._known:
            found = list(walk(self._top, self._folder))
            self._known[self._folder] = [path for path, _ in found]
            self._known_folders[self._folder] = [path for path, is_dir in found if is_dir]

    def _path(self, kind: str = "") -> str:
        """A path that may be there or not, of a file ("f"), a folder ("d") or either."""
        kind = "" if self._clashes else kind or self._random.choice("fd")
        last = NAMES if self._clashes else FILES if kind == "f" else FOLDERS
        known = [path for path in self._known[self._folder] if not kind or path[-1] in last]
        folders = self._known_folders[self._folder]
        if known and self._random.random() < 0.6:
            return self._random.choice(known)
        if folders and self._random.random() < 0.5:
            return self._random.choice(folders) + "/" + self._random.choice(last)
        levels = self._random.choices(NAMES if self._clashes else FOLDERS, k=self._random.choice((0, 0, 0, 1, 1, 2)))
        return "/".join([self._folder, *levels, self._random.choice(last)])

    def _any_folder(self) -> str:
        folders = self._known_folders[self._folder]
        return self._random.choice(folders) if folders else self._path("d")

    def _two_paths(self) -> list[str]:
        kind = self._random.choice("fd" if self._leaving else "f")
        return [self._path(kind), self._path(kind)]

    def _data(self) -> tuple[int, int]:
        self._stamp += 1
        return self._stamp, self._random.choice(SIZES)

    def _using(self, path: str, flags: int, *ops: Op) -> list[Op]:
        return [["open", SCRATCH, path, flags], *ops, ["close", SCRATCH]]

    # -- files -----------------------------------------------------------------------------------------------

    def _write(self) -> list[Op]:
        parts: list[Op] = [["write", SCRATCH, *self._data()] for _ in range(self._random.choice((0, 1, 1, 1, 2)))]
        return self._using(self._path("f"), WHOLE, *parts)

    def _append(self) -> list[Op]:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        return self._using(self._path("f"), flags, ["write", SCRATCH, *self._data()])

    def _pwrite(self) -> list[Op]:
        op: Op = ["pwrite", SCRATCH, *self._data(), self._random.choice(SIZES)]
        return self._using(self._path("f"), self._random.choice((os.O_WRONLY, os.O_RDWR)), op)

    def _content(self) -> list[Op]:
        return [["content", self._path("f")]]

    def _truncate(self) -> list[Op]:
        return [["truncate", self._path("f"), self._random.choice(SIZES)]]

    def _save(self) -> list[Op]:
        """A temporary file, fsync, rename."""
        path = self._path("f")
        temporary = path + self._random.choice("t~" if self._clashes else "~")
        ops: list[Op] = [["write", SCRATCH, *self._data()], ["fsync", SCRATCH]]
        return [*self._using(temporary, WHOLE, *ops), ["rename", temporary, path]]

    def _save_with_backup(self) -> list[Op]:
        path = self._path("f")
        new = self._using(path, WHOLE, ["write", SCRATCH, *self._data()])
        return [["rename", path, f"{path}~"], *new, ["content", f"{path}~"], ["unlink", f"{path}~"]]

    # -- names -----------------------------------------------------------------------------------------------

    def _stat(self) -> list[Op]:
        return [["stat", self._path()]]

    def _list(self) -> list[Op]:
        return [["list", self._random.choice([self._folder, self._any_folder(), self._path()])]]

    def _rename(self) -> list[Op]:
        return [["rename", *self._two_paths()]]

    def _rename_new(self) -> list[Op]:
        return [["rename_new", *self._two_paths()]]

    def _unlink(self) -> list[Op]:
        return [["unlink", self._path("f")]]

    def _mkdir(self) -> list[Op]:
        return [["mkdir", self._path("d")]]

    def _rmdir(self) -> list[Op]:
        return [["rmdir", self._any_folder()]]

    def _remove_all(self) -> list[Op]:
        """`rm -r` of what there is."""
        top = self._any_folder()
        try:
            found = list(walk(self._top, top))
        except OSError:
            return [["rmdir", top]]
        ops: list[Op] = [["rmdir" if is_dir else "unlink", path] for path, is_dir in reversed(found)]
        return [["list", top], *ops, ["rmdir", top]]

    def _swap_kind(self) -> list[Op]:
        """The folder goes, a file takes its name, perhaps goes as well; then the name is looked at."""
        removed = self._remove_all()
        if not self._clashes:
            return removed
        path = removed[-1][1]
        file = self._using(path, WHOLE, ["write", SCRATCH, *self._data()])
        last: list[Op] = self._random.choice([[], [["unlink", path]], [["rename", path, self._path()]]])
        return [*removed, *file, *last, ["stat", path], ["list", path]]

    def _chmod(self) -> list[Op]:
        path = self._path()
        return [["chmod", path, self._random.choice(MODES)], ["stat", path]]

    def _utime(self) -> list[Op]:
        path = self._path()
        return [["utime", path, self._random.randrange(3600)], ["stat", path]]

    def _wait(self) -> list[Op]:
        return [["wait", self._random.choice((0.01, 0.05, 0.15))]]

    # -- files that stay open --------------------------------------------------------------------------------

    def _open_slot(self) -> list[Op]:
        slot, path = self._random.choice(SLOTS), self._path("f")
        before: list[Op] = [["close", slot]] if slot in self._open else []
        self._open[slot] = path
        return [*before, ["open", slot, path, self._random.choice(HOW)]]

    def _use_slot(self) -> list[Op]:
        if not self._open:
            return self._open_slot()
        slot = self._random.choice(sorted(self._open))
        self._folder = self._open[slot].partition("/")[0]
        self._look()
        size, offset = self._random.choice(SIZES), self._random.choice(SIZES)
        kinds: list[Op] = [
            ["read", slot, size], ["pread", slot, size, offset], ["write", slot, *self._data()],
            ["pwrite", slot, *self._data(), offset], ["ftruncate", slot, size], ["fsync", slot], ["fstat", slot],
            ["fstat", slot], ["futime", slot, offset % 3600], ["unlink", self._open[slot]], ["close", slot],
            ["rename", self._open[slot], self._path("f")], ["content", self._open[slot]],
        ]  # fmt: skip
        op = self._random.choice(kinds)
        if op[0] == "close":
            del self._open[slot]
        return [op]
