"""What one delete does: have the service delete what a tombstone names, and nothing that others have put there since.

  * the deletes of a burst of removals wait until it is over: those of a whole folder may have become one by then;
  * an upload that is not listed yet is looked for again, at growing intervals (v1). So is what is listed although the
    service says that it has no such entry;
  * a file that others have stored under the name since it was removed is not deleted. The listing at hand tells, but
    not after an attempt that failed, nor in the next mount: then the folder is listed again;
  * a folder is deleted as one only if a listing asked for after it was removed shows nothing of others in it.
    Else its files are deleted one by one, and it goes by itself (docs/service.md, "Behaviour");
  * a delete that was refused is tried again, minutes apart. In the end it is given up, and the name is shown again.

Threading: `run` is called by the queue's workers with no lock held.
Locks: `_lock` is a leaf. It protects the time of the last look for the entries of refused deletes. `_looking` is held
over a call, by jobs only.
"""

from __future__ import annotations

import logging
import math
import threading

from cloudsimfs.clock import Clock
from cloudsimfs.errors import NoSuchEntry, NotDirectory, NotFound, Refused
from cloudsimfs.inode import Tombstone
from cloudsimfs.service import Client, Urgency
from cloudsimfs.service.model import Entry
from cloudsimfs.vfs import tombstones
from cloudsimfs.vfs.evidence import is_foreign_locked
from cloudsimfs.vfs.tree import Tree
from cloudsimfs.writeback.queue import Job
from cloudsimfs.writeback.uploads import Writeback

log = logging.getLogger(__name__)

LOOK_AGE = 3.0  # seconds; so old may the look into a folder be on which its delete is based: it answers for a burst
REFUSED_RETRY = 120.0  # seconds from the first refusal of a delete to the next try; doubled after each
REFUSED_BOUND = 600.0  # seconds from the first refusal; a delete that is refused later is given up


