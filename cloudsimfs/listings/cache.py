"""The last listing of each directory, in memory and on disk (`listings.store`), and whether it may be served.

A listing is fresh for the TTL, longer as the hour's calls run out, shorter while others write to the folder, and not
at all once it is invalidated. None is dropped for its age: it serves while the service cannot be asked.

Threading: `_lock` protects all; under it only that of the holds is taken. Nothing here asks the service.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from cachetools import TTLCache

from cloudsimfs import paths
from cloudsimfs.clock import Clock
from cloudsimfs.concurrency.singleflight import Holds
from cloudsimfs.listings.looks import NEVER, Looks
from cloudsimfs.listings.store import Learnt, ListingStore
from cloudsimfs.service.model import Entry


@dataclass(frozen=True, slots=True)
class Listing:
    """The entries of one directory. `asked_at` is monotonic seconds, from before the call.

    NEVER means that the listing is out of date: it serves only while the service cannot be asked. A listing that is
    not `complete` shows no name to be absent (docs/architecture.md, invariant 4b): see `absent`.
    """

    names: Mapping[str, Entry]
    asked_at: float
    complete: bool = True
    unseen: Set[str] = frozenset()  # names of the listing before, which a listing that is not complete has missed
    # What the service has answered about names that it has missed; None: nothing is there.
    answers: dict[str, Entry | None] = field(default_factory=dict, compare=False)


class ListingCache:
    """`ttl` in seconds; `stretch()` is the factor applied to it as the budget runs out."""

    def __init__(
        self, store: ListingStore, *, ttl: float, clock: Clock, offline: bool, stretch: Callable[[], float]
    ) -> None:
        self._store = store
        self._ttl = ttl
        self._clock = clock
        self._offline = offline
        self._stretch = stretch
        self._lock = threading.Lock()
        # The fresh ones, which may be forgotten.
        self._fresh: TTLCache[str, Listing] = TTLCache(maxsize=1_000_000, ttl=ttl, timer=clock.monotonic)
        # All of them: they serve while the service cannot be asked.
        self._known: dict[str, Listing] = {}
        self._bytes = 0  # size of all files in _known
        self._invalidated = Invalidations()
        self._changing: dict[str, Looks] = {}  # folders that others write to
        self._steady: frozenset[str] = frozenset()  # folders whose TTL is not stretched
        self._forgotten: set[str] = set()  # directories dropped from the disk, and not listed since
        self._holds = Holds[str](clock)  # listings that could not be renewed
        self._down_until = NEVER  # monotonic seconds; until then the service counts as unreachable

    def close(self) -> None:
        self._store.close()

    @property
    def learnt(self) -> Learnt:
        """What is known of the service's listings; kept for the next mount."""
        return self._store.learnt

    def learn(self, learnt: Learnt) -> None:
        self._store.learn(learnt)

    # -- looking -----------------------------------------------------------------------------------------

    def find(self, path: str, *, on_disk: bool = True) -> Listing | None:
        """The last listing of a directory, however old."""
        with self._lock:
            listing = self._fresh.get(path) or self._known.get(path)
        stored = self._store.load(path) if listing is None and on_disk else None
        if stored is None:
            return listing
        asked_at_wall, names = stored
        age = max(0.0, self._clock.now() - asked_at_wall)
        listing = Listing(names, self._clock.monotonic() - age)
        with self._lock:
            if self._invalidated.since(path, listing.asked_at):
                listing = Listing(names, NEVER)
            if path not in self._known:
                self._keep_locked(path, listing)
        return listing

    def in_memory(self, path: str) -> Listing | None:
        """The same, without a look at the disk."""
        with self._lock:
            return self._known.get(path)

    def fresh(self, path: str) -> Listing | None:
        """A listing that was fetched within the TTL."""
        with self._lock:
            return self._fresh.get(path)

    def entry(self, path: str) -> Entry | None:
        """The last listed entry of `path`, however old."""
        directory, name = paths.split(path)
        listing = self.in_memory(directory)
        return None if listing is None else listing.names.get(name)

    def folders(self, path: str) -> list[str]:
        """The folders last listed in a directory."""
        listing = self.in_memory(path)
        names = {} if listing is None else listing.names
        return [paths.join(path, entry.name) for entry in names.values() if entry.is_dir]

    def is_outdated(self, path: str, listing: Listing) -> bool:
        """Whether the directory was invalidated after its listing was asked for."""
        with self._lock:
            return self._invalidated.since(path, listing.asked_at)

    def is_fresh_enough(self, path: str, listing: Listing, since: float | None = None) -> bool:
        """Whether a listing may be served without a call; with `since` (monotonic seconds), if asked for after it."""
        if since is not None and listing.asked_at < since:
            return False
        now = self._clock.monotonic()
        age = now - listing.asked_at
        with self._lock:
            if self._offline or now < self._down_until or self._holds.is_held(path):
                return True
            if listing.asked_at < self._look_due_locked(path, now):
                return False
            if self._fresh.get(path) is listing and listing.asked_at != NEVER:
                return True
            steady = any(paths.is_within(path, folder) for folder in self._steady)
        return age < (self._ttl if steady else self._ttl * self._stretch())

    def _look_due_locked(self, path: str, now: float) -> float:
        """Since when a listing is to show what others have done there (monotonic seconds); NEVER: they do nothing."""
        self._changing = {folder: looks for folder, looks in self._changing.items() if now < looks.end}
        return max(
            (looks.due(path, now) for folder, looks in self._changing.items() if paths.is_within(path, folder)),
            default=NEVER,
        )

    def truth_wanted(self, path: str) -> float:
        """Since when a listing must show what others have stored (monotonic seconds); NEVER: what comes will do."""
        with self._lock:
            return max(self._look_due_locked(path, self._clock.monotonic()), self._invalidated.last(path))

    @property
    def bytes_known(self) -> int:
        """The size of all files in all listings."""
        with self._lock:
            return self._bytes

    # -- keeping -----------------------------------------------------------------------------------------

    def put(self, path: str, listing: Listing) -> set[str]:
        """Keep a listing, on disk too if complete. Return the names that are new, gone, or of another version.

        What is known of a folder that is gone, or is another one by now, is forgotten.
        """
        age = self._clock.monotonic() - listing.asked_at
        with self._lock:
            if self._invalidated.since(path, listing.asked_at):
                listing = replace(listing, asked_at=NEVER)
            before = self._known.get(path)
            if before is not None and before.asked_at > listing.asked_at:
                # the answer to a later call has come first: only what is certainly later counts
                later = later_files(before.names, listing.names)
                if not later or path not in self._fresh:
                    return set()
                listing = replace(before, names={**before.names, **later})
            if before is not None:
                listing = replace(listing, names=with_sizes(before.names, listing.names))
            self._keep_locked(path, listing)
            self._holds.release(path)
            self._forgotten.discard(path)
            self._fresh[path] = listing
        if listing.complete:
            self._store.save(path, self._clock.now() - age, listing.names)
        if before is None:
            return set()
        changed = changed_names(before.names, listing.names)
        with self._lock:
            for folder, looks in self._changing.items():
                if paths.is_within(path, folder):
                    looks.seen(path, listing.asked_at, changed=bool(changed))
        for name in changed:
            if is_another_folder(before.names.get(name), listing.names.get(name)):
                self.forget(paths.join(path, name))
        return changed

    def _keep_locked(self, path: str, listing: Listing) -> None:
        before = self._known.get(path)
        self._bytes += total_size(listing.names) - (total_size(before.names) if before is not None else 0)
        self._known[path] = listing

    def replace(self, entry: Entry, newer: Entry) -> None:
        """Put in an entry of which more is known than its listing had."""
        with self._lock:
            listing = self._known.get(entry.dirname)
            if listing is not None and listing.names.get(entry.name) == entry:
                self._keep_locked(entry.dirname, replace(listing, names={**listing.names, entry.name: newer}))
                self._fresh.pop(entry.dirname, None)  # from now on its age decides

    def forget(self, path: str) -> None:
        """Drop a directory and all inside it: the service has them no more."""
        with self._lock:
            gone = [key for key in self._known if paths.is_within(key, path)]
            for key in gone:
                self._bytes -= total_size(self._known.pop(key).names)
                self._fresh.pop(key, None)
            if not gone and path in self._forgotten:
                return
            self._forgotten.add(path)
        self._store.forget(path)

    # -- how long it is fresh ------------------------------------------------------------------------------

    def hold(self, path: str, seconds: float, *, down: bool) -> None:
        """A listing could not be renewed, and serves for so long; `down`: and so do all others."""
        self._holds.hold(path, seconds)
        if down:
            with self._lock:
                self._down_until = self._clock.monotonic() + seconds

    def keep_steady(self, folders: frozenset[str]) -> None:
        """Folders of active runs: their TTL is not stretched."""
        self._steady = folders

    def invalidate(self, path: str, *, below: bool = False) -> None:
        """The next look at this directory (with `below`: or at any inside it) asks the service."""
        with self._lock:
            self._invalidated.note(path, self._clock.monotonic(), below=below)
            keys = [key for key in self._known if paths.is_within(key, path)] if below else [path]
            for key in keys:
                self._fresh.pop(key, None)
                if key in self._known:
                    self._known[key] = replace(self._known[key], asked_at=NEVER)

    def expect_changes(self, path: str, times: Sequence[float]) -> dict[str, set[str]]:
        """At each of these `times` (seconds from now), listings below `path` are out of date, even if the service has
        just failed to answer. Return the names listed there, by directory.
        """
        self._holds.release_all()
        with self._lock:
            self._down_until = NEVER
            self._changing[path] = Looks(self._clock.monotonic(), times)
        if times[0] == 0.0:
            self.invalidate(path, below=True)
        with self._lock:
            return {key: set(listing.names) for key, listing in self._known.items() if paths.is_within(key, path)}


