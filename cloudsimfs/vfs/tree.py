"""The namespace: listings with the local overlay on top; lookup, readdir, attributes, open and close.

What changes names is in `changes` and `rename`; what is left of a removed one in `tombstones`.

Lock order: Tree.lock > Inode.lock > Content.lock > WorkQueue.lock > Journal.lock, taken left to right only.
`Tree.lock` protects the overlay, the local attributes and the fields of inodes marked so; no listing is fetched under
it: a method first gets the listing, then takes the lock and looks again.
"""

from __future__ import annotations

import logging
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from cloudsimfs import paths
from cloudsimfs.clock import Clock
from cloudsimfs.datacache.cache import DataCache
from cloudsimfs.datacache.content import Content
from cloudsimfs.errors import CloudsimfsError, IsDirectory, NotDirectory, NotFound, ServiceError, TryAgain, WrongState
from cloudsimfs.inode import Attr, Inode, LocalAttr, Tombstone, WriteState
from cloudsimfs.journal.journal import Journal
from cloudsimfs.listings.cache import Listing
from cloudsimfs.listings.dcache import DCache
from cloudsimfs.service.model import Entry
from cloudsimfs.vfs.attrs import LocalAttrs
from cloudsimfs.vfs.evidence import is_ours
from cloudsimfs.vfs.names import HIDDEN_PREFIX, unknown_folder
from cloudsimfs.vfs.overlay import Item, Overlay, Verdict
from cloudsimfs.writeback.uploads import Writeback

log = logging.getLogger(__name__)

