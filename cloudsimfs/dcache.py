"""Listings and what they say of names, with a time to live; the only module that asks the service for them.

One listing answers every question about its directory, misses included: one call per directory and TTL. The TTL
stretches as the hour's calls run out. What a listing said is kept beyond its TTL, also on disk: it is served while
the service cannot be asked, or takes long to answer (design.md, invariant 4): a failed call never removes a name.
"Absent" is only what a complete listing, or the service's own word, says.

Threading: fetches are single-flight per directory: who comes second waits for the first one's answer. `_lock` is a
leaf; nothing is called under it.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Set
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, replace

from cachetools import TTLCache

from cloudsimfs import paths
from cloudsimfs.clock import Clock
from cloudsimfs.errors import (
    Cancelled,
    KeyRefused,
    NoSuchEntry,
    NotDirectory,
    NotFound,
    NotOffered,
    Refused,
    ServiceError,
    TimedOut,
    Unreachable,
)
from cloudsimfs.fetching import Interrupted, never
from cloudsimfs.listings import ListingStore
from cloudsimfs.service import Client
from cloudsimfs.service.model import Entry
from cloudsimfs.walks import Walks

log = logging.getLogger(__name__)

CHANGING_TTL = 3.0  # seconds a listing is believed while results are arriving in its folder
ANSWER = 60.0  # seconds readers wait for a listing that nothing is known of; asking goes on
LOOK = 0.1  # seconds between looks whether who waits for it was interrupted
GRACE = 2.0  # seconds a reader waits for a listing's renewal before the old one is served
HOLD = 5.0  # seconds a listing that could not be renewed serves before the service is asked again
STRETCH = 10.0  # times the TTL when no calls are left
AHEAD = 8  # listings fetched at the same time ahead of a walker
NEVER = -math.inf


@dataclass(frozen=True, slots=True)
class Listing:
    """What the service said of one directory. `asked_at` is monotonic seconds, from before the call.

    NEVER means that it is known to be out of date: only good if the service cannot be asked.
    """

    names: Mapping[str, Entry]
    asked_at: float


class Flight(Future[Listing]):
    """A fetch, in line or, since `begun_at` (monotonic seconds; guarded by DCache._lock), under way."""

    begun_at = math.inf


class DCache:
    """`ttl` in seconds. `on_change(directory, names)` tells what a new listing changed; no lock is held then.
    `interrupted` is asked while a reader waits.
    """

    def __init__(
        self,
        client: Client,
        store: ListingStore,
        *,
        ttl: float,
        clock: Clock,
        offline: bool,
        bulk: bool,
        on_change: Callable[[str, set[str]], None],
        interrupted: Interrupted = never,
    ) -> None:
        self._client = client
        self._store = store
        self._ttl = ttl
        self._clock = clock
        self._offline = offline
        self._on_change = on_change
        self._interrupted = interrupted
        self._walks = Walks(clock, bulk=bulk)
        self._pool = ThreadPoolExecutor(max_workers=AHEAD, thread_name_prefix="listing")
        self._lock = threading.Lock()
        # What may be forgotten: which listings are fresh.
        self._fresh: TTLCache[str, Listing] = TTLCache(maxsize=1_000_000, ttl=ttl, timer=clock.monotonic)
        # What serves while the service cannot be asked; guarded by _lock.
        self._known: dict[str, Listing] = {}
        self._bytes = 0  # size of all files in _known; guarded by _lock
        self._flights: dict[str, Flight] = {}
        # When a directory was last invalidated, alone and with all inside it: what was asked for before is out of
        # date, also on disk or under way; monotonic, one item per path; guarded by _lock.
        self._invalidated: dict[str, float] = {}
        self._invalidated_below: dict[str, float] = {}
        self._changing: dict[str, float] = {}  # folders others write to, until when (monotonic); guarded by _lock
        self._steady: frozenset[str] = frozenset()  # folders whose TTL is not stretched
        self._forgotten: set[str] = set()  # forgotten on disk, and not listed since; guarded by _lock
        self._held: dict[str, float] = {}  # listings that could not be renewed, until when; guarded by _lock
        self._down_until = NEVER  # monotonic; the service could not be reached; guarded by _lock
        self._slow_until = NEVER  # monotonic; a renewal took longer than GRACE: nobody waits for the next ones

    def check(self) -> None:
        """List the root now. Raises what that raises; `listing` would serve what it knows."""
        if self._is_believed(paths.ROOT, self._usable(paths.ROOT, None) or Listing({}, NEVER), None):
            return
        self._put(paths.ROOT, self._fetch(paths.ROOT, None))

    def knows(self, path: str) -> bool:
        return self.known(path) is not None

    def known(self, path: str) -> Listing | None:
        """The last listing of a directory, however old; asks nobody."""
        return self._usable(path, None)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._store.close()

    # -- asking ------------------------------------------------------------------------------------------

    def listing(self, path: str, *, since: float | None = None, patient: bool = False) -> Listing:
        """The directory's listing: fresh, or fetched now, or, if that fails or takes long, the last one known.

        `patient`, as no reader is, waits for the answer however long it takes. With `since` (monotonic seconds) it is
        one that was asked for later, or an error. Raises NotFound if there is definitely no such directory,
        NotDirectory, or the ServiceError of the call.
        """
        patient = patient or since is not None
        while True:
            known = self._usable(path, since)
            if isinstance(known, Listing) and self._is_believed(path, known, since):
                return known
            with self._lock:
                flight = self._flights.get(path)
                if flight is None and self._known.get(path) is not known:
                    continue  # it has landed meanwhile
                mine = flight is None
                if flight is None:
                    flight = self._flights[path] = Flight()
            if patient:
                self._fly(path, flight, since)  # also one in line: those before it may be waiting for this thread
            elif known is None or known.asked_at == NEVER:
                threading.Thread(target=self._fly, args=(path, flight, since), name="listing", daemon=True).start()
                if not self._comes(flight):
                    if known is None:
                        raise TimedOut(f"listing of /{path}: no answer in {ANSWER:.0f} s")
                    return known
            else:
                if mine:
                    self._pool.submit(self._fly, path, flight, since)
                now = self._clock.monotonic()
                try:
                    return flight.result(timeout=0.0 if now < self._slow_until else GRACE)
                except FutureTimeout:
                    log.info("listing of /%s takes long; the one known is served", path)
                    self._slow_until = max(self._slow_until, now + HOLD)
                    return known
            if mine:
                return flight.result()
            if since is not None:
                flight.exception()
            else:
                landed = flight.result()
                with self._lock:
                    if not self._is_outdated_locked(path, landed):
                        return landed
            # it may have left too early: look again

    def _comes(self, flight: Flight) -> bool:
        """Wait for a listing; False if it takes too long: readers one after the other wait no longer than one.

        Raises Cancelled if the reader is interrupted.
        """
        while not wait([flight], timeout=LOOK).done:
            if self._interrupted():
                raise Cancelled("interrupted while waiting for a listing")
            with self._lock:
                if self._clock.monotonic() > flight.begun_at + ANSWER:
                    return False
        return True

    def _usable(self, path: str, since: float | None) -> Listing | None:
        """What is known of the directory, from memory or disk."""
        with self._lock:
            found = self._fresh.get(path) or self._known.get(path)
        if found is None and since is None:
            stored = self._store.load(path)
            if stored is not None:
                age = max(0.0, self._clock.now() - stored[0])
                found = Listing(stored[1], self._clock.monotonic() - age)
                with self._lock:
                    if self._is_outdated_locked(path, found):
                        found = Listing(stored[1], NEVER)
                    if path not in self._known:
                        self._keep_locked(path, found)
        return found

    def _is_outdated_locked(self, path: str, listing: Listing) -> bool:
        """Whether the directory was invalidated after its listing was asked for."""
        if listing.asked_at < self._invalidated.get(path, NEVER):
            return True
        while listing.asked_at >= self._invalidated_below.get(path, NEVER):
            if path == paths.ROOT:
                return False
            path = paths.parent(path)
        return True

    def _is_believed(self, path: str, listing: Listing, since: float | None) -> bool:
        """Whether a listing may be served without asking."""
        if since is not None and listing.asked_at < since:
            return False
        now = self._clock.monotonic()
        age = now - listing.asked_at
        with self._lock:
            if self._offline or now < max(self._down_until, self._held.get(path, NEVER)):
                return True
            for folder, until in list(self._changing.items()):
                if until < now:
                    del self._changing[folder]
                elif paths.is_below(path, folder):
                    return age <= CHANGING_TTL
            if self._fresh.get(path) is listing and listing.asked_at != NEVER:
                return True
            steady = any(paths.is_below(path, folder) for folder in self._steady)
        return age < (self._ttl if steady else self._ttl * self._stretch())

    def _stretch(self) -> float:
        return self._client.budget.stretch(STRETCH)

    def _fly(self, path: str, flight: Flight, since: float | None) -> None:
        with self._lock:
            if flight.begun_at < math.inf:
                return
            flight.begun_at = self._clock.monotonic()
        listing, failure = None, None
        try:
            listing = self._renew(path, since)
        except BaseException as error:  # noqa: BLE001  who waits must hear of it, whatever it is
            failure = error
        with self._lock:
            del self._flights[path]
        if listing is not None:
            flight.set_result(listing)
        else:
            flight.set_exception(failure)

    def _renew(self, path: str, since: float | None) -> Listing:
        try:
            if self._offline:
                raise Unreachable("the mount is offline (--offline)")
            if since is None:
                everything = self._walks.wants_everything(
                    path, self._folders_beside(path), paged=self._client.version == "v2"
                )
            else:
                everything = self._client.version == "v2" and self._walks.may_list_everything()
            if everything:
                self._fetch_everything()
                with self._lock:
                    found = self._fresh.get(path)
                if found is not None:
                    return found
            listing = self._fetch(path, since)
        except (NotFound, NotDirectory):
            self.forget(path)
            raise
        except ServiceError as error:
            with self._lock:
                stale = self._known.get(path)
                self._held[path] = self._clock.monotonic() + HOLD
                if isinstance(error, (Unreachable, TimedOut)):
                    self._down_until = self._held[path]
            if stale is None or since is not None:
                raise
            log.warning("listing of /%s is stale: %s", path, error)
            return stale
        self._put(path, listing)
        return listing

    def _fetch(self, path: str, since: float | None) -> Listing:
        entry_id = self._directory_id(path, since)
        asked_at = self._clock.monotonic()
        if entry_id is None:
            return Listing({}, asked_at)
        try:
            entries = self._client.list_directory(entry_id, path)
        except NoSuchEntry:
            raise NotFound(f"/{path}") from None
        except Refused:
            # v2 refuses an unknown id like anything else (service-observed.md, "Envelopes"): look one level up
            if path == paths.ROOT or self._is_listed(path, entry_id, asked_at):
                raise
            raise NotFound(f"/{path}") from None
        return Listing({entry.name: entry for entry in entries}, asked_at)

    def _directory_id(self, path: str, since: float | None) -> int | None:
        """The id to list by; found in the parent's listing."""
        if path == paths.ROOT:
            return 0
        entry = self.entry(path)
        if entry is None and since is not None:
            entry = self.entry(path, since=since)
        if entry is None:
            raise NotFound(f"/{path}")
        if not entry.is_dir:
            raise NotDirectory(f"/{path}")
        if entry.id:
            return entry.id
        view = self._client.view(path)  # a folder known only from its files' paths
        return None if view is None else view.entry.id

    def look_into(self, folders: Set[str], *, since: float) -> None:
        """Their listings are asked for next: have them in one call where that is fewer. `since` as for `listing`."""
        known = {path: self._usable(path, since) for path in folders}
        missing = [path for path, found in known.items() if not found or not self._is_believed(path, found, since)]
        if len(missing) > 1 and not self._offline and self._walks.may_list_everything():
            self._fetch_everything()

    def entry(self, path: str, *, since: float | None = None) -> Entry | None:
        """What the service lists under `path`; None if it is definitely absent. `since` as for `listing`."""
        directory, name = paths.split(path)
        try:
            return self.listing(directory, since=since, patient=True).names.get(name)
        except NotFound:
            return None

    def _is_listed(self, path: str, entry_id: int, since: float) -> bool:
        entry = self.entry(path, since=since)
        return entry is not None and entry.is_dir and entry.id == entry_id

    def measured(self, entry: Entry) -> Entry:
        """A file's entry with its size, which the listing did not tell: asked for once per version."""
        found = self._client.measure(entry)
        with self._lock:
            listing = self._known.get(entry.dirname)
            if listing is not None and listing.names.get(entry.name) == entry:
                self._keep_locked(entry.dirname, Listing({**listing.names, entry.name: found}, listing.asked_at))
                self._fresh.pop(entry.dirname, None)  # its age decides
        self._on_change(entry.dirname, {entry.name})
        return found

    def known_entry(self, path: str) -> Entry | None:
        """What was last listed under `path`, however old; asks nobody."""
        directory, name = paths.split(path)
        with self._lock:
            listing = self._known.get(directory)
        return None if listing is None else listing.names.get(name)

    # -- walks -------------------------------------------------------------------------------------------

    def was_read(self, path: str) -> None:
        """Somebody reads this directory: the sign by which a tree walker is known. Fetches ahead of one."""
        siblings = self._folders_beside(path)
        self._walks.was_read(path)
        if self._offline or self._stretch() > 1.0:
            return
        for ahead in self._walks.ahead(path, siblings, self._folders_in(path)):
            known = self._usable(ahead, None)
            if known is not None and self._is_believed(ahead, known, None):
                continue
            with self._lock:
                if ahead in self._flights or self._known.get(ahead) is not known:
                    continue  # it is under way, or has landed meanwhile
                flight = self._flights[ahead] = Flight()
            self._pool.submit(self._fly, ahead, flight, None)

    def _folders_in(self, path: str) -> list[str]:
        with self._lock:
            listing = self._known.get(path)
        if listing is None:
            return []
        return [paths.join(path, entry.name) for entry in listing.names.values() if entry.is_dir]

    def _folders_beside(self, path: str) -> list[str]:
        return [] if path == paths.ROOT else self._folders_in(paths.parent(path))

    def _fetch_everything(self) -> None:
        """v1's all-entries call: every listing at once (service-api.md section 4.1)."""
        asked_at = self._clock.monotonic()
        try:
            entries = self._client.list_all()
        except ServiceError as error:
            self._walks.failed(for_good=isinstance(error, (NotOffered, KeyRefused, Refused, NoSuchEntry)))
            log.info("walking without the all-entries call: %s", error)
            return
        folders: dict[str, dict[str, Entry]] = {paths.ROOT: {}}
        for entry in entries:
            folders.setdefault(entry.dirname, {})[entry.name] = entry
            if entry.is_dir:
                folders.setdefault(entry.path, {})
        for path in list(folders):
            while path != paths.ROOT:  # folders that only their files' paths tell of
                directory, name = paths.split(path)
                folders.setdefault(directory, {}).setdefault(name, Entry(0, directory, name, is_dir=True))
                path = directory
        self._walks.took_everything(self._clock.monotonic() - asked_at, len(entries))
        for path, names in folders.items():
            self._put(path, Listing(names, asked_at))

    # -- keeping -----------------------------------------------------------------------------------------

    def _put(self, path: str, listing: Listing) -> None:
        age = self._clock.monotonic() - listing.asked_at
        with self._lock:
            if self._is_outdated_locked(path, listing):
                listing = Listing(listing.names, NEVER)
            before = self._known.get(path)
            if before is not None and before.asked_at > listing.asked_at:
                return  # a later answer has come first
            if before is not None:
                listing = Listing(with_sizes(before.names, listing.names), listing.asked_at)
            self._keep_locked(path, listing)
            self._held.pop(path, None)
            self._forgotten.discard(path)
            self._fresh[path] = listing
        self._store.save(path, self._clock.now() - age, listing.names)
        if before is not None:
            changed = changed_names(before.names, listing.names)
            if changed:
                self._on_change(path, changed)

    def _keep_locked(self, path: str, listing: Listing) -> None:
        before = self._known.get(path)
        self._bytes += total_size(listing.names) - (total_size(before.names) if before is not None else 0)
        self._known[path] = listing

    @property
    def bytes_known(self) -> int:
        """The size of all files in the listings known."""
        with self._lock:
            return self._bytes

    def keep_steady(self, folders: frozenset[str]) -> None:
        """Folders of active runs: their TTL is not stretched."""
        self._steady = folders

    def invalidate(self, path: str, *, below: bool = False) -> None:
        """The next question about this directory (with `below`: and all inside it) asks the service."""
        with self._lock:
            (self._invalidated_below if below else self._invalidated)[path] = self._clock.monotonic()
            keys = [key for key in self._known if paths.is_below(key, path)] if below else [path]
            for key in keys:
                self._fresh.pop(key, None)
                if key in self._known:
                    self._known[key] = Listing(self._known[key].names, NEVER)

    def expect_changes(self, path: str, seconds: float) -> None:
        """Others are about to put files below `path`: for so long, listings there age quickly."""
        with self._lock:
            self._changing[path] = self._clock.monotonic() + seconds
        self.invalidate(path, below=True)
        with self._lock:
            known = {key: set(listing.names) for key, listing in self._known.items() if paths.is_below(key, path)}
        for directory, names in known.items():
            self._on_change(directory, names)  # whoever has it cached asks again, too
        while path != paths.ROOT and self.known_entry(path) is None:
            path = paths.parent(path)  # the folder itself is new to us
            self.invalidate(path)

    def forget(self, path: str) -> None:
        """The directory and all inside it are gone from the service."""
        with self._lock:
            for key in [key for key in self._known if paths.is_below(key, path)]:
                self._bytes -= total_size(self._known.pop(key).names)
                self._fresh.pop(key, None)
                self._forgotten.discard(path)
            if path in self._forgotten:
                return
            self._forgotten.add(path)
        self._store.forget(path)


def with_sizes(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> Mapping[str, Entry]:
    """The names of a listing, with sizes that it did not tell and that were asked for before."""
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
