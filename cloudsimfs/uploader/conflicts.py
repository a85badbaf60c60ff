"""A file that was changed here and by others: ours is stored beside theirs, under a name of its own.

    f                               what others have stored
    f.conflict-HOST-TIME            what was closed here, if all of its bytes are here; else it becomes a draft

The rule: an upload replaces nothing but what our file is based on (`inode.Base`), as far as is known. It is asked for
three times: before the upload begins (`evade`), before its first byte is sent (`look`), and before its last, which
makes the file (`is_overtaken_locked`). The proof is a listing that shows a version which the file is not based on
(`evidence`). Without proof there is no conflict. The listing at hand will do, so that a save costs no call
(`DCache.at_hand`). After trouble it will not: once an upload has failed, or was left to the next mount, others have
had time to change the file, and its folder is listed again.

Threading: called by upload workers with no lock held.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from cloudsimfs import paths
from cloudsimfs.errors import ServerFault, ServiceError, TimedOut, TryAgain, Unreachable
from cloudsimfs.inode import Base, Inode, WriteState
from cloudsimfs.journal.rows import Kept
from cloudsimfs.service.model import Entry
from cloudsimfs.vfs import tombstones
from cloudsimfs.vfs.evidence import is_foreign_locked
from cloudsimfs.vfs.names import conflict_names
from cloudsimfs.vfs.tree import Tree
from cloudsimfs.writeback.refusals import OVERTAKEN
from cloudsimfs.writeback.rows import draft_row

log = logging.getLogger(__name__)

REMEMBERED = 100  # conflicts shown by `status`


class Overtaken(TryAgain):
    """Others have changed a file that is about to be uploaded."""


@dataclass(frozen=True, slots=True)
class Conflict:
    path: str
    ours: str  # the path under which our file is stored


class Conflicts:
    """`on_conflict(directory, names)` is called, with no lock held, when these names now have other files."""

    def __init__(self, tree: Tree, *, on_conflict: Callable[[str, set[str]], None]) -> None:
        self._tree = tree
        self._refusals = tree.writeback.refusals
        self._on_conflict = on_conflict
        self._lock = threading.Lock()  # a leaf; it protects _found
        self._found: list[Conflict] = []

    def found(self) -> list[Conflict]:
        """The latest conflicts of this mount."""
        with self._lock:
            return list(self._found)

    def evade(self, inode: Inode) -> bool:
        """If others have changed its file, give the inode another name and queue it there. Returns whether it was.

        Raises the ServiceError of a listing that was needed.
        """
        directory, name = paths.split(inode.path)
        listing = self._tree.dcache.at_hand(directory)
        theirs = None if listing is None else self._tree.dcache.named(listing, inode.path)
        if listing is None or theirs is None:
            return False  # others have deleted it: ours is simply stored
        with self._tree.changing(), inode.lock:
            waits = inode.state is WriteState.QUEUED and inode.committed and not inode.unlinked
            if not waits or not is_overtaken_locked(inode, theirs):
                return False
            ours = self._free_name_locked(theirs.path, listing.names.keys())
            _move_aside_locked(self._tree, inode, ours)
        log.warning("/%s was changed on the service too: what was written here is stored as /%s", theirs.path, ours)
        with self._lock:
            self._found = [*self._found, Conflict(theirs.path, ours)][-REMEMBERED:]
        self._on_conflict(directory, {name})
        return True

    def look(self, inode: Inode) -> None:
        """Look whether others have changed the file, if what is known of its folder is from before the last trouble.

        This costs one call, which all files of the folder share. Raises Overtaken, or ServiceError if it fails.
        """
        try:
            listing = self._tree.dcache.at_hand(paths.parent(inode.path), since=inode.look_after)
            theirs = None if listing is None else self._tree.dcache.named(listing, inode.path)
        except (ServerFault, TimedOut, Unreachable) as error:  # it is not the object store that has failed
            raise ServiceError(f"/{inode.path}: its folder could not be looked at: {error}") from error
        with inode.lock:
            if is_overtaken_locked(inode, theirs):
                raise Overtaken(f"/{inode.path} was changed on the service too")

    def set_aside(self, inode: Inode) -> bool:
        """Set aside a changed or renamed file that can never be completed, if that is proved. Returns whether it was.

        Others have replaced it before all of its unchanged bytes were fetched, and nobody has these any more. What is
        here becomes a draft (`recovery`), the name shows what the service has, and `flush` fails until the user has
        dealt with it. If the file was renamed, its old name shows what others have stored there. That the object was
        not found, refused or another one proves nothing while its version is listed. Raises the ServiceError of that
        listing.
        """
        tree, source = self._tree, None if inode.content is None else inode.content.source
        if source is not None and tree.lists_still(source.entry):
            return False
        with tree.changing(), inode.lock:
            content, path = inode.content, inode.path
            waits = inode.state is WriteState.QUEUED and inode.committed and not inode.unlinked and not inode.opens
            source = None if content is None else content.source
            if not waits or source is None or inode.attr.ino is None:
                return False
            tree.keep_for_undo(inode)
            tree.journal.save_draft(draft_row(inode, tree.now_ns(), kept=Kept.REFUSED), closed=False)
            tree.overlay.pop(path)
            tree.attributes.forget(path)
            tree.writeback.cancel(inode)
            tombstones.spare(tree, inode, source.entry.path)
        self._refusals.add(inode, f"/{path}: {OVERTAKEN}")
        tree.refresh(path)
        self._on_conflict(paths.parent(path), {paths.name(path)})
        return True

    def _free_name_locked(self, path: str, listed: Collection[str]) -> str:
        """A conflict name of `path` that is not in use. The caller holds Tree.lock."""
        return next(
            candidate
            for candidate in conflict_names(path)
            if paths.name(candidate) not in listed and self._tree.overlay.get(candidate) is None
        )


def is_overtaken_locked(inode: Inode, theirs: Entry | None) -> bool:
    """Whether what is listed under its name shows that others have changed it. The caller holds the inode's lock."""
    return theirs is not None and theirs.path == inode.path and is_foreign_locked(inode, theirs)


def _move_aside_locked(tree: Tree, inode: Inode, path: str) -> None:
    """Give a closed, waiting inode a free name and queue it there. The caller holds Tree.lock and the inode's."""
    old = inode.path
    tree.keep_for_undo(inode)
    tree.writeback.cancel(inode)
    if tree.overlay.get(old) is inode:
        tree.overlay.pop(old)
    inode.attr = replace(inode.attr, mtime_ns=tree.attributes.of(old, inode).mtime_ns, version=None)
    inode.path = path
    inode.rebase_locked(Base())
    inode.missed = False
    tree.overlay.put(path, inode)
    tree.attributes.forget(old)
    tree.attributes.keep(path, inode.attr)
    tree.attributes.touch(paths.parent(path))
    tree.writeback.moved_locked(inode)
    tree.writeback.enqueue_locked(inode)
