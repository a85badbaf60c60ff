"""What runs and the control files ask of a mount: to wait until files are stored, and to invalidate caches.

Threading: none of its own; waits are made by the caller's thread, with no lock held.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from cloudsimfs import paths
from cloudsimfs.clock import Clock
from cloudsimfs.control.simulations import run_paths
from cloudsimfs.errors import (
    BudgetSpent,
    NotDirectory,
    NotFinished,
    NotFound,
    TimedOut,
    TryAgain,
    WrongState,
)
from cloudsimfs.fuse.binding import interrupted
from cloudsimfs.fuse.pagecache import KernelCache
from cloudsimfs.inode import Node
from cloudsimfs.listings.dcache import DCache
from cloudsimfs.listings.looks import REFRESH_LOOKS, RESULTS_LOOKS, SAVED_LOOKS
from cloudsimfs.service import Budget
from cloudsimfs.vfs.names import is_local_name
from cloudsimfs.vfs.tree import Tree
from cloudsimfs.writeback.uploads import Writeback

COMMAND_BOUND = 20.0  # seconds that one write to a control file may wait; the user writes again to wait longer
BARRIER_BOUND = 900.0  # seconds that a launch waits for its files


class MountedStorage:
    """The files of a mount, as a launch needs them (`runs.launch.Storage`), and `.cloudsimfs/flush`."""

    def __init__(
        self, tree: Tree, dcache: DCache, writeback: Writeback, budget: Budget, *, mountpoint: Path, clock: Clock
    ) -> None:
        self._tree = tree
        self._dcache = dcache
        self._writeback = writeback
        self._refusals = writeback.refusals
        self._budget = budget
        self._mountpoint = str(mountpoint)
        self._clock = clock

    def storage_path(self, text: str) -> str:
        """The storage path of a path that a user wrote, be it one of the storage or one within the mount."""
        path = os.path.normpath(text)
        if path == self._mountpoint or path.startswith(self._mountpoint + "/"):
            path = path[len(self._mountpoint) :]
        return "" if path == "." else path.strip("/")

    def check_folder(self, path: str) -> None:
        """Raises NotFound or NotDirectory."""
        try:
            node = self._lookup_anew(path)
        except NotFound:
            raise NotFound(f"there is no folder {path!r} in the storage; copy the case in first") from None
        if not node.is_dir:
            raise NotDirectory(f"{path!r} is a file; a run needs its folder")

    def _lookup_anew(self, path: str) -> Node:
        """Look up a path; ask the service again before it is called missing, since others may have just made it."""
        try:
            return self._tree.lookup(path)
        except NotFound:
            self._dcache.invalidate(paths.parent(path))
            return self._tree.lookup(path)

    def barrier(self, path: str) -> None:
        """Wait until everything below `path` is on the service. Raises TryAgain, WrongState, BudgetSpent."""
        self._refusals.check(path)
        for inode in self._tree.half_written():
            if paths.is_within(inode.path, path) and not inode.local_only:
                raise WrongState(
                    f"/{inode.path} was being written when the last mount ended, and is not stored; "
                    "`cloudsimfs recover` uploads or discards it"
                )
        for lost in self._tree.without_record():
            if paths.is_within(lost, path) and not is_local_name(paths.name(lost)):
                raise WrongState(
                    f"/{lost} was closed and may not be stored: its record was lost with the journal; "
                    "`cloudsimfs recover` uploads or discards it"
                )
        try:
            self._writeback.drain(path, timeout=BARRIER_BOUND, interrupted=self._must_not_wait)
        except TryAgain:
            self._check_calls()  # if no calls are left, that is the reason: raise its errno instead
            raise

    def _must_not_wait(self) -> bool:
        """Whether a waiting launch was interrupted. Raises BudgetSpent: it must not wait for the hour to turn."""
        if self._budget.snapshot().waiting:
            self._check_calls()
        return interrupted()

    def _check_calls(self) -> None:
        budget = self._budget.snapshot()
        if budget.remaining == 0:
            raise BudgetSpent(
                "no API calls are left in this hour for the uploads that the launch needs",
                retry_after=max(0.0, budget.resets_at - self._clock.now()),
            )

    def flush(self) -> None:
        """Wait until everything is stored. Raises TimedOut after COMMAND_BOUND: write again to wait longer."""
        try:
            self._writeback.drain(timeout=COMMAND_BOUND, interrupted=interrupted)
        except NotFinished as error:
            raise TimedOut(str(error)) from error


class MountedCaches:
    """Invalidates a mount's caches, ours and the kernel's, where others have made changes (`runs.list.Watcher`)."""

    def __init__(self, dcache: DCache, kernel_cache: KernelCache) -> None:
        self._dcache = dcache
        self._kernel_cache = kernel_cache

    def refresh(self, path: str) -> None:
        """List a path and all below it again, now and some seconds later: others are writing there."""
        self._dcache.invalidate(paths.parent(path))
        self._dcache.expect_changes(path, REFRESH_LOOKS)
        self._kernel_cache.invalidate(path)
        self._kernel_cache.settle()

    def results_expected(self, folder: str) -> None:
        """List the folder again when results are likely, and then less and less often. Its parent's stays valid."""
        self._dcache.expect_changes(folder, RESULTS_LOOKS)
        self._kernel_cache.invalidate(folder)

    def results_saved(self, folder: str) -> None:
        """The same from now on: the results are there."""
        self._dcache.expect_changes(folder, SAVED_LOOKS)
        self._kernel_cache.invalidate(folder)

    def runs_changed(self, run_ids: set[int], active: frozenset[str]) -> None:
        """Invalidate the files of these runs, which are new or changed. Runs go on in the folders `active`."""
        self._dcache.keep_steady(active)
        if run_ids:
            self.contents_changed(run_paths(run_ids))

    def contents_changed(self, changed: Iterable[str]) -> None:
        """Invalidate the virtual files at these paths, below the mount: their contents have changed."""
        self._kernel_cache.invalidate_all(changed)
