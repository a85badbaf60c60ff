"""The whole storage side of a mount: its parts in the order of the layers, and the verbs that change names.

It knows neither FUSE nor the uploader. `mount` passes in the callbacks from above, and to `start` the functions that
run the jobs of each kind (`uploader`). docs/architecture.md, "Layers", has the picture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cloudsimfs import paths
from cloudsimfs.clock import Clock
from cloudsimfs.concurrency.waiting import Interrupted
from cloudsimfs.config import KERNEL_SHARE, Config, cache_limit
from cloudsimfs.datacache.cache import DataCache
from cloudsimfs.journal.fitting import open_journal
from cloudsimfs.listings.dcache import DCache
from cloudsimfs.listings.store import ListingStore
from cloudsimfs.service import Client
from cloudsimfs.vfs import adoption, changes
from cloudsimfs.vfs.attributes import Owner
from cloudsimfs.vfs.handles import Handles
from cloudsimfs.vfs.recovery import Recovery
from cloudsimfs.vfs.rename import rename
from cloudsimfs.vfs.replay import replay
from cloudsimfs.vfs.tree import Tree
from cloudsimfs.writeback.fsyncer import Fsyncer
from cloudsimfs.writeback.queue import Runner
from cloudsimfs.writeback.uploads import Writeback


class FileSystem:
    """`on_change(directory, names)` is called, with no lock held, when a listing differs from the last one.

    `interrupted` tells whether the caller that waits on this thread has received a signal, `may_preview` whether
    previews may use API calls.
    """

    def __init__(
        self,
        config: Config,
        client: Client,
        clock: Clock,
        *,
        on_change: Callable[[str, set[str]], None],
        interrupted: Interrupted,
        may_preview: Callable[[], bool],
    ) -> None:
        self._directory = directory = config.cache_dir
        self._offline = offline = config.offline
        self.owner = Owner(config.uid, config.gid, config.umask)
        self.datacache = DataCache(directory, limit=cache_limit(directory, config.cache_size), client=client)
        self.listings = ListingStore(directory / "listings.db")
        self.dcache = _dcache(config, client, clock, self.listings, on_change, interrupted)
        self.journal = open_journal(directory)
        self.fsyncer = Fsyncer(self.datacache, self.journal)
        self.writeback = Writeback(
            client, self.journal, self.fsyncer, delay=config.write_back, offline=offline, clock=clock
        )
        self.tree = Tree(self.dcache, self.datacache, self.writeback, self.journal, owner=self.owner, clock=clock)
        remote = config.fsync == "remote"
        self.handles = Handles(
            self.tree, self.datacache, self.writeback, self.fsyncer, fsync_remote=remote, may_preview=may_preview
        )
        self.recovery = Recovery(self.tree, self.handles)

    # -- life --------------------------------------------------------------------------------------------

    def check(self) -> None:
        """List the root, which proves URL and key. Raises the ServiceError of that call."""
        self.dcache.check()

    @property
    def was_listed(self) -> bool:
        """Whether the root was ever listed. If so, the storage can be shown as it was listed, without the service."""
        return self.dcache.knows(paths.ROOT)

    @property
    def pending(self) -> int:
        """How many uploads and deletes are not on the service yet."""
        return len(self.writeback.pending())

    def restore(self) -> None:
        """Restore what was pending when the last mount of the directory ended. Called before `start`."""
        adoption.settle(self._directory, self.journal)
        replay(self.tree)

    def start(self, runners: Mapping[str, Runner]) -> None:
        """Start the threads, after the process has forked. `runners` run the jobs of kind "upload" and "delete"."""
        self.listings.start()
        self.fsyncer.start()
        if not self._offline:
            self.writeback.start(runners)

    def stop(self) -> None:
        """End the uploads, and fsync what was closed. What is pending stays in the journal."""
        self.writeback.stop()
        self.fsyncer.stop()

    def close(self) -> None:
        """Release the cache directory."""
        self.journal.close()
        self.datacache.close()
        self.dcache.close()

    # -- names -------------------------------------------------------------------------------------------

    def mkdir(self, path: str, perm: int) -> None:
        """Raises Exists."""
        changes.mkdir(self.tree, path, perm)

    def unlink(self, path: str) -> None:
        """Raises NotFound, IsDirectory."""
        changes.unlink(self.tree, path)

    def rmdir(self, path: str) -> None:
        """Raises NotFound, NotEmpty, NotDirectory, WrongState for the root."""
        changes.rmdir(self.tree, path)

    def rename(self, old: str, new: str, *, replace_target: bool = True) -> None:
        """rename(2). Raises Exists with `replace_target` off (RENAME_NOREPLACE), and what the man page lists."""
        rename(self.tree, old, new, replace_target=replace_target)

    def usage(self) -> tuple[int, int]:
        """The bytes that are stored, as far as listings show, and the bytes that still fit here."""
        return self.dcache.bytes_known, self.datacache.free_space


def _dcache(
    config: Config,
    client: Client,
    clock: Clock,
    store: ListingStore,
    on_change: Callable[[str, set[str]], None],
    interrupted: Interrupted,
) -> DCache:
    return DCache(
        client,
        store,
        ttl=config.ttl * (1 - KERNEL_SHARE),
        clock=clock,
        offline=config.offline,
        bulk=config.api != "v2",
        on_change=on_change,
        interrupted=interrupted,
    )
