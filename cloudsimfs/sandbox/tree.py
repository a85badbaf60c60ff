"""The tree below the storage: folders, their slots, and the ids of both.

Each path has a slot with the stored file (`current`) and the one that listings show (`shown`). They differ while the
view cache or a lag hides a change. A folder exists while a file is in it (docs/service.md, "Behaviour").

Threading: none of its own; `Store` calls it under its lock.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cloudsimfs import paths
from cloudsimfs.sandbox.blobs import Blob

ROOT_ID = 0
_FIRST_ID = 101


@dataclass(frozen=True, slots=True)
class File:
    """One stored version of a file. `created` is in seconds of the sandbox clock."""

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

    @property
    def is_visible(self) -> bool:
        return self.shown > 0 or self.parent is None

    def all_slots(self) -> Iterator[Slot]:
        """The slots of all files here and below."""
        yield from self.slots.values()
        for folder in self.folders.values():
            yield from folder.all_slots()

    def visible_children(self) -> Iterator[Folder | File]:
        yield from (folder for folder in self.folders.values() if folder.shown > 0)
        yield from (slot.shown for slot in self.slots.values() if slot.shown is not None)


@dataclass(slots=True)
class Slot:
    folder: Folder
    name: str
    current: File | None = None
    shown: File | None = None
    due: float = 0.0  # when `shown` becomes `current`
    cached: bool = False  # whether deleting the user's cache makes it so at once

    @property
    def path(self) -> str:
        return paths.join(self.folder.path, self.name)


class Tree:
    """All folders and slots. Not thread-safe."""

    def __init__(self, now: float) -> None:
        self.root = Folder(ROOT_ID, paths.ROOT, now, None)
        self._ids = itertools.count(_FIRST_ID)
        self._by_id: dict[int, Folder | Slot] = {ROOT_ID: self.root}
        self._waiting: dict[str, Slot] = {}  # by path: slots whose shown and current differ

    def new_id(self) -> int:
        return next(self._ids)

    # -- finding ------------------------------------------------------------------------------------

    def by_id(self, entry_id: int) -> Folder | Slot | None:
        return self._by_id.get(entry_id)

    def folder_at(self, path: str) -> Folder | None:
        folder: Folder | None = self.root
        for part in path.split("/") if path else ():
            folder = folder.folders.get(part) if folder else None
        return folder

    def slot_at(self, path: str) -> Slot | None:
        dirname, name = paths.split(path)
        folder = self.folder_at(dirname)
        return folder.slots.get(name) if folder else None

    def waiting_at(self, path: str) -> Slot | None:
        """The slot at `path` if listings do not show what is stored there."""
        return self._waiting.get(path)

    def waiting(self) -> list[Slot]:
        """All slots of which listings do not show what is stored."""
        return list(self._waiting.values())

    def folders(self) -> list[Folder]:
        return [node for node in self._by_id.values() if isinstance(node, Folder)]

    # -- changing -----------------------------------------------------------------------------------

    def make_slot(self, path: str, now: float) -> Slot:
        """The slot of a path, made with the folders above it if need be."""
        folder = self.root
        *parents, name = path.split("/")
        for part in parents:
            child = folder.folders.get(part)
            if child is None:
                child = Folder(self.new_id(), paths.join(folder.path, part), now, folder)
                folder.folders[part] = child
                self._by_id[child.id] = child
            folder = child
        slot = folder.slots.get(name)
        if slot is None:
            slot = folder.slots[name] = Slot(folder, name)
        return slot

    def set(self, slot: Slot, current: File | None, shown: File | None) -> None:
        """Put two versions into a slot; remove the slot, and the folders it leaves empty, if both are None."""
        for old in (slot.current, slot.shown):
            if old is not None:
                self._by_id.pop(old.id, None)
        stored_change = (current is not None) - (slot.current is not None)
        shown_change = (shown is not None) - (slot.shown is not None)
        slot.current, slot.shown = current, shown
        for new in (current, shown):
            if new is not None:
                self._by_id[new.id] = slot
        if current is shown:
            self._waiting.pop(slot.path, None)
        else:
            self._waiting[slot.path] = slot
        if current is None and shown is None:
            del slot.folder.slots[slot.name]
        self._count(slot.folder, stored_change, shown_change)

    def _count(self, folder: Folder | None, stored_change: int, shown_change: int) -> None:
        while folder is not None:
            folder.stored += stored_change
            folder.shown += shown_change
            if folder.parent is not None and not folder.slots and not folder.folders:
                del folder.parent.folders[paths.name(folder.path)]
                del self._by_id[folder.id]
            folder = folder.parent

    def restore(self, files: Sequence[File], folder_ids: Mapping[str, int]) -> None:
        """Fill this empty tree with visible files; folders get their former ids, by path."""
        used = [_FIRST_ID - 1, *folder_ids.values(), *(file.id for file in files)]
        self._ids = itertools.count(max(used) + 1)
        for file in files:
            self.set(self.make_slot(file.path, file.created), file, file)
        for folder in self.folders():
            del self._by_id[folder.id]
            folder.id = folder_ids.get(folder.path, folder.id)
            self._by_id[folder.id] = folder
