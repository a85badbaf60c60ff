"""Contents that still fetch from a path: each is completed before the path is overwritten or deleted.

Lock: `_lock` protects the table and is a leaf; nothing is fetched under it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from cloudsimfs import paths
from cloudsimfs.datacache.content import Content
from cloudsimfs.errors import Stale
from cloudsimfs.service.model import Entry

log = logging.getLogger(__name__)


class Dependents:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._contents: dict[str, list[Content]] = {}  # by the path they fetch from

    def add(self, content: Content) -> None:
        """Note that the content may fetch from a path that will be deleted or overwritten."""
        source = content.source
        if source is not None:
            with self._lock:
                self._contents.setdefault(source.entry.path, []).append(content)

    def complete(self, path: str, *, lists_still: Callable[[Entry], bool], folder: bool = False) -> None:
        """Fetch what contents still need from `path` (with `folder`: from all below it), before it is gone.

        Raises as `Content.complete`, but for Stale: what others have replaced cannot be fetched any more. That is
        believed once the version is not listed any more either.
        """
        with self._lock:
            keys = [key for key in self._contents if key == path or (folder and paths.is_within(key, path))]
            contents = [content for key in keys for content in self._contents[key]]
        for content in contents:
            if content.dropped:
                continue  # its file was removed in the meantime
            content.acquire()
            try:
                content.complete()
            except Stale as error:
                if content.source is not None and lists_still(content.source.entry):
                    raise
                log.warning("/%s: a file that was renamed from there can no longer be completed: %s", path, error)
            finally:
                content.release()
        with self._lock:
            for key in keys:
                self._contents.pop(key, None)
