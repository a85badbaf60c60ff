"""The storage: what is stored, what listings show of it, and the ids of both.

Each path has a slot with the stored file (`current`) and the one listings show (`shown`); they differ while
the per-user view cache or a lag hides a change. Folders exist while a file is in them (docs/service.md
"Behaviour").

Threading: every public method takes the one lock; none waits for anything but the local disk. Must never
change the bytes of a stored version: a replaced one is unlinked, so a download in progress stays whole.
"""

from __future__ import annotations

import enum
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from cloudsimfs import paths
from cloudsimfs.sandbox.blobs import Blob, Blobs
from cloudsimfs.sandbox.settings import Clock, Settings, iso_time

ROOT_ID = 0


class NoEntry(LookupError):
    """No such file or folder, as far as this user can see."""


class BadName(ValueError):
    """A name that cannot be stored."""


class Visible(enum.Enum):
    """When listings show an upload."""

    NOW = "now"
    LAGGED = "after settings.listing_lag"
    CACHED = "after settings.cache_seconds or DELETE /user/delete-cache"


@dataclass(frozen=True, slots=True)
class File:
    id: int
    path: str
    created: float
    blob: Blob


@dataclass(slots=True)
class Folder:
    id: int
    path: str
    created: float
    parent: Folder | None
    folders: dict[str, Folder] = field(default_factory=dict)
    slots: dict[str, Slot] = field(default_factory=dict)
    stored: int = 0  # files stored here and below
    shown: int = 0  # files listings show here and below


@dataclass(slots=True)
class Slot:
    folder: Folder
    name: str
    current: File | None = None
    shown: File | None = None
    due: float = 0.0  # when `shown` becomes `current`
    cached: bool = False  # deleting the user's cache makes it so at once


def storage_path(dirname: str, basename: str) -> str:
    """The path of a file. Raises BadName."""
    path = paths.join(dirname.strip("/"), basename)
    if "/" in basename or not all(paths.is_safe_name(part) for part in path.split("/")):
        raise BadName(path)
    return path


