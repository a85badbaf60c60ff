"""Pending deletes: when the service is asked to delete what a tombstone names, and what is done if it will not.

  * a delete is held back, so that those of a whole folder can become one;
  * a rename's delete waits until what was renamed is stored (`Tombstone.after`);
  * what was uploaded and is not listed yet is looked for again, later and later (v1);
  * what others have stored under the name since it was removed is not deleted;
  * a refused one is tried again, minutes apart, and given up in the end: the name is shown again.

Threading: the jobs run in the queue of the uploads, so that deletes and uploads of a path come one after the other.
Locks: that queue's lock (`WorkQueue.lock`, re-entrant) protects the tables here and the marked fields of tombstones.
It comes after Inode.lock and before Journal.lock; callers may hold an inode's lock, jobs hold none when they ask the
service or call back.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping

from cloudsimfs import paths
from cloudsimfs.clock import Clock
from cloudsimfs.errors import NoSuchEntry, NotDirectory, Refused
from cloudsimfs.inode import Inode, Tombstone
from cloudsimfs.journal.journal import Journal
from cloudsimfs.journal.rows import TombstoneRow
from cloudsimfs.service import Client, Urgency
from cloudsimfs.service.model import Entry
from cloudsimfs.writeback.dependents import Dependents
from cloudsimfs.writeback.queue import Job, WorkQueue
from cloudsimfs.writeback.viewcache import ViewCache

log = logging.getLogger(__name__)

HOLD = 2.0  # seconds a delete is held back
# Seconds between looks for what was uploaded, removed, and is not listed yet (v1): ten minutes in all.
LATE = (10.0, 20.0, 40.0, 80.0, 150.0, 300.0)
REFUSED_RETRY = 120.0  # seconds from a delete that was refused to the next try, doubled after
REFUSED_BOUND = 600.0  # seconds after which a delete that is refused again is given up


class Deletes:
    """The functions are called with no lock held. `on_kept` is told of a delete that was given up. `find_entry(path,
    since)` looks for what is stored under a path in a listing asked for after `since` (monotonic seconds);
    `may_delete_folder` says whether a folder holds nothing but what was deleted here, `was_replaced` whether others
    have stored a later file in place of one.
    """

    def __init__(
        self,
        client: Client,
        journal: Journal,
        queue: WorkQueue,
        view_cache: ViewCache,
        sources: Dependents,
        *,
        clock: Clock,
        on_deleted: Callable[[Tombstone], None],
        on_kept: Callable[[Tombstone], None],
        find_entry: Callable[[str, float], Entry | None],
        may_delete_folder: Callable[[Tombstone, float | None], bool],
        was_replaced: Callable[[Entry], bool],
    ) -> None:
        self._client = client
        self._journal = journal
        self._queue = queue
        self._view_cache = view_cache
        self._sources = sources
        self._clock = clock
        self._on_deleted = on_deleted
        self._on_kept = on_kept
        self._find_entry = find_entry
        self._may_delete_folder = may_delete_folder
        self._was_replaced = was_replaced
        self._jobs: dict[Tombstone, Job] = {}  # guarded by the queue's lock
        self._last = 0.0  # when one was last asked for, monotonic seconds; guarded by the queue's lock
        # When refused ones were last looked for, monotonic seconds; guarded by the queue's lock.
        self._refused_round = -math.inf
        self._given_up: dict[str, str] = {}  # paths, and why; guarded by the queue's lock

    # -- what is asked for -------------------------------------------------------------------------------

    def add(self, tombstone: Tombstone, *, after: Iterable[Inode] = ()) -> None:
        """Delete what the tombstone names, once all of `after` is stored or removed, and journal that."""
        with self._queue.lock:
            tombstone.after = set(after)
            self.save(tombstone)
            self._last = self._clock.monotonic()
            self._given_up.pop(tombstone.path, None)
            job = self._new_job(tombstone)
        self._journal.on_commit(lambda: self._put(tombstone, job))  # never what the journal could not take
        self._journal.on_rollback(lambda: self._drop(tombstone))

    def _new_job(self, tombstone: Tombstone) -> Job:
        """The caller holds the queue's lock."""
        job = Job("delete", tombstone.path, lambda job: self._run(job, tombstone), whole_folder=tombstone.is_dir)
        job.held = bool(tombstone.after)
        self._jobs[tombstone] = job
        return job

    def _drop(self, tombstone: Tombstone) -> None:
        with self._queue.lock:
            self._jobs.pop(tombstone, None)

    def _put(self, tombstone: Tombstone, job: Job) -> None:
        with self._queue.lock:
            if self._jobs.get(tombstone) is job:  # else it was called off in the same transaction
                self._queue.put(job, delay=HOLD)

    def save(self, tombstone: Tombstone) -> None:
        """Journal the tombstone as it is."""
        after = tuple(inode.attr.ino or 0 for inode in tombstone.after)
        row = TombstoneRow(
            tombstone.path, tombstone.entry, tombstone.is_dir, tuple(tombstone.below), after, tombstone.done
        )
        self._journal.save_tombstone(row)

    def call_off(self, tombstone: Tombstone) -> bool:
        """The name is wanted again. False if that may be too late: its delete had begun, or is done."""
        with self._queue.lock:
            job = self._jobs.pop(tombstone, None)
            if job is None:
                return False
            self._journal.on_rollback(lambda: self._ask_again(tombstone))
            return self._queue.cancel(job)

    def _ask_again(self, tombstone: Tombstone) -> None:
        with self._queue.lock:
            self._queue.put(self._new_job(tombstone), delay=HOLD)

    def release(self, inode: Inode) -> None:
        """The inode is stored, or will never be: deletes need not wait for it any longer.

        Their rows go on naming it: replay does not wait for such a one.
        """
        with self._queue.lock:
            waiting = [tombstone for tombstone in self._jobs if inode in tombstone.after]
        self._journal.on_commit(lambda: self._release(waiting, inode))

    def _release(self, waiting: list[Tombstone], inode: Inode) -> None:
        with self._queue.lock:
            for tombstone in waiting:
                tombstone.after.discard(inode)
                if not tombstone.after and tombstone in self._jobs:
                    self._queue.release(self._jobs[tombstone])

    def awaited(self, folder: str, uploads: Mapping[Inode, Job]) -> set[Job]:
        """The deletes a drain of `folder` waits for, and those of `uploads` they wait for themselves.

        A delete that waits for what will not be uploaded now (an open file), or to be listed, is not one of them.
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

    def given_up(self) -> dict[str, str]:
        """What the service refused to delete, by path, and why; it is shown again."""
        with self._queue.lock:
            return dict(self._given_up)

    # -- one delete --------------------------------------------------------------------------------------

    def _run(self, job: Job, tombstone: Tombstone) -> None:
        with self._queue.lock:
            quiet = self._clock.monotonic() - self._last
            if quiet < HOLD and job.due != 0.0:  # a burst goes on, and nobody waits
                job.again = HOLD - quiet
                return
        entries = self._what_to_delete(tombstone)
        lags = self._client.api_version == "v1"  # v2's listings show all once the service was told
        for entry in entries:
            self._sources.complete(entry.path, folder=entry.is_dir)
            if job.cancelled:
                return
            try:
                self._delete_entry(entry)
            except Refused as error:
                if not self._give_up(job, tombstone, str(error)):
                    raise
                return
        with self._queue.lock:
            if job.cancelled:
                return
            if not entries and not tombstone.is_known and lags and tombstone.looks < len(LATE):
                job.again = LATE[tombstone.looks]  # it may have been uploaded and not be listed yet
                tombstone.since = None
                tombstone.looks += 1
                return
            tombstone.finish(self._clock.monotonic())
            self._jobs.pop(tombstone, None)
            self.save(tombstone)
        self._on_deleted(tombstone)

    def _delete_entry(self, entry: Entry) -> None:
        asked = self._clock.monotonic()
        try:
            self._client.delete(entry.id, urgency=Urgency.BACKGROUND)
        except NoSuchEntry:
            log.debug("/%s was deleted already", entry.path)
        except Refused:
            # v2 refuses an unknown id like anything else: look whether it is gone (docs/service.md, "Envelopes")
            found = self._find(entry.path, self._round(asked))
            if found is not None and found.id == entry.id:
                raise
        log.info("deleted /%s", entry.path)

    def _round(self, asked: float) -> float:
        """Since when a listing must be, to tell of a delete asked for at `asked`: the same for all of a round.

        An older one would show what an earlier try, whose answer was lost, has deleted.
        """
        with self._queue.lock:
            if self._refused_round < asked:
                self._refused_round = self._clock.monotonic()
            return self._refused_round

    def _give_up(self, job: Job, tombstone: Tombstone, error: str) -> bool:
        """A delete was refused. True if that has gone on for long enough: then the name is shown again."""
        now = self._clock.monotonic()
        job.first_pause = REFUSED_RETRY
        tombstone.refused_at = min(tombstone.refused_at, now)
        if now - tombstone.refused_at < REFUSED_BOUND:
            return False
        with self._queue.lock:
            if job.cancelled:
                return True
            self._jobs.pop(tombstone, None)
            self._given_up[tombstone.path] = error
        log.error("/%s is not deleted, and is shown again: %s", tombstone.path, error)
        self._on_kept(tombstone)
        return True

    def _what_to_delete(self, tombstone: Tombstone) -> list[Entry]:
        """The entries whose delete makes the tombstone true."""
        known = tombstone.entry is not None and tombstone.entry.id
        if known and not tombstone.is_dir and tombstone.entry is not None:
            return [] if self._was_replaced(tombstone.entry) else [tombstone.entry]
        # An upload has reached the service, or may have before it was called off: look.
        self._view_cache.invalidate()
        started = self._clock.monotonic() if tombstone.since is None else tombstone.since
        since = max(started, self._view_cache.invalidated_at)
        if not known:
            tombstone.entry = self._find_removed(tombstone.path, since, is_dir=tombstone.is_dir)
        if tombstone.entry is None:
            return []
        # a rename's uploads took their time; else the listings the removal itself was based on will do
        ids_known = tombstone.since is None and all(entry.id for entry in tombstone.below)
        if not tombstone.is_dir or self._may_delete_folder(tombstone, None if ids_known else since):
            return [tombstone.entry]
        tombstone.others_stay = True  # only ours go
        found = (
            entry if entry.id else self._find_removed(entry.path, since, is_dir=False) for entry in tombstone.below
        )
        return [entry for entry in found if entry is not None and not self._was_replaced(entry)]

    def _find_removed(self, path: str, since: float, *, is_dir: bool) -> Entry | None:
        """What is stored under a removed name; a folder that has taken a file's name since is none of it."""
        found = self._find(path, since)
        return found if found is not None and found.is_dir == is_dir else None

    def _find(self, path: str, since: float) -> Entry | None:
        """What is stored under a path, by a listing asked for after `since`."""
        try:
            return self._find_entry(path, since)
        except NotDirectory:  # a file has taken the name of the folder above: the store may have both
            pass
        try:
            view = self._client.view(path, urgency=Urgency.BACKGROUND)
        except Refused:  # v2's word for an unknown path: it has just answered a listing
            return None
        return None if view is None else view.entry
