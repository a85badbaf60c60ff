"""Names that were removed here: a tombstone hides what the service still lists under them, until a listing agrees.

`uploader.delete` has the service delete what a tombstone names; the functions that it calls are at the end.

Locks: functions that add or remove tombstones are called with Tree.lock held, in a transaction (`Tree.changing`).
Those that `uploader.delete` calls are called with no lock held.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial

from cloudsimfs import paths
from cloudsimfs.errors import NotDirectory, NotFound
from cloudsimfs.inode import Base, Inode, Tombstone
from cloudsimfs.listings.dcache import DCache
from cloudsimfs.service.model import Entry
from cloudsimfs.vfs.evidence import is_foreign_locked, is_later
from cloudsimfs.vfs.names import unknown_file, unknown_folder
from cloudsimfs.vfs.tree import Tree

log = logging.getLogger(__name__)

# -- removing a name, and using it again -------------------------------------------------------------------


def tombstone_of(tree: Tree, inode: Inode) -> Tombstone | None:
    """The tombstone that the inode's name needs when the inode leaves it. Its upload is called off.

    None if the service has nothing under the name.
    """
    tree.keep_for_undo(inode)
    with inode.lock:
        begun = tree.writeback.call_off(inode)
        if inode.uploaded:
            tree.stored(inode)  # an upload that has begun may be stored at any time, and its folders with it
            tombstone = Tombstone(inode.path, None)
            tombstone.base = inode.base_locked()
            tombstone.since = None if begun else tree.monotonic()
            return tombstone
        return None if inode.entry is None else Tombstone(inode.path, inode.entry)


def bury(tree: Tree, tombstone: Tombstone, *, after: Iterable[Inode] = ()) -> None:
    """Hide a name and have it deleted on the service."""
    tree.overlay.put(tombstone.path, tombstone)
    tree.pending_deletes.add(tombstone, after=after)


def bury_folder(
    tree: Tree, path: str, entry: Entry, *, empty: bool, files: Iterable[Tombstone] = (), after: Iterable[Inode] = ()
) -> None:
    """Replace the pending deletes inside a removed folder by one delete of the folder, once `after` are stored.

    `files` were in it until now. `empty`: the service lists nothing in it.
    """
    tombstone = Tombstone(path, entry, is_dir=True)
    tombstone.since, awaited = tree.monotonic(), set(after)
    for file in files:
        _take_over(tombstone, file)
    for below, item in tree.overlay.below(path):
        if isinstance(item, Tombstone) and not item.done:
            tree.pending_deletes.call_off(item)  # one that has begun may fail, so it is asked for again
            _take_over(tombstone, item)
            awaited |= item.after
            if item.is_dir and not item.below:
                hide_folder(tree, below)  # none of its files will tell of it (`_hide_folders`)
                continue
            tree.overlay.pop(below)
            tree.journal.drop_tombstone(below)
    if tombstone.below or (empty and entry.id):
        bury(tree, tombstone, after=awaited)
    else:
        hide_folder(tree, path)  # its files were deleted one by one: the service has no empty folders


def _take_over(folder: Tombstone, inside: Tombstone) -> None:
    """Have the tombstone of a removed folder name what one inside it did.

    What was uploaded from here has no id there: what a listing showed may be an older version.
    """
    folder.below += inside.below
    folder.bases |= inside.bases
    if inside.is_dir:
        return
    entry = inside.entry
    folder.below.append(unknown_file(inside.path) if entry is None or inside.base.uploaded else entry)
    if inside.base.uploaded:
        folder.bases[inside.path] = inside.base


def hide_folder(tree: Tree, path: str) -> None:
    """Hide a folder that goes by itself, as soon as the deletes below it are done."""
    tombstone = Tombstone(path, unknown_folder(path), is_dir=True)
    tombstone.finish(tree.monotonic())
    tree.overlay.put(path, tombstone)
    tree.pending_deletes.save(tombstone)


def leave(tree: Tree, path: str) -> None:
    """Note that an inode has left its name. If a folder of that name was removed here before, it stays hidden."""
    if tree.overlay.get(path) is None and tree.overlay.inside(path):
        hide_folder(tree, path)


def claim_for_file(tree: Tree, path: str) -> Base:
    """Prepare a name that was removed here before for a new file.

    The file will overwrite what is stored there, so the pending delete is called off. The delete of a removed folder
    becomes one delete for each of its files. Returns what may be stored under the name.
    """
    tombstone = tree.overlay.get(path)
    if not isinstance(tombstone, Tombstone):
        return Base()
    _take_back(tree, tombstone)
    if tombstone.is_dir:
        return Base()
    return tombstone.base


def claim_for_folder(tree: Tree, path: str) -> Tombstone | None:
    """Prepare a name that was removed here before for a new folder.

    The delete of a removed folder becomes one delete for each of its files. A folder overwrites nothing, so the
    delete of a removed file goes on. Returns that file's tombstone, which the new folder hides (`Inode.hides`).
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
    """Remove a folder from its name. True if the name has the tombstone of a removed file again.

    The files of the folder are then deleted one by one, because a name has at most one tombstone.
    """
    item = tree.overlay.pop(path)
    tree.journal.drop_folder(path)
    tree.attributes.forget(path)
    if not isinstance(item, Inode) or item.hides is None:
        return False
    tree.overlay.put(path, item.hides)
    return True