class Store:
    def __init__(self, blobs: Blobs, clock: Clock, settings: Settings) -> None:
        self.blobs = blobs
        self._clock = clock
        self._settings = settings
        self._lock = threading.RLock()
        self._ids = itertools.count(101)
        self._root = Folder(ROOT_ID, paths.ROOT, clock.now(), None)  # guarded by: _lock, as all below
        self._by_id: dict[int, Folder | Slot] = {ROOT_ID: self._root}
        self._waiting: dict[str, Slot] = {}  # slots whose shown and current differ
        self.on_put: Callable[[str, bytes], object] | None = None  # told of each version before it is stored

    # -- changes ------------------------------------------------------------------------------------

    def put(self, path: str, blob: Blob, visible: Visible) -> File:
        """Store a version. An overwrite keeps the id."""
        if self.on_put is not None:
            self.on_put(path, blob.read())
        with self._lock:
            return self._put_locked(path, blob, visible, self._clock.now())

    def populate(self, tree: Mapping[str, bytes]) -> None:
        """Store many small files at once, visible at once."""
        with self._lock:
            now = self._clock.now()
            for path, data in tree.items():
                self._put_locked(path, self.blobs.make(data), Visible.NOW, now)

    def delete(self, entry_id: int) -> None:
        """Delete a file, or a folder with everything below. Raises NoEntry."""
        with self._lock:
            found = self._by_id.get(entry_id)
            slots = [found] if isinstance(found, Slot) else list(_slots(found)) if found else []
            slots = [slot for slot in slots if slot.current is not None]
            if not slots:
                raise NoEntry(entry_id)
            for slot in slots:
                self._delete_locked(slot, self._settings.delete_lag)

    def remove(self, path: str) -> None:
        """What another client deletes: gone from storage and listings at once. Raises NoEntry."""
        with self._lock:
            slot = self._slot_locked(path)
            folder = self._folder_locked(path)
            slots = [slot] if slot is not None else list(_slots(folder)) if folder is not None else []
            slots = [slot for slot in slots if slot.current is not None]
            if not slots:
                raise NoEntry(path)
            for slot in slots:
                self._delete_locked(slot, 0.0)

    def delete_cache(self) -> None:
        """What DELETE /user/delete-cache does: the user sees what is stored."""
        with self._lock:
            for slot in list(self._waiting.values()):
                if slot.cached:
                    self._set_locked(slot, slot.current, slot.current)

    def _put_locked(self, path: str, blob: Blob, visible: Visible, now: float) -> File:
        slot = self._make_slot_locked(path, now)
        before = slot.current
        current = File(before.id if before else next(self._ids), path, now, blob)
        lag = {
            Visible.NOW: 0.0,
            Visible.LAGGED: self._settings.listing_lag,
            Visible.CACHED: self._settings.cache_seconds,
        }[visible]
        slot.due, slot.cached = now + lag, visible is Visible.CACHED
        self._set_locked(slot, current, slot.shown if lag > 0 else current)
        _discard(before)
        return current

    def _delete_locked(self, slot: Slot, lag: float) -> None:
        before = slot.current
        slot.due, slot.cached = self._clock.now() + lag, False
        self._set_locked(slot, None, slot.shown if lag > 0 else None)
        _discard(before)

    def _set_locked(self, slot: Slot, current: File | None, shown: File | None) -> None:
        path = paths.join(slot.folder.path, slot.name)
        for old in (slot.current, slot.shown):
            if old is not None:
                self._by_id.pop(old.id, None)
        stored = (current is not None) - (slot.current is not None)
        visible = (shown is not None) - (slot.shown is not None)
        slot.current, slot.shown = current, shown
        for new in (current, shown):
            if new is not None:
                self._by_id[new.id] = slot
        if current is shown:
            self._waiting.pop(path, None)
        else:
            self._waiting[path] = slot
        if current is None and shown is None:
            del slot.folder.slots[slot.name]
        folder: Folder | None = slot.folder
        while folder is not None:
            folder.stored += stored
            folder.shown += visible
            if folder.parent is not None and not folder.slots and not folder.folders:
                del folder.parent.folders[paths.name(folder.path)]
                del self._by_id[folder.id]
            folder = folder.parent

    def _make_slot_locked(self, path: str, now: float) -> Slot:
        folder = self._root
        *above, name = path.split("/")
        for part in above:
            below = folder.folders.get(part)
            if below is None:
                below = Folder(next(self._ids), paths.join(folder.path, part), now, folder)
                folder.folders[part] = below
                self._by_id[below.id] = below
            folder = below
        slot = folder.slots.get(name)
        if slot is None:
            slot = folder.slots[name] = Slot(folder, name)
        return slot

    # -- what the user sees -------------------------------------------------------------------------

    def entry(self, entry_id: int) -> dict[str, Any]:
        """One visible file or folder. Raises NoEntry."""
        with self._lock:
            return self._entry(self._visible_locked(entry_id))

    def entry_at(self, path: str) -> dict[str, Any]:
        """One visible file or folder by its path; the root has id 0. Raises NoEntry."""
        with self._lock:
            self._settle_locked()
            slot = self._slot_locked(path)
            if slot is not None and slot.shown is not None:
                return self._entry(slot.shown)
            folder = self._folder_locked(path)
            if folder is None or (folder.shown == 0 and folder is not self._root):
                raise NoEntry(path)
            return self._entry(folder)

    def children(self, folder_id: int) -> list[dict[str, Any]]:
        """The visible content of a folder. Raises NoEntry, for a file's id too."""
        with self._lock:
            folder = self._visible_locked(folder_id)
            if not isinstance(folder, Folder):
                raise NoEntry(folder_id)
            return [self._entry(thing) for thing in _shown(folder)]

    def all_entries(self) -> list[dict[str, Any]]:
        """Every visible file and folder, each folder before its content."""
        with self._lock:
            self._settle_locked()
            found: list[dict[str, Any]] = []
            folders = [self._root]
            while folders:
                for thing in _shown(folders.pop()):
                    found.append(self._entry(thing))
                    if isinstance(thing, Folder):
                        folders.append(thing)
            return found

    # -- what is stored -----------------------------------------------------------------------------

    def stored(self, path: str) -> File | None:
        with self._lock:
            slot = self._slot_locked(path)
            return slot.current if slot else None

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

    def stored_by_id(self, entry_id: int) -> File | None:
        with self._lock:
            slot = self._by_id.get(entry_id)
            return slot.current if isinstance(slot, Slot) else None

    def path_of(self, entry_id: int) -> str | None:
        with self._lock:
            found = self._by_id.get(entry_id)
            if isinstance(found, Slot):
                return paths.join(found.folder.path, found.name)
            return found.path if found else None

    def files(self, below: str = paths.ROOT) -> dict[str, File]:
        """The stored files at and below a folder, by path."""
        with self._lock:
            folder = self._folder_locked(below)
            slots = _slots(folder) if folder else iter(())
            return {slot.current.path: slot.current for slot in slots if slot.current is not None}

    def known_files(self, below: str) -> dict[str, File]:
        """What a run finds in its folder: uploads the service has not learnt of yet are missing.

        It learns of a v2 upload when the cache is deleted or has run out (docs/service.md, "Endpoints").
        """
        with self._lock:
            self._settle_locked()
            files = self.files(below)
            return {path: file for path, file in files.items() if not self._unknown_locked(path)}

    def folder_ids(self) -> dict[str, int]:
        """The ids of the folders that hold stored files, by path."""
        with self._lock:
            folders = [found for found in self._by_id.values() if isinstance(found, Folder)]
            return {folder.path: folder.id for folder in folders if folder.stored}

    def restore(self, files: Sequence[File], folder_ids: Mapping[str, int]) -> None:
        """Fill this empty store with what an earlier one held."""
        with self._lock:
            self._ids = itertools.count(max([100, *folder_ids.values(), *(file.id for file in files)]) + 1)
            for file in files:
                slot = self._make_slot_locked(file.path, file.created)
                self._set_locked(slot, file, file)
            folders = [found for found in self._by_id.values() if isinstance(found, Folder)]
            for folder in folders:
                del self._by_id[folder.id]
                folder.id = folder_ids.get(folder.path, folder.id)
                self._by_id[folder.id] = folder

    def describe(self, file: File) -> dict[str, Any]:
        return self._entry(file)

    # -- inside -------------------------------------------------------------------------------------

    def _settle_locked(self) -> None:
        now = self._clock.now()
        for slot in [slot for slot in self._waiting.values() if slot.due <= now]:
            self._set_locked(slot, slot.current, slot.current)

    def _unknown_locked(self, path: str) -> bool:
        slot = self._waiting.get(path)
        return slot is not None and slot.cached and slot.shown is None

    def _visible_locked(self, entry_id: int) -> Folder | File:
        self._settle_locked()
        found = self._by_id.get(entry_id)
        if isinstance(found, Slot):
            if found.shown is None or found.shown.id != entry_id:
                raise NoEntry(entry_id)
            return found.shown
        if found is None or (found.shown == 0 and found is not self._root):
            raise NoEntry(entry_id)
        return found

    def _folder_locked(self, path: str) -> Folder | None:
        folder: Folder | None = self._root
        for part in path.split("/") if path else ():
            folder = folder.folders.get(part) if folder else None
        return folder

    def _slot_locked(self, path: str) -> Slot | None:
        dirname, name = paths.split(path)
        folder = self._folder_locked(dirname)
        return folder.slots.get(name) if folder else None

    def _entry(self, thing: Folder | File) -> dict[str, Any]:
        dirname, basename = paths.split(thing.path)
        return {
            "id": thing.id,
            "name": thing.path,
            "basename": basename,
            "dirname": dirname,
            "type": "file" if isinstance(thing, File) else "dir",
            "size": thing.blob.size if isinstance(thing, File) else "",
            "timeCreated": iso_time(thing.created, millis=self._settings.millis),
        }


def _shown(folder: Folder) -> Iterator[Folder | File]:
    yield from (below for below in folder.folders.values() if below.shown > 0)
    yield from (slot.shown for slot in folder.slots.values() if slot.shown is not None)


def _slots(folder: Folder) -> Iterator[Slot]:
    yield from folder.slots.values()
    for below in folder.folders.values():
        yield from _slots(below)


def _discard(file: File | None) -> None:
    if file is not None and file.blob.file is not None:
        file.blob.file.unlink(missing_ok=True)
