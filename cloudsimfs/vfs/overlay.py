"""What was done here and lies over the listings, and the rules by which a listing retires it.

    readdir = listing - tombstones + inodes with local truth          (docs/architecture.md, invariant 3)

An item leaves the overlay on evidence, never because time has passed: an upload when a listing shows its size and
a newer version, a tombstone when a listing asked for after the delete no longer shows what was deleted.

Threading: none of its own; everything here is guarded by Tree.lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from cloudsimfs import paths
from cloudsimfs.inode import Inode, Tombstone, WriteState
from cloudsimfs.service.model import Entry

Item = Inode | Tombstone

SECOND_NS = 1_000_000_000  # nanoseconds; the unit of the service's times
LATE_DELETES = 60.0  # seconds; a listing asked for so long after a delete shows what is there
LATE_UPLOADS = 900.0  # seconds; the same for an upload ("some minutes", docs/service.md)
BASE_SLACK_NS = 3_000_000_000  # nanoseconds by which the last upload may be later than the one that was confirmed
CLOCK_SLACK_NS = 2_000_000_000  # nanoseconds by which a time of whole seconds may lag behind the store's clock


class Overlay:
    """Items by directory and name. `on_rollback` is told how to take each change back."""

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
        """What a reader of the directory sees."""
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
        """Whether the folder is there because something of ours is in it, whatever the service lists."""
        directory, name = paths.split(path)
        return name in self._implied(directory)

    def _implied(self, directory: str) -> set[str]:
        """The names in a directory that lead to inodes deeper down."""
        start = len(directory) + 1 if directory else 0
        return {
            below[start:].partition("/")[0]
            for below, names in self._directories.items()
            if below != directory
            and paths.is_within(below, directory)
            and any(isinstance(item, Inode) for item in names.values())
        }

    def reconcile(
        self,
        directory: str,
        names: Mapping[str, Entry],
        asked_at: float,
        retire: Callable[[Item, Entry | None], None],
        resend: Callable[[Inode, Entry], None],
    ) -> None:
        """A listing has come: hand every item it settles to `retire`, with what is listed instead, and to `resend`
        every file of which the service has not what it was sent.

        `asked_at` is monotonic seconds, as are `Tombstone.done_at` and `Inode.stored_at`.
        """
        for name, item in list(self.inside(directory).items()):
            entry = names.get(name)
            if isinstance(item, Tombstone):
                made_here = item.is_dir and item.entry is not None and not item.entry.id
                if made_here and entry is not None and entry.is_dir:
                    item.entry = entry  # stored since: this is the id it had
                if tombstone_is_settled(item, entry, asked_at):
                    retire(item, entry)
            elif item.is_dir:
                if item.hides is not None and tombstone_is_settled(item.hides, entry, asked_at):
                    retire(item.hides, entry)
                    item.hides = None
                listed = entry if entry is not None and entry.is_dir else None
                if listed is not None or (item.entry is not None and item.entry.id):
                    item.entry = listed  # else it may be real since a moment ago, and be listed later
                if listed is not None and item.hides is None and not self.inside(item.path):
                    retire(item, entry)  # a folder made here has become real, and holds what it held
            elif inode_is_settled(item, entry, asked_at):
                retire(item, entry)
            elif entry is not None and inode_is_damaged(item, entry, asked_at):
                resend(item, entry)


def unknown_folder(path: str) -> Entry:
    """A folder that the service may have; its id is found when it is needed."""
    directory, name = paths.split(path)
    return Entry(0, directory, name, is_dir=True)


def tombstone_is_settled(tombstone: Tombstone, entry: Entry | None, asked_at: float) -> bool:
    """Whether a listing that shows `entry` under the tombstone's name ends it."""
    if entry is None:
        return tombstone.done
    if tombstone.entry is None:
        return tombstone.done  # it was looked for then, and nothing was there
    if tombstone.is_dir:  # others may have made it anew, and a path may keep its id
        return entry.id != tombstone.entry.id or (tombstone.done and asked_at > tombstone.done_at + LATE_DELETES)
    # a later version is somebody else's new file; the deleted one may be listed for a while
    return entry.fingerprint != tombstone.entry.fingerprint and tombstone.done


def inode_is_settled(inode: Inode, entry: Entry | None, asked_at: float) -> bool:
    """Whether a listing that shows `entry` under the inode's name is now the truth."""
    with inode.lock:
        if inode.local_only or inode.writers:
            return False
        if inode.state is WriteState.CLEAN:  # open for reading: the handle keeps its version
            return entry is None or inode.entry is None or entry.fingerprint != inode.entry.fingerprint
        if inode.state is not WriteState.STORED:
            return False
        if entry is None:  # listed late, or others have removed it since
            return asked_at > inode.stored_at + LATE_UPLOADS
        if entry.is_dir:
            return False
        if inode.entry is not None and entry.fingerprint == inode.entry.fingerprint:
            # what was there before; or ours, stored in the same second with the same size, and the two look alike
            return is_ours(inode, entry) and (entry.mtime_ns or 0) > (inode.stored_ns or 0) - SECOND_NS
        if entry.size != inode.size:  # either an older state shown late, or somebody wrote after us
            return is_newer(inode, entry)
        # an older upload of ours may have had the same size, and be listed first
        listed, stored = entry.mtime_ns, inode.stored_ns
        is_older = listed is not None and stored is not None and listed < stored - SECOND_NS
        return not is_older or asked_at > inode.stored_at + LATE_UPLOADS


def inode_is_damaged(inode: Inode, entry: Entry, asked_at: float) -> bool:
    """Whether a listing shows our upload, by its time, with another size, too late to be an older state."""
    with inode.lock:
        if inode.state is not WriteState.STORED or inode.writers or entry.is_dir or entry.size == inode.size:
            return False
        if not entry.sized or inode.stored_ns is None or entry.mtime_ns is None:
            return False
        ours = abs(entry.mtime_ns - inode.stored_ns) <= CLOCK_SLACK_NS
        return ours and asked_at > inode.stored_at + LATE_UPLOADS


def is_foreign(inode: Inode, entry: Entry) -> bool:
    """Whether a file listed under the inode's name is surely another than `inode.entry`, and none of our uploads.

    The caller holds the inode's lock.
    """
    if entry.is_dir or entry.mtime_ns is None:
        return False
    if inode.entry is not None and not is_later(inode.entry, entry):
        return False
    if not inode.uploaded:
        return True
    # ours may be listed by now, also one whose answer was lost
    return not inode.in_doubt and entry.size != inode.stored_size and is_newer(inode, entry)


def is_later(base: Entry, entry: Entry) -> bool:
    """Whether an entry is surely a later version than `base`: not the same, not an older one shown late, and not the
    later one of two uploads that look alike.
    """
    known = base.mtime_ns is not None and entry.mtime_ns is not None
    return known and (entry.mtime_ns or 0) > (base.mtime_ns or 0) + BASE_SLACK_NS


def is_newer(inode: Inode, entry: Entry) -> bool:
    """Whether an entry is of a time after our upload, by the store's clock."""
    stored, listed = inode.stored_ns, entry.mtime_ns
    return stored is not None and listed is not None and listed > stored + CLOCK_SLACK_NS


def is_ours(inode: Inode, entry: Entry) -> bool:
    """Whether a listed entry is surely what we uploaded last, so that its bytes need not be fetched."""
    known = inode.stored_ns is not None and entry.mtime_ns is not None
    return known and entry.size == inode.size and not is_newer(inode, entry)