def _take_back(tree: Tree, tombstone: Tombstone) -> bool:
    """Remove a tombstone, so that the name is free again. False if it may be too late to call off the delete."""
    tree.overlay.pop(tombstone.path)
    in_time = tree.pending_deletes.call_off(tombstone)
    tree.journal.drop_tombstone(tombstone.path)
    _hide_files(tree, tombstone)
    return in_time


def _drop(tree: Tree, tombstone: Tombstone) -> None:
    """Forget a tombstone without deleting anything."""
    item = tree.overlay.get(tombstone.path)
    if item is tombstone:
        tree.overlay.pop(tombstone.path)
    if isinstance(item, Inode) and item.hides is tombstone:
        item.hides = None
    if item is tombstone or not isinstance(item, Tombstone):
        tree.journal.drop_tombstone(tombstone.path)


def spare(tree: Tree, inode: Inode, path: str) -> None:
    """Delete nothing under `path`, which the inode was renamed from: others have replaced it, and the file is theirs.

    No delete waits for the inode any longer, since it will not be stored.
    """
    for tombstone in tree.pending_deletes.waiting_for(inode):
        if tombstone.path == path:
            tree.pending_deletes.call_off(tombstone)
            _drop(tree, tombstone)
        else:  # of a folder above it
            tree.journal.on_rollback(partial(setattr, tombstone, "below", tombstone.below))
            tombstone.below = [entry for entry in tombstone.below if entry.path != path]
            tree.pending_deletes.save(tombstone)
    tree.pending_deletes.release(inode)
    tree.journal.on_commit(partial(tree.refresh, path))


def _hide_files(tree: Tree, tombstone: Tombstone) -> None:
    """Bury the files of a removed folder one by one. If the folder's delete is done, they only stay hidden."""
    for entry in tombstone.below:
        removed = Tombstone(entry.path, entry if entry.id or tombstone.done else None)
        removed.base = tombstone.bases.get(entry.path, removed.base)
        if tombstone.done:  # with the folder, whatever it was
            removed.finish(tree.monotonic())
            tree.overlay.put(entry.path, removed)
            tree.pending_deletes.save(removed)
        else:
            bury(tree, removed, after=tombstone.after)
        _hide_folders(tree, entry.path, below=tombstone.path)


