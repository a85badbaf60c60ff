"""What is open, by file handle: the table that open files, directories and virtual files have in common.

Threading: `_lock` is a leaf.
"""

from __future__ import annotations

import itertools
import threading
from typing import Generic, TypeVar

from cloudsimfs.errors import BadHandle

T = TypeVar("T")


class HandleTable(Generic[T]):
    """Handles count up from `first`; none is used twice."""

    def __init__(self, first: int = 1) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, T] = {}  # guarded by _lock
        self._next = itertools.count(first)  # guarded by _lock

    def add(self, item: T) -> int:
        """The new handle of `item`."""
        with self._lock:
            fh = next(self._next)
            self._open[fh] = item
        return fh

    def get(self, fh: int) -> T:
        """Raises BadHandle. Takes no lock, since one look-up in a dict is atomic."""
        try:
            return self._open[fh]
        except KeyError:
            raise BadHandle(f"handle {fh}") from None

    def pop(self, fh: int) -> T:
        """Close the handle. Raises BadHandle."""
        with self._lock:
            try:
                return self._open.pop(fh)
            except KeyError:
                raise BadHandle(f"handle {fh}") from None

    def replace(self, fh: int, old: T, new: T) -> bool:
        """Let the handle go on with `new`, if it is open and still that of `old`; whether it was."""
        with self._lock:
            if self._open.get(fh) is not old:
                return False
            self._open[fh] = new
            return True

    def items(self) -> list[T]:
        with self._lock:
            return list(self._open.values())

    def __len__(self) -> int:
        with self._lock:
            return len(self._open)
