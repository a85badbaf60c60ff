"""Write-back: which closed files wait for their upload, what one upload does, and waiting until all is stored.

It knows inodes, contents and the journal, and neither the tree nor the kernel. An upload is one PUT of one closed
generation; a change calls it off (`Content.blocks` asks before every read). Beside it, in modules of their own:

  * `deletes`: what is to be deleted on the service; in the same queue;
  * `sources`: contents that fetch from a path, completed before that is overwritten or deleted;
  * `servicecache`: has the service show what was uploaded (v2).

Locks: the queue's lock (`WorkQueue.lock`, re-entrant) protects the tables here and in `deletes`. It comes after
Inode.lock: callers may hold an inode's lock; jobs take an inode's lock only without it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from cloudsimfs import paths
from cloudsimfs.clock import Clock
from cloudsimfs.errors import (
    Cancelled,
    CloudsimfsError,
    NoSpace,
    NotFinished,
    Stale,
    TimedOut,
    TryAgain,
    Unreachable,
    WrongState,
)
from cloudsimfs.inode import ANYBODY, NOBODY, Inode, Tombstone, WriteState
from cloudsimfs.journal.journal import Journal
from cloudsimfs.journal.rows import DraftRow, FileRow
from cloudsimfs.service import Client, Urgency
from cloudsimfs.service.model import Entry, Stored
from cloudsimfs.waiting import Interrupted, never
from cloudsimfs.writeback.deletes import Deletes
from cloudsimfs.writeback.dependents import Dependents
from cloudsimfs.writeback.fsyncer import Fsyncer
from cloudsimfs.writeback.meter import Meter
from cloudsimfs.writeback.queue import Job, WorkQueue
from cloudsimfs.writeback.viewcache import ViewCache

log = logging.getLogger(__name__)

WORKERS = 16  # uploads and deletes at the same time; small files are two round trips each
LARGE = 64 << 20  # bytes; a new file so large is uploaded after a quarter of the delay
RELEASE_BOUND = 2.0  # seconds the kernel may take from close(2) to release
FSYNC_LOOK = 0.25  # seconds between looks whether who waits in fsync(2) was interrupted
FSYNC_STALL = 60.0  # seconds fsync(2) waits while nothing is sent


class Writeback:
    """`delay` is seconds from the last close to the upload. `offline`: nothing is sent, and nobody waits for it.

    The functions are called with no lock held. `on_deleted`, `on_kept`, `find_entry` and `may_delete_folder` are
    for `Deletes`; `evade_conflict` gives a file another name if others have stored one under its own, and says so;
    `set_aside` makes a draft of what can never be completed, as others have replaced it, and says so.
    """

    def __init__(
        self,
        client: Client,
        journal: Journal,
        fsyncer: Fsyncer,
        *,
        delay: float,
        offline: bool,
        clock: Clock,
        on_stored: Callable[[Inode], None],
        on_deleted: Callable[[Tombstone], None],
        on_kept: Callable[[Tombstone], None],
        find_entry: Callable[[str, float], Entry | None],
        may_delete_folder: Callable[[Tombstone, float | None], bool],
        was_replaced: Callable[[Entry], bool],
        evade_conflict: Callable[[Inode], bool],
        set_aside: Callable[[Inode], bool],
    ) -> None:
        self._client = client
        self._journal = journal
        self._fsyncer = fsyncer
        self._clock = clock
        self._delay = delay
        self._offline = offline
        self._on_stored = on_stored
        self._find_entry = find_entry
        self._evade_conflict = evade_conflict
        self._set_aside = set_aside
        self.meter = Meter(clock)  # bytes uploaded
        self.queue = WorkQueue(clock=clock, workers=WORKERS, name="writeback")
        self._uploads: dict[Inode, Job] = {}  # guarded by queue.lock
        # Committed, but not queued yet: the last release is on its way, or a writer goes on; guarded by queue.lock.
        self._closing: set[Inode] = set()
        self._refused: dict[Inode, str] = {}  # closed, but not accepted, and why; guarded by queue.lock
        self.dependents = Dependents()
        self.view_cache = ViewCache(client, clock=clock, in_burst=self._in_burst)
        self.deletes = Deletes(
            client,
            journal,
            self.queue,
            self.view_cache,
            self.dependents,
            clock=clock,
            on_deleted=on_deleted,
            on_kept=on_kept,
            find_entry=find_entry,
            may_delete_folder=may_delete_folder,
            was_replaced=was_replaced,
        )

    # -- files -------------------------------------------------------------------------------------------

    def changed(self, inode: Inode) -> None:
        """The inode has left a closed state, or goes on in a copy: no upload. The caller holds the inode's lock."""
        self.cancel(inode)
        self.save_draft(inode)

    def save_draft(self, inode: Inode) -> None:
        """Journal where the bytes are that are being written. The caller holds the inode's lock."""
        if inode.unlinked:
            return
        self._journal.save_draft(draft_row(inode, inode.since_ns), closed=inode.has_closed)

    def moved(self, inode: Inode) -> None:
        """An inode that is open and changed has a new name. The caller holds the inode's lock."""
        with self._journal.transaction():
            if inode.has_closed:
                self._journal.move_file(inode.ino, inode.path, inode.entry, uploaded=inode.uploaded)
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
            self._journal.save_file(file_row(inode, "closed"))
            self._journal.save_attr(inode.path, inode.attr)
        inode.committed = True
        inode.closed_size, inode.closed_by = inode.content.size, by
        self._fsyncer.closed(inode.content)
        with self.queue.lock:
            self._closing.add(inode)
        if inode.closed_content is not None:
            self._journal.on_commit(inode.closed_content.drop)
            inode.closed_content = None

    def close(self, inode: Inode, refusal: CloudsimfsError | None = None) -> None:
        """After the last handle that could write: upload what was written, unless close(2) could not accept it.

        `refusal` is what its commit has failed with.
        """
        with inode.lock:
            if inode.state is not WriteState.DIRTY or inode.unlinked:
                return
            if not inode.committed:
                reason = str(refusal or "its last state could not be recorded")
                log.error("/%s is not uploaded: %s", inode.path, reason)
                with self.queue.lock:
                    self._refused[inode] = reason
                return
            inode.transition("close")
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
                    inode.transition("close")
                    self.enqueue(inode)
                with self.queue.lock:
                    job = self._uploads.get(inode)
            if job is not None:
                self._check_online([job])
                self._wait_for(job, interrupted)

    def _check_online(self, jobs: list[Job]) -> None:
        """Raises Unreachable if these will never run in this mount."""
        if self._offline and jobs:
            raise Unreachable(f"this mount is offline: {_told(jobs)} for the next online mount")

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
            self.cancel(inode)
            if inode.local_only or inode.unlinked:
                return
            job = Job("upload", inode.path, lambda job: self._upload(job, inode), size=inode.size)
            self._uploads[inode] = job
        delay = self._delay_of(inode)
        self._journal.on_commit(lambda: self._put(inode, job, delay))  # never under a name that may be undone

    def _put(self, inode: Inode, job: Job, delay: float) -> None:
        with self.queue.lock:
            if self._uploads.get(inode) is job:  # else it was called off in the same transaction
                self.queue.put(job, delay=delay)

    def _delay_of(self, inode: Inode) -> float:
        """Seconds. What a delay saves is a call if the file is written again; a large new one seldom is, and its
        upload takes long. Some delay is left for those who write a file and then rename it.
        """
        is_new = inode.entry is None and not inode.uploaded
        return self._delay / 4 if is_new and inode.size >= LARGE else self._delay

    def snapshot(self, inode: Inode) -> Callable[[], None]:
        """What makes that of the inode pending which is now. The caller holds the inode's lock, also then."""
        with self.queue.lock:
            closing, refused, queued = inode in self._closing, self._refused.get(inode), inode in self._uploads

        def put_back() -> None:
            with self.queue.lock:
                self.cancel(inode)
                if closing:
                    self._closing.add(inode)
                if refused is not None:
                    self._refused[inode] = refused
                if queued:
                    self.enqueue(inode)

        return put_back

    def cancel(self, inode: Inode) -> bool:
        """Nothing is to be uploaded of the inode; the rest as `call_off`."""
        with self.queue.lock:
            self._closing.discard(inode)
            self._refused.pop(inode, None)
            return self.call_off(inode)

    def removed(self, inode: Inode) -> None:
        """The inode was unlinked here: no upload, and nothing waits for one."""
        self.cancel(inode)
        self.deletes.release(inode)

    def call_off(self, inode: Inode) -> bool:
        """No upload of the inode under its present name.

        True if that comes too late to be sure: it had begun and may yet be stored there.
        """
        with self.queue.lock:
            job = self._uploads.pop(inode, None)
            return job is not None and not self.queue.cancel(job)

    def _upload(self, job: Job, inode: Inode) -> None:
        if inode.is_stored and not job.cancelled:
            self._conclude(job, inode)  # it could not be, the disk being full
            return
        if self._evade_conflict(inode):
            raise Cancelled(job.path)  # another job has it, under another name
        with inode.lock:
            if job.cancelled or not inode.committed or inode.state is not WriteState.QUEUED or inode.content is None:
                raise Cancelled(job.path)
            generation, content, base = inode.generation, inode.content, inode.entry
            job.size, job.sent = content.size, 0
            content.acquire()
            inode.transition("start")

        def body() -> Iterator[bytes]:
            with inode.lock:
                if not still_wanted():
                    raise Cancelled(job.path)
                self._may_arrive(inode)
            return content.blocks(still_wanted)

        def still_wanted() -> bool:
            return not job.cancelled and inode.generation == generation

        def progress(sent: int) -> None:
            self.meter.add(max(0, sent - job.sent))
            job.sent = sent

        try:
            content.complete()
            self.dependents.complete(job.path)
            stored = self._proved(job, base) or self._client.upload(
                job.path,
                job.size,
                body,
                is_listed=lambda stored: self._is_listed(job, base, stored),
                progress=progress,
                urgency=Urgency.BACKGROUND,
            )
        except BaseException as error:
            with inode.lock:
                if inode.is_uploading(generation):
                    inode.transition("failed")
            if isinstance(error, Stale) and self._set_aside(inode):
                raise Cancelled(job.path) from error
            raise
        finally:
            content.release()
        self.view_cache.went_stale()
        with inode.lock:
            if inode.is_uploading(generation):
                inode.transition("stored")
                inode.stored_ns, inode.stored_at = stored.stored_ns, self._clock.monotonic()
                inode.stored_size, inode.in_doubt = job.size, False
        self._conclude(job, inode)

    def _may_arrive(self, inode: Inode) -> None:
        """Its bytes are about to be sent: from now on the service may have them, whatever is heard of it. What fails
        before, as for a refused key, leaves no doubt. The caller holds the inode's lock.
        """
        if not inode.uploaded and inode.attr.ino is not None:
            self._journal.mark_uploaded(inode.attr.ino)
            inode.uploaded = True
        inode.in_doubt = True

    def _proved(self, job: Job, base: Entry | None) -> Stored | None:
        """The last attempt's outcome, if that was doubted and is listed by now."""
        doubted: Stored | None = job.outcome
        return doubted if doubted is not None and self._is_listed(job, base, doubted) else None

    def _is_listed(self, job: Job, base: Entry | None, stored: Stored) -> bool:
        """Whether a new listing shows what was uploaded; `base` was there before."""
        job.outcome, ended = stored, self._clock.monotonic()
        self.view_cache.went_stale()
        self.view_cache.invalidate()
        found = self._find_entry(job.path, ended)
        if found is None or found.is_dir or (base is not None and found.fingerprint == base.fingerprint):
            return False
        return found.size == job.size or not found.sized

    def _conclude(self, job: Job, inode: Inode) -> None:
        """Journal that the inode is stored, and let go what waited for it."""
        with inode.lock:
            is_stored = inode.is_stored  # else it was changed or renamed just now: what waits for it waits for that
            if inode.state is WriteState.STORED and not inode.unlinked:
                self._journal.save_file(file_row(inode, "stored"))
            if is_stored:
                self.deletes.release(inode)
        with self.queue.lock:
            if self._uploads.get(inode) is job:
                del self._uploads[inode]
        if is_stored:
            log.info("stored /%s (%d bytes)", job.path, job.size)
            self._on_stored(inode)

    # -- as a whole --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the workers; after the process has forked."""
        self.queue.start()
        self.view_cache.start()

    def stop(self) -> None:
        """End the workers; what is pending stays in the journal."""
        self.queue.stop(timeout=5)
        self.view_cache.stop()

    def drain(
        self, folder: str = paths.ROOT, *, timeout: float | None = None, interrupted: Interrupted = never
    ) -> None:
        """Wait until all below `folder` is on the service and the service knows (docs/architecture.md, invariant 8).

        Raises TryAgain as soon as an operation below has failed, or when `timeout` seconds have passed, WrongState if
        a file that was closed or synced is still open for writing, Cancelled if `interrupted` says so, Unreachable if
        the mount is offline and something waits. Deletes that wait for an open file are not waited for.
        """
        self._wait_for_releases(folder)
        self.check_refused(folder)
        if self._offline:
            self._check_online(self._awaited(self.pending(), folder))
            return
        self.queue.drain(lambda jobs: self._awaited(jobs, folder), timeout=timeout, interrupted=interrupted)
        self.view_cache.drain(timeout=timeout, interrupted=interrupted)

    def check_refused(self, folder: str) -> None:
        """Raises TryAgain if the close of a file below has failed."""
        with self.queue.lock:
            refused = [error for inode, error in self._refused.items() if paths.is_within(inode.path, folder)]
        if refused:
            raise TryAgain(f"{refused[0]}; write it again, or remove it")

    def _wait_for_releases(self, folder: str) -> None:
        """close(2) returns before the kernel's release, which queues the upload, has come."""
        deadline = self._clock.monotonic() + RELEASE_BOUND
        with self.queue.lock:
            while open_files := [
                inode.path for inode in self._closing if paths.is_within(inode.path, folder) and not inode.local_only
            ]:
                if self._clock.monotonic() > deadline:
                    raise WrongState(f"/{open_files[0]} is still open for writing; close it first")
                self.queue.lock.wait(0.01)

    def _awaited(self, jobs: list[Job], folder: str) -> list[Job]:
        """Those a drain of `folder` waits for: all uploads inside, and what `Deletes.awaited` names."""
        with self.queue.lock:
            needed = self.deletes.awaited(folder, self._uploads)
            return [
                job for job in jobs if job in needed or (job.kind == "upload" and paths.is_within(job.path, folder))
            ]

    def _in_burst(self) -> bool:
        """Whether more uploads are about to end."""
        with self.queue.lock:
            return any(not upload.error for upload in self._uploads.values())

    def refused(self) -> list[str]:
        """Why files that were closed are not uploaded: close() has said so."""
        with self.queue.lock:
            return list(self._refused.values())

    def pending(self) -> list[Job]:
        """What is not on the service yet, for `status`."""
        return self.queue.pending()


