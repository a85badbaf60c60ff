"""Random operations on the namespace without a kernel, against a model of what must be visible.

Tree, DCache, Overlay and Writeback run over the real client and a sandbox whose listings lag; the clock is moved by
hand. Our own changes must show at once and until somebody else changes the same name; what others change must show
after TTL and lag; a listing that fails must remove nothing. Every version has a size of its own: that identifies it.

`scripts/soak --model` searches for longer.
"""

from __future__ import annotations

import itertools
import math
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cloudsimfs import paths
from cloudsimfs.config import KERNEL_SHARE
from cloudsimfs.errors import NotFound, ServiceError, TryAgain
from cloudsimfs.listings import dcache
from cloudsimfs.sandbox import Sandbox, Settings
from machines import search
from world import TTL, Size, Ticking, World, parents

# seconds
LISTING_TTL = TTL * (1 - KERNEL_SHARE)
LISTING_LAG, CACHE_SECONDS, DELETE_LAG = 20.0, 60.0, 5.0
LONGEST_LAG = max(LISTING_LAG, CACHE_SECONDS, DELETE_LAG)
APART = 10.0  # between our uploads and what others do, by the store's clock: two writers in one second look alike

FOLDERS = ("d", "e", "d/e")
FILES = tuple(paths.join(folder, name) for folder in ("", *FOLDERS) for name in "fg")

files = st.sampled_from(FILES)
folders = st.sampled_from(FOLDERS)


def content(size: int) -> bytes:
    return bytes((size + number) % 251 for number in range(size))


@dataclass
class Open:
    """A name that may show any of `sizes` until a moment (monotonic); inf: until all is settled, as we changed it."""

    sizes: set[Size]
    until: float


