"""Making and removing names: create, mkdir, unlink, rmdir. Renames are in `rename`.

Each function first fetches the listings it needs, then takes one step (`Tree.changing`).
"""

from __future__ import annotations

from cloudsimfs import paths
from cloudsimfs.errors import Exists, IsDirectory, NotDirectory, NotEmpty, NotFound, WrongState
from cloudsimfs.inode import Inode, LocalAttr, Node
from cloudsimfs.listings.cache import Listing
from cloudsimfs.service.model import Entry
from cloudsimfs.vfs.localattrs import fresh_ino
from cloudsimfs.vfs.names import is_local_name
from cloudsimfs.vfs.tombstones import (
    bury,
    bury_folder,
    claim_for_file,
    claim_for_folder,
    leave,
    leave_folder,
    tombstone_of,
)
from cloudsimfs.vfs.tree import Tree


def create(tree: Tree, path: str, perm: int) -> Inode:
    """Make an empty file, open for writing. Raises Exists, Invalid if the service cannot store the name."""
    _must_be_new(tree, path)
    with tree.changing():
        base = claim_for_file(tree, path)
        inode = _new_inode_locked(tree, path, is_dir=False, perm=perm)
        inode.rebase_locked(base)
        inode.local_only = is_local_name(paths.name(path))
        with inode.lock:
            inode.content = tree.datacache.empty()
            inode.change_locked()
            inode.since_ns = tree.now_ns()
            tree.writeback.changed_locked(inode)
        tree.pin_locked(inode)
        inode.opens = inode.writers = 1
    return inode


def mkdir(tree: Tree, path: str, perm: int) -> None:
    """Make a folder. It is only here until a file in it is stored: the service has no mkdir. Raises as `create`."""
    _must_be_new(tree, path)
    with tree.changing():
        tombstone = claim_for_folder(tree, path)
        inode = _new_inode_locked(tree, path, is_dir=True, perm=perm)
        inode.hides = tombstone
        tree.journal.save_folder(path)
        tree.journal.save_attr(path, inode.attr)


def _must_be_new(tree: Tree, path: str) -> None:
    paths.check_new_name(path)
    try:
        tree.lookup(path)
    except NotFound:
        return
    raise Exists(f"/{path}")


def _new_inode_locked(tree: Tree, path: str, *, is_dir: bool, perm: int) -> Inode:
    """A new inode under a free name. The caller holds Tree.lock. Raises Exists."""
    if isinstance(tree.overlay.get(path), Inode):
        raise Exists(f"/{path}")
    now = tree.now_ns()
    attr = LocalAttr(ino=fresh_ino(), perm=perm, mtime_ns=now, atime_ns=now)
    inode = Inode(path, is_dir=is_dir, entry=None, attr=attr)
    tree.overlay.put(path, inode)
    tree.attributes.put(path, attr)
    tree.attributes.touch(paths.parent(path))
    return inode


def unlink(tree: Tree, path: str) -> None:
    """Raises NotFound, IsDirectory."""
    node = tree.lookup(path)
    if node.is_dir:
        raise IsDirectory(f"/{path}")
    directory = paths.parent(path)
    listing = tree.listing(directory)
    with tree.changing():
        inode = tree.inode_of_locked(path, node)
        tree.overlay.pop(path)
        tombstone = tombstone_of(tree, inode)
        tree.detach(inode)
        if tombstone is not None:
            bury(tree, tombstone)
        leave(tree, path)
        tree.attributes.forget(path)
        tree.keep_folder(directory, listing)


def rmdir(tree: Tree, path: str) -> None:
    """Raises NotFound, NotEmpty, NotDirectory, WrongState for the root."""
    if path == paths.ROOT:
        raise WrongState("the root of the mount cannot be removed")
    node = tree.lookup(path)
    if not node.is_dir:
        raise NotDirectory(f"/{path}")
    listing = tree.whole_listing(path)
    above = tree.listing(paths.parent(path))
    with tree.changing():
        remove_folder(tree, path, node, listing, above)
        tree.keep_folder(paths.parent(path), above)


def remove_folder(tree: Tree, path: str, node: Node, listing: Listing, above: Listing) -> None:
    """Remove a folder within a step. `listing` is the folder's, `above` its parent's. Raises NotEmpty."""
    if any(True for _ in tree.overlay.merge(path, listing.names)):
        raise NotEmpty(f"/{path}")
    entry = listed_folder(path, node, above)
    if not leave_folder(tree, path) and entry is not None:
        bury_folder(tree, path, entry, empty=not listing.names)
    leave(tree, path)


def listed_folder(path: str, node: Node, above: Listing) -> Entry | None:
    """What the service lists for a folder, even if a new folder was made here over it."""
    entry = node.entry if isinstance(node, Inode) else node
    if entry is None:
        entry = above.names.get(paths.name(path))
    return entry if entry is not None and entry.is_dir else None
