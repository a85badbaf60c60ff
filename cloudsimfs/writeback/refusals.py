"""Closed files that are not uploaded, and why: shown, and in the way of `flush`, until the user has dealt with them.

Lock: `_lock` protects the table and is a leaf.
"""

from __future__ import annotations

import logging
import threading

from cloudsimfs import paths
from cloudsimfs.errors import TryAgain
from cloudsimfs.inode import Inode

log = logging.getLogger(__name__)

OVERTAKEN = "it was replaced on the service, or removed; what was changed here is kept"


class Refusals:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[Inode, str] = {}

    def add(self, inode: Inode, reason: str) -> None:
        log.error("/%s is not uploaded: %s", inode.path, reason)
        self.put_back(inode, reason)

    def put_back(self, inode: Inode, reason: str) -> None:
        """The same once more, after a step that failed had dropped it."""
        with self._lock:
            self._reasons[inode] = reason

    def drop(self, inode: Inode) -> None:
        with self._lock:
            self._reasons.pop(inode, None)

    def forgive(self, path: str) -> bool:
        """The name was written or removed, or the user has recovered what was refused. Whether there was any."""
        with self._lock:
            before = len(self._reasons)
            self._reasons = {inode: reason for inode, reason in self._reasons.items() if inode.path != path}
            return len(self._reasons) < before

    def of(self, inode: Inode) -> str | None:
        with self._lock:
            return self._reasons.get(inode)

    def all(self) -> list[str]:
        with self._lock:
            return list(self._reasons.values())

    def check(self, folder: str) -> None:
        """Raises TryAgain if there is one below the folder."""
        with self._lock:
            refused = [reason for inode, reason in self._reasons.items() if paths.is_within(inode.path, folder)]
        if refused:
            raise TryAgain(f"{refused[0]}; write it again, or remove it")