def _told(jobs: list[Job]) -> str:
    """As "2 files and 1 delete wait"."""
    files = sum(job.kind == "upload" for job in jobs)
    counts = [(files, "file"), (len(jobs) - files, "delete")]
    parts = [f"{count} {name}{'' if count == 1 else 's'}" for count, name in counts if count]
    return f"{' and '.join(parts)} {'waits' if len(jobs) == 1 else 'wait'}"


def file_row(inode: Inode, state: str) -> FileRow:
    """What the journal is to know of the bytes as they are, "closed" or "stored". The inode is locked."""
    assert inode.content is not None
    return FileRow(
        ino=inode.ino,
        path=inode.path,
        state=state,
        generation=inode.generation,
        uploaded=inode.uploaded,
        base=inode.entry,
        stored_ns=inode.stored_ns,
        bytes=inode.content.describe(),
    )


def draft_row(inode: Inode, since_ns: int, *, kept: bool = False) -> DraftRow:
    """Where the bytes are that are no closed state, written since `since_ns`. The caller holds the inode's lock."""
    assert inode.content is not None
    return DraftRow(
        ino=inode.ino,
        path=inode.path,
        generation=inode.generation,
        uploaded=inode.uploaded,
        base=inode.entry,
        since_ns=since_ns,
        kept=kept,
        bytes=inode.content.describe(),
    )
