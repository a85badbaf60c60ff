"""Replay of the journal: restores overlay and queue as they were when the last mount ended, however it ended.

A file that was being written when the daemon died shows its last closed state, if the journal has one. The draft is
then kept beside the namespace (`recovery`). If there is no closed state, the name shows the draft. It is not uploaded
before the user closes it or says so.

It runs once, before the first request of the kernel and before any thread starts, so it takes no locks.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from cloudsimfs import paths
from cloudsimfs.errors import NoSpace
from cloudsimfs.inode import Base, Inode, LocalAttr, Tombstone, WriteState
from cloudsimfs.journal.rows import DraftRow, FileRow, Kept, TombstoneRow
from cloudsimfs.vfs.doubt import lose, set_doubted_aside
from cloudsimfs.vfs.found import keep_newer, take_stock
from cloudsimfs.vfs.names import HIDDEN_PREFIX, is_local_name, unknown_folder
from cloudsimfs.vfs.tree import Tree
from cloudsimfs.writeback.refusals import OVERTAKEN

log = logging.getLogger(__name__)


def replay(tree: Tree) -> None:
    for path in set_doubted_aside(tree.journal, tree.datacache.data):
        tree.dcache.invalidate(paths.parent(path))
    keep_newer(tree.journal, tree.datacache.data)
    for path in tree.journal.folders():
        attr = tree.attributes.get(path) or LocalAttr(ino=tree.attributes.ino(path))
        tree.overlay.put(path, Inode(path, is_dir=True, entry=unknown_folder(path), attr=attr))
    inodes: dict[int, Inode] = {}
    drafts = {row.ino: row for row in tree.journal.drafts() if not row.kept}
    for row in tree.journal.files():
        if _is_unlinked(row):
            _forget(tree, row)
        elif not tree.datacache.is_whole(row.bytes, row.bytes.size):
            log.error("/%s: its bytes are gone from the cache directory; the service's version is shown", row.path)
            lose(tree.journal, tree.datacache.data, row, drafts.get(row.ino))
            tree.dcache.invalidate(paths.parent(row.path))
        else:
            inodes[row.ino] = _replay_file(tree, row)
            if row.ino in drafts:
                _keep_draft(tree, inodes[row.ino], drafts.pop(row.ino))
            continue
        drafts.pop(row.ino, None)
    for draft in drafts.values():
        if _is_unlinked(draft):
            _forget(tree, draft)
        elif not tree.datacache.is_whole(draft.bytes, 0):
            tree.journal.drop_file(draft.ino)
        else:
            inodes[draft.ino] = _replay_draft(tree, draft)
    for ino in tree.journal.awaited_rounds():
        if ino in inodes and (content := inodes[ino].content) is not None:
            tree.writeback.durability.replayed(content)
    for tombstone in tree.journal.tombstones():
        _replay_tombstone(tree, tombstone, inodes)
    _replay_refusals(tree, closed={inode.path for inode in inodes.values() if inode.committed})
    take_stock(tree.journal, tree.datacache.data)
    tree.datacache.sweep(tree.journal.backing_names())
    tree.journal.keep_up()


def _replay_refusals(tree: Tree, closed: set[str]) -> None:
    for kept in tree.journal.drafts():
        if kept.kept is not Kept.REFUSED:
            continue
        if kept.path in closed:  # written again, and the daemon died before it had noted that
            tree.journal.accept_refused(kept.path)
        else:
            tree.writeback.refusals.put_back(_left(kept), f"/{kept.path}: {OVERTAKEN}")


def _is_unlinked(row: FileRow | DraftRow) -> bool:
    """Whether the file was unlinked while open. Its last handle has died with the daemon."""
    return paths.name(row.path).startswith(HIDDEN_PREFIX)


def _forget(tree: Tree, row: FileRow | DraftRow) -> None:
    tree.journal.drop_file(row.ino)
    tree.attributes.forget(row.path)


def _replay_file(tree: Tree, row: FileRow) -> Inode:
    inode = _replay_inode(tree, row, Base(row.base, row.uploaded, row.stored_ns, row.sent))
    inode.content = tree.datacache.restore(row.bytes)
    inode.restore(row.state, row.bytes.size)
    inode.stored_at = tree.monotonic()
    tree.dependents.add(inode.content)
    if row.state == "closed":
        tree.writeback.enqueue_locked(inode)
    else:
        tree.writeback.may_be_unlisted()  # the mount may have died before it had the service renew its listings
    return inode


def _replay_draft(tree: Tree, row: DraftRow) -> Inode:
    inode = _replay_inode(tree, row, Base(row.base, row.uploaded, row.stored_ns, row.sent))
    size = max(0, tree.datacache.file_size(row.bytes))  # the row was written at the first change
    inode.content = tree.datacache.restore(replace(row.bytes, size=size))
    inode.since_ns = row.since_ns
    inode.state = WriteState.DIRTY
    tree.dependents.add(inode.content)
    log.warning("/%s was open for writing when the mount ended: kept here, not uploaded", row.path)
    return inode


def _replay_inode(tree: Tree, row: FileRow | DraftRow, base: Base) -> Inode:
    attr = replace(tree.attributes.get(row.path) or LocalAttr(), ino=row.ino)
    inode = Inode(row.path, is_dir=False, entry=row.base, attr=attr)
    inode.generation = row.generation
    inode.rebase_locked(base)
    inode.look_after = tree.born_at
    inode.local_only = is_local_name(paths.name(row.path)) and row.base is None  # a stored file is uploaded as before
    tree.attributes.put(row.path, attr)
    tree.overlay.put(row.path, inode)
    return inode


def _left(row: DraftRow) -> Inode:
    """The inode that a refused file had: its name shows something else by now."""
    return Inode(row.path, is_dir=False, entry=row.base, attr=LocalAttr(ino=row.ino))


def _keep_draft(tree: Tree, closed: Inode, row: DraftRow) -> None:
    """Keep what was written after a closed state, in a backing file of its own: the name shows the closed state."""
    assert closed.content is not None
    size, state = tree.datacache.file_size(row.bytes), row.bytes
    appended = state.backing == closed.content.backing.name
    if size <= (closed.content.size if appended else 0):
        tree.journal.drop_draft(row.ino)  # nothing was written yet, or it is gone
        return
    if appended:
        try:
            state = tree.datacache.copy_of(closed.content, size).describe()
        except NoSpace as error:
            log.error("/%s: what was appended when the mount ended cannot be kept: %s", row.path, error)
            tree.journal.drop_draft(row.ino)
            return
    tree.journal.keep_draft(row, replace(state, size=size))
    log.warning("/%s was being written when the mount ended: its last closed state is back", row.path)


def _replay_tombstone(tree: Tree, row: TombstoneRow, inodes: dict[int, Inode]) -> None:
    made_anew = tree.overlay.get(row.path)
    if isinstance(made_anew, Inode) and not made_anew.is_dir:
        tree.journal.drop_tombstone(row.path)  # it is overwritten, not deleted
        return
    tombstone = Tombstone(row.path, row.entry, is_dir=row.is_dir)
    tombstone.base = row.base or tombstone.base
    tombstone.below, tombstone.bases = list(row.below), row.bases
    tombstone.look_after = tree.born_at
    if row.done:
        tombstone.finish(tree.monotonic())
    if made_anew is None:
        tree.overlay.put(tombstone.path, tombstone)
    elif isinstance(made_anew, Inode) and not tombstone.is_dir:
        made_anew.hides = tombstone
    if not tombstone.done:
        if not tombstone.is_known:
            tree.writeback.may_be_unlisted()  # the delete needs a listing of an upload that may just have been stored
        renamed = [inodes[ino] for ino in row.after if ino in inodes]
        waits = [inode for inode in renamed if not (inode.is_stored or inode.local_only)]
        tree.pending_deletes.add(tombstone, after=waits)