def _hide_folders(tree: Tree, path: str, *, below: str) -> None:
    """Keep the removed folders between a removed file and `below` hidden until no listing shows them."""
    folder = paths.parent(path)
    while folder != below and tree.overlay.get(folder) is None:
        hide_folder(tree, folder)
        folder = paths.parent(folder)


# -- what `uploader.delete` calls ------------------------------------------------------------------------


def only_holds(tree: Tree, tombstone: Tombstone, since: float) -> bool:
    """Whether a removed folder holds only files that were removed here.

    Decided by listings asked for after `since` (monotonic seconds). Raises NotFound if there is no such folder.
    """
    ours = {entry.path: entry for entry in tombstone.below}

    def was_removed(entry: Entry) -> bool:
        removed = ours.get(entry.path)
        if removed is None:  # before the folder was: its delete is done, and may be listed late
            with tree.lock:
                item = tree.overlay.get(entry.path)
            removed = item.entry if isinstance(item, Tombstone) else None
        if removed is None or removed.id:
            return removed is not None and removed.fingerprint == entry.fingerprint
        return not is_of_others(tombstone, entry)

    def check(directory: str) -> bool:
        try:
            listing = tree.dcache.listing(directory, since=since)
        except NotFound:
            if directory == tombstone.path:
                raise
            return True
        except NotDirectory:
            return False  # a file has its name: delete what is left inside file by file
        inside = listing.names.values()
        return listing.complete and all(check(it.path) if it.is_dir else was_removed(it) for it in inside)

    return check(tombstone.path)


def is_of_others(tombstone: Tombstone, entry: Entry) -> bool:
    """Whether others have stored this file in place of one that was uploaded from here, in a removed folder."""
    base = tombstone.bases.get(entry.path)
    return base is not None and is_foreign_locked(base, entry)


def in_the_way(tree: Tree, path: str) -> list[Tombstone]:
    """Pending deletes that a file at `path` has to wait for: on the service a name is a file or a folder.

    They are those of names below it, and of a removed file whose name a folder above it has taken. What listings show
    late is left out: to wait for it may take minutes.
    """
    with tree.lock:
        found = tree.overlay.below(path) if tree.overlay.inside(path) else []
        removed = [item for _, item in found if isinstance(item, Tombstone)]
        while (path := paths.parent(path)) != paths.ROOT:
            folder = tree.overlay.get(path)
            if isinstance(folder, Inode) and folder.hides is not None:
                removed.append(folder.hides)
        return [tombstone for tombstone in removed if not (tombstone.done or tombstone.looks)]


def was_replaced(dcache: DCache, entry: Entry, since: float) -> bool:
    """Whether the listing at hand shows that others have stored a later file in place of a removed one.

    It was asked for after `since` (monotonic seconds). Raises the ServiceError of a call that this needs.
    """
    listing = dcache.at_hand(entry.dirname, since=since)
    listed = None if listing is None else dcache.named(listing, entry.path)
    if listed is None or listed.is_dir or not is_later(entry, listed):
        return False
    log.warning("/%s was removed here, but others have stored it again: their file stays", entry.path)
    return True


def deleted(tree: Tree, tombstone: Tombstone) -> None:
    """Record that the service has nothing left to delete. The tombstone stays until a listing agrees."""
    if tombstone.is_dir:
        tree.dcache.forget(tombstone.path)
    with tree.lock, tree.journal.transaction():
        if tombstone.others_stay and tree.overlay.get(tombstone.path) is tombstone:
            tree.overlay.pop(tombstone.path)
            tree.journal.drop_tombstone(tombstone.path)
            _hide_files(tree, tombstone)


def kept(tree: Tree, tombstone: Tombstone) -> None:
    """Drop the tombstone, since the service refuses the delete. The name shows again what is listed under it."""
    with tree.lock, tree.journal.transaction():
        _drop(tree, tombstone)
    tree.refresh(tombstone.path)
    if tombstone.is_dir:
        tree.dcache.forget(tombstone.path)  # some of its files may be gone
