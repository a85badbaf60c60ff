"""Closed files are fsynced in the background within 5 s, so that a power loss costs no more than on a local disk.

Threading: one thread; `_lock` protects the set and is a leaf. fsync(2) runs with no lock held.
"""

from __future__ import annotations

import logging
import threading

from cloudsimfs.datacache.cache import DataCache
from cloudsimfs.datacache.content import Content
from cloudsimfs.errors import CloudsimfsError
from cloudsimfs.journal.journal import Journal

log = logging.getLogger(__name__)

PERIOD = 4.0  # seconds between rounds


class Fsyncer:
    def __init__(self, datacache: DataCache, journal: Journal) -> None:
        self._datacache = datacache
        self._journal = journal
        self._lock = threading.Lock()
        self._closed: set[Content] = set()
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

    def closed(self, content: Content) -> None:
        """Note that a closed state of this content was committed to the journal."""
        with self._lock:
            self._closed.add(content)

    def discard(self, content: Content) -> None:
        """Remove a content that the journal names no more, after the next round."""
        self._datacache.discard(content)

    def sync(self) -> None:
        """fsync all that was closed so far: files, then names, then rows. Raises OSError, or as the journal.

        What those rows have replaced goes last: until they are on the disk, it is all there is of a fsynced file.
        """
        with self._lock:
            batch, self._closed = self._closed, set()
        discarded = self._datacache.discarded()
        try:
            for content in batch:
                content.fsync()
            self._datacache.sync()
            self._journal.sync()
        except BaseException:
            with self._lock:
                self._closed |= batch
            raise
        self._datacache.remove(discarded)

    def _work(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._stop.wait(PERIOD)
            if self._closed or self._datacache.discarded():
                try:
                    self.sync()
                except (OSError, CloudsimfsError):
                    log.exception("closed files could not be fsynced")
