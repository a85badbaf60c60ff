"""What one upload does: one PUT of one closed generation, proved by a listing if its outcome is in doubt.

    conflict?     if others have stored a file under the name, ours gets another name and another job
    begin         the inode is UPLOADING; a change calls the upload off (`Content.blocks` checks before each block)
    complete      fetch the bytes that only the service has: of this file, then of others that fetch from its path
    make room     wait for the deletes of names that cannot be on the service beside this one
    conflict?     again before the first byte, and before the last: the link may have been long in coming
    send          a store takes whole files only: from the last byte on, it may have this one, answered or not
    conclude      journal that it is stored, and release the deletes that waited for it

Threading: `run` is called by the queue's workers with no lock held. Lock order as in `vfs.tree`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from cloudsimfs import paths
from cloudsimfs.clock import Clock
from cloudsimfs.datacache.content import Content
from cloudsimfs.errors import Cancelled, CloudsimfsError, Stale
from cloudsimfs.inode import Inode, WriteState
from cloudsimfs.service import Client, Urgency
from cloudsimfs.service.model import Entry, Stored
from cloudsimfs.uploader.conflicts import Conflicts, Overtaken, is_overtaken_locked
from cloudsimfs.vfs import tombstones
from cloudsimfs.vfs.tree import Tree
from cloudsimfs.writeback.queue import Job
from cloudsimfs.writeback.uploads import Writeback

log = logging.getLogger(__name__)

ROOM_LOOK = 1.0  # seconds between two looks whether the deletes that an upload waits for are done


class _NoRoom(CloudsimfsError):
    """Deletes must come before the upload."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One run of a job: what it sends, and what was stored under the name before."""

    job: Job
    inode: Inode
    generation: int
    content: Content
    base: Entry | None

    def is_wanted(self) -> bool:
        """Whether the inode is still as it was when the attempt began."""
        return not self.job.cancelled and self.inode.generation == self.generation


