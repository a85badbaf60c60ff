"""Local changes, which lie over the listings.

    readdir = listing - tombstones + inodes with local truth          (docs/architecture.md, invariant 3a)

An item leaves the overlay on evidence (`evidence`), never because time has passed. An upload leaves it when a listing
shows its size and a newer version. When a tombstone leaves it is said at `Tombstone`. The overlay says which items a
listing ends; `settle` ends them.

Threading: none of its own; everything here is guarded by Tree.lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from cloudsimfs import paths
from cloudsimfs.inode import Inode, Tombstone
from cloudsimfs.service.model import Entry
from cloudsimfs.vfs.evidence import inode_is_damaged, inode_is_settled, tombstone_is_settled
from cloudsimfs.vfs.names import unknown_folder

Item = Inode | Tombstone


@dataclass(frozen=True, slots=True)
class Verdict:
    """A listing that shows `entry` (None: nothing) under the item's name ends the item.

    With `damaged` the item stays: the service has lost the upload that it acknowledged, or bytes of it.
    """

    item: Item
    entry: Entry | None
    damaged: bool = False


class Overlay:
    """Items by directory and name. Registers with `on_rollback` how each change is undone."""

    def __init__(self, on_rollback: Callable[[Callable[[], object]], object] = lambda _: None) -> None:
        self._directories: dict[str, dict[str, Item]] = {}
        self._on_rollback = on_rollback

    def get(self, path: str) -> Item | None:
        directory, name = paths.split(path)
        return self._directories.get(directory, {}).get(name)

    def put(self, path: str, item: Item) -> None:
        self._replace(path, item)

    def pop(self, path: str) -> Item | None:
        return self._replace(path, None)

    def _replace(self, path: str, item: Item | None) -> Item | None:
        before = self._set(path, item)
        self._on_rollback(lambda: self._set(path, before))
        return before

    def _set(self, path: str, item: Item | None) -> Item | None:
        directory, name = paths.split(path)
        names = self._directories.setdefault(directory, {})
        before = names.pop(name, None)
        if item is not None:
            names[name] = item
        if not names:
            del self._directories[directory]
        return before

    def inside(self, directory: str) -> Mapping[str, Item]:
        return self._directories.get(directory, {})

    def below(self, folder: str) -> list[tuple[str, Item]]:
        """Every (path, item) inside `folder`, at any depth."""
        return [
            (paths.join(directory, name), item)
            for directory, names in self._directories.items()
            if paths.is_within(directory, folder)
            for name, item in names.items()
        ]

    def inodes(self) -> Iterator[Inode]:
        for names in self._directories.values():
            for item in names.values():
                if isinstance(item, Inode):
                    yield item

    def merge(self, directory: str, names: Mapping[str, Entry]) -> Iterator[tuple[str, Entry | Inode]]:
        """The names that a reader of the directory sees, with what they lead to."""
        local = self.inside(directory)
        for name, entry in names.items():
            if name not in local:
                yield name, entry
        for name, item in local.items():
            if isinstance(item, Inode):
                yield name, item
        for name in self._implied(directory) - local.keys() - names.keys():
            yield name, unknown_folder(paths.join(directory, name))

    def implies(self, path: str) -> bool:
        """Whether the folder exists because an inode is below it, whatever the service lists."""
        directory, name = paths.split(path)
        return name in self._implied(directory)

    def _implied(self, directory: str) -> set[str]:
        """The names in a directory below which there are inodes."""
        start = len(directory) + 1 if directory else 0
        return {
            below[start:].partition("/")[0]
            for below, names in self._directories.items()
            if below != directory
            and paths.is_within(below, directory)
            and any(isinstance(item, Inode) for item in names.values())
        }

    def hides_file(self, directory: str) -> bool:
        """Whether a removed file may still be listed under the name of the directory, or of one above it.

        The next listing of the directory may fail then, so what was made in it stays in the overlay.
        """
        while directory != paths.ROOT:
            item = self.get(directory)
            if isinstance(item, Inode) and item.hides is not None:
                return True
            directory = paths.parent(directory)
        return False

    def reconcile(self, directory: str, names: Mapping[str, Entry], asked_at: float) -> list[Verdict]:
        """Compare every item of a directory with a listing of it. Returns which items the listing ends.

        `asked_at` is monotonic seconds, as are `Tombstone.done_at` and `Inode.stored_at`.
        """
        verdicts: list[Verdict] = []
        for name, item in list(self.inside(directory).items()):
            entry = names.get(name)
            if isinstance(item, Tombstone):
                if tombstone_is_settled(item, entry, asked_at, self._gone_at(item)):
                    verdicts.append(Verdict(item, entry))
            elif item.is_dir:
                verdicts += self._judge_folder(item, entry, asked_at)
            else:
                verdicts += _judge_file(item, entry, asked_at)
        return verdicts

    def lost(self, directory: str, asked_at: float) -> list[Verdict]:
        """Which uploads the service has lost, if it did not even list their folder then (monotonic seconds)."""
        files = [item for item in self.inside(directory).values() if isinstance(item, Inode) and not item.is_dir]
        return [Verdict(file, None, damaged=True) for file in files if inode_is_damaged(file, None, asked_at)]

    def _gone_at(self, tombstone: Tombstone) -> float:
        """When the service had deleted the name and all below it, in monotonic seconds; inf: not yet."""
        inside = self.inside(tombstone.path).values()
        return max(tombstone.done_at, *(self._gone_at(item) for item in inside if isinstance(item, Tombstone)), 0.0)

    def _judge_folder(self, folder: Inode, entry: Entry | None, asked_at: float) -> Iterator[Verdict]:
        listed = entry if entry is not None and entry.is_dir else None
        file = entry if listed is None else None  # a listed folder is not the file that was removed
        if folder.hides is not None and tombstone_is_settled(folder.hides, file, asked_at, folder.hides.done_at):
            yield Verdict(folder.hides, entry)
            folder.hides = None
        if listed is not None or (folder.entry is not None and folder.entry.id):
            folder.entry = listed  # otherwise it may have just been stored, and not be listed yet
        if listed is not None and folder.hides is None and not self.inside(folder.path):
            yield Verdict(folder, entry)  # a folder made here is on the service now, and has no local items


def _judge_file(inode: Inode, entry: Entry | None, asked_at: float) -> Iterator[Verdict]:
    if inode_is_settled(inode, entry, asked_at):
        yield Verdict(inode, entry)
    elif inode_is_damaged(inode, entry, asked_at):
        yield Verdict(inode, entry, damaged=True)
