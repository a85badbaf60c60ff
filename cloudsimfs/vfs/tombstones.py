"""Names that were removed here: a tombstone hides what the service still lists under them, until a listing agrees.

`uploader.delete` has the service delete what a tombstone names; what it asks, and says of the outcome, is below.

Locks: what makes and takes tombstones away is called with the tree's lock held, in a transaction (`Tree.changing`);
what `uploader.delete` calls, with none.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from cloudsimfs import paths
from cloudsimfs.errors import NotDirectory, NotFound
from cloudsimfs.inode import Inode, Tombstone
from cloudsimfs.listings.dcache import DCache
from cloudsimfs.service.model import Entry
from cloudsimfs.vfs.evidence import is_later
from cloudsimfs.vfs.names import unknown_file, unknown_folder
from cloudsimfs.vfs.tree import Tree

log = logging.getLogger(__name__)

# -- removing a name, and using it again -------------------------------------------------------------------


def tombstone_of(tree: Tree, inode: Inode) -> Tombstone | None:
    """What the inode's name needs when the inode leaves it; its upload is called off.

    None if the service has nothing there.
    """
    tree.keep_for_undo(inode)
    with inode.lock:
        begun = tree.writeback.call_off(inode)
        if inode.uploaded:
            tree.stored(inode)  # its folders are the service's too, or will be: what has begun may land any time
            tombstone = Tombstone(inode.path, None)
            tombstone.since = None if begun else tree.monotonic()
            return tombstone
        return None if inode.entry is None else Tombstone(inode.path, inode.entry)


def bury(tree: Tree, tombstone: Tombstone, *, after: Iterable[Inode] = ()) -> None:
    """Hide a name and have it deleted on the service."""
    tree.overlay.put(tombstone.path, tombstone)
    tree.pending_deletes.add(tombstone, after=after)


def bury_folder(tree: Tree, path: str, entry: Entry, *, empty: bool) -> None:
    """Replace the pending deletes inside a removed folder by one delete of the folder."""
    tombstone = Tombstone(path, entry, is_dir=True)
    after: set[Inode] = set()
    for below, item in tree.overlay.below(path):
        if isinstance(item, Tombstone) and not item.done:
            tree.pending_deletes.call_off(item)  # one that has begun may never end: it is asked for again
            tombstone.below += item.below if item.is_dir else [item.entry or unknown_file(below)]
            after |= item.after
            tree.overlay.pop(below)
            tree.journal.drop_tombstone(below)
    tree.overlay.put(path, tombstone)
    if tombstone.below or (empty and entry.id):
        tree.pending_deletes.add(tombstone, after=after)
    else:  # its files were deleted one by one: the service has no empty folders
        tombstone.finish(tree.monotonic())
        tree.pending_deletes.save(tombstone)


def claim_for_file(tree: Tree, path: str) -> tuple[Entry | None, bool]:
    """A file is made under a name that was removed here before.

    It will overwrite what is stored there, so the pending delete is called off; a removed folder's delete becomes one
    of its files each. Returns what is known to be stored under the name, and whether more than that may be.
    """
    tombstone = tree.overlay.get(path)
    if not isinstance(tombstone, Tombstone):
        return None, False
    begun = not _take_back(tree, tombstone)
    if tombstone.is_dir:
        return None, False
    return tombstone.entry, begun or tombstone.entry is None


def claim_for_folder(tree: Tree, path: str) -> Tombstone | None:
    """A folder is made under a name that was removed here before; a removed folder's delete becomes one of its files
    each. A folder overwrites nothing: a removed file's delete goes on, and what is returned the folder `covers`.
    """
    tombstone = tree.overlay.get(path)
    if not isinstance(tombstone, Tombstone):
        return None
    if not tombstone.is_dir:
        tree.overlay.pop(path)
        return tombstone
    _take_back(tree, tombstone)
    return None


def leave_folder(tree: Tree, path: str) -> bool:
    """A folder leaves its name. True if a removed file has it again: what was in the folder then goes file by file,
    for there is one tombstone a name.
    """
    item = tree.overlay.pop(path)
    tree.journal.drop_folder(path)
    tree.attributes.forget(path)
    if not isinstance(item, Inode) or item.hides is None:
        return False
    tree.overlay.put(path, item.hides)
    return True


def _take_back(tree: Tree, tombstone: Tombstone) -> bool:
    """The name is free again. False if its delete may be too late to call off."""
    tree.overlay.pop(tombstone.path)
    in_time = tree.pending_deletes.call_off(tombstone)
    tree.journal.drop_tombstone(tombstone.path)
    _hide_files(tree, tombstone)
    return in_time


def _hide_files(tree: Tree, tombstone: Tombstone) -> None:
    """What was in a removed folder is removed file by file; if that is done, it only stays hidden."""
    for entry in tombstone.below:
        removed = Tombstone(entry.path, entry if entry.id else None)
        if tombstone.done:
            removed.finish(tree.monotonic())
            tree.overlay.put(entry.path, removed)
            tree.pending_deletes.save(removed)
        else:
            bury(tree, removed, after=tombstone.after)
        _hide_folders(tree, entry.path, below=tombstone.path)


def _hide_folders(tree: Tree, path: str, *, below: str) -> None:
    """The removed folders between a removed file and `below` stay hidden until the service has forgotten them."""
    folder = paths.parent(path)
    while folder != below and tree.overlay.get(folder) is None:
        tombstone = Tombstone(folder, unknown_folder(folder), is_dir=True)
        tombstone.finish(tree.monotonic())
        tree.overlay.put(folder, tombstone)
        tree.pending_deletes.save(tombstone)
        folder = paths.parent(folder)


# -- what one delete asks and says ------------------------------------------------------------------------


def only_holds(dcache: DCache, tombstone: Tombstone, since: float) -> bool:
    """Whether a removed folder holds nothing but what was deleted here.

    By listings asked for after `since` (monotonic seconds).
    """
    ours = {entry.path: entry for entry in tombstone.below}
    dcache.look_into({tombstone.path, *(entry.dirname for entry in tombstone.below)}, since=since)

    def was_removed(entry: Entry) -> bool:
        removed = ours.get(entry.path)
        return removed is not None and (not removed.id or removed.fingerprint == entry.fingerprint)

    def check(directory: str) -> bool:
        try:
            names = dcache.listing(directory, since=since).names
        except NotFound:
            return True
        except NotDirectory:
            return False  # a file has its name: what is left inside goes file by file
        return all(check(entry.path) if entry.is_dir else was_removed(entry) for entry in names.values())

    return check(tombstone.path)


def was_replaced(dcache: DCache, entry: Entry) -> bool:
    """Whether others have stored a later file in place of a removed one, as the listing at hand shows."""
    listing = dcache.at_hand(entry.dirname)
    found = None if listing is None else listing.names.get(entry.name)
    if found is None or found.is_dir or not is_later(entry, found):
        return False
    log.warning("/%s was removed here, and others have stored it anew: theirs stays", entry.path)
    return True


def deleted(tree: Tree, tombstone: Tombstone) -> None:
    """The service has acknowledged a delete; its tombstone stays until a listing agrees."""
    if not tombstone.is_dir:
        return
    tree.dcache.forget(tombstone.path)
    with tree.lock, tree.journal.transaction():
        if tombstone.others_stay and tree.overlay.get(tombstone.path) is tombstone:
            tree.overlay.pop(tombstone.path)
            tree.journal.drop_tombstone(tombstone.path)
            _hide_files(tree, tombstone)


def kept(tree: Tree, tombstone: Tombstone) -> None:
    """The service does not delete it: the name has again what is listed under it."""
    with tree.lock, tree.journal.transaction():
        item = tree.overlay.get(tombstone.path)
        if item is tombstone:
            tree.overlay.pop(tombstone.path)
        if isinstance(item, Inode) and item.hides is tombstone:
            item.hides = None
        if item is tombstone or not isinstance(item, Tombstone):
            tree.journal.drop_tombstone(tombstone.path)
    tree.refresh(tombstone.path)
    if tombstone.is_dir:
        tree.dcache.forget(tombstone.path)  # some of it may be gone