class Uploader:
    """Runs the jobs of kind "upload", whose item is an inode."""

    def __init__(
        self, client: Client, tree: Tree, writeback: Writeback, conflicts: Conflicts, *, clock: Clock
    ) -> None:
        self._client = client
        self._tree = tree
        self._dcache = tree.dcache
        self._journal = tree.journal
        self._writeback = writeback
        self._deletes = writeback.deletes
        self._dependents = writeback.dependents
        self._durability = writeback.durability
        self._view_cache = writeback.view_cache
        self._meter = writeback.meter
        self._conflicts = conflicts
        self._clock = clock

    def run(self, job: Job) -> None:
        """Raises Cancelled if the upload is not wanted any more, or what it failed with."""
        inode: Inode = job.item
        if inode.is_stored and not job.cancelled:
            self._conclude(job, inode)  # an earlier try to conclude failed because the disk was full
            return
        if self._conflicts.evade(inode):
            raise Cancelled(job.path)  # another job uploads it, under another name
        attempt = self._begin(job, inode)
        try:
            stored = self._store(attempt)
        except BaseException as error:
            with inode.lock:
                if not isinstance(error, (Cancelled, Overtaken, _NoRoom)):
                    inode.look_after = self._clock.monotonic()
                if inode.is_uploading_locked(attempt.generation):
                    inode.transition_locked("failed")
            if isinstance(error, _NoRoom):
                job.again = ROOM_LOOK
                return
            if isinstance(error, Overtaken) and self._conflicts.evade(inode):
                raise Cancelled(job.path) from error
            if isinstance(error, Stale) and self._conflicts.set_aside(inode):
                raise Cancelled(job.path) from error
            raise
        finally:
            attempt.content.release()
        self._view_cache.went_stale()
        with inode.lock:
            inode.arrived_locked(attempt.generation, stored.stored_ns, self._clock.monotonic())
            if inode.is_uploading_locked(attempt.generation):
                inode.transition_locked("stored")
        self._conclude(job, inode)

    def _begin(self, job: Job, inode: Inode) -> _Attempt:
        """Mark the inode as being uploaded, and its content as in use. Raises Cancelled if it waits for no upload."""
        with inode.lock:
            if job.cancelled or not inode.committed or inode.state is not WriteState.QUEUED or inode.content is None:
                raise Cancelled(job.path)
            attempt = _Attempt(job, inode, inode.generation, inode.content, inode.entry)
            job.size, job.sent = attempt.content.size, 0
            attempt.content.acquire()
            inode.transition_locked("start")
        return attempt

    def _store(self, attempt: _Attempt) -> Stored:
        """Have the service store the content.

        Raises Stale if others have replaced bytes that only it had, _NoRoom.
        """
        job = attempt.job
        attempt.content.complete()
        self._durability.fetched(job, attempt.inode, attempt.content)
        self._dependents.complete(job.path, lists_still=self._tree.lists_still)
        self._make_room(job.path)

        def body() -> Iterator[bytes]:
            self._conflicts.look(attempt.inode)
            left = job.size
            if not left:
                self._may_arrive(attempt)
            for block in attempt.content.blocks(attempt.is_wanted):
                left -= len(block)
                if left <= 0:
                    self._may_arrive(attempt)
                yield block

        def progress(sent: int) -> None:
            self._meter.add(max(0, sent - job.sent))
            job.sent = sent

        return self._proved(attempt) or self._client.upload(
            job.path,
            job.size,
            body,
            is_listed=lambda stored: self._is_listed(attempt, stored),
            progress=progress,
            urgency=Urgency.BACKGROUND,
        )

    def _make_room(self, path: str) -> None:
        """Raises _NoRoom as long as deletes must come before a file at `path`.

        They no longer wait for uploads then, which might wait for each other: what they would have waited for is
        fetched, and is on this disk, before they run.
        """
        blocking = tombstones.in_the_way(self._tree, path)
        for tombstone in blocking:
            try:
                for inode in self._deletes.awaited_by(tombstone):
                    self._durability.secure(inode)
            except Stale:
                continue  # its own upload deals with that
            self._deletes.hurry(tombstone)
        if blocking:
            raise _NoRoom(path)

    def _may_arrive(self, attempt: _Attempt) -> None:
        """Note that the last bytes are about to be sent: the service may have the file, whether or not it answers.

        The disk has the bytes and the row then. A failure before this point, as of a refused key, leaves no doubt.
        Raises Overtaken, or Cancelled.
        """
        self._durability.make_durable(attempt.job)
        inode = attempt.inode
        directory, name = paths.split(attempt.job.path)
        listing = self._dcache.known(directory)
        theirs = None if listing is None else listing.names.get(name)
        with inode.lock:
            if not attempt.is_wanted():
                raise Cancelled(attempt.job.path)
            if is_overtaken_locked(inode, theirs):
                raise Overtaken(f"/{inode.path} was changed on the service too")
            inode.may_arrive_locked(attempt.job.size)
            self._journal.mark_uploaded(inode.ino, inode.sent)

    def _proved(self, attempt: _Attempt) -> Stored | None:
        """The result of the last attempt, if it was in doubt and a listing now shows it."""
        doubted: Stored | None = attempt.job.outcome
        return doubted if doubted is not None and self._is_listed(attempt, doubted) else None

    def _is_listed(self, attempt: _Attempt, stored: Stored) -> bool:
        """Whether a new listing shows the upload, and not the version before it. Raises ServiceError."""
        job, base = attempt.job, attempt.base
        job.outcome, ended = stored, self._clock.monotonic()
        self._view_cache.went_stale()
        self._view_cache.invalidate()
        entry = self._dcache.entry(job.path, since=ended)
        if entry is None or entry.is_dir or (base is not None and entry.fingerprint == base.fingerprint):
            return False
        return entry.size == job.size or not entry.sized

    def _conclude(self, job: Job, inode: Inode) -> None:
        if self._writeback.conclude(job, inode):
            log.info("stored /%s (%d bytes)", job.path, job.size)
            self._tree.stored(inode)