class Machine(RuleBasedStateMachine):
    api: Literal["v1", "v2"]

    def __init__(self) -> None:
        super().__init__()
        self.box = Sandbox(
            settings=Settings(
                hourly_limit=0,
                listing_lag=LISTING_LAG,
                cache_seconds=CACHE_SECONDS,
                delete_lag=DELETE_LAG,
                page_size=2,
            )
        )
        self.directory = Path(tempfile.mkdtemp(prefix="cloudsimfs-model-"))
        self.clock = Ticking()
        self.sizes = itertools.count(1)
        self.shown: dict[str, int] = {}  # what must show
        self.open: dict[str, Open] = {}  # names of which that cannot be said yet
        self.beneath: dict[str, int] = {}  # what others put unseen under names that we wrote to, and did not store
        self.made: set[str] = set()  # folders that may show although nothing is in them
        self.touched: set[str] = set()  # names we have changed since all was settled
        self.sources: set[str] = set()  # names we have renamed since, whose bytes must stay where they are
        self.removed: set[str] = set()  # folders we have removed since
        self.unlisted: set[str] = set()  # names we have stored since, which no listing may have shown yet
        self.known: set[str] = set()  # directories that have been listed
        self.broken = False
        self.box.populate({path: content(next(self.sizes)) for path in ("f", "d/f", "d/e/f")})
        self.shown = {path: len(data) for path, data in self.box.files().items()}
        self.world = World(self.box, self.directory, self.api, self.clock)

    def teardown(self) -> None:
        try:
            self.settle()
        finally:
            self.world.close()
            self.box.close()
            shutil.rmtree(self.directory)

    # -- the model -----------------------------------------------------------------------------------------

    def allowed(self, path: str) -> set[Size]:
        found = self.open.get(path)
        return {self.shown.get(path)} if found is None else found.sizes

    def is_disputed(self, path: str) -> bool:
        """Whether we have changed the name or a folder above it, and it is not settled whose change holds."""
        return not self.touched.isdisjoint([path, *parents(path)])

    def others_did(self, path: str, size: Size, lag: float = 0.0) -> None:
        sizes = self.allowed(path) | {size}
        if self.is_disputed(path) or self.deadline(path) == math.inf:
            self.open[path] = Open(sizes | {None}, math.inf)
        else:
            self.open[path] = Open(sizes, max(self.deadline(path), self.clock.monotonic() + LISTING_TTL + lag + 1))
        self.set_shown(path, size)

    def deadline(self, path: str) -> float:
        return self.open[path].until if path in self.open else 0.0

    def we_did(self, path: str, size: Size) -> None:
        unseen = self.shown.get(path) if path in self.open else self.beneath.get(path)
        disputed = self.open.pop(path, None) is not None or path in self.beneath
        if size is None and disputed:  # what we removed may not be what is there
            self.open[path] = Open({None, unseen}, math.inf)
        elif unseen is not None:
            self.beneath[path] = unseen
        self.set_shown(path, size)
        self.touched.add(path)
        self.made.update(parents(path))

    def set_shown(self, path: str, size: Size) -> None:
        if size is None:
            self.shown.pop(path, None)
        else:
            self.shown[path] = size

    def can_reach(self, path: str) -> bool:
        """Whether the folder above is there. A listing that cannot be had leaves that unsaid."""
        try:
            return all(self.world.tree.getattr(above).is_dir for above in parents(path))
        except NotFound:
            return False
        except ServiceError:
            assert self.broken
            return False

    def is_there(self, path: str) -> bool:
        return self.can_reach(path) and self.world.size(path) is not None

    def below(self, folder: str) -> list[str]:
        return [path for path in FILES if paths.is_within(path, folder)]

    # -- what we do ----------------------------------------------------------------------------------------

    @rule(path=files)
    def write(self, path: str) -> None:
        if self.can_reach(path):
            size = next(self.sizes)
            try:
                self.world.write(path, content(size))
            except ServiceError:
                assert self.broken
                return
            self.we_did(path, size)

    @rule(path=files)
    def unlink(self, path: str) -> None:
        if self.is_there_now(path):
            self.world.files.unlink(path)
            self.we_did(path, None)

    def is_there_now(self, path: str) -> bool:
        try:
            return self.is_there(path)
        except ServiceError:
            assert self.broken
            return False

    @rule(old=files, new=files)
    def rename_file(self, old: str, new: str) -> None:
        if old == new or self.is_unlisted(old) or old in self.open:
            return
        if self.is_there_now(old) and self.can_reach(new):
            try:
                self.world.files.rename(old, new)
            except ServiceError:
                assert self.broken
                return
            self.we_did(new, self.shown[old])
            self.we_did(old, None)
            self.sources.add(old)

    @rule(folder=folders)
    def mkdir(self, folder: str) -> None:
        if self.can_reach(folder) and not self.broken and self.world.size(folder) is None:
            self.world.files.mkdir(folder, 0o755)
            self.made.add(folder)
            self.touched.add(folder)

    @rule(folder=folders)
    def remove_all(self, folder: str) -> None:
        """`rm -r`."""
        if self.broken or not self.is_there_now(folder) or not self.is_certain(folder):
            return
        for directory in sorted((each for each in FOLDERS if paths.is_within(each, folder)), reverse=True):
            if self.is_there_now(directory):
                for name, attr in self.world.tree.readdir(directory):
                    assert not attr.is_dir
                    self.world.files.unlink(paths.join(directory, name))
                    self.we_did(paths.join(directory, name), None)
                self.world.files.rmdir(directory)
                self.made.discard(directory)
                self.touched.add(directory)
                self.removed.add(directory)

    def is_certain(self, folder: str) -> bool:
        """Whether all below a folder is known: what others put there since it was listed goes with it."""
        return not any(self.is_unlisted(path) or path in self.open for path in self.below(folder))

    def is_unlisted(self, path: str) -> bool:
        """Whether the service may not show yet what we have stored; v2 can be told to."""
        return self.api == "v1" and path in self.unlisted

    @rule()
    def rename_folder(self) -> None:
        """`d/e` to `e`, or back."""
        old, new = ("d/e", "e") if self.is_there_now("d/e") else ("e", "d/e")
        if self.broken or not self.is_certain(old) or not self.is_certain(new) or self.is_there_now(new):
            return
        if not self.is_there_now(old) or not self.can_reach(new):
            return
        self.world.files.rename(old, new)
        for path in self.below(old):
            if path in self.shown:
                self.we_did(paths.rebase(path, old, new), self.shown[path])
                self.we_did(path, None)
                self.sources.add(path)
        self.made.discard(old)
        self.made.add(new)
        self.touched |= {old, new}
        self.removed.add(old)

    @rule()
    def flush(self) -> None:
        try:
            self.drain()
        except TryAgain:
            assert self.broken
        else:
            self.beneath.clear()
        self.unlisted |= self.touched

    def drain(self) -> None:
        """Also when the service takes its time to show a delete, after which v2 refuses a second one."""
        try:
            self.world.files.writeback.drain()
        except TryAgain:
            self.time_passes(DELETE_LAG + 1)
            self.world.files.writeback.drain()

    @rule(path=files)
    def read(self, path: str) -> None:
        """The bytes are those of the size that shows, of whoever wrote them."""
        if not self.broken and path not in self.open and self.is_there_now(path):
            data = self.world.read(path)
            assert len(data) in self.allowed(path), path
            assert data == content(len(data)), path

    @rule(
        operation=st.sampled_from(["upload-url", "object-put", "delete*"]),
        kind=st.sampled_from(["status", "drop_reply", "reset"]),
        after=st.integers(0, 3),
    )
    def flush_in_vain(self, operation: str, kind: str, after: int) -> None:
        """Somewhere on the way the service fails, or an answer is lost; the daemon may be killed right then."""
        fault = self.box.faults.add(operation, kind, after=after)
        try:
            self.world.files.writeback.drain(timeout=1)
        except TryAgain:
            pass
        self.box.faults.remove(fault)
        self.unlisted |= self.touched

    @rule()
    def remount(self) -> None:
        self.world.close()
        self.world = World(self.box, self.directory, self.api, self.clock)
        # of a folder removed and made anew it is not known any more what the service has
        remade = self.removed | self.touched.intersection(FOLDERS)
        self.known = {path for path in self.known if not any(paths.is_within(path, folder) for folder in remade)}

    # -- what others do ------------------------------------------------------------------------------------

    @rule(path=files, late=st.booleans())
    def others_put(self, path: str, late: bool) -> None:
        if path not in self.sources and self.removed.isdisjoint(parents(path)):
            self.world.rest()
            self.box.advance(APART)
            size = next(self.sizes)
            self.box.put(path, content(size), lagged=late)
            self.others_did(path, size, LISTING_LAG if late else 0.0)

    @rule(path=files)
    def others_remove(self, path: str) -> None:
        if path not in self.sources | self.unlisted and path in self.box.paths():
            self.world.rest()
            self.box.advance(APART)
            self.box.remove(path)
            self.others_did(path, None)

    # -- the service and time ------------------------------------------------------------------------------

    @precondition(lambda self: not self.broken)
    @rule(kind=st.sampled_from(["status", "reset", "drop_reply", "html"]))
    def break_listings(self, kind: str) -> None:
        self.box.faults.add("list*", kind)
        self.broken = True

    @precondition(lambda self: self.broken)
    @rule()
    def heal_listings(self) -> None:
        self.box.faults.clear()
        self.broken = False
        for found in self.open.values():
            found.until = max(found.until, self.clock.monotonic() + dcache.RENEWAL_HOLD + 1)

    @rule(seconds=st.sampled_from([1.0, 3.0, 12.0, 30.0, 50.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.box.advance(seconds)
        self.world.rest()

    @rule()
    def settle(self) -> None:
        """All is on the service, and its listings and ours have caught up: they agree in everything."""
        if self.broken:
            self.heal_listings()
        self.drain()
        for _ in range(2):
            self.time_passes(LONGEST_LAG + LISTING_TTL + dcache.RENEWAL_HOLD)
            found, _ = self.walk()
        stored = self.box.files()
        assert found == {path: len(data) for path, data in stored.items()}
        for path in FILES:
            if self.deadline(path) != math.inf:
                assert found.get(path) == self.shown.get(path), path
        for path, data in stored.items():
            assert self.world.read(path) == data
        self.shown = found
        self.open.clear()
        self.beneath.clear()
        self.touched.clear()
        self.sources.clear()
        self.removed.clear()
        self.unlisted.clear()

    # -- what shows ----------------------------------------------------------------------------------------

    @invariant()
    def all_that_shows_is_allowed(self) -> None:
        """By stat, which lists only what it must, then by reading all directories."""
        self.world.rest()
        now = self.clock.monotonic()
        for path in [path for path, found in self.open.items() if found.until < now and not self.broken]:
            del self.open[path]
        for path in FILES:
            try:
                size = self.world.size(path)
            except ServiceError:
                assert self.may_fail(paths.parent(path)), path
            else:
                assert size in self.allowed(path), f"{path}: {size}, not {self.allowed(path)}"
        found, unread = self.walk()
        for path in FILES:
            if not any(paths.is_within(path, folder) for folder in unread):
                size = found.get(path)
                assert size in self.allowed(path), f"{path}: {size}, not {self.allowed(path)}"

    def may_fail(self, directory: str) -> bool:
        """Whether a listing may be unknown: it was never had, and cannot be had now."""
        return self.broken and not self.known.issuperset([directory, *parents(directory)])

    def walk(self) -> tuple[dict[str, int], list[str]]:
        """Every file that shows, by its size; and the directories that could not be listed."""
        found: dict[str, int] = {}
        folders: set[str] = set()
        unread: list[str] = []
        waiting = [paths.ROOT]
        for directory in waiting:
            try:
                listed = self.world.tree.readdir(directory)
            except ServiceError:
                assert self.may_fail(directory), directory
                unread.append(directory)
                continue
            self.known.add(directory)
            for name, attr in listed:
                path = paths.join(directory, name)
                if attr.is_dir:
                    waiting.append(path)
                    folders.add(path)
                else:
                    found[path] = attr.size
        self.known &= folders | {paths.ROOT}
        return found, unread


@pytest.mark.timeout(0)
@pytest.mark.parametrize("api", ["v1", "v2"])
def test_random_operations(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dcache, "RENEWAL_GRACE", 60.0)  # a busy machine is no slow service
    search(Machine, examples=6, steps=30, api=api)
