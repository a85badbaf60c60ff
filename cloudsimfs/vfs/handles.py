"""The open file table: read, write, truncate, flush (close), fsync and the last close of an inode.

    flush     runs at every close(2) of a descriptor; commits a closed state to the journal; may report an error
    release   runs once, when the last descriptor of an open is gone; starts the upload; reports to nobody

A closed state that may not be on the service is never overwritten (`journal.journal` says how).

Locks: that of the handle table is a leaf. Bytes change under Inode.writing and then Inode.lock; Inode.writing is held
while a closed state is copied, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from cloudsimfs.concurrency.handletable import HandleTable
from cloudsimfs.concurrency.waiting import Interrupted, never
from cloudsimfs.datacache.cache import DataCache
from cloudsimfs.datacache.content import Content
from cloudsimfs.errors import BadHandle, BudgetSpent, CloudsimfsError, Invalid, NoSpace, Stale
from cloudsimfs.inode import ANYBODY, Inode, WriteState
from cloudsimfs.vfs import changes
from cloudsimfs.vfs.tree import Tree
from cloudsimfs.writeback.fsyncer import Fsyncer
from cloudsimfs.writeback.uploads import Writeback


@dataclass(frozen=True, slots=True)
class Handle:
    inode: Inode
    readable: bool
    writable: bool
    measured: bool = False  # the size was unknown until this open: the kernel may still take the file for empty
    appends: bool = False  # measured, and O_APPEND: write at the real end, whatever offset the kernel sends
    left: Inode | None = None  # the inode of the version that the handle read before; reads may still use it


class Handles:
    def __init__(
        self,
        tree: Tree,
        datacache: DataCache,
        writeback: Writeback,
        fsyncer: Fsyncer,
        *,
        fsync_remote: bool,
        may_preview: Callable[[], bool],
    ) -> None:
        """`fsync_remote`: fsync(2) waits for the service. `may_preview` tells whether previews may use API calls."""
        self._tree = tree
        self._datacache = datacache
        self._writeback = writeback
        self._fsyncer = fsyncer
        self._fsync_remote = fsync_remote
        self._may_preview = may_preview
        self._open = HandleTable[Handle]()

    def get(self, fh: int) -> Handle:
        """Raises BadHandle."""
        return self._open.get(fh)

    # -- open --------------------------------------------------------------------------------------------

    def open(self, path: str, flags: int, *, is_preview: Callable[[], bool] = lambda: False) -> int:
        """open(2) without O_CREAT. Raises BudgetSpent for a preview when few API calls are left."""
        access = flags & os.O_ACCMODE
        writes = access != os.O_RDONLY
        truncate = writes and bool(flags & os.O_TRUNC)
        measured = not truncate and self._tree.fetch_size(path)
        handle = Handle(
            self._tree.open(path, write=writes, truncate=truncate),
            readable=access != os.O_WRONLY,
            writable=writes,
            measured=measured,
            appends=measured and bool(flags & os.O_APPEND),
        )
        fh = self._open.add(handle)
        content = handle.inode.content
        if content is not None and not content.is_whole and not self._may_preview() and is_preview():
            self.release(fh)
            raise BudgetSpent(f"/{path}: few API calls are left in this hour, so previews may not use them")
        if truncate:
            self.truncate(fh, 0)
        return fh

    def create(self, path: str, perm: int, flags: int) -> int:
        """open(2) with O_CREAT, of a new file. Raises as `changes.create`."""
        inode = changes.create(self._tree, path, perm)
        return self._open.add(Handle(inode, readable=flags & os.O_ACCMODE != os.O_WRONLY, writable=True))

    def is_mixed(self, fh: int) -> bool:
        """Whether the kernel's view of the path may not be this handle's, as when another version is open, too."""
        handle = self.get(fh)
        if handle.measured:
            return True
        inode = handle.inode
        others = self._open.items()
        return any(other.inode is not inode and other.inode.path == inode.path for other in others)

    def identity(self, fh: int) -> int | None:
        """An id of the bytes for the kernel's pages: equal for two opens only if the bytes are equal."""
        content = self.get(fh).inode.content
        return None if content is None or self.is_mixed(fh) else content.identity

    # -- bytes -------------------------------------------------------------------------------------------

    def read(self, fh: int, buffer: memoryview, offset: int, interrupted: Interrupted = never) -> int:
        """pread(2). `interrupted` is asked while the read waits. Raises Stale, or as `Content.read_into`."""
        handle = self.get(fh)
        content = handle.inode.content
        if not handle.readable or content is None:
            raise BadHandle(f"handle {fh} is not open for reading")
        shown = self._size_shown(handle)
        if shown is not None and shown < content.size:
            raise Stale(f"/{handle.inode.path} was replaced by a shorter file; the kernel would stop at its end")
        try:
            count = content.read_into(buffer, offset, interrupted)
        except Stale:
            self._datacache.drop_version(content)
            if not self._look_again(handle.inode) or not self._follow(fh, handle):
                raise
            return self.read(fh, buffer, offset, interrupted)
        except BadHandle:
            if handle.inode.content is content:
                raise
            return self.read(fh, buffer, offset, interrupted)  # a writer has moved the inode to a copy
        if count < len(buffer):
            if self._follow(fh, handle):
                return self.read(fh, buffer, offset, interrupted)
            shown = self._size_shown(handle)
            if shown is not None and shown > content.size:
                raise Stale(f"/{handle.inode.path} was replaced by a longer file; the kernel would add zeros")
        return count

    def _size_shown(self, handle: Handle) -> int | None:
        """The size of the version that replaced the one being read, if any: the kernel has one size for both."""
        inode = handle.inode
        return self._tree.replacing_size(inode) if inode.replaced and not handle.writable else None

    def _look_again(self, inode: Inode) -> bool:
        """List the path again, since its version is gone from the service. True if it leads to a file or folder."""
        self._tree.refresh(inode.path)
        try:
            self._tree.lookup(inode.path)
        except CloudsimfsError:
            return False
        return True

    def _follow(self, fh: int, handle: Handle) -> bool:
        """Go on in the file that replaced this one, if it begins with all that was read here (tail -f of a log).

        True if the handle has moved on.
        """
        inode = handle.inode
        if handle.writable or inode.content is None or not inode.replaced:
            return False
        try:
            newer = self._tree.open(inode.path, write=False)
        except CloudsimfsError:
            return False  # this version can still be read
        leaves: Inode | None = newer
        try:
            same = newer.content is not None and newer.content.begins_with(inode.content)
            if same and self._open.replace(fh, handle, replace(handle, inode=newer, left=inode)):
                leaves = handle.left
        except CloudsimfsError:
            same = False
        if leaves is not None:
            self._tree.close(leaves, write=False)
        return same

    def write(self, fh: int, data: bytes, offset: int) -> int:
        """pwrite(2). Returns the number of bytes written. Raises BadHandle, or as `Content.write`."""
        handle = self.get(fh)
        if handle.appends:
            offset = max(offset, handle.inode.size)
        with self._changing(fh, offset) as content:
            return content.write(data, offset)

    def truncate(self, fh: int, size: int) -> None:
        """ftruncate(2). `size` is in bytes. Raises Invalid, BadHandle, NoSpace."""
        if size < 0:
            raise Invalid("a file cannot have a negative size")
        with self._changing(fh, size, keep=size) as content:
            content.truncate(size)

    def truncate_path(self, path: str, size: int) -> None:
        """truncate(2): an open, a change and a close."""
        fh = self.open(path, os.O_WRONLY | (0 if size else os.O_TRUNC))
        try:
            self.truncate(fh, size)
            self.flush(fh)
        finally:
            self.release(fh)

    def allocate(self, fh: int, offset: int, length: int, *, keep_size: bool) -> None:
        """fallocate(2), modes 0 and KEEP_SIZE: the file grows, but blocks are only taken when they are written."""
        inode = self._writable(fh)
        if not keep_size and offset + length > inode.size:
            self.truncate(fh, offset + length)

    def _writable(self, fh: int) -> Inode:
        """The inode of a handle that can write. Raises BadHandle."""
        handle = self.get(fh)
        if not handle.writable:
            raise BadHandle(f"handle {fh} is not open for writing")
        return handle.inode

    @contextmanager
    def _changing(self, fh: int, start: int, keep: int | None = None) -> Iterator[Content]:
        """Yield the content for a change of the bytes from `start` on, with the inode's lock held.

        Only the first `keep` bytes (None: all) need to be kept.
        """
        inode = self._writable(fh)
        with inode.writing:
            copy = self._copy_to_change(inode, fh, start, keep)
            with inode.lock:
                self._change_locked(inode, start, copy)
                assert inode.content is not None
                yield inode.content

    def _copy_to_change(self, inode: Inode, fh: int, start: int, keep: int | None) -> Content | None:
        """A copy of a closed state that the change would overwrite; None if there is none to keep.

        It is made without the inode's lock: Inode.writing keeps the bytes as they are, but a listing may confirm
        them in the meantime. Raises NoSpace.
        """
        with inode.lock:
            content = inode.content
            assert content is not None
            if not inode.holds_closed_locked(start) or inode.closed_by in (fh, ANYBODY):
                return None
        try:
            return self._datacache.copy_of(content, content.size if keep is None else min(keep, content.size))
        except NoSpace:
            if inode.is_stored:
                return None  # the service has acknowledged these bytes: overwrite them rather than fail
            raise

    def _change_locked(self, inode: Inode, start: int, copy: Content | None) -> None:
        """Prepare the inode for a change of the bytes from `start` on. The caller holds the inode's lock."""
        assert inode.content is not None
        leaves_closed = inode.holds_closed_locked(start)
        if leaves_closed and copy is not None:
            inode.content.release()
            inode.closed_content, inode.content = inode.content, copy
            copy.acquire()
        elif copy is not None:
            copy.drop()
        if leaves_closed:
            inode.closed_size = None
        was_clean = inode.state is WriteState.CLEAN
        if inode.change_locked() or leaves_closed:
            if was_clean:
                self._datacache.unshare(inode.content)
                self._tree.dependents.add(inode.content)
            inode.since_ns = self._tree.now_ns()
            self._writeback.changed_locked(inode)
        inode.attr.mtime_ns = self._tree.now_ns()
        inode.attr.version = None

    # -- flush, fsync, release ---------------------------------------------------------------------------

    def flush(self, fh: int) -> None:
        """close(2) of one descriptor. When it returns, what was written so far survives the death of the daemon."""
        handle = self.get(fh)
        if handle.writable:
            with handle.inode.lock:
                self._writeback.commit_locked(handle.inode, by=fh)

    def fsync(self, fh: int, interrupted: Interrupted = never) -> None:
        """fsync(2). When it returns, what was written so far survives a power loss; with `fsync_remote` it is stored.

        The kernel also calls it after each write to a file that was opened with O_SYNC or O_DSYNC.
        """
        handle = self.get(fh)
        with handle.inode.lock:
            if handle.writable:
                self._writeback.commit_locked(handle.inode, by=ANYBODY)
            content = handle.inode.content
        if content is not None:
            self._fsyncer.closing(content)
        self.sync()
        if self._fsync_remote:
            self._writeback.store(handle.inode, interrupted)

    def sync(self) -> None:
        """fsync all that was committed so far, so that it survives a power loss."""
        self._fsyncer.sync()

    def release(self, fh: int) -> None:
        """The last descriptor of an open is gone. Raises BadHandle."""
        handle = self._open.pop(fh)
        refusal: CloudsimfsError | None = None
        try:
            if handle.writable:
                with handle.inode.lock:  # a mapped page may be newer than the last flush
                    self._writeback.commit_locked(handle.inode, by=fh)
        except CloudsimfsError as error:
            refusal = error  # the last close(2) has already reported it
        finally:  # in any case: an inode that stays counted as open would never be uploaded
            self._tree.close(handle.inode, write=handle.writable, refusal=refusal)
            if handle.left is not None:
                self._tree.close(handle.left, write=False)

    @property
    def count(self) -> int:
        return len(self._open)
