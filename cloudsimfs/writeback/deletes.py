"""Pending deletes: which removed names wait to be deleted on the service, and what each of them waits for.

  * a delete is held back, so that the deletes of a whole folder can become one;
  * the delete of a renamed file waits until the file is stored under its new name (`Tombstone.after`);
  * what listings may show late, or hide late, is looked for again, at growing intervals;
  * a delete that the service keeps refusing is given up in the end; so is one that it says is done, but is not.

What one delete does is in `uploader.delete`.

Threading: the jobs run in the queue of the uploads, so that a delete and an upload of one path never overlap.
Locks: that queue's lock (`WorkQueue.lock`, re-entrant) protects the tables here and the marked fields of tombstones.
It comes after Inode.lock and before Journal.lock; callers may hold an inode's lock.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from cloudsimfs import paths
from cloudsimfs.clock import Clock
from cloudsimfs.inode import Inode, Tombstone
from cloudsimfs.journal.journal import Journal
from cloudsimfs.journal.rows import TombstoneRow
from cloudsimfs.writeback.fsyncer import Fsyncer
from cloudsimfs.writeback.queue import Job, WorkQueue

log = logging.getLogger(__name__)

DELETE_DELAY = 2.0  # seconds a delete is held back
# Seconds between two looks for an upload that was removed and is not listed yet (v1), or for an entry that is listed
# although the service says that there is none: ten minutes in all.
LATE_LOOKS = (10.0, 20.0, 40.0, 80.0, 150.0, 300.0)


class PendingDeletes:
    def __init__(self, journal: Journal, queue: WorkQueue, fsyncer: Fsyncer, *, clock: Clock) -> None:
        self._journal = journal
        self._fsyncer = fsyncer
        self._queue = queue
        self._clock = clock
        self._jobs: dict[Tombstone, Job] = {}  # guarded by the queue's lock
        self._last = 0.0  # monotonic seconds; when the last delete was added; guarded by the queue's lock
        self._given_up: dict[str, str] = {}  # the reason, by path; guarded by the queue's lock

    # -- what the namespace asks for ------------------------------------------------------------------------

    def add(self, tombstone: Tombstone, *, after: Iterable[Inode] = ()) -> None:
        """Journal the tombstone, and delete what it names once every inode of `after` is stored or removed."""
        with self._queue.lock:
            tombstone.after = set(after)
            self.save(tombstone)
            self._last = self._clock.monotonic()
            self._given_up.pop(tombstone.path, None)
            job = self._new_job_locked(tombstone)
        self._journal.on_commit(lambda: self._put(tombstone, job))  # never a job that is not in the journal
        self._journal.on_rollback(lambda: self._drop(tombstone))

    def _new_job_locked(self, tombstone: Tombstone) -> Job:
        job = Job("delete", tombstone.path, tombstone, whole_folder=tombstone.is_dir)
        job.held = bool(tombstone.after)
        self._jobs[tombstone] = job
        return job

    def _drop(self, tombstone: Tombstone) -> None:
        with self._queue.lock:
            self._jobs.pop(tombstone, None)

    def _put(self, tombstone: Tombstone, job: Job) -> None:
        with self._queue.lock:
            if self._jobs.get(tombstone) is job:  # else it was called off in the same transaction
                self._enqueue_locked(job)

    def save(self, tombstone: Tombstone) -> None:
        """Journal the tombstone as it is now."""
        after = tuple(inode.attr.ino or 0 for inode in tombstone.after)
        below, base = tuple(tombstone.below), tombstone.base if tombstone.base.sent else None
        row = TombstoneRow(
            tombstone.path, tombstone.entry, tombstone.is_dir, below, after, tombstone.done, base, tombstone.bases
        )
        self._journal.save_tombstone(row)

    def call_off(self, tombstone: Tombstone) -> bool:
        """Call the delete off: the name is used again. False if that may be too late: it had begun or ended."""
        with self._queue.lock:
            job = self._jobs.pop(tombstone, None)
            if job is None:
                return False
            self._journal.on_rollback(lambda: self._ask_again(tombstone))
            return self._queue.cancel(job)

    def _ask_again(self, tombstone: Tombstone) -> None:
        with self._queue.lock:
            self._enqueue_locked(self._new_job_locked(tombstone))

    def _enqueue_locked(self, job: Job) -> None:
        job.fsync = self._fsyncer.due()
        self._queue.put(job, delay=DELETE_DELAY)

    def release(self, inode: Inode) -> None:
        """Let no delete wait for this inode any longer: it is stored, or never will be.

        The journal's rows still name it, but replay does not wait for an inode that is stored or gone.
        """
        waiting = self.waiting_for(inode)
        self._journal.on_commit(lambda: self._release(waiting, inode))

    def waiting_for(self, inode: Inode) -> list[Tombstone]:
        """The tombstones whose delete waits for this inode."""
        with self._queue.lock:
            return [tombstone for tombstone in self._jobs if inode in tombstone.after]

    def _release(self, waiting: list[Tombstone], inode: Inode) -> None:
        with self._queue.lock:
            for tombstone in waiting:
                tombstone.after.discard(inode)
                if not tombstone.after and tombstone in self._jobs:
                    self._queue.release(self._jobs[tombstone])

    def awaited_by(self, tombstone: Tombstone) -> set[Inode]:
        """The inodes that must be stored before this delete."""
        with self._queue.lock:
            return set(tombstone.after)

    def hurry(self, tombstone: Tombstone) -> None:
        """Let the delete wait for no upload. Its caller has secured what it waited for (`Writeback.secure`)."""
        with self._queue.lock:
            tombstone.after.clear()
            job = self._jobs.get(tombstone)
            if job is not None and job.held:
                self._queue.release(job)

    def awaited(self, folder: str, uploads: Mapping[Inode, Job]) -> set[Job]:
        """The deletes that a drain of `folder` waits for, and the jobs of `uploads` that these deletes wait for.

        A drain does not wait for a delete that waits for an open file, or for an upload to be listed.
        """
        needed: set[Job] = set()
        with self._queue.lock:
            for tombstone, job in self._jobs.items():
                if paths.is_within(tombstone.path, folder):
                    waits_for = [uploads[inode] for inode in tombstone.after if inode in uploads]
                    needed.update(waits_for)
                    if (waits_for or not job.held) and not tombstone.looks:
                        needed.add(job)
        return needed

    # -- what `uploader.delete` reports --------------------------------------------------------------------

    def postpone(self, job: Job) -> bool:
        """Put the delete off during a burst of removals, unless somebody waits for it. Returns whether it was."""
        with self._queue.lock:
            quiet = self._clock.monotonic() - self._last
            if quiet >= DELETE_DELAY or job.due == 0.0:
                return False
            job.again = DELETE_DELAY - quiet
            return True

    def look_later(self, job: Job, tombstone: Tombstone) -> bool:
        """Look again later, since listings may be late: nothing is listed yet, or it is still listed though gone.

        False after the last look, or if the delete was called off.
        """
        with self._queue.lock:
            if job.cancelled or tombstone.looks >= len(LATE_LOOKS):
                return False
            job.again = LATE_LOOKS[tombstone.looks]
            tombstone.since = None
            tombstone.looks += 1
            return True

    def finish(self, job: Job, tombstone: Tombstone) -> bool:
        """Journal that the service has deleted it. False if the delete was called off in the meantime."""
        with self._queue.lock:
            if job.cancelled:
                return False
            tombstone.finish(self._clock.monotonic())
            self._jobs.pop(tombstone, None)
            self.save(tombstone)
            return True

    def give_up(self, job: Job, tombstone: Tombstone, reason: str) -> bool:
        """Give up a delete that the service keeps refusing. False if it was called off in the meantime."""
        with self._queue.lock:
            if job.cancelled:
                return False
            self._jobs.pop(tombstone, None)
            self._given_up[tombstone.path] = reason
            return True

    def repeat(self, tombstone: Tombstone) -> bool:
        """Delete once more what the service lists though it has acknowledged that. False: that was done before."""
        if tombstone.repeated:
            return False
        log.warning("/%s: the service lists what it said was deleted; it is deleted again", tombstone.path)
        tombstone.begin_again(self._clock.monotonic())
        self.add(tombstone)
        return True

    def was_not_done(self, tombstone: Tombstone) -> None:
        """Tell that the service lists for good what it has acknowledged to have deleted."""
        reason = "it said that it was deleted, but lists it still"
        log.error("/%s is shown again, since the service does not delete it: %s", tombstone.path, reason)
        with self._queue.lock:
            self._given_up[tombstone.path] = reason

    def given_up(self) -> dict[str, str]:
        """Why deletes were given up, by path. These names are shown again."""
        with self._queue.lock:
            return dict(self._given_up)