class Invalidations:
    """When directories were last invalidated, alone and with all inside them; monotonic seconds, one item per path.

    A listing asked for before that is out of date, also if it is on disk or still under way. Guarded by its owner's
    lock.
    """

    def __init__(self) -> None:
        self._alone: dict[str, float] = {}
        self._below: dict[str, float] = {}

    def note(self, path: str, now: float, *, below: bool) -> None:
        (self._below if below else self._alone)[path] = now

    def last(self, path: str) -> float:
        """When the directory was last invalidated; NEVER: it was not."""
        last = max(self._alone.get(path, NEVER), self._below.get(path, NEVER))
        while path != paths.ROOT:
            path = paths.parent(path)
            last = max(last, self._below.get(path, NEVER))
        return last

    def since(self, path: str, asked_at: float) -> bool:
        """Whether the directory was invalidated after `asked_at` (monotonic seconds)."""
        return asked_at < self.last(path)


def with_sizes(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> Mapping[str, Entry]:
    """The names of a listing, with the sizes that it lacks and that were fetched before."""
    known: dict[str, Entry] = {}
    for name, entry in after.items():
        if entry.sized or entry.mtime_ns is None:
            continue
        old = before.get(name)
        if old is not None and old.sized and replace(old, size=0, sized=False) == entry:
            known[name] = old
    return {**after, **known} if known else after


def total_size(names: Mapping[str, Entry]) -> int:
    return sum(entry.size for entry in names.values())


def changed_names(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> set[str]:
    """Names that are new, gone, or of another version."""
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def later_files(before: Mapping[str, Entry], other: Mapping[str, Entry]) -> dict[str, Entry]:
    """Files of another listing that have a later time than in the one before."""
    return {
        name: entry
        for name, entry in other.items()
        if (old := before.get(name)) is not None
        and not (entry.is_dir or old.is_dir or entry.mtime_ns is None or old.mtime_ns is None)
        and entry.mtime_ns > old.mtime_ns
    }


def is_another_folder(before: Entry | None, after: Entry | None) -> bool:
    """Whether a folder that was listed is gone, or another one has its name. Some listings lack its id: 0."""
    if before is None or not before.is_dir:
        return False
    return after is None or not after.is_dir or (0 not in (before.id, after.id) and before.id != after.id)


def by_name(entries: Iterable[Entry]) -> dict[str, Entry]:
    """The entries of one directory by name. A file comes before a folder of its name, whatever the order of the list:
    an object store may have both, and a folder that was removed may be listed for a while.
    """
    names: dict[str, Entry] = {}
    for entry in entries:
        if not entry.is_dir or entry.name not in names:
            names[entry.name] = entry
    return names


def by_folder(entries: Iterable[Entry]) -> dict[str, dict[str, Entry]]:
    """The listings of all directories, the root's too, made from the reply of the all-entries call."""
    inside: dict[str, list[Entry]] = {paths.ROOT: []}
    for entry in entries:
        inside.setdefault(entry.dirname, []).append(entry)
        if entry.is_dir:
            inside.setdefault(entry.path, [])
    folders = {path: by_name(listed) for path, listed in inside.items()}
    for path in list(folders):
        while path != paths.ROOT:  # some folders appear only in the paths of their files
            directory, name = paths.split(path)
            folders.setdefault(directory, {}).setdefault(name, Entry(0, directory, name, is_dir=True))
            path = directory
    return folders
