"""Random operations on a real mount against a plain dict of bytes, with remounts, kills and another client.

See `machines` for longer searches. Each failure is to be kept as a named test in `test_regressions.py`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cloudsimfs.sandbox import Sandbox, Settings
from harness import Mounted, clean_up, errno_of, read_tree, run, wait_until
from machines import search

LARGEST = 300_000  # bytes
STEPS = 2  # between two mounts, at least

names = st.sampled_from(["a", "b", "c"])
paths = st.lists(names, min_size=1, max_size=3).map("/".join)
sizes = st.integers(0, 2000) | st.integers(0, LARGEST)
seeds = st.integers(0, 255)


def content(seed: int, size: int) -> bytes:
    """Bytes that tell a wrong place, file or version."""
    block = bytes((seed + number * 7) % 256 for number in range(251))
    return (block * (size // 251 + 1))[:size]


class Machine(RuleBasedStateMachine):
    """`files` and `folders` are what a local disk would hold."""

    base: Path
    api: str

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, bytes] = {}
        self.folders: set[str] = set()
        self.steps = 0  # since the mount was started: a few belong to each one
        self.box = Sandbox(settings=Settings(hourly_limit=0))
        self.place = self.base / secrets.token_hex(4)
        self.place.mkdir()
        self.m = Mounted(self.box, self.place, api=self.api, ttl=0, write_back=0.05)

    @initialize(seed=seeds)
    def start(self, seed: int) -> None:
        stored = {"a/a": content(seed, 5000), "b": content(seed, 100_000), "a/c/a": b""}
        self.box.populate(stored)
        self.box.advance(10)
        self.files, self.folders = dict(stored), {"a", "a/c"}
        self.m.start()

    def teardown(self) -> None:
        try:
            if self.m.is_mounted():
                self.all_is_well_in_the_end()
        finally:
            clean_up(self.place)
            self.box.close()
        assert self.box.key_leaks == []
        log = self.m.log()
        assert "Traceback" not in log, log[-5000:]
        assert self.m.key not in log
        shutil.rmtree(self.place)

    def all_is_well_in_the_end(self) -> None:
        assert self.m.settle() == self.files
        self.m.remount()
        assert read_tree(self.m.path) == self.files

    # -- what the model says of a path -------------------------------------------------------------------

    def trouble(self, path: str) -> int:
        """The errno of reaching the parent of a path; 0 if it is a folder."""
        parts = path.split("/")[:-1]
        for number in range(1, len(parts) + 1):
            above = "/".join(parts[:number])
            if above in self.files:
                return errno.ENOTDIR
            if above not in self.folders:
                return errno.ENOENT
        return 0

    def below(self, path: str) -> list[str]:
        return [found for found in [*self.files, *self.folders] if found.startswith(path + "/")]

    def to_write(self, path: str) -> int:
        return self.trouble(path) or (errno.EISDIR if path in self.folders else 0)

    def to_read(self, path: str) -> int:
        return self.to_write(path) or (0 if path in self.files else errno.ENOENT)

    # -- files -------------------------------------------------------------------------------------------

    @rule(path=paths, seed=seeds, size=sizes)
    def write(self, path: str, seed: int, size: int) -> None:
        data, expected = content(seed, size), self.to_write(path)
        assert errno_of(lambda: (self.m.path / path).write_bytes(data)) == expected
        if not expected:
            self.files[path] = data

    @rule(path=paths, seed=seeds, size=sizes, offset=sizes)
    def pwrite(self, path: str, seed: int, size: int, offset: int) -> None:
        data, expected = content(seed, size), self.to_read(path)

        def act() -> None:
            with open(self.m.path / path, "r+b", buffering=0) as file:
                file.seek(offset)
                file.write(data)

        assert errno_of(act) == expected
        if not expected and data:
            old = self.files[path].ljust(offset, b"\0")
            self.files[path] = old[:offset] + data + old[offset + len(data) :]

    @rule(path=paths, seed=seeds, size=st.integers(0, 5000))
    def append(self, path: str, seed: int, size: int) -> None:
        data, expected = content(seed, size), self.to_write(path)

        def act() -> None:
            with open(self.m.path / path, "ab") as file:
                file.write(data)

        assert errno_of(act) == expected
        if not expected:
            self.files[path] = self.files.get(path, b"") + data

    @rule(path=paths, size=sizes)
    def truncate(self, path: str, size: int) -> None:
        expected = self.to_read(path)
        assert errno_of(lambda: os.truncate(self.m.path / path, size)) == expected
        if not expected:
            self.files[path] = self.files[path][:size].ljust(size, b"\0")

    @rule(path=paths, offset=sizes, size=sizes)
    def read(self, path: str, offset: int, size: int) -> None:
        expected = self.to_read(path)
        found: list[bytes] = []

        def act() -> None:
            with open(self.m.path / path, "rb", buffering=0) as file:
                found.append(os.pread(file.fileno(), size, offset))

        assert errno_of(act) == expected
        if not expected:
            assert found == [self.files[path][offset : offset + size]]

    @rule(path=paths)
    def unlink(self, path: str) -> None:
        expected = self.to_read(path)
        assert errno_of((self.m.path / path).unlink) == expected
        self.files.pop(path, None)

    # -- folders -----------------------------------------------------------------------------------------

    @rule(path=paths)
    def mkdir(self, path: str) -> None:
        expected = self.trouble(path)
        if not expected and (path in self.files or path in self.folders):
            expected = errno.EEXIST
        assert errno_of((self.m.path / path).mkdir) == expected
        if not expected:
            self.folders.add(path)

    @rule(path=paths)
    def rmdir(self, path: str) -> None:
        expected = self.trouble(path)
        if not expected and path in self.files:
            expected = errno.ENOTDIR
        elif not expected and path not in self.folders:
            expected = errno.ENOENT
        elif not expected and self.below(path):
            expected = errno.ENOTEMPTY
        assert errno_of((self.m.path / path).rmdir) == expected
        if not expected:
            self.folders.discard(path)

    @rule(path=paths)
    def remove_all(self, path: str) -> None:
        if path in self.folders:
            run("rm", "-r", self.m.path / path)
            for found in self.below(path):
                self.files.pop(found, None)
                self.folders.discard(found)
            self.folders.discard(path)

    @rule(old=paths, new=paths)
    def rename(self, old: str, new: str) -> None:
        expected = self.to_rename(old, new)
        assert errno_of(lambda: os.rename(self.m.path / old, self.m.path / new)) in expected
        if expected == {0} and old != new:
            if old in self.files:
                self.files[new] = self.files.pop(old)
                return
            moved = self.below(old)
            self.folders -= {old}
            self.folders |= {new}
            for found in moved:
                target = new + found[len(old) :]
                if found in self.files:
                    self.files[target] = self.files.pop(found)
                else:
                    self.folders.discard(found)
                    self.folders.add(target)

    def to_rename(self, old: str, new: str) -> set[int]:
        """The errnos rename(2) may give."""
        found = {self.trouble(old), self.trouble(new)} - {0}
        if not found and old not in self.files and old not in self.folders:
            found = {errno.ENOENT}
        if not found and old == new:
            return {0}
        if not found and (new + "/").startswith(old + "/"):
            found = {errno.EINVAL}
        if not found and (old + "/").startswith(new + "/"):
            found = {errno.ENOTEMPTY, errno.EISDIR, errno.EEXIST}
        if not found and old in self.folders and new in self.files:
            found = {errno.ENOTDIR}
        if not found and old in self.files and new in self.folders:
            found = {errno.EISDIR}
        if not found and new in self.folders and self.below(new):
            found = {errno.ENOTEMPTY}
        if found and (new + "/").startswith(old + "/"):
            found |= {errno.EINVAL}  # the kernel may see this first
        if found and (old + "/").startswith(new + "/"):
            found |= {errno.ENOTEMPTY}
        return found or {0}

    # -- the mount and the service -----------------------------------------------------------------------

    @rule()
    def flush(self) -> None:
        assert self.m.settle() == self.files

    @precondition(lambda self: self.steps > STEPS)
    @rule()
    def remount(self) -> None:
        self.m.remount()
        self.steps = 0

    @precondition(lambda self: self.steps > STEPS)
    @rule()
    def remount_without_waiting(self) -> None:
        self.m.remount("--no-wait")
        self.steps = 0

    @precondition(lambda self: self.steps > STEPS)
    @rule()
    def crash(self) -> None:
        self.m.crash()
        self.steps = 0

    @precondition(lambda self: bool(self.files))
    @rule(data=st.data(), seed=seeds, size=sizes)
    def another_client_puts(self, data: st.DataObject, seed: int, size: int) -> None:
        """Over a file, or beside one, when nothing of ours is pending."""
        known = data.draw(st.sampled_from(sorted(self.files)))
        beside = known.rpartition("/")[0] + "/new" if "/" in known else "new"
        path = data.draw(st.sampled_from([known, beside]))
        self.settle_for_others()
        version = content(seed, size)
        self.box.put(path, version)
        self.files[path] = version
        wait_until(lambda: (self.m.path / path).read_bytes() == version, f"{path} shows")

    @precondition(lambda self: bool(self.files))
    @rule(data=st.data())
    def another_client_removes(self, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(sorted(self.files)))
        self.settle_for_others()
        self.box.remove(path)
        del self.files[path]
        wait_until(lambda: path not in read_tree(self.m.path), f"{path} goes")
        for folder in sorted(self.folders, reverse=True):
            if not self.below(folder) and not (self.m.path / folder).is_dir():
                self.folders.discard(folder)  # the service has no empty folders

    def settle_for_others(self) -> None:
        """The listings have confirmed what we did, and time has passed."""
        self.m.settle()
        self.box.advance(10)

    @invariant()
    def the_mount_shows_the_model(self) -> None:
        if not self.m.is_mounted():
            return
        self.steps += 1
        shown: dict[str, bytes] = {}
        folders: set[str] = set()
        for directory, below, files in os.walk(self.m.path):
            here = Path(directory).relative_to(self.m.path)
            if here == Path():
                below[:] = [name for name in below if not name.startswith(".")]
            folders |= {(here / name).as_posix() for name in below}
            for name in files:
                path = (here / name).as_posix()
                with contextlib.suppress(FileNotFoundError):
                    shown[path] = (self.m.path / path).read_bytes()
        assert sorted(shown) == sorted(self.files)
        for path, data in self.files.items():
            assert shown[path] == data, f"{path}: {len(shown[path])} bytes, not {len(data)}"
        assert folders == self.folders


@pytest.mark.timeout(0)
def test_random_operations(mount_base: Path, api: str) -> None:
    search(Machine, examples=2, steps=25, base=mount_base, api=api)
