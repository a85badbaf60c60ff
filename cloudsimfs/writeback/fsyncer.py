"""Power loss: what was closed is fsynced in the background within 5 s, as a local disk does it.

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
        """After the process has forked."""
        self._thread = threading.Thread(target=self._work, name="fsyncer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Sync once more, so that a power loss after the unmount costs nothing."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def closed(self, content: Content) -> None:
        """A closed state of this content was committed to the journal."""
        with self._lock:
            self._closed.add(content)

    def sync(self) -> None:
        """All that was closed so far survives a power loss: files, their names, then the rows that speak of them."""
        with self._lock:
            batch, self._closed = self._closed, set()
        try:
            for content in batch:
                content.fsync()
            self._datacache.sync()
            self._journal.sync()
        except BaseException:
            with self._lock:
                self._closed |= batch
            raise

    def _work(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._stop.wait(PERIOD)
            if self._closed:
                try:
                    self.sync()
                except (OSError, CloudsimfsError):
                    log.exception("what was closed could not be written to the disk")
