"""Replay of the journal: overlay and queue as they were when the last mount ended, however it ended.

Runs once, before the first kernel request and before any thread: it takes no locks.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from cloudsimfs import paths
from cloudsimfs.attrs import LocalAttr
from cloudsimfs.inode import Gone, Inode
from cloudsimfs.journal import FileRow, GoneRow
from cloudsimfs.overlay import HIDDEN_PREFIX, is_local_name, unknown_folder
from cloudsimfs.tree import Tree

log = logging.getLogger(__name__)


def replay(tree: Tree) -> None:
    for path in tree.journal.folders():
        attr = tree.attrs.get(path) or LocalAttr(ino=tree.attrs.ino(path))
        tree.overlay.put(path, Inode(path, is_dir=True, entry=unknown_folder(path), attr=attr))
    inodes: dict[int, Inode] = {}
    lost: set[int] = set()
    for row in tree.journal.files():
        if paths.name(row.path).startswith(HIDDEN_PREFIX):
            tree.journal.drop_file(row.ino)  # was unlinked; its last handle died with the daemon
        elif not tree.datacache.is_whole(row):
            log.error("/%s: its bytes are gone from the cache directory; back to what the service has", row.path)
            tree.journal.drop_file(row.ino)
            tree.dcache.invalidate(paths.parent(row.path))
            lost.add(row.ino)
        else:
            inodes[row.ino] = _replay_file(tree, row)
    for gone in tree.journal.gone():
        if lost.intersection(gone.after):
            tree.journal.drop_gone(gone.path)  # what was renamed is lost: its old name has the only copy
        else:
            _replay_gone(tree, gone, inodes)
    tree.datacache.sweep({inode.content.backing.name for inode in inodes.values() if inode.content is not None})


def _replay_file(tree: Tree, row: FileRow) -> Inode:
    attr = replace(tree.attrs.get(row.path) or LocalAttr(), ino=row.ino)
    inode = Inode(row.path, is_dir=False, entry=row.base, attr=attr)
    inode.content = tree.datacache.restore(row)
    inode.generation, inode.stored_ns, inode.uploaded = row.generation, row.stored_ns, row.uploaded
    inode.local_only = is_local_name(paths.name(row.path))
    inode.restore(row.state)
    inode.stored_at = tree.monotonic()
    tree.attrs.put(row.path, attr)
    tree.overlay.put(row.path, inode)
    tree.writeback.add_source(inode.content)
    if row.state == "closed":
        tree.writeback.enqueue(inode)
    elif row.state == "stored":
        tree.writeback.service_cache_is_stale()  # the mount may have died before it told the service
    elif row.state == "open":
        log.warning("/%s was open for writing when the mount ended: kept here, not uploaded", row.path)
    return inode


def _replay_gone(tree: Tree, row: GoneRow, inodes: dict[int, Inode]) -> None:
    made_anew = tree.overlay.get(row.path)
    if isinstance(made_anew, Inode) and not made_anew.is_dir:
        tree.journal.drop_gone(row.path)  # it is overwritten, not deleted
        return
    gone = Gone(row.path, row.entry, is_dir=row.is_dir)
    gone.below = list(row.below)
    if row.done:
        gone.finish(tree.monotonic())
    if made_anew is None:
        tree.overlay.put(gone.path, gone)
    if not gone.done:
        if gone.entry is None or not all(entry.id for entry in (gone.entry, *gone.below)):
            tree.writeback.service_cache_is_stale()  # what is to be found by listing may have been stored lately
        waits = [inodes[ino] for ino in row.after if ino in inodes]
        tree.writeback.delete(gone, after=[inode for inode in waits if not inode.is_stored])
