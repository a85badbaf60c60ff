"""What runs and the control files ask of a mount: that files are stored, and that caches are invalidated.

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
from cloudsimfs.service import Budget
from cloudsimfs.vfs.tree import Tree
from cloudsimfs.writeback.uploads import Writeback

COMMAND_BOUND = 20.0  # seconds that one write to a control file may wait; the user writes again to wait longer
BARRIER_BOUND = 900.0  # seconds that a launch waits for its files
SETTLING_TIME = 60.0  # seconds in which results may arrive after a sync, a stop or an end


class MountedStorage:
    """The files of a mount, as a launch needs them (`launch.Storage`), and `.cloudsimfs/flush`."""

    def __init__(
        self, tree: Tree, dcache: DCache, writeback: Writeback, budget: Budget, *, mountpoint: Path, clock: Clock
    ) -> None:
        self._tree = tree
        self._dcache = dcache
        self._writeback = writeback
        self._budget = budget
        self._mountpoint = str(mountpoint)
        self._clock = clock

    def storage_path(self, text: str) -> str:
        """A path as users write it, of the storage or within the mount, as a storage path."""
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
        """Others may have just made it: the service is asked before a folder is called missing."""
        try:
            return self._tree.lookup(path)
        except NotFound:
            self._dcache.invalidate(paths.parent(path))
            return self._tree.lookup(path)

    def barrier(self, path: str) -> None:
        """Wait until all below `path` is on the service. Raises TryAgain, WrongState, or BudgetSpent."""
        self._writeback.check_refused(path)
        for inode in self._tree.half_written():
            if paths.is_within(inode.path, path) and not inode.local_only:
                raise WrongState(
                    f"/{inode.path} was being written when the last mount ended, and is not stored; "
                    "`cloudsimfs recover` uploads or discards it"
                )
        try:
            self._writeback.drain(path, timeout=BARRIER_BOUND, interrupted=self._must_not_wait)
        except TryAgain:
            self._check_calls()  # if no calls are left, that is the reason: raise its errno instead
            raise

    def _must_not_wait(self) -> bool:
        """Asked while a launch waits. Raises BudgetSpent: a launch must not wait for the hour to turn."""
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
        """Wait until all is stored. Raises TimedOut after COMMAND_BOUND: write again to wait longer."""
        try:
            self._writeback.drain(timeout=COMMAND_BOUND, interrupted=interrupted)
        except NotFinished as error:
            raise TimedOut(str(error)) from error


class MountedCaches:
    """The caches of a mount, ours and the kernel's, told what others have changed (`runs.Watcher`)."""

    def __init__(self, dcache: DCache, kernel_cache: KernelCache) -> None:
        self._dcache = dcache
        self._kernel_cache = kernel_cache

    def refresh(self, path: str) -> None:
        """List a path and all below it anew, and often for a while: others are writing there."""
        self._dcache.invalidate(paths.parent(path))
        self._dcache.expect_changes(path, SETTLING_TIME)
        self._kernel_cache.invalidate(path)
        self._kernel_cache.settle()

    def results_expected(self, folder: str) -> None:
        """List the folder anew, and often for a while. What the listing above says of it stays as it is."""
        self._dcache.expect_changes(folder, SETTLING_TIME)
        self._kernel_cache.invalidate(folder)

    def runs_changed(self, run_ids: set[int], active: frozenset[str]) -> None:
        """These runs, or their logs, are new or changed; runs are going on in the folders `active`."""
        self._dcache.keep_steady(active)
        if run_ids:
            self.contents_changed(run_paths(run_ids))

    def contents_changed(self, changed: Iterable[str]) -> None:
        """The virtual files at these paths, below the mount, have other contents."""
        self._kernel_cache.invalidate_all(changed)
