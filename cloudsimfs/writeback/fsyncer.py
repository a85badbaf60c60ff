"""Closed files are fsynced in the background within 5 s, so that a power loss costs no more than on a local disk.

A disk may write a row of the journal before the bytes it speaks of. So each row comes with a mark, in the same
transaction, that its bytes are not proved (`committing`). The fsync that covers both takes the mark away. If a mark
outlives a reboot, nobody knows what the file has (`vfs.replay`).

Threading: one thread, and a pool for many files at once. `_lock` protects the fields and is a leaf. `_round` and
`_group` are held over fsync(2), by background threads and by those who want all to be fsynced.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from cloudsimfs.datacache.cache import DataCache
from cloudsimfs.datacache.content import Content
from cloudsimfs.errors import CloudsimfsError
from cloudsimfs.journal.journal import Journal

log = logging.getLogger(__name__)

PERIOD = 4.0  # seconds between rounds
AT_ONCE = 16  # files; a disk writes many in the time of one


class Fsyncer:
    def __init__(self, datacache: DataCache, journal: Journal) -> None:
        self._datacache = datacache
        self._journal = journal
        self._lock = threading.Lock()
        self._closed: dict[Content, int] = {}  # what is to be fsynced, each with the serial of its last row
        self._asked: set[Content] = set()  # by uploads that wait
        self._serials = itertools.count(max(journal.unproved().values(), default=0) + 1)
        self._round = (
            threading.Lock()
        )  # one round of everything at a time: the next one may have to wait for its files
        self._group = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, after the process has forked."""
        self._thread = threading.Thread(target=self._work, name="fsyncer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Sync once more and end the thread: a power loss after the unmount then costs nothing."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def committing(self, content: Content) -> None:
        """Called in the transaction of a row that speaks of the content's bytes, after they were written."""
        serial = next(self._serials)
        self._note(content, serial)  # a fsync from now on covers the bytes
        self._journal.save_unproved(content.backing.name, serial)
        self._journal.on_commit(partial(self._note, content, serial))  # one from now on covers the row, too

    def replayed(self, content: Content, serial: int) -> None:
        """The daemon died before it had fsynced a content."""
        self._note(content, serial)

    def _note(self, content: Content, serial: int) -> None:
        with self._lock:
            self._closed[content] = max(serial, self._closed.get(content, 0))

    def discard(self, content: Content) -> None:
        """Remove a content that the journal names no more, after the next round."""
        self._datacache.discard(content)

    def sync(self) -> None:
        """fsync all that was closed so far. Raises OSError, or as the journal.

        What those rows have replaced goes last: until they are on the disk, it is all there is of a fsynced file.
        """
        with self._round:
            discarded = self._datacache.discarded()
            with self._lock:
                batch = dict(self._closed)
            self._write(batch)
            self._datacache.remove(discarded)

    def sync_one(self, content: Content) -> None:
        """fsync a content, and all rows that were committed so far. Raises as `sync`."""
        with self._lock:
            batch = {content: self._closed.get(content, 0)}
        self._write(batch)

    def prove(self, content: Content) -> None:
        """The same for uploads: one fsync serves all that wait for one."""
        with self._lock:
            self._asked.add(content)
        with self._group:
            with self._lock:
                if content not in self._asked:
                    return  # another has seen to it meanwhile
                asked, self._asked = self._asked, set()
                batch = {content: self._closed.get(content, 0) for content in asked}
            try:
                self._write(batch)
            except BaseException:
                with self._lock:
                    self._asked |= asked  # those that wait try it themselves
                raise

    def _write(self, batch: Mapping[Content, int]) -> None:
        """fsync files, then names, then rows, which say that the files are proved."""
        if len(batch) > 1:
            with ThreadPoolExecutor(min(AT_ONCE, len(batch)), "fsync") as pool:
                list(pool.map(Content.fsync, batch))
        else:
            for content in batch:
                content.fsync()
        self._datacache.sync()
        self._journal.drop_unproved((content.backing.name, serial) for content, serial in batch.items())
        self._journal.sync()
        with self._lock:
            for content, serial in batch.items():
                if self._closed.get(content) == serial:
                    del self._closed[content]

    def _work(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._stop.wait(PERIOD)
            if self._closed or self._datacache.discarded():
                try:
                    self.sync()
                except (OSError, CloudsimfsError):
                    log.exception("closed files could not be fsynced")
