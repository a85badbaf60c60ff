"""What follows from a verdict: an item leaves the overlay, an upload is confirmed, or it is done again.

Locks: Tree.lock is held by the caller; an inode's lock is taken here.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cloudsimfs.inode import Inode, Tombstone, WriteState
from cloudsimfs.service.model import Entry
from cloudsimfs.vfs.evidence import is_ours
from cloudsimfs.vfs.overlay import Item, Verdict

if TYPE_CHECKING:
    from cloudsimfs.vfs.tree import Tree

log = logging.getLogger(__name__)


def settle(tree: Tree, verdict: Verdict) -> None:
    """Do what a listing has proved. The caller holds the tree's lock."""
    if verdict.damaged and isinstance(verdict.item, Inode) and verdict.entry is not None:
        _resend(tree, verdict.item, verdict.entry)
    else:
        retire(tree, verdict.item, verdict.entry)


def retire(tree: Tree, item: Item, entry: Entry | None) -> None:
    """A listing settles an overlay item, or what one hides. The caller holds the lock."""
    if tree.overlay.get(item.path) is item:
        tree.overlay.pop(item.path)
    if isinstance(item, Tombstone):
        tree.journal.drop_tombstone(item.path)
        return
    if item.is_dir:
        tree.journal.drop_folder(item.path)
        return
    with item.lock:
        if item.state is WriteState.STORED and item.attr.ino is not None:
            with tree.journal.transaction():
                tree.journal.drop_file(item.attr.ino)
                _confirm(tree, item, entry)
        same = entry is not None and item.entry is not None and entry.fingerprint == item.entry.fingerprint
        if item.opens and item.state is WriteState.CLEAN:
            if same:
                tree.overlay.put(item.path, item)  # still open: new opens share it
            else:
                item.replaced = not item.unlinked


def _resend(tree: Tree, inode: Inode, entry: Entry) -> None:
    """The service has lost bytes of what it acknowledged: they are still here. The caller holds the lock."""
    log.warning("/%s: the service lists %d bytes of %d; it is uploaded again", inode.path, entry.size, inode.size)
    with inode.lock:
        inode.transition("damaged")
        tree.writeback.enqueue(inode)


def _confirm(tree: Tree, inode: Inode, entry: Entry | None) -> None:
    """The service lists what we stored, or what others did after us; None: they removed it.

    The caller holds both locks.
    """
    assert inode.content is not None
    if entry is not None and is_ours(inode, entry):
        tree.datacache.accept_as(entry, inode.content)
        inode.attr.version = entry.fingerprint
        tree.attributes.keep(inode.path, inode.attr)
    else:
        inode.unlinked = True
        tree.drop_content(inode)
    inode.transition("confirmed")
    inode.rebase(entry, uploaded=False, at=tree.monotonic())
    inode.closed_size = None
