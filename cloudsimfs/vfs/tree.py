"""The namespace: listings with the local overlay on top; lookup, readdir, attributes, open and close.

Names are changed in `changes` and `rename`; removed names are in `tombstones`.

Locks: `Tree.lock` protects the overlay, the local attributes and the fields of inodes that are marked so. No listing
is fetched under it: a method first gets the listing, then takes the lock and looks again. It is the first lock of
the order: Tree.lock > Inode.lock > Content.lock > DataCache._lock > WorkQueue.lock > Journal.lock, taken left to
right only (docs/architecture.md, "Locks").
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

from cloudsimfs import paths
from cloudsimfs.clock import Clock
from cloudsimfs.datacache.cache import DataCache
from cloudsimfs.datacache.content import Content
from cloudsimfs.errors import (
    CloudsimfsError,
    IsDirectory,
    NoSuchEntry,
    NotDirectory,
    NotFound,
    ServiceError,
    TryAgain,
    WrongState,
)
from cloudsimfs.inode import Attr, Inode, LocalAttr, Node, Tombstone, WriteState
from cloudsimfs.journal.journal import Journal
from cloudsimfs.journal.rows import Kept
from cloudsimfs.listings.cache import Listing
from cloudsimfs.listings.dcache import DCache
from cloudsimfs.service.model import Entry
from cloudsimfs.vfs.attributes import Attributes, Owner, stored_fingerprint
from cloudsimfs.vfs.names import HIDDEN_PREFIX, unknown_folder
from cloudsimfs.vfs.overlay import Overlay
from cloudsimfs.vfs.settle import Settlement, drop_content
from cloudsimfs.writeback.uploads import Writeback

log = logging.getLogger(__name__)

ROOT_ENTRY = Entry(0, paths.ROOT, paths.ROOT, is_dir=True)


class Tree:
    def __init__(
        self,
        dcache: DCache,
        datacache: DataCache,
        writeback: Writeback,
        journal: Journal,
        *,
        owner: Owner,
        clock: Clock,
    ) -> None:
        self.lock = threading.RLock()
        self.overlay = Overlay(journal.on_rollback)  # guarded by lock
        self.attributes = Attributes(journal, owner=owner, clock=clock)  # guarded by lock
        self._held = ExitStack()  # inode locks of the step under way (`changing`); guarded by lock
        self.dcache = dcache
        self.datacache = datacache
        self.writeback = writeback
        self.pending_deletes = writeback.deletes
        self.dependents = writeback.dependents
        self.journal = journal
        self._clock = clock
        self._settlement = Settlement(self.overlay, self.attributes, datacache, writeback, journal, clock)
        self.born_at = self.monotonic()  # only a listing asked for later has news of replayed files
        self._seen: dict[str, float] = {}  # by directory: asked_at of its last reconciled listing; guarded by lock

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def now_ns(self) -> int:
        return int(self._clock.now() * 1e9)

    # -- looking things up -------------------------------------------------------------------------------

    def lookup(self, path: str) -> Node:
        """The inode or entry of a path. Raises NotFound, or the ServiceError of a listing that fails."""
        if path == paths.ROOT:
            return ROOT_ENTRY
        with self.lock:
            item = self.overlay.get(path)
            if isinstance(item, Inode) and item.has_local_truth:
                return item
            is_ours = item is not None or self.overlay.implies(path)
        directory, name = paths.split(path)
        try:
            listing = self.listing(directory)
            entry = listing.names.get(name) if is_ours else self.dcache.named(listing, path, stale=True)
        except ServiceError:
            if isinstance(item, Inode):
                return item
            if is_ours and item is None:
                return unknown_folder(path)  # something is below it here, whatever the service has
            raise
        with self.lock:
            item = self.overlay.get(path)
            if isinstance(item, Inode):
                return item
            if entry is None and self.overlay.implies(path):
                entry = unknown_folder(path)
            if entry is None or isinstance(item, Tombstone):
                raise NotFound(f"/{path}")
            return entry

    def listing(self, directory: str) -> Listing:
        """What the service lists in a directory; empty, without a call, for a folder that only exists here.

        Raises NotFound, NotDirectory, or the ServiceError of the call.
        """
        with self.lock:
            item = self.overlay.get(directory)
            if isinstance(item, Tombstone):
                raise NotFound(f"/{directory}")
            only_here = isinstance(item, Inode) and item.is_dir and item.entry is None
        if only_here:
            return self._not_listed(directory)
        try:
            listing = self.dcache.listing(directory)
        except (NotFound, NotDirectory):
            if item is None and not self.overlay.implies(directory):
                raise
            return self._not_listed(directory)  # made here, or still listed as a file that was removed here
        except ServiceError:
            if not (isinstance(item, Inode) and item.is_dir and item.entry is not None and not item.entry.id):
                raise
            return Listing({}, 0.0, complete=False)  # made here and never listed: nothing else is known of it
        with self.lock:
            is_news = listing.complete and self._seen.get(directory) != listing.asked_at
            if is_news and not self.overlay.hides_file(directory):
                self._seen[directory] = listing.asked_at
                for verdict in self.overlay.reconcile(directory, listing.names, listing.asked_at):
                    self._settlement.settle(verdict)
        return listing

    def _not_listed(self, directory: str) -> Listing:
        """The listing of a folder that the service does not list. What was stored in it long ago is lost."""
        listing = self.dcache.absence(directory)
        with self.lock:
            for verdict in self.overlay.lost(directory, listing.asked_at):
                self._settlement.settle(verdict)
        return listing

    def whole_listing(self, directory: str) -> Listing:
        """A complete listing: what it lacks is not there. Raises TryAgain if there is none, or as `listing`."""
        listing = self.listing(directory)
        if not listing.complete:
            with suppress(NotFound, NotDirectory):
                self.dcache.listing(directory, since=self.monotonic())
            listing = self.listing(directory)
        if not listing.complete:
            raise TryAgain(f"/{directory}: others change it all the time; its names cannot be listed for certain")
        return listing

    def readdir(self, path: str, *, hidden: bool = False) -> list[tuple[str, Attr]]:
        """The names in a directory, with their attributes. Raises NotDirectory or as `lookup`.

        With `hidden` it includes files that were unlinked while open.
        """
        if not self.lookup(path).is_dir:
            raise NotDirectory(f"/{path}")
        listing = self.listing(path)
        self.dcache.was_read(path)
        with self.lock:
            return [
                (name, self.attributes.of(paths.join(path, name), node))
                for name, node in self.overlay.merge(path, listing.names)
                if hidden or not name.startswith(HIDDEN_PREFIX)
            ]

    # -- attributes --------------------------------------------------------------------------------------

    def getattr(self, path: str) -> Attr:
        node = self.lookup(path)
        with self.lock:
            return self.attributes.of(path, node)

    def set_attr(self, path: str, **changes: int) -> None:
        """Set `perm`, `uid`, `gid`, `mtime_ns`, `atime_ns` (those given) of a path. They stay on this machine."""
        node = self.lookup(path)
        with self.lock:
            local = replace(self.attributes.local(path, node))
            if {"mtime_ns", "atime_ns"} & changes.keys():
                local.version = stored_fingerprint(node)
            for name, value in changes.items():
                setattr(local, name, value)
            if isinstance(node, Inode):
                with node.lock:
                    node.attr = local
            self.attributes.keep(path, local)
            if "mtime_ns" in changes:
                self.attributes.untouch(path)

    # -- open and close ----------------------------------------------------------------------------------

    def open(self, path: str, *, write: bool, truncate: bool = False) -> Inode:
        """The inode of a file, counted as open once more. Raises IsDirectory or as `lookup`."""
        node = self.lookup(path)
        if node.is_dir:
            raise IsDirectory(f"/{path}")
        with self.lock:
            inode = self.inode_of_locked(path, node)
            self.pin_locked(inode, replaced=truncate)  # this may fail, so it comes before the inode counts as open
            inode.opens += 1
            inode.writers += write
        return inode

    def fetch_size(self, path: str) -> bool:
        """Fetch the size of a file if its listing lacks it. Returns whether it was lacking.

        Raises as `lookup`, or the ServiceError of the call. NotFound if a new listing does not show the file either.
        """
        node = self.lookup(path)
        entry = node.entry if isinstance(node, Inode) else node
        if entry is None or entry.sized or entry.is_dir:
            return False
        try:
            sized = self.dcache.fetch_size(entry)
        except NoSuchEntry as error:
            if not self.lists_still(entry):
                raise NotFound(f"/{path}") from error
            raise ServiceError(f"/{path}: the service lists it, and answers that it is not there") from error
        if isinstance(node, Inode):
            with node.lock:
                if node.content is None and node.entry == entry:
                    node.entry = sized
        return True

    def inode_of_locked(self, path: str, node: Node | None) -> Inode:
        """The one inode of a path, made if there is none. The caller holds the lock. Raises NotFound."""
        item = self.overlay.get(path)
        if isinstance(item, Inode):
            return item
        if isinstance(node, Inode):  # by now a listing has settled it, or its last reader has closed it
            node = node.entry if not node.unlinked and node.entry is not None and node.path == path else None
        if isinstance(item, Tombstone) or node is None:
            raise NotFound(f"/{path}")  # it was removed while the listing was fetched
        attr = replace(self.attributes.get(path) or LocalAttr(), ino=self.attributes.ino(path))
        inode = Inode(path, is_dir=node.is_dir, entry=node, attr=attr)
        self.overlay.put(path, inode)
        return inode

    def pin_locked(self, inode: Inode, *, replaced: bool = False) -> None:
        """Acquire the content: its backing file stays open. The caller holds the lock. Raises as `content_of`."""
        with inode.lock:
            if not inode.pinned:
                self.content_of_locked(inode, replaced=replaced).acquire()
                inode.pinned = True

    def content_of_locked(self, inode: Inode, *, replaced: bool = False) -> Content:
        """The inode's content. Its size must be known (`fetch_size`), unless all of it is about to be `replaced`.

        The caller holds the inode's lock. Raises TryAgain if the size is not known.
        """
        if inode.content is None:
            assert inode.entry is not None
            if not (inode.entry.sized or replaced):
                raise TryAgain(f"/{inode.path}: its size is not known yet; try again")
            inode.content = self.datacache.for_entry(inode.entry)
        return inode.content

    def close(self, inode: Inode, *, write: bool, refusal: CloudsimfsError | None = None) -> None:
        """Count one handle less. After the last one that could write, queue the file for upload.

        `refusal` is the error of the commit of this handle's bytes, if it failed: they are not uploaded. This is one
        step under the lock: the next open finds the file dirty with a writer, or queued, never in between.
        """
        with self.lock:
            inode.opens -= 1
            inode.writers -= write
            try:
                if write and inode.writers == 0:
                    self.writeback.close(inode, refusal)
            finally:
                self._closed(inode)

    def _closed(self, inode: Inode) -> None:
        with self.lock:
            if inode.opens == 0:
                with inode.lock:
                    if inode.pinned and inode.content is not None:
                        inode.content.release()
                    inode.pinned = False
                    if inode.unlinked:
                        drop_content(self.journal, self.datacache, inode)
                    elif not inode.has_local_truth and self.overlay.get(inode.path) is inode:
                        self.overlay.pop(inode.path)

    def half_written(self) -> list[Inode]:
        """Files that were open for writing when the last daemon died: kept, and not uploaded."""
        with self.lock:
            dirty = [node for node in self.overlay.inodes() if node.state is WriteState.DIRTY and not node.opens]
            return sorted(dirty, key=lambda inode: inode.path)

    def without_record(self) -> list[str]:
        """The paths of closed files whose record was lost with the journal: kept, and not uploaded."""
        return [row.path for row in self.journal.drafts() if row.kept is Kept.FOUND_CLOSED]

    def give_up(self, inode: Inode) -> None:
        """Discard what was written here and never closed: the name shows what the service has. Raises WrongState."""
        with self.changing():
            if inode.opens:
                raise WrongState(f"/{inode.path} is open")
            self.overlay.pop(inode.path)
            self.detach(inode)
            self.attributes.forget(inode.path)
        self.dcache.invalidate(paths.parent(inode.path))

    def replacing_size(self, inode: Inode) -> int | None:
        """The size of the version that has replaced an open one. None if that would take a call."""
        with self.lock:
            item = self.overlay.get(inode.path)
        if isinstance(item, Inode):
            return item.size
        directory, name = paths.split(inode.path)
        listing = self.dcache.known(directory)
        entry = None if listing is None or isinstance(item, Tombstone) else listing.names.get(name)
        return None if entry is None else entry.size

    # -- parts of a change, called with the lock held -------------------------------------------------------

    @contextmanager
    def changing(self) -> Iterator[None]:
        """One step that makes or removes names, in one transaction. If it fails, everything is as it was before."""
        with self.lock, ExitStack() as self._held, self.journal.transaction():
            yield

    def keep_for_undo(self, inode: Inode) -> None:
        """Lock the inode until the step (`changing`) has ended, and restore it if the step fails."""
        self._held.enter_context(inode.lock)
        self.journal.on_rollback(self.writeback.snapshot(inode))
        self.journal.on_rollback(inode.snapshot())

    def detach(self, inode: Inode) -> None:
        """Mark an inode that was taken from the overlay as unlinked, and drop what is pending of it."""
        self.keep_for_undo(inode)
        with inode.lock:
            inode.unlinked = True
            self.writeback.removed(inode)
            if inode.attr.ino is not None:
                self.journal.drop_file(inode.attr.ino)
            if inode.state is not WriteState.CLEAN:
                drop_content(self.journal, self.datacache, inode)

    def keep_folder(self, path: str, listing: Listing) -> None:
        """Keep a folder that was just emptied, as any filesystem does. The service forgets it.

        One that only holds files that were unlinked while open is empty as soon as the daemon dies.
        """
        self.attributes.touch(path)
        if path == paths.ROOT or isinstance(self.overlay.get(path), Inode):
            return
        hidden = len(self.overlay.inside(path))
        if len(listing.names) > hidden:
            return
        if any(not name.startswith(HIDDEN_PREFIX) for name, _ in self.overlay.merge(path, listing.names)):
            return
        attr = self.attributes.get(path) or LocalAttr(ino=self.attributes.ino(path), mtime_ns=self.now_ns())
        self.overlay.put(path, Inode(path, is_dir=True, entry=unknown_folder(path), attr=attr))
        self.journal.save_folder(path)

    # -- reports from elsewhere --------------------------------------------------------------------------

    def refresh(self, path: str) -> None:
        """Invalidate the listing that shows this path: it is out of date."""
        self.dcache.invalidate(paths.parent(path))

    def lists_still(self, entry: Entry) -> bool:
        """Whether a listing that is asked for now shows exactly this version. Raises the ServiceError of the call."""
        try:
            listed = self.dcache.entry(entry.path, since=self.monotonic())
        except NotDirectory:
            return False
        return listed is not None and listed.fingerprint == entry.fingerprint

    def stored(self, inode: Inode) -> None:
        """Note that a file may be on the service, and the folders above it: others may put files into them, too."""
        with self.lock:
            path = paths.parent(inode.path)
            while path != paths.ROOT:
                folder = self.overlay.get(path)
                if isinstance(folder, Inode) and folder.is_dir and folder.entry is None:
                    folder.entry = unknown_folder(path)
                path = paths.parent(path)
