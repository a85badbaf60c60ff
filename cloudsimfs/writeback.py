"""Write-back: which uploads and deletes are pending, in what order, and what one of them does.

It knows inodes, contents and the journal, and neither the tree nor the kernel. An upload is one PUT of one closed
generation; a change calls it off (`Content.blocks` asks before every read). Order where it matters:

  * a rename's delete is held until what was renamed is stored (`Gone.after`);
  * before a path is overwritten or deleted, every content that still fetches from it is completed;
  * the service's cache is deleted once after a burst (v2), not once per upload.

Locks: the queue's lock (`WorkQueue.lock`, re-entrant) protects the tables here too. It comes after Inode.lock:
callers may hold an inode's lock; jobs take an inode's lock only without it.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable

from cloudsimfs import paths
from cloudsimfs.clock import Clock
from cloudsimfs.content import Content
from cloudsimfs.errors import (
    Cancelled,
    CloudsimfsError,
    NoSpace,
    NoSuchEntry,
    NotFinished,
    NotOffered,
    Refused,
    Stale,
    TimedOut,
    TryAgain,
    WrongState,
)
from cloudsimfs.fetching import Interrupted, never
from cloudsimfs.inode import ANYBODY, NOBODY, Gone, Inode, WriteState
from cloudsimfs.journal import Journal
from cloudsimfs.meter import Meter
from cloudsimfs.rows import DraftRow, FileRow, GoneRow
from cloudsimfs.service import Client, Urgency
from cloudsimfs.service.model import Entry
from cloudsimfs.syncer import Syncer
from cloudsimfs.workqueue import Job, WorkQueue

log = logging.getLogger(__name__)

WORKERS = 8
DELETE_HOLD = 2.0  # seconds a delete is held back, so that those of a whole folder can become one
RELEASE_BOUND = 2.0  # seconds the kernel may take from close(2) to release
FSYNC_LOOK = 0.25  # seconds between looks whether who waits in fsync(2) was interrupted
FSYNC_STALL = 60.0  # seconds fsync(2) waits while nothing is sent
# Seconds between looks for what was uploaded, removed, and is not listed yet (v1): ten minutes in all.
LATE = (10.0, 20.0, 40.0, 80.0, 150.0, 300.0)
REFUSED_RETRY = 120.0  # seconds from a delete that was refused to the next try, doubled after
REFUSED_BOUND = 600.0  # seconds after which a delete that is refused again is given up
CACHE_HOLD = 1.0  # seconds between looks whether a burst of uploads is over


class Writeback:
    """`delay` is seconds from the last close to the upload.

    The functions are called with no lock held. `on_kept` is told of a delete that was given up. `find_entry(path,
    since)` looks for what is stored under a path in a listing asked for after `since` (monotonic seconds);
    `may_delete_folder` says whether a folder holds nothing but what was deleted here; `evade_conflict` gives a file
    another name if others have stored one under its own, and says so;
    `set_aside` makes a draft of what can never be completed, as others have replaced it, and says so.
    """

    def __init__(
        self,
        client: Client,
        journal: Journal,
        syncer: Syncer,
        *,
        delay: float,
        clock: Clock,
        on_stored: Callable[[Inode], None],
        on_deleted: Callable[[Gone], None],
        on_kept: Callable[[Gone], None],
        find_entry: Callable[[str, float], Entry | None],
        may_delete_folder: Callable[[Gone, float | None], bool],
        evade_conflict: Callable[[Inode], bool],
        set_aside: Callable[[Inode], bool],
    ) -> None:
        self._client = client
        self._journal = journal
        self._syncer = syncer
        self._clock = clock
        self._delay = delay
        self._on_stored = on_stored
        self._on_deleted = on_deleted
        self._on_kept = on_kept
        self._find_entry = find_entry
        self._may_delete_folder = may_delete_folder
        self._evade_conflict = evade_conflict
        self._set_aside = set_aside
        self.meter = Meter(clock)  # bytes uploaded
        self.queue = WorkQueue(clock=clock, workers=WORKERS, name="writeback")
        self._uploads: dict[Inode, Job] = {}  # guarded by queue.lock
        self._deletes: dict[Gone, Job] = {}  # guarded by queue.lock
        # Committed, but not queued yet: the last release is on its way, or a writer goes on; guarded by queue.lock.
        self._closing: set[Inode] = set()
        self._refused: dict[Inode, str] = {}  # closed, but not accepted, and why; guarded by queue.lock
        self._last_delete = 0.0  # monotonic seconds; guarded by queue.lock
        self._refused_round = -math.inf  # when they were last looked for, monotonic; guarded by queue.lock
        self._undeleted: dict[str, str] = {}  # paths whose delete was given up, and why; guarded by queue.lock
        self._cache_queue = WorkQueue(clock=clock, workers=1, name="service-cache")
        self._ended = 0  # uploads that have ended; guarded by queue.lock
        self._told = 0  # how many of them the service knows (v2); guarded by queue.lock
        self._told_wanted = 0  # how many it is to know without delay, for somebody waits; guarded by queue.lock
        # Held while the service is told, so that who comes second finds it told; jobs only, before queue.lock.
        self._telling = threading.Lock()
        self._told_at = 0.0  # monotonic seconds: listings asked for before do not know our uploads
        self._sources: dict[str, list[Content]] = {}  # contents that fetch from a path; guarded by queue.lock

    # -- files -------------------------------------------------------------------------------------------

    def changed(self, inode: Inode) -> None:
        """The inode has left a closed state, or goes on in a copy: no upload. The caller holds the inode's lock."""
        self.forget(inode)
        self.save_draft(inode)

    def save_draft(self, inode: Inode) -> None:
        """Journal where the bytes are that are being written. The caller holds the inode's lock."""
        if inode.unlinked:
            return
        assert inode.content is not None
        row = DraftRow(
            ino=_number(inode),
            path=inode.path,
            generation=inode.generation,
            uploaded=inode.uploaded,
            base=inode.entry,
            since_ns=inode.since_ns,
            kept=False,
            bytes=inode.content.describe(),
        )
        self._journal.save_draft(row, closed=inode.has_closed)

    def _save_file(self, inode: Inode, state: str) -> None:
        assert inode.content is not None
        row = FileRow(
            ino=_number(inode),
            path=inode.path,
            state=state,
            generation=inode.generation,
            uploaded=inode.uploaded,
            base=inode.entry,
            stored_ns=inode.stored_ns,
            bytes=inode.content.describe(),
        )
        self._journal.save_file(row)

    def moved(self, inode: Inode) -> None:
        """An inode that is open and changed has a new name. The caller holds the inode's lock."""
        with self._journal.transaction():
            if inode.has_closed:
                self._journal.move_file(_number(inode), inode.path, inode.entry, uploaded=inode.uploaded)
            if not inode.committed:
                self.save_draft(inode)

    def commit(self, inode: Inode, by: int = NOBODY) -> None:
        """The bytes as they are now are a closed state (step 2 of the journal). The caller holds the inode's lock.

        `by` is the handle that was closed, ANYBODY for fsync(2): who may write on without the state being kept.
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
            self._save_file(inode, "closed")
            self._journal.save_attr(inode.path, inode.attr)
        inode.committed = True
        inode.closed_size, inode.closed_by = inode.content.size, by
        self._syncer.closed(inode.content)
        with self.queue.lock:
            self._closing.add(inode)
        if inode.superseded is not None:
            self._journal.after_commit(inode.superseded.drop)
            inode.superseded = None

    def close(self, inode: Inode) -> None:
        """After the last handle that could write: upload what was written, unless close() could not accept it."""
        with inode.lock:
            if inode.state is not WriteState.DIRTY or inode.unlinked:
                return
            try:
                self.commit(inode)
            except CloudsimfsError as error:
                log.error("/%s is not uploaded: %s", inode.path, error)
                with self.queue.lock:
                    self._refused[inode] = str(error)
                return
            inode.move("close")
            self.enqueue(inode)

    def store(self, inode: Inode, interrupted: Interrupted) -> None:
        """Have the inode's bytes uploaded as they are now, and wait for it; it may be open. For fsync(2).

        Raises what the upload failed with, Cancelled if `interrupted` says so, TimedOut when nothing moves.
        """
        while True:
            with inode.lock:
                if inode.is_stored or inode.unlinked or inode.local_only:
                    return
                self.commit(inode, by=ANYBODY)
                if inode.state is WriteState.DIRTY:
                    inode.move("close")
                    self.enqueue(inode)
                with self.queue.lock:
                    job = self._uploads.get(inode)
            if job is not None:
                self._wait_for(job, interrupted)

    def _wait_for(self, job: Job, interrupted: Interrupted) -> None:
        sent, since = job.sent, self._clock.monotonic()
        while True:
            try:
                self.queue.drain(lambda jobs: [each for each in jobs if each is job], timeout=FSYNC_LOOK)
                return
            except NotFinished:
                if interrupted():
                    raise Cancelled(f"/{job.path}: fsync was interrupted; its upload goes on") from None
                if job.sent != sent:
                    sent, since = job.sent, self._clock.monotonic()
                elif self._clock.monotonic() - since > FSYNC_STALL:
                    raise TimedOut(f"/{job.path}: nothing was sent for {FSYNC_STALL:.0f} s") from None
            except TryAgain as error:
                raise job.failure or error from None

    def enqueue(self, inode: Inode) -> None:
        """Upload the inode's closed state after the delay. The caller holds the inode's lock."""
        with self.queue.lock:
            self.forget(inode)
            if inode.local_only or inode.unlinked:
                return
            job = Job("upload", inode.path, lambda job: self._upload(job, inode), size=inode.size)
            self._uploads[inode] = job
            self.queue.put(job, delay=self._delay)

    def forget(self, inode: Inode) -> bool:
        """Nothing is to be uploaded of the inode; the rest as `call_off`."""
        with self.queue.lock:
            self._closing.discard(inode)
            self._refused.pop(inode, None)
            return self.call_off(inode)

    def call_off(self, inode: Inode) -> bool:
        """No upload of the inode under its present name.

        True if that comes too late to be sure: it had begun and may yet be stored there.
        """
        with self.queue.lock:
            job = self._uploads.pop(inode, None)
            return job is not None and not self.queue.cancel(job)

    def add_source(self, content: Content) -> None:
        """The content will fetch from a path that is to be deleted or overwritten."""
        if content.source is not None:
            with self.queue.lock:
                self._sources.setdefault(content.source.entry.path, []).append(content)

    def _upload(self, job: Job, inode: Inode) -> None:
        if inode.is_stored and not job.cancelled:
            self._conclude(job, inode)  # it could not be, the disk being full
            return
        if self._evade_conflict(inode):
            raise Cancelled(job.path)  # another job has it, under another name
        with inode.lock:
            if job.cancelled or not inode.committed or inode.state is not WriteState.QUEUED or inode.content is None:
                raise Cancelled(job.path)
            if not inode.uploaded and inode.attr.ino is not None:
                self._journal.mark_uploaded(inode.attr.ino)
                inode.uploaded = True
            generation, content = inode.generation, inode.content
            job.size, job.sent = content.size, 0
            content.acquire()
            inode.move("start")  # last: the steps before may find the disk full, and are tried again
            inode.in_doubt = True

        def still_wanted() -> bool:
            return not job.cancelled and inode.generation == generation

        def progress(sent: int) -> None:
            self.meter.add(max(0, sent - job.sent))
            job.sent = sent

        try:
            content.complete()
            self._complete_sources(job.path)
            stored = self._client.upload(
                job.path,
                job.size,
                lambda: content.blocks(still_wanted),
                progress=progress,
                urgency=Urgency.BACKGROUND,
            )
        except BaseException as error:
            with inode.lock:
                if inode.is_uploading(generation):
                    inode.move("failed")
            if isinstance(error, Stale) and self._set_aside(inode):
                raise Cancelled(job.path) from error
            raise
        finally:
            content.release()
        self.service_cache_is_stale()
        with inode.lock:
            if inode.is_uploading(generation):
                inode.move("stored")
                inode.stored_ns, inode.stored_at = stored.stored_ns, self._clock.monotonic()
                inode.stored_size, inode.in_doubt = job.size, False
        self._conclude(job, inode)

    def _conclude(self, job: Job, inode: Inode) -> None:
        """Journal that the inode is stored, and let go what waited for it."""
        with inode.lock:
            is_stored = inode.is_stored  # else it was changed or renamed just now: what waits for it waits for that
            if inode.state is WriteState.STORED and not inode.unlinked:
                self._save_file(inode, "stored")
            if is_stored:
                self.release_deletes(inode)
        with self.queue.lock:
            if self._uploads.get(inode) is job:
                del self._uploads[inode]
        if is_stored:
            log.info("stored /%s (%d bytes)", job.path, job.size)
            self._on_stored(inode)

    def _complete_sources(self, path: str, *, folder: bool = False) -> None:
        """Fetch what contents still need of `path` (with `folder`: of all below it) before it goes."""
        with self.queue.lock:
            keys = [key for key in self._sources if key == path or (folder and paths.is_below(key, path))]
            contents = [content for key in keys for content in self._sources[key]]
        for content in contents:
            if content.dropped:
                continue  # its file was removed meanwhile
            content.acquire()
            try:
                content.complete()
            except Stale as error:
                log.warning("%s: what was renamed from there cannot be completed any more: %s", path, error)
            finally:
                content.release()
        with self.queue.lock:
            for key in keys:
                self._sources.pop(key, None)

    # -- deletes -----------------------------------------------------------------------------------------

    def delete(self, gone: Gone, *, after: Iterable[Inode] = ()) -> None:
        """Delete what the tombstone names, once all of `after` is stored or removed, and journal that."""
        with self.queue.lock:
            gone.after = set(after)
            self.save_gone(gone)
            self._last_delete = self._clock.monotonic()
            self._undeleted.pop(gone.path, None)
            job = Job("delete", gone.path, lambda job: self._delete(job, gone), whole_folder=gone.is_dir)
            job.held = bool(gone.after)
            self._deletes[gone] = job
        self._journal.after_commit(lambda: self._put_delete(gone, job))  # never what the journal could not take

    def _put_delete(self, gone: Gone, job: Job) -> None:
        with self.queue.lock:
            if self._deletes.get(gone) is job:  # else it was called off in the same transaction
                self.queue.put(job, delay=DELETE_HOLD)

    def save_gone(self, gone: Gone) -> None:
        after = tuple(inode.attr.ino or 0 for inode in gone.after)
        row = GoneRow(gone.path, gone.entry, gone.is_dir, tuple(gone.below), after, gone.done)
        self._journal.save_gone(row)

    def undelete(self, gone: Gone) -> bool:
        """The name is wanted again: call its delete off. False if that may be too late: it had begun, or is done."""
        with self.queue.lock:
            job = self._deletes.pop(gone, None)
            return job is not None and self.queue.cancel(job)

    def release_deletes(self, inode: Inode) -> None:
        """The inode is stored, or will never be: deletes need not wait for it any longer."""
        with self.queue.lock:
            for gone, job in self._deletes.items():
                if inode in gone.after:
                    gone.after.discard(inode)
                    if not gone.after:  # till then the row may name what is stored: replay does not wait for that
                        self.queue.release(job)  # also if the disk is full
                        self.save_gone(gone)

    def removed(self, inode: Inode) -> None:
        """The inode was unlinked here: no upload, and nothing waits for one."""
        self.forget(inode)
        self.release_deletes(inode)

    def _delete(self, job: Job, gone: Gone) -> None:
        with self.queue.lock:
            quiet = self._clock.monotonic() - self._last_delete
            if quiet < DELETE_HOLD and job.due != 0.0:  # a burst goes on, and nobody waits
                job.again = DELETE_HOLD - quiet
                return
        entries = self._what_to_delete(gone)
        lags = self._client.version == "v1"  # v2's listings show all once the service was told
        for entry in entries:
            self._complete_sources(entry.path, folder=entry.is_dir)
            if job.cancelled:
                return
            try:
                self._delete_entry(entry)
            except Refused as error:
                if not self._give_up(job, gone, str(error)):
                    raise
                return
        with self.queue.lock:
            if job.cancelled:
                return
            if not entries and lags and gone.looks < len(LATE):
                job.again, gone.since = LATE[gone.looks], None  # it may have been uploaded and not be listed yet
                gone.looks += 1
                return
            gone.finish(self._clock.monotonic())
            self._deletes.pop(gone, None)
            self.save_gone(gone)
        self._on_deleted(gone)

    def _delete_entry(self, entry: Entry) -> None:
        asked = self._clock.monotonic()
        try:
            self._client.delete(entry.id, urgency=Urgency.BACKGROUND)
        except NoSuchEntry:
            log.debug("/%s was deleted already", entry.path)
        except Refused:
            # v2 refuses an unknown id like anything else: look whether it is gone (service-observed.md, "Envelopes")
            found = self._find_entry(entry.path, self._round(asked))
            if found is not None and found.id == entry.id:
                raise
        log.info("deleted /%s", entry.path)

    def _round(self, asked: float) -> float:
        """Since when a listing must be, to tell of a delete asked for at `asked`: the same for all of a round.

        An older one would show what an earlier try, whose answer was lost, has deleted.
        """
        with self.queue.lock:
            if self._refused_round < asked:
                self._refused_round = self._clock.monotonic()
            return self._refused_round

    def _give_up(self, job: Job, gone: Gone, error: str) -> bool:
        """A delete was refused. True if that has gone on for long enough: then the name is shown again."""
        now = self._clock.monotonic()
        job.first_pause = REFUSED_RETRY
        gone.refused_at = min(gone.refused_at, now)
        if now - gone.refused_at < REFUSED_BOUND:
            return False
        with self.queue.lock:
            if job.cancelled:
                return True
            self._deletes.pop(gone, None)
            self._undeleted[gone.path] = error
        log.error("/%s is not deleted, and is shown again: %s", gone.path, error)
        self._on_kept(gone)
        return True

    def _what_to_delete(self, gone: Gone) -> list[Entry]:
        """The entries whose delete makes the tombstone true."""
        known = gone.entry is not None and gone.entry.id
        if known and not gone.is_dir and gone.entry is not None:
            return [gone.entry]
        # An upload has reached the service, or may have before it was called off: look.
        self._tell_service()
        started = self._clock.monotonic() if gone.since is None else gone.since
        since = max(started, self._told_at)
        if not known:
            gone.entry = self._find_removed(gone.path, since, is_dir=gone.is_dir)
        if gone.entry is None:
            return []
        # a rename's uploads took their time; else the listings the removal itself was based on will do
        ids_known = gone.since is None and all(entry.id for entry in gone.below)
        if not gone.is_dir or self._may_delete_folder(gone, None if ids_known else since):
            return [gone.entry]
        gone.others_stay = True  # only ours go
        found = (entry if entry.id else self._find_removed(entry.path, since, is_dir=False) for entry in gone.below)
        return [entry for entry in found if entry is not None]

    def _find_removed(self, path: str, since: float, *, is_dir: bool) -> Entry | None:
        """What is stored under a removed name; a folder that has taken a file's name since is none of it."""
        found = self._find_entry(path, since)
        return found if found is not None and found.is_dir == is_dir else None

    # -- the service's cache -----------------------------------------------------------------------------

    def service_cache_is_stale(self) -> None:
        """An upload has ended; the service learns it when its cache is deleted (v2)."""
        with self.queue.lock:
            self._ended += 1
            self._put_cache_job()

    def _put_cache_job(self) -> None:
        if all(job.running for job in self._cache_queue.pending()):  # a running one may have come too early
            job = Job("delete-cache", paths.ROOT, self._delete_service_cache)
            self._cache_queue.put(job, delay=CACHE_HOLD)

    def _delete_service_cache(self, job: Job) -> None:
        with self.queue.lock:
            if self._told == self._ended:
                return
            if self._told >= self._told_wanted and any(not upload.error for upload in self._uploads.values()):
                job.again = CACHE_HOLD  # the burst goes on
                return
        self._tell_service()

    def _tell_service(self) -> None:
        """Delete the service's cache now, if uploads have ended since it was last deleted."""
        with self._telling:
            with self.queue.lock:
                ended = self._ended
                if self._told == ended:
                    return
            try:
                self._client.delete_cache(urgency=Urgency.BACKGROUND)
                self._told_at = self._clock.monotonic()
            except NotOffered:
                log.debug("this account has no cache to delete")
            except BaseException:
                with self.queue.lock:
                    self._put_cache_job()
                raise
            with self.queue.lock:
                self._told = ended

    # -- as a whole --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the workers; after the process has forked."""
        self.queue.start()
        self._cache_queue.start()

    def stop(self) -> None:
        """End the workers; what is pending stays in the journal."""
        self.queue.stop(timeout=5)
        self._cache_queue.stop(timeout=5)

    def drain(
        self, folder: str = paths.ROOT, *, timeout: float | None = None, interrupted: Interrupted = never
    ) -> None:
        """Wait until all below `folder` is on the service and the service knows (design.md, invariant 8).

        Raises TryAgain as soon as an operation below has failed, or when `timeout` seconds have passed, WrongState if
        a file that was closed or synced is still open for writing, Cancelled if `interrupted` says so. Deletes that
        wait for an open file are not waited for.
        """
        self._wait_for_releases(folder)
        self.check_refused(folder)
        self.queue.drain(lambda jobs: self._awaited(jobs, folder), timeout=timeout, interrupted=interrupted)
        with self.queue.lock:
            wanted = self._told_wanted = self._ended
        self._cache_queue.drain(
            lambda jobs: jobs if self._told < wanted else [], timeout=timeout, interrupted=interrupted
        )

    def check_refused(self, folder: str) -> None:
        """Raises TryAgain if the close of a file below has failed."""
        with self.queue.lock:
            refused = [error for inode, error in self._refused.items() if paths.is_below(inode.path, folder)]
        if refused:
            raise TryAgain(f"{refused[0]}; write it again, or remove it")

    def _wait_for_releases(self, folder: str) -> None:
        """close(2) returns before the kernel's release, which queues the upload, has come."""
        deadline = self._clock.monotonic() + RELEASE_BOUND
        with self.queue.lock:
            while open_files := [
                inode.path for inode in self._closing if paths.is_below(inode.path, folder) and not inode.local_only
            ]:
                if self._clock.monotonic() > deadline:
                    raise WrongState(f"/{open_files[0]} is still open for writing; close it first")
                self.queue.lock.wait(0.01)

    def _awaited(self, jobs: list[Job], folder: str) -> list[Job]:
        """Those a drain of `folder` waits for: all inside, and what a delete inside waits for.

        A delete that waits for what will not be uploaded now (an open file) is not one of them.
        """
        with self.queue.lock:
            gone_by_job = {job: gone for gone, job in self._deletes.items() if paths.is_below(gone.path, folder)}
            needed: set[Job] = set()
            for job, gone in gone_by_job.items():
                uploads = [self._uploads[inode] for inode in gone.after if inode in self._uploads]
                needed.update(uploads)
                if (uploads or not job.held) and not gone.looks:
                    needed.add(job)
            return [
                job for job in jobs if job in needed or (job.kind == "upload" and paths.is_below(job.path, folder))
            ]

    def refused(self) -> list[str]:
        """Why files that were closed are not uploaded: close() has said so."""
        with self.queue.lock:
            return list(self._refused.values())

    def undeleted(self) -> dict[str, str]:
        """What the service refused to delete, by path, and why; it is shown again."""
        with self.queue.lock:
            return dict(self._undeleted)

    def pending(self) -> list[Job]:
        """What is not on the service yet, for `status`."""
        return self.queue.pending()


def _number(inode: Inode) -> int:
    assert inode.attr.ino is not None
    return inode.attr.ino