Node = Inode | Entry
ROOT_ENTRY = Entry(0, paths.ROOT, paths.ROOT, is_dir=True)


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose the files are and what their permission bits leave out."""

    uid: int
    gid: int
    umask: int


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
        self.attrs = LocalAttrs(journal.attrs(), journal.on_rollback)  # guarded by lock
        self._held = ExitStack()  # the inodes' locks of the step under way (`changing`); guarded by lock
        self.dcache = dcache
        self.datacache = datacache
        self.writeback = writeback
        self.pending_deletes = writeback.deletes
        self.dependents = writeback.dependents
        self.journal = journal
        self._owner = owner
        self._clock = clock
        self._born_ns = self.now_ns()
        self.born_at = self.monotonic()  # listings asked for later may have news of what the journal speaks of
        self._touched: dict[str, int] = {}  # when names in a directory last changed here, ns; guarded by lock
        self._seen: dict[str, float] = {}  # asked_at of the last listing reconciled; guarded by lock

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def now_ns(self) -> int:
        return int(self._clock.now() * 1e9)

    # -- looking things up -------------------------------------------------------------------------------

    def lookup(self, path: str) -> Node:
        """The inode or entry of a path. Raises NotFound, or the ServiceError of a listing that cannot be had."""
        if path == paths.ROOT:
            return ROOT_ENTRY
        with self.lock:
            item = self.overlay.get(path)
            if isinstance(item, Inode) and item.has_local_truth:
                return item
        directory, name = paths.split(path)
        try:
            names = self.listing(directory).names
        except ServiceError:
            if isinstance(item, Inode):
                return item
            raise
        with self.lock:
            item = self.overlay.get(path)
            if isinstance(item, Inode):
                return item
            entry = names.get(name)
            if entry is None and self.overlay.implies(path):
                entry = unknown_folder(path)
            if entry is None or isinstance(item, Tombstone):
                raise NotFound(f"/{path}")
            return entry

    def listing(self, directory: str) -> Listing:
        """What the service lists there; nothing, without a call, for a folder that only exists here."""
        with self.lock:
            item = self.overlay.get(directory)
            if isinstance(item, Tombstone):
                raise NotFound(f"/{directory}")
            if isinstance(item, Inode) and item.is_dir and item.entry is None:
                return Listing({}, 0.0)
        try:
            listing = self.dcache.listing(directory)
        except (NotFound, NotDirectory):
            if item is None and not self.overlay.implies(directory):
                raise
            return Listing({}, 0.0)  # made here, and the service does not show it yet, or still a file removed here
        except ServiceError:
            if not (isinstance(item, Inode) and item.is_dir and item.entry is not None and not item.entry.id):
                raise
            return Listing({}, 0.0)  # made here, and no listing has ever shown it: what is here is all that is known
        with self.lock:
            if self._seen.get(directory) != listing.asked_at:
                self._seen[directory] = listing.asked_at
                for verdict in self.overlay.reconcile(directory, listing.names, listing.asked_at):
                    self._act_on(verdict)
        return listing

    def readdir(self, path: str, *, hidden: bool = False) -> list[tuple[str, Attr]]:
        """The names in a directory, with their attributes. Raises NotDirectory or as `lookup`.

        With `hidden` also what was unlinked while open.
        """
        if not is_dir(self.lookup(path)):
            raise NotDirectory(f"/{path}")
        listing = self.listing(path)
        self.dcache.was_read(path)
        with self.lock:
            return [
                (name, self.attr(paths.join(path, name), node))
                for name, node in self.overlay.merge(path, listing.names)
                if hidden or not name.startswith(HIDDEN_PREFIX)
            ]

    def _act_on(self, verdict: Verdict) -> None:
        if verdict.damaged and isinstance(verdict.item, Inode) and verdict.entry is not None:
            self._resend(verdict.item, verdict.entry)
        else:
            self._retire(verdict.item, verdict.entry)

    def _retire(self, item: Item, entry: Entry | None) -> None:
        """A listing settles an overlay item, or what one hides. The caller holds the lock."""
        if self.overlay.get(item.path) is item:
            self.overlay.pop(item.path)
        if isinstance(item, Tombstone):
            self.journal.drop_tombstone(item.path)
            return
        if item.is_dir:
            self.journal.drop_folder(item.path)
            return
        with item.lock:
            if item.state is WriteState.STORED and item.attr.ino is not None:
                with self.journal.transaction():
                    self.journal.drop_file(item.attr.ino)
                    self._confirm(item, entry)
            same = entry is not None and item.entry is not None and entry.fingerprint == item.entry.fingerprint
            if item.opens and item.state is WriteState.CLEAN:
                if same:
                    self.overlay.put(item.path, item)  # still open: new opens share it
                else:
                    item.replaced = not item.unlinked

    def _resend(self, inode: Inode, entry: Entry) -> None:
        """The service has lost bytes of what it acknowledged: they are still here. The caller holds the lock."""
        log.warning("/%s: the service lists %d bytes of %d; it is uploaded again", inode.path, entry.size, inode.size)
        with inode.lock:
            inode.transition("damaged")
            self.writeback.enqueue(inode)

    def _confirm(self, inode: Inode, entry: Entry | None) -> None:
        """The service lists what we stored, or what others did after us; None: they removed it.

        The caller holds both locks.
        """
        assert inode.content is not None
        if entry is not None and is_ours(inode, entry):
            self.datacache.accept_as(entry, inode.content)
            inode.attr.version = entry.fingerprint
            self.keep_attr(inode.path, inode.attr)
        else:
            inode.unlinked = True
            self._drop_content(inode)
        inode.transition("confirmed")
        inode.rebase(entry, uploaded=False, at=self.monotonic())
        inode.closed_size = None

    def _drop_content(self, inode: Inode) -> None:
        if inode.opens == 0:
            for content in (inode.content, inode.closed_content):
                if content is not None:
                    self.journal.on_commit(content.drop)

    # -- attributes --------------------------------------------------------------------------------------

    def getattr(self, path: str) -> Attr:
        node = self.lookup(path)
        with self.lock:
            return self.attr(path, node)

    def attr(self, path: str, node: Node) -> Attr:
        entry = node.entry if isinstance(node, Inode) else node
        local = node.attr if isinstance(node, Inode) else self.attrs.get(path)
        folder = is_dir(node)
        perm = (0o755 if folder else 0o644) & ~self._owner.umask
        mtime = entry.mtime_ns if entry is not None and entry.mtime_ns is not None else self._born_ns
        atime, uid, gid = mtime, self._owner.uid, self._owner.gid
        ino = local.ino if local is not None and local.ino else self.attrs.ino(path)
        if local is not None:
            perm = perm if local.perm is None else local.perm
            uid = uid if local.uid is None else local.uid
            gid = gid if local.gid is None else local.gid
            if folder or local.version is None or entry is None or local.version == entry.fingerprint:
                mtime = mtime if local.mtime_ns is None else local.mtime_ns
                atime = mtime if local.atime_ns is None else local.atime_ns
        if folder:
            mtime = max(mtime, self._touched.get(path, 0))
        kind = stat.S_IFDIR if folder else stat.S_IFREG
        return Attr(ino, kind | perm, 0 if folder else node.size, mtime, atime, mtime, uid, gid)

    def set_attr(self, path: str, **changes: int) -> None:
        """Keep `perm`, `uid`, `gid`, `mtime_ns`, `atime_ns` (those given) of a path here."""
        node = self.lookup(path)
        with self.lock:
            local = replace(self.local_attr(path, node))
            if {"mtime_ns", "atime_ns"} & changes.keys():
                local.version = stored_version(node)
            for name, value in changes.items():
                setattr(local, name, value)
            if isinstance(node, Inode):
                with node.lock:
                    node.attr = local
            self.keep_attr(path, local)
            if "mtime_ns" in changes:
                self._touched.pop(path, None)

    def local_attr(self, path: str, node: Node) -> LocalAttr:
        """The attributes kept here for a path. The caller holds the lock."""
        if isinstance(node, Inode):
            return node.attr
        return self.attrs.get(path) or LocalAttr()

    # -- open and close ----------------------------------------------------------------------------------

    def open(self, path: str, *, write: bool, truncate: bool = False) -> Inode:
        """The inode of a file, counted as open once more. Raises IsDirectory or as `lookup`."""
        node = self.lookup(path)
        if is_dir(node):
            raise IsDirectory(f"/{path}")
        with self.lock:
            inode = self.inode_of(path, node)
            self.pin(inode, replaced=truncate)  # may fail: before it counts as open
            inode.opens += 1
            inode.writers += write
        return inode

    def fetch_size(self, path: str) -> bool:
        """Have the size of a file whose listing did not tell it, before anything is built on it: True if it did not.

        Raises as `lookup`, or the ServiceError of asking.
        """
        node = self.lookup(path)
        entry = node.entry if isinstance(node, Inode) else node
        if entry is None or entry.sized or entry.is_dir:
            return False
        found = self.dcache.fetch_size(entry)
        if isinstance(node, Inode):
            with node.lock:
                if node.content is None and node.entry == entry:
                    node.entry = found
        return True

    def inode_of(self, path: str, node: Node | None) -> Inode:
        """The one inode of a path. The caller holds the lock."""
        item = self.overlay.get(path)
        if isinstance(item, Inode):
            return item
        if isinstance(node, Inode):  # a listing has settled it meanwhile, or its last reader closed it
            node = node.entry if not node.unlinked and node.entry is not None and node.path == path else None
        if isinstance(item, Tombstone) or node is None:
            raise NotFound(f"/{path}")  # it went while the listing was fetched
        attr = replace(self.attrs.get(path) or LocalAttr(), ino=self.attrs.ino(path))
        inode = Inode(path, is_dir=node.is_dir, entry=node, attr=attr)
        inode.based_at = self.monotonic()
        self.overlay.put(path, inode)
        return inode

    def pin(self, inode: Inode, *, replaced: bool = False) -> None:
        """Have the content's backing file open. The caller holds the lock."""
        with inode.lock:
            if not inode.pinned:
                self.content_of(inode, replaced=replaced).acquire()
                inode.pinned = True

    def content_of(self, inode: Inode, *, replaced: bool = False) -> Content:
        """The inode's content; if that is going to be `replaced`, its size need not be known (`measure`).

        The caller holds the inode's lock.
        """
        if inode.content is None:
            assert inode.entry is not None
            if not (inode.entry.sized or replaced):
                raise TryAgain(f"/{inode.path}: its size is not known yet; try again")
            inode.content = self.datacache.for_entry(inode.entry)
        return inode.content

    def close(self, inode: Inode, *, write: bool, refusal: CloudsimfsError | None = None) -> None:
        """One handle less. After the last one that could write, what it wrote is queued for upload.

        `refusal` is what the commit of this handle's bytes has failed with, if it has: they are not uploaded.
        One step under the lock: who opens the file next finds it dirty with a writer, or queued, never in between.
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
                        self._drop_content(inode)
                    elif not inode.has_local_truth and self.overlay.get(inode.path) is inode:
                        self.overlay.pop(inode.path)

    def half_written(self) -> list[Inode]:
        """Files that were open for writing when the last daemon died: kept, and not uploaded."""
        with self.lock:
            dirty = [node for node in self.overlay.inodes() if node.state is WriteState.DIRTY and not node.opens]
            return sorted(dirty, key=lambda inode: inode.path)

    def give_up(self, inode: Inode) -> None:
        """What was written here and never closed goes; its name has what the service has."""
        with self.changing():
            if inode.opens:
                raise WrongState(f"/{inode.path} is open")
            self.overlay.pop(inode.path)
            self.detach(inode)
            self.forget_attr(inode.path)
        self.dcache.invalidate(paths.parent(inode.path))

    def replacing_size(self, inode: Inode) -> int | None:
        """The size of the version that has replaced an open one, None if it is not known without a call."""
        with self.lock:
            item = self.overlay.get(inode.path)
        if isinstance(item, Inode):
            return item.size
        directory, name = paths.split(inode.path)
        listing = self.dcache.known(directory)
        entry = None if listing is None or isinstance(item, Tombstone) else listing.names.get(name)
        return None if entry is None else entry.size

    # -- what changes need: all with the lock held ----------------------------------------------------------

    @contextmanager
    def changing(self) -> Iterator[None]:
        """One step that makes or removes names, in one transaction; if that fails, all is as it was."""
        with self.lock, ExitStack() as self._held, self.journal.transaction():
            yield

    def keep_for_undo(self, inode: Inode) -> None:
        """The inode is about to be changed in such a step: nobody else changes it before that has held or failed."""
        self._held.enter_context(inode.lock)
        self.journal.on_rollback(self.writeback.snapshot(inode))
        self.journal.on_rollback(inode.snapshot())

    def touch(self, directory: str) -> None:
        """Names in a directory have changed: so does its mtime."""
        self._touched[directory] = self.now_ns()

    def forget_attr(self, path: str) -> None:
        self.attrs.pop(path)
        self.journal.drop_attr(path)

    def keep_attr(self, path: str, attr: LocalAttr) -> None:
        self.attrs.put(path, attr)
        self.journal.save_attr(path, attr)

    def detach(self, inode: Inode) -> None:
        """The inode, taken from the overlay, has no name any more."""
        self.keep_for_undo(inode)
        with inode.lock:
            inode.unlinked = True
            self.writeback.removed(inode)
            if inode.attr.ino is not None:
                self.journal.drop_file(inode.attr.ino)
            if inode.state is not WriteState.CLEAN:
                self._drop_content(inode)

    def keep_folder(self, path: str, listing: Listing) -> None:
        """A folder that was just emptied stays, as on any filesystem, though the service forgets it."""
        self.touch(path)
        if path == paths.ROOT or isinstance(self.overlay.get(path), Inode):
            return
        hidden = len(self.overlay.inside(path))
        if len(listing.names) > hidden or any(True for _ in self.overlay.merge(path, listing.names)):
            return
        attr = self.attrs.get(path) or LocalAttr(ino=self.attrs.ino(path), mtime_ns=self.now_ns())
        self.overlay.put(path, Inode(path, is_dir=True, entry=unknown_folder(path), attr=attr))
        self.journal.save_folder(path)

    # -- what is told ------------------------------------------------------------------------------------

    def refresh(self, path: str) -> None:
        """The listing that shows this path is known to be out of date."""
        self.dcache.invalidate(paths.parent(path))

    def stored(self, inode: Inode) -> None:
        """A file is, or may be, on the service, and so are the folders above it: others may put files there too."""
        with self.lock:
            path = paths.parent(inode.path)
            while path != paths.ROOT:
                folder = self.overlay.get(path)
                if isinstance(folder, Inode) and folder.is_dir and folder.entry is None:
                    folder.entry = unknown_folder(path)
                path = paths.parent(path)


def is_dir(node: Node) -> bool:
    return node.is_dir


def stored_version(node: Node) -> tuple[int, int, int] | None:
    """The service's version that a node's times belong to; None while it is ours alone, and for folders."""
    if isinstance(node, Inode):
        entry = node.entry if node.state is WriteState.CLEAN else None
    else:
        entry = node
    return None if entry is None or entry.is_dir else entry.fingerprint
