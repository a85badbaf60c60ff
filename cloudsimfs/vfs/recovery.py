"""Drafts: what was being written to files when a daemon died, and what can be done with it.

    under its name      the journal had no closed state: the tree shows the draft, and `replay` did not queue it
    beside the names    the name has the closed state again; the draft is a row of the journal and a backing file

Of a directory that is not mounted, the closed files that wait for their upload are listed, too.

Nothing of it is uploaded or removed unless somebody says so. `Recovery` is a mount's; `find_drafts` and `copy_out`
need only the cache directory.

Threading: called by control files, on any thread; no lock of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from cloudsimfs import paths
from cloudsimfs.datacache.content import Content
from cloudsimfs.datacache.directory import is_mounted, missing_bytes
from cloudsimfs.errors import Cancelled, Invalid, IsDirectory, NotFound, TimedOut
from cloudsimfs.host.disk import copy_file
from cloudsimfs.inode import Inode, LocalAttr
from cloudsimfs.journal.readonly import read_closed, read_drafts
from cloudsimfs.journal.rows import DraftRow, FileRow
from cloudsimfs.vfs.attrs import fresh_ino
from cloudsimfs.vfs.handles import Handles
from cloudsimfs.vfs.names import is_local_name
from cloudsimfs.vfs.rename import lookup_or_none, replace_target
from cloudsimfs.vfs.tree import Tree

ID_LENGTH = 8  # letters of the backing file's name


@dataclass(frozen=True, slots=True)
class Draft:
    """One of them, as users see it. Sizes in bytes."""

    id: str
    path: str
    size: int
    since_ns: int  # when it was first written to, ns since the epoch
    missing: int  # bytes that are only on the service
    file: str  # the backing file
    shown: bool  # its name has it; else that has the last closed state
    closed: bool = False  # no draft: it waits for its upload in a directory that is not mounted


def _draft(row: DraftRow, data: Path) -> Draft:
    file = data / row.bytes.backing
    size = file.stat().st_size if file.exists() else 0
    missing = missing_bytes(data, replace(row.bytes, size=size))
    return Draft(row.bytes.backing[:ID_LENGTH], row.path, size, row.since_ns, missing, str(file), not row.kept)


def _closed(row: FileRow, data: Path) -> Draft:
    file = data / row.bytes.backing
    since_ns = file.stat().st_mtime_ns if file.exists() else 0
    missing = missing_bytes(data, row.bytes)
    size = row.bytes.size
    return Draft(row.bytes.backing[:ID_LENGTH], row.path, size, since_ns, missing, str(file), shown=True, closed=True)


class Recovery:
    def __init__(self, tree: Tree, handles: Handles) -> None:
        self._tree = tree
        self._handles = handles

    def drafts(self) -> list[Draft]:
        return [_draft(row, self._tree.datacache.data) for row in self._rows()]

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
        """`upload ID`, `discard ID`, or `complete ID`: fetch what of it is only on the service.

        Raises TimedOut when the last takes longer than `bound` seconds; it goes on when it is asked for again.
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

    def _close(self, row: DraftRow) -> None:
        """A draft that is shown becomes the closed state."""
        self._content(row).lacking.clip(0)  # it is wanted as it is
        fh = self._handles.open(row.path, os.O_WRONLY)
        try:
            self._handles.flush(fh)
        finally:
            self._handles.release(fh)

    def _put_back(self, row: DraftRow) -> None:
        """A draft beside the names gets its name again, as if it had been closed now."""
        target = lookup_or_none(self._tree, row.path)
        if target is not None and target.is_dir:
            raise IsDirectory(f"/{row.path} is a folder now; `cloudsimfs recover --save DIR` copies the file out")
        content, tree = self._content(row), self._tree
        tree.dependents.add(content)
        with tree.changing():
            now = tree.now_ns()
            inode = Inode(row.path, is_dir=False, entry=None, attr=LocalAttr(fresh_ino(), mtime_ns=now))
            base, uploaded = replace_target(tree, row.path, target)
            inode.rebase(base, uploaded=uploaded, at=tree.monotonic())
            tree.overlay.put(row.path, inode)
            tree.attributes.put(row.path, inode.attr)
            with inode.lock:
                inode.content = content
                inode.generation = row.generation
                inode.change()
                tree.writeback.commit(inode)
                inode.transition("close")
                tree.writeback.enqueue(inode)
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
        size = max(0, self._tree.datacache.file_size(row.bytes))
        return self._tree.datacache.restore(replace(row.bytes, size=size))


# -- without a mount -----------------------------------------------------------------------------------------


def find_drafts(directory: Path) -> list[Draft]:
    """What a cache directory has, and what waits there for its upload. While it is mounted, that goes up, and what is
    being written now is no draft.
    """
    mounted, data, journal = is_mounted(directory), directory / "data", directory / "journal.db"
    if not journal.exists():
        return []
    drafts = [row for row in read_drafts(journal) if row.kept or not mounted]
    closed = [] if mounted else read_closed(journal)
    found = [*(_draft(row, data) for row in drafts), *(_closed(row, data) for row in closed)]
    return [draft for draft in found if not is_local_name(paths.name(draft.path))]


def copy_out(draft: Draft, directory: Path, taken: Collection[Path] = ()) -> Path:
    """Copy a draft into `directory` under its path; never over another file. Returns where it is."""
    target = directory / draft.path
    if draft.missing:
        target = target.with_name(f"{target.name}.partial")
    if target in taken or target.exists():
        target = target.with_name(f"{target.name}.{draft.id}")
    target.parent.mkdir(parents=True, exist_ok=True)
    if Path(draft.file).exists():
        copy_file(Path(draft.file), target, draft.size)
    else:  # a stored file that was renamed: nothing of it is here
        target.touch(0o600)
        os.truncate(target, draft.size)
    return target
