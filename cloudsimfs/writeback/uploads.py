"""Write-back: which closed files wait for their upload, and waiting until all is stored.

It knows inodes, contents and the journal, but neither the tree nor the kernel. What one upload does is in
`uploader.upload`. Five parts have modules of their own:

  * `deletes`: removed names that wait to be deleted on the service, in the same queue;
  * `dependents`: contents that fetch from a path, completed before it is overwritten or deleted;
  * `durability`: what is to be on the disk before the service has it;
  * `refusals`: closed files that are not uploaded;
  * `viewcache`: has the service list what was uploaded (v2).

Locks: the queue's lock (`WorkQueue.lock`, re-entrant) protects the tables here and in `deletes`. It comes after
Inode.lock: callers may hold an inode's lock, and a job that holds the queue's lock takes no inode's lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

from cloudsimfs import paths
from cloudsimfs.clock import Clock
from cloudsimfs.concurrency.waiting import Interrupted, never, wait_for
from cloudsimfs.errors import (
    CloudsimfsError,
    NoSpace,
    NotFinished,
    TimedOut,
    TryAgain,
    Unreachable,
    WrongState,
)
from cloudsimfs.inode import ANYBODY, NOBODY, Inode, WriteState
from cloudsimfs.journal.journal import Journal
from cloudsimfs.service import Client
from cloudsimfs.text import agree, count, listed
from cloudsimfs.writeback.deletes import PendingDeletes
from cloudsimfs.writeback.dependents import Dependents
from cloudsimfs.writeback.durability import Durability
from cloudsimfs.writeback.fsyncer import Fsyncer
from cloudsimfs.writeback.meter import Meter
from cloudsimfs.writeback.queue import Job, Runner, WorkQueue
from cloudsimfs.writeback.refusals import Refusals
from cloudsimfs.writeback.rows import file_row
from cloudsimfs.writeback.viewcache import ViewCache

log = logging.getLogger(__name__)

WORKERS = 16  # uploads and deletes at the same time; small files are two round trips each
LARGE = 64 << 20  # bytes; a new file this large is uploaded after a quarter of the delay
RELEASE_BOUND = 2.0  # seconds the kernel may take from close(2) to release
FSYNC_STALL = 60.0  # seconds fsync(2) waits while nothing is sent


class Writeback:
    """`delay` is seconds from the last close to the upload. `offline`: nothing is sent, and nobody waits for it."""

    def __init__(
        self, client: Client, journal: Journal, fsyncer: Fsyncer, *, delay: float, offline: bool, clock: Clock
    ) -> None:
        self._journal = journal
        self._fsyncer = fsyncer
        self._clock = clock
        self._delay = delay
        self._offline = offline
        self.meter = Meter(clock)  # bytes uploaded
        self.queue = WorkQueue(clock=clock, workers=WORKERS, name="writeback")
        self._uploads: dict[Inode, Job] = {}  # guarded by queue.lock
        # Committed, but not queued yet: the last release is to come, or a writer goes on; guarded by queue.lock.
        self._closing: set[Inode] = set()
        self.refusals = Refusals()
        self.dependents = Dependents()
        self.durability = Durability(journal, fsyncer)
        self.view_cache = ViewCache(client, clock=clock, in_burst=self._in_burst)
        self.deletes = PendingDeletes(journal, self.queue, fsyncer, clock=clock)

    # -- files -------------------------------------------------------------------------------------------

    def changed_locked(self, inode: Inode) -> None:
        """Call off the upload: the inode left its closed state, or goes on in a copy. The caller holds its lock."""
        self.cancel(inode)
        self.durability.save_draft_locked(inode)

    def moved_locked(self, inode: Inode) -> None:
        """Journal the new name of an inode that is open and changed. The caller holds the inode's lock."""
        with self._journal.transaction():
            if inode.has_closed_locked:
                self._journal.move_file(inode.ino, inode.path, inode.base_locked())
            if not inode.committed:
                self.durability.save_draft_locked(inode)

    def commit_locked(self, inode: Inode, by: int = NOBODY) -> None:
        """Make the present bytes a closed state (step 2 of the crash order). The caller holds the inode's lock.

        `by` is the handle that was closed (ANYBODY: fsync(2)). It may write on without a copy of the closed state
        being made. Raises NoSpace, or as the journal.
        """
        if inode.unlinked or inode.state is WriteState.CLEAN:
            return
        if inode.committed:
            inode.closed_by = inode.closed_by if by == ANYBODY else by
            return
        assert inode.content is not None
        if inode.content.lacking:
            raise NoSpace(f"/{inode.path}: not all that was written found room on the disk")
        with self._journal.transaction():
            self.durability.save_closed_locked(inode, inode.content)
            self._journal.save_attr(inode.path, inode.attr)
        inode.committed = True
        inode.closed_size, inode.closed_by = inode.content.size, by
        with self.queue.lock:
            self._closing.add(inode)
        if inode.closed_content is not None:
            self._journal.on_commit(partial(self._fsyncer.discard, inode.closed_content))
            inode.closed_content = None

    def close(self, inode: Inode, refusal: CloudsimfsError | None = None) -> None:
        """Queue the upload after the last handle that could write, unless close(2) could not accept the bytes.

        `refusal` is the error of the last commit, if it failed.
        """
        with inode.lock:
            if inode.state is not WriteState.DIRTY or inode.unlinked:
                return
            if not inode.committed:
                self.refusals.add(inode, str(refusal or "its last state could not be recorded"))
                return
            inode.transition_locked("close")
            self.enqueue_locked(inode)

    def store(self, inode: Inode, interrupted: Interrupted) -> None:
        """Upload the inode's bytes as they are now, and wait until they are stored. For fsync(2); it may be open.

        Raises the error of the upload, Cancelled if `interrupted` says so, TimedOut if nothing is sent for
        FSYNC_STALL seconds, Unreachable if the mount is offline.
        """
        while True:
            with inode.lock:
                if inode.is_stored or inode.unlinked or inode.local_only:
                    return
                self.commit_locked(inode, by=ANYBODY)
                if inode.state is WriteState.DIRTY:
                    inode.transition_locked("close")
                    self.enqueue_locked(inode)
                with self.queue.lock:
                    job = self._uploads.get(inode)
            if job is not None:
                self._check_online([job])
                self._wait_for(job, interrupted)

    def _check_online(self, jobs: list[Job]) -> None:
        """Raises Unreachable if the mount is offline and these jobs would never run."""
        if self._offline and jobs:
            raise Unreachable(f"this mount is offline: {_who_waits(jobs)} for the next online mount")

    def _wait_for(self, job: Job, interrupted: Interrupted) -> None:
        """Wait until the job has ended. Raises as `store`."""
        sent, since = job.sent, self._clock.monotonic()

        def has_ended(seconds: float) -> bool:
            try:
                self.queue.drain(lambda jobs: [job] if job in jobs else [], timeout=seconds)
            except NotFinished:
                return False
            except TryAgain as error:
                raise job.failure or error from None
            return True

        def is_stalled() -> bool:
            nonlocal sent, since
            if job.sent != sent:
                sent, since = job.sent, self._clock.monotonic()
            return self._clock.monotonic() - since > FSYNC_STALL

        message = f"/{job.path}: fsync was interrupted; its upload goes on"
        if not wait_for(has_ended, interrupted, message, is_late=is_stalled):
            raise TimedOut(f"/{job.path}: nothing was sent for {FSYNC_STALL:.0f} s")

    def enqueue_locked(self, inode: Inode) -> None:
        """Queue the upload of the inode's closed state, after the delay. The caller holds the inode's lock."""
        with self.queue.lock:
            self.cancel(inode)
            self._forgive(inode.path)
            if inode.local_only or inode.unlinked:
                return
            job = Job("upload", inode.path, inode, size=inode.size)
            self._uploads[inode] = job
        delay = self._delay_of(inode)
        self._journal.on_commit(lambda: self._put(inode, job, delay))  # never under a name that a rollback takes back

    def _put(self, inode: Inode, job: Job, delay: float) -> None:
        with self.queue.lock:
            if self._uploads.get(inode) is job:  # else it was called off in the same transaction
                job.fsync = self._fsyncer.due()
                self.queue.put(job, delay=delay)

    def _delay_of(self, inode: Inode) -> float:
        """Seconds from the last close to the upload.

        A delay saves a call if the file is written again. A large new file seldom is, and its upload takes long:
        it waits only for programs that write a file and then rename it.
        """
        is_new = inode.entry is None and not inode.uploaded
        return self._delay / 4 if is_new and inode.size >= LARGE else self._delay

    def snapshot(self, inode: Inode) -> Callable[[], None]:
        """Return a function that restores the inode's pending work. The caller of either holds the inode's lock."""
        with self.queue.lock:
            closing, refused, queued = inode in self._closing, self.refusals.of(inode), inode in self._uploads

        def put_back() -> None:
            with self.queue.lock:
                self.cancel(inode)
                if closing:
                    self._closing.add(inode)
                if refused is not None:
                    self.refusals.put_back(inode, refused)
                if queued:
                    self.enqueue_locked(inode)

        return put_back

    def cancel(self, inode: Inode) -> bool:
        """Drop all that is pending of the inode, or was refused. Returns as `call_off`."""
        with self.queue.lock:
            self._closing.discard(inode)
            self.refusals.drop(inode)
            return self.call_off(inode)

    def removed(self, inode: Inode) -> None:
        """Drop the upload of an inode that was unlinked here, and let no delete wait for it."""
        self.cancel(inode)
        self._forgive(inode.path)
        self.deletes.release(inode)

    def _forgive(self, path: str) -> None:
        if self.refusals.forgive(path):
            self._journal.accept_refused(path)

    def call_off(self, inode: Inode) -> bool:
        """Call off the inode's upload under its present name.

        True if that may be too late: the upload had begun, and its bytes may still be stored under the name.
        """
        with self.queue.lock:
            job = self._uploads.pop(inode, None)
            return job is not None and not self.queue.cancel(job)

    def conclude(self, job: Job, inode: Inode) -> bool:
        """End a job whose upload has ended: journal the inode as stored, and release the deletes that wait for it.

        False if the inode was changed or renamed in the meantime: those deletes now wait for its next upload.
        """
        with inode.lock:
            is_stored = inode.is_stored
            if inode.state is WriteState.STORED and not inode.unlinked:
                self._journal.save_file(file_row(inode, "stored"))
            if is_stored:
                self.deletes.release(inode)
        with self.queue.lock:
            if self._uploads.get(inode) is job:
                del self._uploads[inode]
        return is_stored

    # -- as a whole --------------------------------------------------------------------------------------

    def start(self, runners: Mapping[str, Runner]) -> None:
        """Start the workers, after the process has forked. `runners` run the jobs of kind "upload" and "delete"."""
        self.queue.start(runners)
        self.view_cache.start()

    def stop(self) -> None:
        """End the workers. What is pending stays in the journal."""
        self.queue.stop(timeout=5)
        self.view_cache.stop()

    def drain(
        self, folder: str = paths.ROOT, *, timeout: float | None = None, interrupted: Interrupted = never
    ) -> None:
        """Wait until all below `folder` is stored, and listed by the service (docs/architecture.md, invariant 8).

        Raises TryAgain as soon as an operation below has failed, or when `timeout` seconds have passed, WrongState if
        a file that was closed or synced is still open for writing, Cancelled if `interrupted` says so, Unreachable if
        the mount is offline and something waits. Deletes that wait for an open file are not waited for.
        """
        self._wait_for_releases(folder)
        if self._offline:
            self.refusals.check(folder)
            self._check_online(self._awaited(self.pending(), folder))
            return
        self.queue.drain(lambda jobs: self._awaited(jobs, folder), timeout=timeout, interrupted=interrupted)
        self.refusals.check(folder)  # what was refused keeps nothing else from being sent
        self.view_cache.drain(timeout=timeout, interrupted=interrupted)

    def _wait_for_releases(self, folder: str) -> None:
        """Wait for the releases that queue uploads: close(2) returns before the kernel sends them."""
        deadline = self._clock.monotonic() + RELEASE_BOUND
        with self.queue.lock:
            while open_files := [
                inode.path for inode in self._closing if paths.is_within(inode.path, folder) and not inode.local_only
            ]:
                if self._clock.monotonic() > deadline:
                    raise WrongState(f"/{open_files[0]} is still open for writing; close it first")
                self.queue.lock.wait(0.01)

    def _awaited(self, jobs: list[Job], folder: str) -> list[Job]:
        """The jobs that a drain of `folder` waits for: all uploads inside, and those of `PendingDeletes.awaited`."""
        with self.queue.lock:
            needed = self.deletes.awaited(folder, self._uploads)
            return [
                job for job in jobs if job in needed or (job.kind == "upload" and paths.is_within(job.path, folder))
            ]

    def _in_burst(self) -> bool:
        """Whether more uploads are about to end."""
        with self.queue.lock:
            return any(not upload.error for upload in self._uploads.values())

    def may_be_unlisted(self) -> None:
        """Have the service renew its listings: they may not show an upload that it has just stored."""
        self.view_cache.went_stale()

    def pending(self) -> list[Job]:
        """The jobs that have not ended."""
        return self.queue.pending()


def _who_waits(jobs: list[Job]) -> str:
    """The jobs as text, for example "2 files and 1 delete wait"."""
    files = sum(job.kind == "upload" for job in jobs)
    counts = [(files, "file"), (len(jobs) - files, "delete")]
    parts = [count(number, noun) for number, noun in counts if number]
    return f"{listed(parts)} {agree(len(jobs), 'waits', 'wait')}"
