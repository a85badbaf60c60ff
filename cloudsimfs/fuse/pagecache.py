"""The kernel's cache: dropping what has changed on the service, and knowing which content its pages are from.

Dropping a page may wait for a callback that is reading it. So a thread of this module does it, with no lock held.

Threading: any thread may call. `_changed` and `_lock` are leaves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from cloudsimfs import paths

MOST_PATHS = 50_000  # whose pages' content is remembered
SETTLE_BOUND = 2.0  # seconds an open(2) waits at most until the kernel has dropped what is stale


class KernelCache:
    """Invalidates nothing until it is started, nor where libfuse cannot invalidate."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # protects the three below
        self._stale: set[str] = set()  # paths that the kernel has not dropped yet
        self._dropping: str | None = None  # the path that it is dropping now
        self._running = False
        self._lock = threading.Lock()  # protects _pages
        self._pages: dict[str, int | None] = {}  # the content that a path's pages were filled from at its last open

    def start(self, drop: Callable[[str], None] | None) -> None:
        """`drop` makes the kernel drop a path, and may block; None if there is no such call."""
        if drop is None:
            return
        self._running = True
        threading.Thread(target=self._work, args=(drop,), name="kernel-cache", daemon=True).start()

    def stop(self) -> None:
        with self._changed:
            self._running = False
            self._changed.notify_all()

    def invalidate(self, path: str) -> None:
        """The path's attributes, and its data if it is a file, have changed on the service."""
        with self._changed:
            if self._running:
                self._stale.add(path)
                self._changed.notify_all()

    def invalidate_all(self, changed: Iterable[str]) -> None:
        for path in changed:
            self.invalidate(path)

    def listing_changed(self, directory: str, names: set[str]) -> None:
        """A new listing of the directory differs from the last one in these names."""
        self.invalidate_all([directory, *(paths.join(directory, name) for name in names)])

    def fill(self, path: str, identity: int | None) -> bool:
        """An open fills the path's pages from this content (`Handles.identity`). Whether they are from it already."""
        with self._lock:
            before = self._pages.pop(path, None)
            self._pages[path] = identity
            if len(self._pages) > MOST_PATHS:
                del self._pages[next(iter(self._pages))]
        return identity is not None and identity == before

    def settle(self, path: str | None = None) -> None:
        """Wait until the kernel has dropped `path`, or all that is stale; at most SETTLE_BOUND: reads may be slow.

        fstat(2) and read(2) go by the size that the kernel has.
        """

        def is_dropped() -> bool:
            if path is None:
                return not self._stale and self._dropping is None
            return path not in self._stale and path != self._dropping

        with self._changed:
            self._changed.wait_for(lambda: is_dropped() or not self._running, SETTLE_BOUND)

    def _work(self, drop: Callable[[str], None]) -> None:
        while True:
            with self._changed:
                self._dropping = None
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._stale or not self._running)
                if not self._running:
                    return
                path = self._dropping = self._stale.pop()
            drop(path)
