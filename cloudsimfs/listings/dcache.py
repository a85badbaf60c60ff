"""Listings of directories: the only module that decides when the service is asked for them.

One listing answers every question about its directory, also about names that do not exist: one call per directory and
TTL. Listings are kept (`listings.cache`) and served while the service cannot be asked, or takes long to answer
(docs/architecture.md, invariant 4): a failed call never removes a name. A name is absent only if a complete listing,
or the service itself, says so.

Threading: fetches are single-flight per directory (`singleflight`). The lock of the flights comes before that of the
listing cache; no other is taken under it. `_everything` is held over the all-entries call, by who fetches.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence, Set
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures import wait
from functools import partial

from cloudsimfs import paths
from cloudsimfs.clock import Clock
from cloudsimfs.concurrency.singleflight import Flight, SingleFlight
from cloudsimfs.concurrency.waiting import Interrupted, never, place_to_wait, wait_for
from cloudsimfs.errors import (
    KeyRefused,
    NoSuchEntry,
    NotDirectory,
    NotFound,
    NotOffered,
    Refused,
    ServiceError,
    TimedOut,
    TryAgain,
    Unreachable,
)
from cloudsimfs.listings.absent import as_folder, named
from cloudsimfs.listings.asking import ask, holds_names
from cloudsimfs.listings.cache import Listing, ListingCache, by_folder
from cloudsimfs.listings.looks import NEVER
from cloudsimfs.listings.store import Learnt, ListingStore
from cloudsimfs.listings.walks import Walks
from cloudsimfs.service import Client
from cloudsimfs.service.model import Entry

log = logging.getLogger(__name__)

ANSWER_BOUND = 60.0  # seconds that readers wait for a directory's first listing; the call goes on
INTERRUPT_POLL = 0.1  # seconds between looks whether a waiting reader was interrupted
RENEWAL_GRACE = 2.0  # seconds that a reader waits for a listing's renewal before the old one is served
RENEWAL_HOLD = 5.0  # seconds that a listing that could not be renewed serves before the next call
EVIDENCE_AGE = 300.0  # seconds; how old a listing may be to show that nobody else has changed the directory
TTL_STRETCH = 10.0  # factor applied to the TTL when no calls are left
TOGETHER = 3.0  # seconds; the service's cache is deleted once for all who ask within that time
CONCURRENT_FETCHES = 8  # listings fetched at the same time in the background


ListingFlight = Flight[str, Listing]


class DCache:
    """`ttl` in seconds. `bulk`: the all-entries call may be made. `on_change(directory, names)` is called, with no
    lock held, with the names that a new listing has changed. `interrupted` is called while a reader waits.
    """

    def __init__(
        self,
        client: Client,
        store: ListingStore,
        *,  # eight in all: four settings, and the three things that tests replace beside the client
        ttl: float,
        clock: Clock,
        offline: bool,
        bulk: bool,
        on_change: Callable[[str, set[str]], None],
        interrupted: Interrupted = never,
    ) -> None:
        self._client = client
        self._clock = clock
        self._offline = offline
        self._on_change = on_change
        self._cache = ListingCache(store, ttl=ttl, clock=clock, offline=offline, stretch=self._stretch)
        self._interrupted = interrupted
        self._walks = Walks(clock, bulk=bulk)
        self._everything = threading.Lock()  # held over the all-entries call
        self._flights = SingleFlight[str, Listing](workers=CONCURRENT_FETCHES, name="listing", clock=clock)
        # monotonic seconds; until then nobody waits for renewals, as one took longer than RENEWAL_GRACE
        self._slow_until = NEVER
        # By folder, in monotonic seconds; no lock needed. `_shown_at`: its listing shows what was stored until then.
        self._listed_at: dict[str, float] = {}
        self._shown_at: dict[str, float] = {}
        self._recall()

    def _stretch(self) -> float:
        return self._client.budget.stretch(TTL_STRETCH)

    def check(self) -> None:
        """List the root now. Raises what the call raises, where `listing` would serve an old one."""
        if not self._is_fresh_enough(paths.ROOT, self.known(paths.ROOT) or Listing({}, NEVER)):
            self._put(paths.ROOT, self._fetch(paths.ROOT, None))

    def close(self) -> None:
        self._flights.close()
        self._cache.close()

    def _recall(self) -> None:
        """Begin with what the last mount has learnt of the service's listings."""
        learnt = self._cache.learnt
        self._client.page_size.recall(learnt.page_size)
        self._client.server_cache.lags = learnt.lags

    # -- without a call ------------------------------------------------------------------------------------

    def knows(self, path: str) -> bool:
        return self.known(path) is not None

    def known(self, path: str) -> Listing | None:
        """The last listing of a directory, however old; makes no call."""
        return self._cache.find(path)

    def absence(self, path: str) -> Listing:
        """An empty listing of a directory that is not listed, as old as the one above that shows so; else NEVER."""
        while path != paths.ROOT:
            path, name = paths.split(path)
            above = self.known(path)
            if above is not None:
                return Listing({}, above.asked_at if above.complete and name not in above.names else NEVER)
        return Listing({}, NEVER)

    @property
    def bytes_known(self) -> int:
        """The size of all files in all listings."""
        return self._cache.bytes_known

    def keep_steady(self, folders: frozenset[str]) -> None:
        """Folders of active runs: their TTL is not stretched."""
        self._cache.keep_steady(folders)

    def invalidate(self, path: str) -> None:
        """The next look at this directory asks the service."""
        self._cache.invalidate(path)

    def forget(self, path: str) -> None:
        """Drop the listings of a directory and all inside it: the service has them no more."""
        self._cache.forget(path)

    def expect_changes(self, path: str, times: Sequence[float]) -> None:
        """Others put files below `path`: listings there are out of date at these `times`, in seconds from now."""
        for directory, names in self._cache.expect_changes(path, times).items():
            self._on_change(directory, names)  # the kernel has them cached, too
        while path != paths.ROOT and self._cache.entry(path) is None:
            path = paths.parent(path)  # its parent has not listed it yet
            self._cache.invalidate(path)

    # -- asking ------------------------------------------------------------------------------------------

    def at_hand(self, path: str, *, since: float = -math.inf) -> Listing | None:
        """A listing that shows what others have changed, asked for after `since` (monotonic seconds).

        Costs a call only if the last one is older than that, or than EVIDENCE_AGE. None if the directory exists no
        more, or was never listed and that will do, as no `since` is given. Raises the ServiceError of the call.
        """
        oldest = max(since, self._clock.monotonic() - EVIDENCE_AGE, self._client.page_size.shrunk_at)
        listing = self.known(path)
        if listing is not None and listing.asked_at >= oldest and self._shows(path, since):
            return listing
        if listing is None and since == -math.inf:
            return None
        try:
            return self.listing(path, since=oldest)
        except (NotFound, NotDirectory):
            return None

    def listing(self, path: str, *, since: float | None = None, patient: bool = False) -> Listing:
        """The directory's listing: a fresh one, or one fetched now, or, if that fails or takes long, the last one.

        `patient` waits for the answer however long it takes; readers do not. With `since` (monotonic seconds) the
        listing was asked for after that moment, or an error is raised. Raises NotFound if there is definitely no such
        directory, NotDirectory, or the ServiceError of the call.
        """
        patient = patient or since is not None
        while True:
            known = self._cache.find(path, on_disk=since is None)
            if known is not None and self._is_fresh_enough(path, known, since):
                return known
            joined = self._join(path, known)
            if joined is None:
                continue  # an answer has come meanwhile
            flight, mine = joined
            if patient:
                self._fly(flight, since)  # also if it is in line: the calls before it may be waiting for this thread
            elif known is None or (known.asked_at == NEVER and self._clock.monotonic() >= self._slow_until):
                threading.Thread(target=self._fly, args=(flight, since), name="listing", daemon=True).start()
                if not self._comes(flight):
                    if known is None:
                        raise TimedOut(f"listing of /{path}: no answer in {ANSWER_BOUND:.0f} s")
                    self._slow_until = self._clock.monotonic() + ANSWER_BOUND  # one wait, not one a directory
                    return known
            else:
                if mine:
                    self._flights.submit(flight, lambda: self._renew(path, since))
                return self._wait_briefly(flight, known)
            if mine:
                return flight.result()
            if since is not None:
                flight.exception()
            else:
                landed = flight.result()
                if not self._cache.is_outdated(path, landed):
                    return landed
            # its call may have been made too early: look again

    def _is_fresh_enough(self, path: str, known: Listing, since: float | None = None) -> bool:
        """As `ListingCache.is_fresh_enough`. One from before pages were found to be shorter may lack names."""
        if known.asked_at < self._client.page_size.shrunk_at and not self._offline:
            return False
        if since is not None and not self._shows(path, since):
            return False
        return self._cache.is_fresh_enough(path, known, since)

    def _shows(self, path: str, since: float) -> bool:
        """Whether the listing shows what was stored until `since` (monotonic seconds), in spite of v2's cache."""
        return not self._client.server_cache.hides or self._shown_at.get(path, NEVER) >= since - TOGETHER

    def _comes(self, flight: ListingFlight) -> bool:
        """Wait for a listing; False if the call takes longer than ANSWER_BOUND, whenever this reader has come.

        Raises Cancelled if the reader is interrupted.
        """
        return wait_for(
            lambda seconds: bool(wait([flight], timeout=seconds).done),
            self._interrupted,
            "interrupted while waiting for a listing",
            is_late=lambda: self._clock.monotonic() > flight.begun_at + ANSWER_BOUND,
            poll=INTERRUPT_POLL,
        )

    def _join(self, path: str, known: Listing | None) -> tuple[ListingFlight, bool] | None:
        """As `SingleFlight.join`: None if `known` is not the last listing any more."""
        return self._flights.join(path, lambda: self._cache.in_memory(path) is not known)

    def _wait_briefly(self, flight: ListingFlight, known: Listing) -> Listing:
        """The answer, or the listing known if that takes long."""
        now = self._clock.monotonic()
        try:
            with place_to_wait():
                return flight.result(timeout=0.0 if now < self._slow_until else RENEWAL_GRACE)
        except (FutureTimeout, TryAgain):
            log.info("listing of /%s takes long; the last one is served", flight.key)
            self._slow_until = max(self._slow_until, now + RENEWAL_HOLD)
            return known

    def _fly(self, flight: ListingFlight, since: float | None) -> None:
        self._flights.fly(flight, lambda: self._renew(flight.key, since))

    def _renew(self, path: str, since: float | None) -> Listing:
        try:
            if self._offline:
                raise Unreachable("the mount is offline (--offline)")
            wants_everything = self._wants_everything(path, since) and not (since is None and self._is_absent(path))
            self._show_all(path, since)
            if wants_everything:
                everything = self._from_everything(path, since)
                if everything is not None:
                    return everything
            listing = self._fetch(path, since)
        except (NotFound, NotDirectory):
            self.forget(path)
            raise
        except ServiceError as error:
            stale = self._cache.in_memory(path)
            self._cache.hold(path, RENEWAL_HOLD, down=isinstance(error, (Unreachable, TimedOut)))
            if stale is None or since is not None:
                raise
            log.warning("listing of /%s is stale: %s", path, error)
            return stale
        self._put(path, listing)
        return listing

    def _from_everything(self, path: str, since: float | None) -> Listing | None:
        """The directory's listing by the all-entries call; None if that does not tell.

        One such call is under way at a time: who has waited for it finds that it has been made, or has failed.
        """
        begun_at = self._clock.monotonic()
        with self._everything:
            found = self._cache.fresh(path)
            if found is not None and self._is_fresh_enough(path, found, since):
                return found
            if self._walks.has_failed(begun_at):
                return None
            asked_at = self._clock.monotonic()
            changed = self._fetch_everything()
        self._tell(changed)
        listing = self._cache.fresh(path)
        return listing if listing is not None and listing.asked_at >= asked_at else None

    def _wants_everything(self, path: str, since: float | None) -> bool:
        """Whether the all-entries call is the best way to answer this."""
        paged = self._client.api_version == "v2"
        if since is not None:
            return paged and self._walks.may_list_everything()
        return self._walks.wants_everything(path, self._folders_beside(path), paged=paged)

    def _is_absent(self, path: str) -> bool:
        """Whether a fresh listing above shows that there is no such directory: it was made here, and nothing in it is
        listed yet.
        """
        while path != paths.ROOT:
            path, name = paths.split(path)
            above = self._cache.find(path)
            if above is not None:
                return above.complete and name not in above.names and self._cache.is_fresh_enough(path, above)
        return False

    def _put(self, path: str, listing: Listing) -> None:
        before = self._cache.in_memory(path)
        changed = self._cache.put(path, listing)
        self._tell({path: changed})
        if before is not None and math.isfinite(before.asked_at) and self._client.page_size.most:  # v2 alone lists so
            times = [entry.mtime_ns for name in changed if (entry := listing.names.get(name)) and not entry.is_dir]
            self._client.server_cache.learn(self._stored_at(times), before.asked_at, listing.asked_at)
        self._cache.learn(Learnt(self._client.page_size.most, self._client.server_cache.lags))

    def _tell(self, changed: dict[str, set[str]]) -> None:
        """Have the kernel forget these names, by directory. No lock is held: it may be waiting for an answer."""
        for path, names in changed.items():
            if names:
                self._on_change(path, names)

    def _stored_at(self, times: list[int | None]) -> list[float]:
        """When files were stored, in monotonic seconds; `times` are the service's, in nanoseconds."""
        ahead = self._client.clock_skew
        if ahead is None:
            return []
        offset = self._clock.monotonic() - self._clock.now() - ahead
        return [time / 1e9 + offset for time in times if time is not None]

    def _fetch(self, path: str, since: float | None) -> Listing:
        """The directory's listing, of now. Raises NotFound or NotDirectory if its parent's listing says so."""
        if path == paths.ROOT:
            return self._list(path, 0, since)
        entry = self.entry(path)
        if entry is None and since is not None:
            entry = self.entry(path, since=since)
        asked_at = self._clock.monotonic()
        try:
            return self._list(path, as_folder(path, entry).id, since)
        except Refused:
            # A 404 does not prove that the folder is gone (invariant 4c), and v2 refuses an unknown id like anything
            # else (docs/service.md, "Envelopes"): look one level up. It may be there under another id.
            return self._list(path, as_folder(path, self.entry(path, since=asked_at)).id, since)

    def _show_all(self, path: str, since: float | None) -> None:
        """Have the service show all that is stored, if this listing is to tell what others have done."""
        wanted = self._cache.truth_wanted(path)
        if since is not None:  # what the service has cached since is what we have listed since, or another program
            wanted = max(wanted, since - TOGETHER, self._listed_at.get(path, NEVER))
        if wanted > NEVER:
            self._client.server_cache.outdo(since=wanted, only_looks=since is None)

    def _list(self, path: str, entry_id: int, since: float | None) -> Listing:
        asked_at = self._clock.monotonic()
        if self._listed_at.get(path, NEVER) <= self._client.server_cache.deleted_at:
            self._shown_at[path] = self._shown_until(asked_at)
        self._listed_at[path] = asked_at
        look = math.inf if since is None else max(since, asked_at - TOGETHER)
        return ask(self._client, path, entry_id, self.known(path), asked_at, look)

    def _shown_until(self, asked_at: float) -> float:
        """Until when a listing asked for then shows what was stored, if the service has not cached it since."""
        deleted_at = self._client.server_cache.deleted_at
        return asked_at if deleted_at >= asked_at - TOGETHER else deleted_at

    def look_into(self, folders: Set[str], *, since: float) -> None:
        """Fetch the listings of these folders in one call where that saves calls. `since` as for `listing`."""
        with self._everything:
            listings = {path: self._cache.find(path, on_disk=False) for path in folders}
            missing = [
                path
                for path, listing in listings.items()
                if not listing or not self._is_fresh_enough(path, listing, since)
            ]
            wanted = len(missing) > 1 and not self._offline and self._walks.may_list_everything()
            if wanted:
                self._client.server_cache.outdo(since=since - TOGETHER)
            changed = self._fetch_everything() if wanted else {}
        self._tell(changed)

    def entry(self, path: str, *, since: float | None = None) -> Entry | None:
        """The listed entry of `path`; None if it is definitely absent. `since` as for `listing`."""
        try:
            listing = self.listing(paths.parent(path), since=since, patient=True)
        except NotFound:
            return None
        return self.named(listing, path)

    def named(self, listing: Listing, path: str, *, stale: bool = False) -> Entry | None:
        """As `absent.named`."""
        return named(self._client, listing, path, stale=stale)

    def fetch_size(self, entry: Entry) -> Entry:
        """A file's entry with its size, which the listing lacks: fetched once per version."""
        sized = self._client.fetch_size(entry)
        self._cache.replace(entry, sized)
        self._on_change(entry.dirname, {entry.name})
        return sized

    # -- walks -------------------------------------------------------------------------------------------

    def was_read(self, path: str) -> None:
        """A program reads this directory. If it is walking the tree, fetch the next listings ahead of it."""
        siblings = self._folders_beside(path)
        self._walks.was_read(path)
        if self._offline or self._stretch() > 1.0:
            return
        for ahead in self._walks.ahead(path, siblings, self._cache.folders(path)):
            known = self._cache.find(ahead)
            if known is not None and self._is_fresh_enough(ahead, known):
                continue
            match self._join(ahead, known):
                case flight, True:
                    self._flights.submit(flight, partial(self._renew, ahead, None))

    def _folders_beside(self, path: str) -> list[str]:
        return [] if path == paths.ROOT else self._cache.folders(paths.parent(path))

    def _fetch_everything(self) -> dict[str, set[str]]:
        """Make v1's all-entries call: every listing at once (docs/service.md, "Endpoints").

        Returns the names that have changed, by directory. The caller holds `_everything`.
        """
        asked_at = self._clock.monotonic()
        try:
            entries = self._client.list_all()
        except ServiceError as error:
            self._walks.failed(for_good=isinstance(error, (NotOffered, KeyRefused, Refused, NoSuchEntry)))
            log.info("walking without the all-entries call: %s", error)
            return {}
        folders = by_folder(entries)
        self._walks.took_everything(self._clock.monotonic() - asked_at, len(entries))
        changed = {}
        for path, names in sorted(folders.items()):  # a folder before what is in it, which it may have forgotten
            if names or not holds_names(path, self.known(path)):  # else it is asked for by itself
                self._shown_at[path] = self._shown_until(asked_at)
                changed[path] = self._cache.put(path, Listing(names, asked_at))
        return changed
