"""Drafts: files that were being written when a daemon died, and what can be done with them.

    under its name      the journal had no closed state: the tree shows the draft, and `replay` did not queue it
    beside the names    the name shows the closed state again; the draft is a row of the journal and a backing file

No draft is uploaded or removed unless the user says so. `Recovery` works in a mount; `drafts` lists and copies them
without one.

Threading: called by control files, on any thread; no lock of its own.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace

from cloudsimfs import paths
from cloudsimfs.datacache.content import Content
from cloudsimfs.errors import Cancelled, Invalid, IsDirectory, NotFound, TimedOut
from cloudsimfs.inode import Inode, LocalAttr
from cloudsimfs.journal.rows import DraftRow
from cloudsimfs.vfs.drafts import ID_LENGTH, Draft, draft_of
from cloudsimfs.vfs.handles import Handles
from cloudsimfs.vfs.localattrs import fresh_ino
from cloudsimfs.vfs.names import is_local_name
from cloudsimfs.vfs.rename import lookup_or_none, replace_target
from cloudsimfs.vfs.tree import Tree


class Recovery:
    def __init__(self, tree: Tree, handles: Handles) -> None:
        self._tree = tree
        self._refusals = tree.writeback.refusals
        self._handles = handles

    def drafts(self) -> list[Draft]:
        return [draft_of(row, self._tree.datacache.data) for row in self._rows()]

    def _rows(self) -> list[DraftRow]:
        shown = {inode.attr.ino for inode in self._tree.half_written()}
        return [
            row
            for row in self._tree.journal.drafts()
            if (row.kept or row.ino in shown) and not is_local_name(paths.name(row.path))
        ]

    def _find(self, draft_id: str) -> DraftRow:
        for row in self._rows():
            if draft_id == row.bytes.backing[:ID_LENGTH]:
                return row
        raise NotFound(f"no draft {draft_id!r}; `cloudsimfs recover` lists what there is")

    def command(self, text: str, *, bound: float) -> None:
        """Carry out `upload ID`, `discard ID`, or `complete ID`, which fetches the bytes that only the service has.

        Raises Invalid, NotFound, IsDirectory; TimedOut if `complete` takes longer than `bound` seconds. It continues
        when it is written again.
        """
        verb, _, draft_id = text.partition(" ")
        if verb not in ("upload", "discard", "complete"):
            raise Invalid(f"{verb!r}: write `upload ID`, `discard ID` or `complete ID`")
        row = self._find(draft_id.strip())
        if verb == "complete":
            self._complete(row, bound)
        elif verb == "discard":
            self._discard(row)
        elif row.kept:
            self._put_back(row)
        else:
            self._close(row)

    def _discard(self, row: DraftRow) -> None:
        if not row.kept:
            inode = next(inode for inode in self._tree.half_written() if inode.attr.ino == row.ino)
            self._tree.give_up(inode)
            return
        self._tree.journal.drop_kept(row.bytes.backing)
        self._content(row).drop()
        self._refusals.forgive(row.path)

    def _close(self, row: DraftRow) -> None:
        """Close a draft that is shown: it becomes the closed state."""
        self._content(row).lacking.clip(0)  # the user accepts it as it is
        fh = self._handles.open(row.path, os.O_WRONLY)
        try:
            self._handles.flush(fh)
        finally:
            self._handles.release(fh)

    def _put_back(self, row: DraftRow) -> None:
        """Give a draft beside the names its name again, as if it had been closed now."""
        target = lookup_or_none(self._tree, row.path)
        if target is not None and target.is_dir:
            raise IsDirectory(f"/{row.path} is a folder now; `cloudsimfs recover --save DIR` copies the file out")
        content, tree = self._content(row), self._tree
        tree.dependents.add(content)
        with tree.changing():
            now = tree.now_ns()
            inode = Inode(row.path, is_dir=False, entry=None, attr=LocalAttr(fresh_ino(), mtime_ns=now))
            inode.rebase_locked(replace_target(tree, row.path, target))
            tree.overlay.put(row.path, inode)
            tree.attributes.put(row.path, inode.attr)
            with inode.lock:
                inode.content = content
                inode.generation = row.generation
                inode.change_locked()
                tree.writeback.commit_locked(inode)
                inode.transition_locked("close")
                tree.writeback.enqueue_locked(inode)
            tree.journal.drop_kept(row.bytes.backing)

    def _complete(self, row: DraftRow, bound: float) -> None:
        content = self._content(row)
        deadline = time.monotonic() + bound
        content.acquire()
        try:
            content.complete(lambda: time.monotonic() > deadline)
        except Cancelled:
            raise TimedOut(f"/{row.path}: not all of it was fetched in {bound:.0f} s") from None
        finally:
            content.release()

    def _content(self, row: DraftRow) -> Content:
        if not row.kept:
            for inode in self._tree.half_written():
                if inode.attr.ino == row.ino and inode.content is not None:
                    return inode.content
        size = row.size(self._tree.datacache.file_size(row.bytes))
        return self._tree.datacache.restore(replace(row.bytes, size=size))
