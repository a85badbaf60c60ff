"""Renames. A file that is only here changes its name; a stored one is uploaded under the new name, then deleted.

The service has no rename (docs/service.md, "Behaviour"). Locally both are atomic: one step under Tree.lock and one
journal transaction. If that fails, neither name has changed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from cloudsimfs import paths
from cloudsimfs.errors import Exists, Invalid, IsDirectory, NotDirectory, NotEmpty, NotFound, WrongState
from cloudsimfs.inode import Base, Inode, Node, Tombstone, WriteState
from cloudsimfs.vfs.changes import listed_folder, remove_folder
from cloudsimfs.vfs.names import HIDDEN_PREFIX, is_local_name, unknown_folder
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


def rename(tree: Tree, old: str, new: str, *, replace_target: bool = True) -> None:
    """rename(2). Raises Exists with `replace_target` off (RENAME_NOREPLACE), and what the man page lists."""
    if paths.ROOT in (old, new):
        raise WrongState("the root of the mount cannot be renamed")
    paths.check_new_name(new)
    source = tree.lookup(old)
    target = lookup_or_none(tree, new)
    if target is not None and not replace_target:
        raise Exists(f"/{new}")
    if old == new:
        return
    if source.is_dir:
        if paths.is_within(new, old):
            raise Invalid(f"/{old} cannot be moved into itself")
        _check_folder_target(tree, new, target)
        _rename_folder(tree, old, new, source, target)
    else:
        if target is not None and target.is_dir:
            raise IsDirectory(f"/{new}")
        if tree.fetch_size(old):
            source = tree.lookup(old)
        above = tree.listing(paths.parent(old))
        with tree.changing():
            inode = tree.inode_of_locked(old, source)
            tombstone = _move_file_locked(tree, inode, new, target)
            if tombstone is not None:
                bury(tree, tombstone, after=_awaited(inode))
            leave(tree, old)
            tree.keep_folder(paths.parent(old), above)


def _awaited(inode: Inode) -> set[Inode]:
    """The inodes that the delete of a renamed file's old name waits for.

    It waits until the file is stored under the new name. If that name stays local, it waits for nothing: the bytes
    are fetched before the delete. A file that was unlinked while open is deleted after its last handle has gone, so
    that readers can go on.
    """
    hidden = paths.name(inode.path).startswith(HIDDEN_PREFIX)
    return {inode} if hidden or not inode.local_only else set()


def lookup_or_none(tree: Tree, path: str) -> Node | None:
    try:
        return tree.lookup(path)
    except NotFound:
        return None


def _check_folder_target(tree: Tree, new: str, target: Node | None) -> None:
    if target is None:
        return
    if not target.is_dir:
        raise NotDirectory(f"/{new}")
    if tree.readdir(new):
        raise NotEmpty(f"/{new}")


def _move_file_locked(tree: Tree, inode: Inode, new: str, target: Node | None) -> Tombstone | None:
    """Give a file its new name. Returns the tombstone that its old name needs, if the service may have that.

    The caller holds the lock and is in a transaction.
    """
    old = inode.path
    base = replace_target(tree, new, target)
    tree.overlay.pop(old)
    with inode.lock:
        tombstone = tombstone_of(tree, inode)
        content = tree.content_of_locked(inode)
        if inode.state is WriteState.CLEAN and inode.entry is not None:
            tree.journal.on_rollback(partial(tree.datacache.share, inode.entry, content))
        tree.datacache.unshare(content)
        tree.journal.on_commit(partial(tree.dependents.add, content))
        before = tree.attributes.of(old, inode)
        inode.attr = replace(inode.attr, ino=before.ino, mtime_ns=before.mtime_ns, version=None)
        was_open_dirty = inode.state is WriteState.DIRTY
        if not was_open_dirty:
            inode.change_locked()
        inode.path = new
        inode.rebase_locked(base)
        inode.local_only = is_local_name(paths.name(new))
        tree.overlay.put(new, inode)
        tree.attributes.touch(paths.parent(new))
        tree.attributes.forget(old)
        tree.attributes.keep(new, inode.attr)
        if was_open_dirty:
            tree.writeback.moved_locked(inode)
        else:
            tree.writeback.commit_locked(inode)
            inode.transition_locked("close")
            tree.writeback.enqueue_locked(inode)
        if inode.local_only:
            tree.pending_deletes.release(inode)  # no upload will come
    return tombstone


def replace_target(tree: Tree, new: str, target: Node | None) -> Base:
    """Remove whatever has the new name. Returns what may be stored there."""
    replaced = tree.overlay.get(new)
    if isinstance(replaced, Inode):
        tree.overlay.pop(new)
        tree.detach(replaced)
        with replaced.lock:
            return replaced.base_locked()
    if replaced is not None:
        return claim_for_file(tree, new)
    return Base(target.entry if isinstance(target, Inode) else target)


def _rename_folder(tree: Tree, old: str, new: str, source: Node, target: Node | None) -> None:
    """Rename file by file here; have the service delete the old folder once all are stored under the new name."""
    folders, files = _subtree(tree, old, source)
    listing, above = tree.listing(old), tree.listing(paths.parent(old))
    replaced = None if target is None else (target, tree.whole_listing(new), tree.listing(paths.parent(new)))
    with tree.changing():
        if replaced is not None:
            remove_folder(tree, new, *replaced)
        # this may raise, so it comes before any change
        inodes = [tree.inode_of_locked(path, node) for path, node in files]
        hidden = [claim_for_folder(tree, paths.rebase(path, old, new)) for path, _ in folders]
        moved = [_move_file_locked(tree, inode, paths.rebase(inode.path, old, new), None) for inode in inodes]
        left = [file for file in moved if file is not None]
        entry = listed_folder(old, source, above)
        had_file = [
            _move_folder_locked(tree, path, paths.rebase(path, old, new), node, tombstone)
            for (path, node), tombstone in zip(folders, hidden, strict=True)
        ]
        if had_file[0]:  # a name has one tombstone at most: delete file by file
            for inode, file in zip(inodes, moved, strict=True):
                if file is not None:
                    bury(tree, file, after=_awaited(inode))
        elif entry is not None or left:
            after = {awaited for inode in inodes for awaited in _awaited(inode)}
            folder = entry or unknown_folder(old)
            bury_folder(tree, old, folder, empty=not listing.names, files=left, after=after)
        leave(tree, old)
        tree.keep_folder(paths.parent(old), above)


def _subtree(tree: Tree, top: str, node: Node) -> tuple[list[tuple[str, Node]], list[tuple[str, Node]]]:
    """All folders (the top first) and all files below `top`. Fetches listings; called with no lock held."""
    folders: list[tuple[str, Node]] = [(top, node)]
    files: list[tuple[str, Node]] = []
    for directory, _ in folders:
        tree.whole_listing(directory)
        for name, _attr in tree.readdir(directory, hidden=True):
            path = paths.join(directory, name)
            tree.fetch_size(path)
            child = tree.lookup(path)
            (folders if child.is_dir else files).append((path, child))
    return folders, files


def _move_folder_locked(tree: Tree, old: str, new: str, node: Node, hides: Tombstone | None) -> bool:
    """Make the folder under its new name, here only. True if its old name has a removed file's tombstone again.

    The caller holds the lock and is in a transaction.
    """
    before = tree.attributes.of(old, node)
    attr = replace(tree.attributes.local(old, node), ino=before.ino, mtime_ns=before.mtime_ns)
    had_file = leave_folder(tree, old)
    inode = Inode(new, is_dir=True, entry=None, attr=attr)
    inode.hides = hides
    tree.overlay.put(new, inode)
    tree.attributes.touch(paths.parent(new))
    tree.journal.save_folder(new)
    tree.attributes.keep(new, attr)
    return had_file
