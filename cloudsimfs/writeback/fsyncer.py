"""Closed files are fsynced in the background within 5 s, so that a power loss costs no more than on a local disk.

    a round     fsync of all files that were closed before it began, then of their names, then of the journal's rows

Rounds are numbered, and follow each other. A disk may write a row before the bytes it speaks of: so each row says in
which round its bytes are (`closing`), and a round that has ended says so in the journal, in the same fsync. Whoever
needs the disk to have all that was committed so far waits for a round that begins from then on (`due`, `reach`): one
round serves all that wait for it.

Threading: one thread, and a pool for many files at once. `_lock` protects the fields and is a leaf. `_round` is held
over fsync(2), for a whole round; nothing that a thread holds which takes it may be needed to write or close a file.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

from cloudsimfs.datacache.cache import DataCache
from cloudsimfs.datacache.content import Content
from cloudsimfs.errors import CloudsimfsError
from cloudsimfs.journal.journal import Journal

log = logging.getLogger(__name__)

# Seconds from a close to its round: it is over before the default write-back, and no upload waits for it.
PERIOD = 1.0
AT_ONCE = 16  # files; a disk writes many in the time of one


class Fsyncer:
    def __init__(self, datacache: DataCache, journal: Journal) -> None:
        self._datacache = datacache
        self._journal = journal
        self._lock = threading.Lock()
        self._closed: set[Content] = set()  # what the next round has
        # Numbers of rounds. A failed one never ends: the next one does its work.
        self._begun = self._ended = self._wanted = max(journal.awaited_rounds().values(), default=0)
        self._round = threading.Lock()  # before Content.lock; guards no field
        self._asked = threading.Event()  # somebody wants a round
        self._wake = threading.Event()  # and wants it now
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, after the process has forked."""
        self._thread = threading.Thread(target=self._work, name="fsyncer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Sync once more and end the thread: a power loss after the unmount then costs nothing."""
        self._stopping = True
        self._wake.set()
        self._asked.set()
        if self._thread is not None:
            self._thread.join()

    def closing(self, content: Content) -> int:
        """The number of the round that has the content's present bytes. A row that speaks of them may be committed
        from now on; `due` is to be called when it is.
        """
        with self._lock:
            self._closed.add(content)
            return self._begun + 1

    def due(self) -> int:
        """Have a round begin that has all that was committed so far, within 5 s. Returns its number."""
        with self._lock:
            self._wanted = number = self._begun + 1
        self._asked.set()
        return number

    def hurry(self, number: int) -> None:
        """Somebody will wait for that round soon."""
        if self._ended < number:
            self._wake.set()

    def reach(self, number: int) -> None:
        """Wait until that round has ended, or do it. Raises OSError, or as the journal."""
        if self._ended < number:
            with self._round:
                if self._ended < number:  # else others were faster
                    self._write()

    def sync(self) -> None:
        """fsync all that was closed so far: files, then names, then rows. Raises as `reach`."""
        self.reach(self.due())

    def discard(self, content: Content) -> None:
        """Remove a content that the journal names no more, after the next round."""
        self._datacache.discard(content)
        self.due()

    def _write(self) -> None:
        """One round.

        What its rows have replaced goes last: until they are on the disk, it is all there is of a fsynced file.
        """
        discarded = self._datacache.discarded()
        with self._lock:
            self._begun += 1
            number = self._begun
            batch, self._closed = self._closed, set()
        try:
            _fsync(batch)
            self._datacache.sync()
            self._journal.round_ended(number)
        except BaseException:
            with self._lock:
                self._closed |= batch
            raise
        self._ended = number
        self._datacache.remove(discarded)

    def _work(self) -> None:
        stopping = False
        while not stopping:
            self._asked.wait()
            self._asked.clear()
            self._wake.wait(PERIOD)
            self._wake.clear()
            stopping = self._stopping
            if self._datacache.discarded():  # a round that has just begun may not have it
                self.due()
            try:
                self.reach(self._wanted)
            except (OSError, CloudsimfsError):
                log.exception("closed files could not be fsynced")
                self._asked.set()


def _fsync(contents: Collection[Content]) -> None:
    if len(contents) > 1:
        with ThreadPoolExecutor(min(AT_ONCE, len(contents)), "fsync") as pool:
            list(pool.map(Content.fsync, contents))
    else:
        for content in contents:
            content.fsync()
