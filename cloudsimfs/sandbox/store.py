"""The storage: what is stored, what listings show of it, and when the one becomes the other.

Threading: every public method takes the one lock; none waits for anything but the local disk. Must never
change the bytes of a stored version: a replaced one is unlinked, so a download in progress stays whole.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from cloudsimfs import paths
from cloudsimfs.sandbox.blobs import Blob, Blobs
from cloudsimfs.sandbox.settings import Clock, Settings, iso_time
from cloudsimfs.sandbox.tree import File, Folder, Slot, Tree


class NoEntry(LookupError):
    """No such file or folder, as far as this user can see."""


class BadName(ValueError):
    """A name that cannot be stored."""


class Visible(enum.Enum):
    """When listings show an upload."""

    NOW = "now"
    LAGGED = "after settings.listing_lag"
    CACHED = "after settings.cache_seconds or DELETE /user/delete-cache"


def storage_path(dirname: str, basename: str) -> str:
    """The path of a file. Raises BadName."""
    path = paths.join(dirname.strip("/"), basename)
    if "/" in basename or not all(paths.is_safe_name(part) for part in path.split("/")):
        raise BadName(path)
    return path


class Store:
    """The files of the account."""

    def __init__(self, blobs: Blobs, clock: Clock, settings: Settings) -> None:
        self.blobs = blobs
        self._clock = clock
        self._settings = settings
        self._lock = threading.RLock()
        self._tree = Tree(clock.now())  # guarded by _lock
        self.on_put: Callable[[str, bytes], object] | None = (
            None  # called with each version (path, bytes) before it is stored
        )

    # -- changes ------------------------------------------------------------------------------------

    def put(self, path: str, blob: Blob, visible: Visible) -> File:
        """Store a version. An overwrite keeps the id."""
        if self.on_put is not None:
            self.on_put(path, blob.read())
        with self._lock:
            return self._put_locked(path, blob, visible, self._clock.now())

    def is_other_kind(self, path: str) -> bool:
        """Whether a file at `path` would have the name of a folder, or a folder above it that of a file."""
        with self._lock:
            folder, above = self._tree.folder_at(path), paths.parent(path)
            while above != paths.ROOT and self.stored(above) is None:
                above = paths.parent(above)
            return above != paths.ROOT or (folder is not None and folder.stored > 0)

    def put_data(self, path: str, data: bytes | Path, visible: Visible) -> File:
        """Store a version with these bytes, or with a copy of a local file."""
        return self.put(path, self.blobs.make(data), visible)

    def put_sparse(self, path: str, size: int) -> File:
        """Store a version of `size` zero bytes that take no disk space, visible at once."""
        return self.put(path, self.blobs.sparse(size), Visible.NOW)

    def new_file(self) -> Path:
        """A new path for the bytes of one version. The caller makes a Blob of it or unlinks it."""
        return self.blobs.new_file()

    def populate(self, tree: Mapping[str, bytes]) -> None:
        """Store many small files at once, visible at once."""
        with self._lock:
            now = self._clock.now()
            for path, data in tree.items():
                self._put_locked(path, self.blobs.make(data), Visible.NOW, now)

    def delete(self, entry_id: int) -> None:
        """Delete a file, or a folder with everything below; listings lag. Raises NoEntry."""
        with self._lock:
            if not self._delete_below_locked(self._tree.by_id(entry_id), self._settings.delete_lag):
                raise NoEntry(entry_id)

    def remove(self, path: str) -> None:
        """Delete a file or folder as another client would: listings show it at once. Raises NoEntry."""
        with self._lock:
            node = self._tree.slot_at(path) or self._tree.folder_at(path)
            if not self._delete_below_locked(node, 0.0):
                raise NoEntry(path)

    def delete_cache(self) -> None:
        """Show every upload that the view cache hides, as DELETE /user/delete-cache does."""
        with self._lock:
            self._show_locked(slot for slot in self._tree.waiting() if slot.cached)

    def restore(self, files: Sequence[File], folder_ids: Mapping[str, int]) -> None:
        """Fill this empty store with the files and folder ids of an earlier one."""
        with self._lock:
            self._tree.restore(files, folder_ids)

    # -- what the user sees -------------------------------------------------------------------------

    def entry(self, entry_id: int) -> dict[str, Any]:
        """One visible file or folder. Raises NoEntry."""
        with self._lock:
            return self._entry(self._visible_locked(entry_id))

    def entry_at(self, path: str) -> dict[str, Any]:
        """One visible file or folder by its path; the root has id 0. Raises NoEntry."""
        with self._lock:
            self._settle_locked()
            slot = self._tree.slot_at(path)
            if slot is not None and slot.shown is not None:
                return self._entry(slot.shown)
            folder = self._tree.folder_at(path)
            if folder is None or not folder.is_visible:
                raise NoEntry(path)
            return self._entry(folder)

    def children(self, folder_id: int) -> list[dict[str, Any]]:
        """The visible content of a folder. Raises NoEntry, for a file's id too."""
        with self._lock:
            folder = self._visible_locked(folder_id)
            if not isinstance(folder, Folder):
                raise NoEntry(folder_id)
            return [self._entry(child) for child in folder.visible_children()]

    def all_entries(self) -> list[dict[str, Any]]:
        """Every visible file and folder, each folder before its content."""
        with self._lock:
            self._settle_locked()
            entries: list[dict[str, Any]] = []
            folders = [self._tree.root]
            while folders:
                for child in folders.pop().visible_children():
                    entries.append(self._entry(child))
                    if isinstance(child, Folder):
                        folders.append(child)
            return entries

    # -- what is stored -----------------------------------------------------------------------------

    def stored(self, path: str) -> File | None:
        """The newest version of a file, whether listings show it or not."""
        with self._lock:
            slot = self._tree.slot_at(path)
            return slot.current if slot else None

    def stored_by_id(self, entry_id: int) -> File | None:
        with self._lock:
            slot = self._tree.by_id(entry_id)
            return slot.current if isinstance(slot, Slot) else None

    def open(self, path: str) -> tuple[Blob | None, BinaryIO | None]:
        """A file's newest version and, if it has one, its open file, which stays whole when replaced."""
        with self._lock:
            file = self.stored(path)
            if file is None or file.blob.file is None:
                return (file.blob if file else None), None
            return file.blob, file.blob.file.open("rb")

    def contents(self) -> dict[str, bytes]:
        """The bytes of all stored files at one moment, by path."""
        with self._lock:
            return {path: file.blob.read() for path, file in self.files().items()}

    def path_of(self, entry_id: int) -> str | None:
        with self._lock:
            node = self._tree.by_id(entry_id)
            return node.path if node else None

    def files(self, folder: str = paths.ROOT) -> dict[str, File]:
        """The stored files in a folder and below it, by path."""
        with self._lock:
            node = self._tree.folder_at(folder)
            slots = node.all_slots() if node else iter(())
            return {slot.current.path: slot.current for slot in slots if slot.current is not None}

    def known_files(self, folder: str) -> dict[str, File]:
        """The files that a run in this folder gets: uploads that the service has not noticed yet are missing.

        It notices a v2 upload when the cache is deleted or has expired (docs/service.md, "Notes").
        """
        with self._lock:
            self._settle_locked()
            files = self.files(folder)
            return {path: file for path, file in files.items() if not self._is_unnoticed_locked(path)}

    def folder_ids(self) -> dict[str, int]:
        """The ids of the folders that hold stored files, by path."""
        with self._lock:
            return {folder.path: folder.id for folder in self._tree.folders() if folder.stored}

    def describe(self, file: File) -> dict[str, Any]:
        """The file's entry, as listings will show it."""
        return self._entry(file)

    # -- inside -------------------------------------------------------------------------------------

    def _put_locked(self, path: str, blob: Blob, visible: Visible, now: float) -> File:
        slot = self._tree.make_slot(path, now)
        before = slot.current
        current = File(before.id if before else self._tree.new_id(), path, now, blob)
        lag = {
            Visible.NOW: 0.0,
            Visible.LAGGED: self._settings.listing_lag,
            Visible.CACHED: self._settings.cache_seconds,
        }[visible]
        slot.due, slot.cached = now + lag, visible is Visible.CACHED
        self._tree.set(slot, current, slot.shown if lag > 0 else current)
        _unlink(before)
        return current

    def _delete_below_locked(self, node: Folder | Slot | None, lag: float) -> bool:
        """Delete all stored files of a slot or folder; False if there are none."""
        slots = [node] if isinstance(node, Slot) else list(node.all_slots()) if node is not None else []
        slots = [slot for slot in slots if slot.current is not None]
        for slot in slots:
            before = slot.current
            slot.due, slot.cached = self._clock.now() + lag, False
            self._tree.set(slot, None, slot.shown if lag > 0 else None)
            _unlink(before)
        return bool(slots)

    def _show_locked(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            self._tree.set(slot, slot.current, slot.current)

    def _settle_locked(self) -> None:
        """Show every change whose lag is over."""
        now = self._clock.now()
        self._show_locked(slot for slot in self._tree.waiting() if slot.due <= now)

    def _is_unnoticed_locked(self, path: str) -> bool:
        slot = self._tree.waiting_at(path)
        return slot is not None and slot.cached and slot.shown is None

    def _visible_locked(self, entry_id: int) -> Folder | File:
        self._settle_locked()
        node = self._tree.by_id(entry_id)
        if isinstance(node, Slot):
            if node.shown is None or node.shown.id != entry_id:
                raise NoEntry(entry_id)
            return node.shown
        if node is None or not node.is_visible:
            raise NoEntry(entry_id)
        return node

    def _entry(self, node: Folder | File) -> dict[str, Any]:
        dirname, basename = paths.split(node.path)
        return {
            "id": node.id,
            "name": node.path,
            "basename": basename,
            "dirname": dirname,
            "type": "file" if isinstance(node, File) else "dir",
            "size": node.blob.size if isinstance(node, File) else "",
            "timeCreated": iso_time(node.created, millis=self._settings.millis),
        }


def _unlink(file: File | None) -> None:
    if file is not None and file.blob.file is not None:
        file.blob.file.unlink(missing_ok=True)
