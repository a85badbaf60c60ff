"""What is to be on the disk before anybody relies on it: the bytes of the rows, and what uploads are based on.

It saves the rows that speak of bytes, each with the number of the round of fsync that has these (`fsyncer`). Uploads
and deletes wait here for the round that has what they are based on.

Threading: any thread. `_locked` methods want the inode's lock; a round of fsync is never waited for under one.
"""

from __future__ import annotations

from cloudsimfs.datacache.content import Content
from cloudsimfs.host.disk import disk_failure
from cloudsimfs.inode import Inode
from cloudsimfs.journal.journal import Journal
from cloudsimfs.writeback.fsyncer import Fsyncer
from cloudsimfs.writeback.queue import Job
from cloudsimfs.writeback.rows import draft_row, file_row


class Durability:
    def __init__(self, journal: Journal, fsyncer: Fsyncer) -> None:
        self._journal = journal
        self._fsyncer = fsyncer

    # -- rows, and the round that has their bytes --------------------------------------------------------

    def save_closed_locked(self, inode: Inode, content: Content) -> None:
        """Journal the present bytes as a closed state. The caller holds the inode's lock, in a transaction."""
        number = self._fsyncer.closing(content)
        self._journal.save_file(file_row(inode, "closed"), fsync=number)
        self._journal.on_commit(self._fsyncer.due)

    def save_draft_locked(self, inode: Inode) -> None:
        """Journal where the bytes being written are kept. The caller holds the inode's lock."""
        if inode.unlinked:
            return
        assert inode.content is not None
        row, number = draft_row(inode, inode.since_ns), None
        if row.bytes.present and not inode.has_closed_locked:  # the name will show the draft
            number = self._fsyncer.closing(inode.content)
            self._journal.on_commit(self._fsyncer.due)
        self._journal.save_draft(row, closed=inode.has_closed_locked, fsync=number)

    def replayed(self, content: Content) -> None:
        """The last daemon died before it had fsynced a content."""
        self._fsyncer.closing(content)
        self._fsyncer.due()

    # -- before the service hears of it ------------------------------------------------------------------

    def secure(self, inode: Inode) -> None:
        """Have all of a closed file on this disk, so that it survives without the version that it fetches from.

        Raises as `Content.complete`, OSError, or as the journal.
        """
        content = inode.content
        if content is None or content.dropped:
            return
        content.acquire()
        try:
            content.complete()
        finally:
            content.release()
        self._record_fetched(inode, content)
        self._fsyncer.sync()

    def _record_fetched(self, inode: Inode, content: Content) -> None:
        """Have the row of a closed file say that all of it is here. Raises as the journal."""
        with inode.lock, self._journal.transaction():
            if inode.content is content and inode.committed and not (inode.is_stored or inode.unlinked):
                self.save_closed_locked(inode, content)

    def fetched(self, job: Job, inode: Inode, content: Content) -> None:
        """All of a file is here that is about to be uploaded: the source of the rest will soon be gone."""
        if content.source is not None:
            self._record_fetched(inode, content)
            job.fsync = self._fsyncer.due()
        self._fsyncer.hurry(job.fsync)

    def make_durable(self, job: Job) -> None:
        """Have all that a job is based on survive a power loss, before the service hears of it (step 4, then 5).

        Else the journal could be older than the service. Raises NoSpace or FsError.
        """
        try:
            self._fsyncer.reach(job.fsync)
        except OSError as error:
            raise disk_failure(error) from error
