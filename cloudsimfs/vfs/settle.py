"""What follows from a verdict: an item leaves the overlay, an upload is confirmed, or it is repeated.

Locks: Tree.lock is held by the caller; an inode's lock is taken here.
"""

from __future__ import annotations

import logging
from functools import partial

from cloudsimfs.clock import Clock
from cloudsimfs.datacache.cache import DataCache
from cloudsimfs.inode import Base, Inode, Tombstone, WriteState
from cloudsimfs.journal.journal import Journal
from cloudsimfs.service.model import Entry
from cloudsimfs.text import count
from cloudsimfs.vfs.attributes import Attributes
from cloudsimfs.vfs.evidence import is_late, is_ours, is_what_was_removed
from cloudsimfs.vfs.overlay import Item, Overlay, Verdict
from cloudsimfs.writeback.uploads import Writeback

log = logging.getLogger(__name__)


class Settlement:
    """Acts on the verdicts of one tree's overlay."""

    def __init__(
        self,
        overlay: Overlay,
        attributes: Attributes,
        datacache: DataCache,
        writeback: Writeback,
        journal: Journal,
        clock: Clock,
    ) -> None:
        self._deletes = writeback.deletes
        self._overlay = overlay
        self._attributes = attributes
        self._datacache = datacache
        self._writeback = writeback
        self._journal = journal
        self._clock = clock

    def settle(self, verdict: Verdict) -> None:
        """Act on what a listing has proved. The caller holds Tree.lock."""
        if verdict.damaged and isinstance(verdict.item, Inode):
            self._resend(verdict.item, verdict.entry)
        else:
            self._retire(verdict.item, verdict.entry)

    def _retire(self, item: Item, entry: Entry | None) -> None:
        """Remove an item that a listing ends, or a tombstone that a folder hides. The caller holds Tree.lock."""
        not_done = isinstance(item, Tombstone) and entry is not None and is_what_was_removed(item, entry)
        hides = self._overlay.get(item.path) is item
        if hides and not_done and isinstance(item, Tombstone) and self._deletes.repeat(item):
            return
        if hides:
            self._overlay.pop(item.path)
            if isinstance(item, Tombstone) and entry is None:
                self._forget_below(item.path)
        if isinstance(item, Tombstone):
            self._journal.drop_tombstone(item.path)
            if not_done:
                self._deletes.was_not_done(item)
            return
        if item.is_dir:
            self._journal.drop_folder(item.path)
            return
        with item.lock:
            if item.state is WriteState.STORED and item.attr.ino is not None:
                with self._journal.transaction():
                    self._journal.drop_file(item.attr.ino)
                    self._confirm(item, entry)
            same = entry is not None and item.entry is not None and entry.fingerprint == item.entry.fingerprint
            if item.opens and item.state is WriteState.CLEAN:
                if same:
                    self._overlay.put(item.path, item)  # still open: new opens share it
                else:
                    item.replaced = not item.unlinked

    def _forget_below(self, path: str) -> None:
        """Forget the tombstones below a name that is gone: no listing will be asked for there to end them."""
        below = self._overlay.below(path) if self._overlay.inside(path) else []
        for gone in [found for found, item in below if isinstance(item, Tombstone)]:
            self._overlay.pop(gone)
            self._journal.drop_tombstone(gone)

    def _resend(self, inode: Inode, entry: Entry | None) -> None:
        """Upload again what the service has lost, or replaced by an earlier upload. The caller holds Tree.lock.

        Where others may have replaced it, that upload goes beside theirs (`uploader.conflicts`).
        What no listing shows in time is uploaded once more only: others may have removed it, or the service hides it.
        """
        listed = "nothing" if entry is None else count(entry.size, "byte")
        log.warning("/%s: the service lists %s for %d bytes; it is uploaded again", inode.path, listed, inode.size)
        with inode.lock:
            inode.missed = True
            inode.transition_locked("damaged")
            if is_late(inode, self._clock.monotonic()):
                inode.settle_sent_locked()
            self._writeback.enqueue_locked(inode)

    def _confirm(self, inode: Inode, entry: Entry | None) -> None:
        """The service lists what we stored, or what others stored after us; None: they removed it.

        The caller holds Tree.lock and the inode's.
        """
        assert inode.content is not None
        if entry is not None and is_ours(inode, entry):
            self._datacache.accept_as(entry, inode.content)
            inode.attr.version = entry.fingerprint
            self._attributes.keep(inode.path, inode.attr)
        else:
            inode.unlinked = True
            drop_content(self._journal, self._datacache, inode)
        inode.transition_locked("confirmed")
        inode.rebase_locked(Base(entry))
        inode.closed_size = None


def drop_content(journal: Journal, datacache: DataCache, inode: Inode) -> None:
    """Discard the bytes of an inode that nobody has open, once the journal has committed its removal."""
    if inode.opens == 0:
        for content in (inode.content, inode.closed_content):
            if content is not None:
                journal.on_commit(partial(datacache.discard, content))