class Deleter:
    """Runs the jobs of kind "delete", whose item is a tombstone."""

    def __init__(self, client: Client, tree: Tree, writeback: Writeback, *, clock: Clock) -> None:
        self._client = client
        self._tree = tree
        self._dcache = tree.dcache
        self._durability = writeback.durability
        self._deletes = writeback.deletes
        self._dependents = writeback.dependents
        self._view_cache = writeback.view_cache
        self._clock = clock
        self._looking = threading.Lock()  # held while all is listed, so that the next job finds that done
        self._lock = threading.Lock()
        self._refused_round = -math.inf  # monotonic seconds; the last such look; guarded by _lock

    def run(self, job: Job) -> None:
        """Raises Refused or another ServiceError; the queue then tries again."""
        tombstone: Tombstone = job.item
        if self._deletes.postpone(job):
            return
        try:
            self._attempt(job, tombstone)
        finally:
            tombstone.look_after = self._clock.monotonic()  # if it is tried again, others may have stored something

    def _attempt(self, job: Job, tombstone: Tombstone) -> None:
        entries = self._what_to_delete(tombstone)
        for entry in entries:
            self._dependents.complete(entry.path, lists_still=self._tree.lists_still, folder=entry.is_dir)
            self._durability.make_durable(job)
            if job.cancelled:
                return
            try:
                self._delete_entry(entry)
            except NoSuchEntry as error:
                if not self._deletes.look_later(job, tombstone):
                    self._give_up(job, tombstone, f"{error}, but it is still listed")
                return
            except Refused as error:
                if not self._is_refused_for_good(job, tombstone):
                    raise
                self._give_up(job, tombstone, str(error))
                return
        lags = self._client.api_version == "v1"  # v2's listings show all once the service's cache was deleted
        unlisted = not (entries or tombstone.is_known or tombstone.others_stay)  # it may have been uploaded, even so
        if lags and unlisted and self._deletes.look_later(job, tombstone):
            return
        if self._deletes.finish(job, tombstone):
            tombstones.deleted(self._tree, tombstone)

    def _delete_entry(self, entry: Entry) -> None:
        """Raises NoSuchEntry or Refused if a listing that was asked for after that answer still shows the entry."""
        asked_at = self._clock.monotonic()
        try:
            self._client.delete(entry.id, urgency=Urgency.BACKGROUND)
        except (NoSuchEntry, Refused):
            # it may have been deleted already: v2 then gives no reason (docs/service.md, "Envelopes")
            listed = self._find(entry.path, self._round(asked_at))
            if listed is not None and listed.id == entry.id:
                raise
        log.info("deleted /%s", entry.path)

    def _round(self, asked_at: float) -> float:
        """How recent a listing must be to decide a delete that was asked for at `asked_at` (monotonic seconds).

        All deletes of a round share one moment, and so one listing. An older listing would still show an entry that
        an earlier try has deleted, if the answer to that try was lost.
        """
        with self._lock:
            if self._refused_round < asked_at:
                self._refused_round = self._clock.monotonic()
            return self._refused_round

    def _is_refused_for_good(self, job: Job, tombstone: Tombstone) -> bool:
        """Whether a delete that was refused now has been refused for long enough to give it up."""
        now = self._clock.monotonic()
        job.first_pause = REFUSED_RETRY
        tombstone.refused_at = min(tombstone.refused_at, now)
        return now - tombstone.refused_at >= REFUSED_BOUND

    def _give_up(self, job: Job, tombstone: Tombstone, error: str) -> None:
        """Give up a delete: its name is shown again."""
        if self._deletes.give_up(job, tombstone, error):
            log.error("/%s is not deleted, and is shown again: %s", tombstone.path, error)
            tombstones.kept(self._tree, tombstone)

    def _what_to_delete(self, tombstone: Tombstone) -> list[Entry]:
        """The entries to delete, so that the name is gone on the service, too."""
        has_id = tombstone.entry is not None and tombstone.entry.id
        if has_id and not tombstone.is_dir and tombstone.entry is not None:
            return self._not_replaced(tombstone, [tombstone.entry])
        # The service has an upload, or may have: it may have been stored before it was called off. Look.
        self._view_cache.invalidate()
        started = self._clock.monotonic() if tombstone.since is None else tombstone.since
        since = max(started, self._view_cache.invalidated_at)
        if tombstone.is_dir:
            return self._folder_to_delete(tombstone, max(since, self._clock.monotonic() - LOOK_AGE))
        found = self._find_removed(tombstone.path, since, is_dir=False)
        if found is not None and is_foreign_locked(tombstone.base, found):
            found, tombstone.others_stay = None, True  # ours was replaced before it was listed
        tombstone.entry = found
        return [] if found is None else [found]

    def _folder_to_delete(self, tombstone: Tombstone, since: float) -> list[Entry]:
        """The folder, if it only holds what was removed here by listings asked for after `since`; else its files."""
        with self._looking:
            self._dcache.look_into(
                {tombstone.path, *(entry.dirname for entry in tombstone.below)},
                since=since,
            )
        for listed_after in (None, since):  # the listing at hand has its id, if it is not out of date
            entry = self._find_removed(tombstone.path, listed_after, is_dir=True)
            try:
                only_ours = entry is not None and tombstones.only_holds(self._tree, tombstone, since)
            except NotFound:
                continue
            if entry is not None:
                tombstone.entry, tombstone.others_stay = entry, not only_ours
                return [entry] if only_ours else self._files_to_delete(tombstone, since)
        return []

    def _files_to_delete(self, tombstone: Tombstone, since: float) -> list[Entry]:
        """The files that were removed with a folder in which others have something, too."""
        known = [entry for entry in tombstone.below if entry.id]
        found = [self._find_removed(entry.path, since, is_dir=False) for entry in tombstone.below if not entry.id]
        ours = [entry for entry in found if entry is not None and not tombstones.is_of_others(tombstone, entry)]
        return self._not_replaced(tombstone, [*known, *ours])

    def _not_replaced(self, tombstone: Tombstone, entries: list[Entry]) -> list[Entry]:
        """Those that others have not replaced, by a listing from after the last trouble: one call for each folder."""
        since = tombstone.look_after
        return [entry for entry in entries if not tombstones.was_replaced(self._dcache, entry, since)]

    def _find_removed(self, path: str, since: float | None, *, is_dir: bool) -> Entry | None:
        """The entry under a removed name, unless a folder has taken a file's name, or the other way round."""
        entry = self._find(path, since)
        return entry if entry is not None and entry.is_dir == is_dir else None

    def _find(self, path: str, since: float | None) -> Entry | None:
        """The entry under a path, by a listing asked for after `since` (monotonic seconds). Raises ServiceError."""
        try:
            return self._dcache.entry(path, since=since)
        except NotDirectory:  # a file has taken the name of the folder above: the store may have both
            pass
        try:
            view = self._client.view(path, urgency=Urgency.BACKGROUND)
        except Refused:  # v2 answers so for an unknown path; the service itself is there, it has just answered
            return None
        return None if view is None else view.entry
