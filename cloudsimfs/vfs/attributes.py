"""Attributes as the kernel asks for them: the service's, with those that were set here on top.

Threading: none of its own; guarded by Tree.lock.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass

from cloudsimfs.clock import Clock
from cloudsimfs.inode import Attr, Inode, LocalAttr, Node, WriteState
from cloudsimfs.journal.journal import Journal
from cloudsimfs.vfs.localattrs import LocalAttrs


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of all files, and the permission bits that they do not get (umask)."""

    uid: int
    gid: int
    umask: int


class Attributes(LocalAttrs):
    """The table of local attributes, which the journal keeps, too."""

    def __init__(self, journal: Journal, *, owner: Owner, clock: Clock) -> None:
        super().__init__(journal.attrs(), journal.on_rollback)
        self._journal = journal
        self._owner = owner
        self._clock = clock
        self._born_ns = int(clock.now() * 1e9)
        self._touched: dict[str, int] = {}  # by directory: when its names last changed here, ns since the epoch

    def of(self, path: str, node: Node) -> Attr:
        """The attributes of a node: the service's, with those that were set here on top."""
        entry = node.entry if isinstance(node, Inode) else node
        local = node.attr if isinstance(node, Inode) else self.get(path)
        folder = node.is_dir
        perm = (0o755 if folder else 0o644) & ~self._owner.umask
        mtime = entry.mtime_ns if entry is not None and entry.mtime_ns is not None else self._born_ns
        atime, uid, gid = mtime, self._owner.uid, self._owner.gid
        ino = local.ino if local is not None and local.ino else self.ino(path)
        if local is not None:
            perm = perm if local.perm is None else local.perm
            uid = uid if local.uid is None else local.uid
            gid = gid if local.gid is None else local.gid
            if folder or local.version is None or entry is None or local.version == entry.fingerprint:
                mtime = mtime if local.mtime_ns is None else local.mtime_ns
                atime = mtime if local.atime_ns is None else local.atime_ns
        if folder:
            mtime = max(mtime, self._touched.get(path, 0))
        kind = stat.S_IFDIR if folder else stat.S_IFREG
        return Attr(ino, kind | perm, 0 if folder else node.size, mtime, atime, mtime, uid, gid)

    def local(self, path: str, node: Node) -> LocalAttr:
        """The attributes that were set here for a path."""
        if isinstance(node, Inode):
            return node.attr
        return self.get(path) or LocalAttr()

    def touch(self, directory: str) -> None:
        """The names in a directory have changed, so its mtime changes, too."""
        self._touched[directory] = int(self._clock.now() * 1e9)

    def untouch(self, directory: str) -> None:
        """The directory's mtime was set explicitly: forget the `touch`."""
        self._touched.pop(directory, None)

    def forget(self, path: str) -> None:
        self.pop(path)
        self._journal.drop_attr(path)

    def keep(self, path: str, attr: LocalAttr) -> None:
        self.put(path, attr)
        self._journal.save_attr(path, attr)


def stored_fingerprint(node: Node) -> tuple[int, int, int] | None:
    """The stored version that a node's times belong to. None for folders, and for bytes that are only here."""
    if isinstance(node, Inode):
        entry = node.entry if node.state is WriteState.CLEAN else None
    else:
        entry = node
    return None if entry is None or entry.is_dir else entry.fingerprint
