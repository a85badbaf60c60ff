"""Listings in process, on a clock moved by hand: TTL and its stretch, single flight, calls that fail, walks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from cloudsimfs.clock import ManualClock
from cloudsimfs.errors import NotDirectory, NotFound, ServiceError, Unreachable
from cloudsimfs.listings import dcache as dcache_module
from cloudsimfs.listings import store as store_module
from cloudsimfs.listings.dcache import CONCURRENT_FETCHES, RENEWAL_HOLD, TTL_STRETCH, DCache
from cloudsimfs.listings.looks import LOOKS_END, REFRESH_LOOKS, RESULTS_LOOKS, SAVED_LOOKS
from cloudsimfs.listings.store import ListingStore
from cloudsimfs.listings.walks import ALL_ENTRIES_PAUSE, ALL_ENTRIES_SLOW, FETCH_AHEAD, LONG_WALK, WALK_GAP, Walks
from cloudsimfs.sandbox import Sandbox
from cloudsimfs.service import Retry, Timeouts, Urgency, connect
from cloudsimfs.service.servercache import ENOUGH, REFUSED_PAUSE
from harness import patient, put_by_others, wait_until
from world import Ticking

TTL = 60.0
QUICK = Retry(attempts=2, base=0.001)
PATIENT = Timeouts(connect=10.0, read=60.0, total=90.0)
TREE = {"d/x": b"x", "d/e/y": b"yy", "other/z": b"zzz", "file": b"f"}

Api = Literal["v1", "v2"]


def brief() -> Timeouts:
    """For who waits in vain."""
    return Timeouts(connect=10.0, read=patient(0.15), total=60.0)


class Rig:
    """A DCache over the real client and a sandbox."""

    def __init__(self, box: Sandbox, directory: Path, api: Api, **options: Any) -> None:
        self.box = box
        self.api = api
        self.clock = Ticking()
        self.changes: list[tuple[str, set[str]]] = []
        offline = options.pop("offline", False)
        self.client = connect(
            base_url=box.url,
            key=box.key,
            api=api,
            retry=QUICK,
            timeouts=options.pop("timeouts", PATIENT),
            offline=offline,
            clock=self.clock,
        )
        self.store = ListingStore(directory / "listings.db")
        self.store.start()
        self.dcache = DCache(
            self.client,
            self.store,
            ttl=TTL,
            clock=self.clock,
            offline=offline,
            bulk=options.pop("bulk", api == "v1"),
            on_change=lambda directory, names: self.changes.append((directory, names)),
        )
        assert not options
        self._closed = False

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.box.faults.clear()  # what hangs goes on
        wait_until(lambda: not self.dcache._flights, "fetches under way end")
        self.dcache.close()
        self.client.close()

    def names(self, path: str) -> list[str]:
        return sorted(self.dcache.listing(path).names)

    def calls(self, action: Callable[[], object]) -> int:
        """How many listings an action asks the service for; the empty page that ends one counts."""
        self.box.calls.reset()
        action()
        return len(self.box.calls.entries("list")) + len(self.box.calls.entries("list-all"))


@pytest.fixture(autouse=True)
def a_busy_machine_is_no_slow_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dcache_module, "RENEWAL_GRACE", 60.0)


@pytest.fixture
def rigs(box: Sandbox, tmp_path: Path, api: Api) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(**options: Any) -> Rig:
        made.append(Rig(box, tmp_path, options.pop("api", api), **options))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


@pytest.fixture
def rig(box: Sandbox, rigs: Callable[..., Rig]) -> Rig:
    box.populate(TREE)
    return rigs()


# -- what a listing says, and how long it is believed -----------------------------------------------------------


def test_one_listing_answers_for_all_names_until_its_ttl(rig: Rig) -> None:
    rig.box.settings.caches_listings = False  # it is our time that counts here
    assert rig.calls(lambda: rig.names("d")) > 0
    rig.box.put("d/new", b"new")
    rig.clock.advance(TTL - 1)

    def look() -> None:
        assert rig.names("d") == ["e", "x"]
        assert rig.dcache.entry("d/none") is None

    assert rig.calls(look) == 0
    rig.clock.advance(2)
    assert rig.names("d") == ["e", "new", "x"]
    assert rig.changes == [("d", {"new"})]


def test_absent_directories_and_files_are_told_apart(rig: Rig) -> None:
    with pytest.raises(NotFound):
        rig.dcache.listing("none")
    with pytest.raises(NotFound):
        rig.dcache.listing("d/none/deeper")
    with pytest.raises(NotDirectory):
        rig.dcache.listing("file")


def test_a_removed_directory_is_forgotten_with_all_in_it(rig: Rig, rigs: Callable[..., Rig]) -> None:
    assert rig.names("d/e") == ["y"]
    rig.box.remove("d")
    rig.clock.advance(TTL + 1)
    with pytest.raises(NotFound):
        rig.dcache.listing("d/e")
    assert rig.dcache._cache.in_memory("d/e") is None
    rig.close()
    offline = rigs(offline=True).dcache
    assert offline.entry("d") is None
    with pytest.raises(ServiceError):
        offline.listing("d/e")


def test_the_ttl_stretches_as_the_calls_run_out(rigs: Callable[..., Rig], box: Sandbox) -> None:
    """Unchanged while half of the hour's calls are left, then longer; never for the folders of active runs."""
    box.settings.hourly_limit = 100
    box.populate({f"d{number}/x": b"x" for number in range(3)})
    rig = rigs(api="v1", bulk=False)
    rig.names("d0")
    rig.clock.advance(TTL + 1)
    assert rig.calls(lambda: rig.names("d0")) > 0

    while (rig.client.budget.snapshot().remaining or 0) > 20:
        rig.client.list_directory(0, "")
    for name in ("", "d1", "d2"):
        rig.dcache.invalidate(name)
    rig.dcache.keep_steady(frozenset({"d2"}))
    rig.names("d1")
    rig.names("d2")
    rig.clock.advance(2 * TTL)
    assert rig.calls(lambda: rig.names("d1")) == 0
    assert rig.calls(lambda: rig.names("d2")) > 0
    rig.clock.advance(TTL_STRETCH * TTL)
    assert rig.calls(lambda: rig.names("d1")) > 0


def test_the_last_listing_serves_when_no_calls_are_left(rigs: Callable[..., Rig], box: Sandbox) -> None:
    box.settings.hourly_limit = 20
    box.populate(TREE)
    rig = rigs(api="v1", bulk=False)
    before = rig.names("d")
    while rig.client.budget.snapshot().remaining:
        rig.client.list_directory(0, "")
    rig.clock.advance(2 * TTL_STRETCH * TTL)
    assert rig.calls(lambda: rig.names("d")) == 0
    assert rig.names("d") == before
    with pytest.raises(ServiceError):
        rig.dcache.listing("other")  # never listed: unknown, not absent
    assert sum(call.is_api for call in box.calls.entries()) <= 20


def test_results_are_looked_for_less_and_less_often(rig: Rig) -> None:
    """Whoever looks, and however often: a listing for each time, and nothing more once they have come."""
    rig.names("d/e")
    rig.names("other")
    rig.dcache.expect_changes("d", RESULTS_LOOKS)
    assert rig.calls(lambda: rig.names("d/e")) == 0, "no results yet"
    began = rig.clock.monotonic()
    looks = 0
    for _ in range(50):
        rig.clock.advance(1)
        looks += rig.calls(lambda: rig.names("d/e")) > 0
    assert looks == sum(seconds <= rig.clock.monotonic() - began for seconds in RESULTS_LOOKS)
    assert rig.calls(lambda: rig.names("other")) == 0


def test_results_that_have_come_are_looked_for_no_more(rig: Rig) -> None:
    """A look that shows nothing new after one that did is the last."""
    rig.names("d")
    rig.dcache.expect_changes("d", RESULTS_LOOKS)
    rig.box.put("d/result", b"result")
    rig.clock.advance(RESULTS_LOOKS[0])
    assert "result" in rig.names("d")
    rig.clock.advance(RESULTS_LOOKS[1] - RESULTS_LOOKS[0])
    assert rig.calls(lambda: rig.names("d")) > 0
    rig.clock.advance(RESULTS_LOOKS[2] - RESULTS_LOOKS[1])
    assert rig.calls(lambda: rig.names("d")) == 0


@pytest.mark.parametrize("times", [RESULTS_LOOKS, SAVED_LOOKS, REFRESH_LOOKS])
def test_what_the_service_has_cached_is_no_answer(rig: Rig, times: Sequence[float]) -> None:
    """v2 shows what it has cached, until that is deleted: once for all folders that are looked at."""
    for path in ("d", "d/e"):
        rig.names(path)
    rig.box.populate({"d/result": b"result", "d/e/result": b"result"})
    rig.clock.advance(TTL + 1)
    if rig.api == "v2":
        assert "result" not in rig.names("d"), "the sandbox caches"
    rig.dcache.expect_changes("d", times)
    rig.clock.advance(times[0])
    rig.box.calls.reset()
    for path in ("d", "d/e"):
        assert "result" in rig.names(path)
    assert rig.box.calls.counts()["delete-cache"] == (1 if rig.api == "v2" else 0), rig.box.calls.entries()


def show_news(rig: Rig, stored_ago: float = 0.0) -> None:
    """Others store a file, so many seconds ago by its time; then the folder is listed again, with no deletion."""
    rig.names("d")
    rig.clock.advance(10)
    rig.box.advance(-stored_ago)
    rig.box.put(f"d/{len(rig.box.files())}", b"news")
    rig.box.advance(stored_ago)
    rig.clock.advance(TTL + 1)
    rig.names("d")


def lags(rig: Rig) -> bool | None:
    return rig.client.server_cache.lags


def deletions(rig: Rig, action: Callable[[], object]) -> int:
    rig.box.calls.reset()
    action()
    return rig.box.calls.counts()["delete-cache"]


@pytest.mark.parametrize("api", ["v2"])
def test_whether_listings_lag_is_learnt_from_those_that_are_made(rigs: Callable[..., Rig], box: Sandbox) -> None:
    """Who only looks for news then makes no call to have the cache deleted; who stakes a file on it does."""
    box.settings.caches_listings = False
    box.populate(TREE)
    rig = rigs()

    def look() -> None:
        rig.dcache.expect_changes("d", REFRESH_LOOKS)
        rig.names("d")

    def check() -> None:
        rig.dcache.at_hand("d", since=rig.clock.monotonic())

    assert deletions(rig, look) == 1, "nothing is known yet"
    rig.clock.advance(1000)
    for _ in range(ENOUGH):
        assert lags(rig) is None
        show_news(rig)
    assert lags(rig) is False
    assert deletions(rig, look) == 0
    assert deletions(rig, check) == 1
    rig.close()

    rig = rigs()
    assert lags(rig) is False, "the next mount knows"
    rig.clock.advance(1000)
    show_news(rig, stored_ago=500)
    assert lags(rig)
    assert deletions(rig, look) == 1


@pytest.mark.parametrize("api", ["v2"])
def test_what_we_have_uploaded_does_not_tell_whether_listings_lag(rig: Rig) -> None:
    """Nobody sees it before the cache is deleted, however prompt the listings are."""
    for _ in range(ENOUGH + 1):
        rig.client.server_cache.upload_ended()
        show_news(rig, stored_ago=500)
        rig.client.server_cache.delete(Urgency.BACKGROUND)
    assert lags(rig) is None


def test_a_fresh_listing_that_the_service_had_cached_is_no_proof(rig: Rig) -> None:
    """It was asked for after the moment in question, but shows an earlier one."""
    rig.names("d")
    rig.box.put("d/theirs", b"theirs")
    rig.clock.advance(TTL + 1)
    since = rig.clock.monotonic()
    assert ("theirs" in rig.names("d")) == (rig.api == "v1")
    for calls in (rig.api == "v2", False):
        rig.box.calls.reset()
        listing = rig.dcache.at_hand("d", since=since)
        assert listing is not None
        assert "theirs" in listing.names
        assert bool(rig.box.calls.entries("list")) == calls


@pytest.mark.parametrize("api", ["v2"])
def test_a_service_that_lags_for_an_hour(rig: Rig) -> None:
    """Who wants the truth gets it; who does not pays nothing for the lag."""
    rig.box.settings.cache_seconds = 3600.0
    rig.names("d")
    for number in range(3):
        rig.box.put(f"d/{number}", b"news")
        rig.clock.advance(TTL + 1)
        assert f"{number}" not in rig.names("d")
        rig.clock.advance(1)
        rig.box.calls.reset()
        rig.dcache.expect_changes("d", REFRESH_LOOKS)
        assert f"{number}" in rig.names("d")
        assert rig.names("d") == rig.names("d")
        assert rig.box.calls.counts()["delete-cache"] == 1
        rig.clock.advance(REFRESH_LOOKS[-1] + LOOKS_END + 1)


@pytest.mark.parametrize("api", ["v2"])
@pytest.mark.parametrize("status", [403, 404, 429])
def test_a_service_that_refuses_to_delete_its_cache_still_lists(rig: Rig, status: int) -> None:
    """It is asked once for all folders; what it shows then has to do, for conflicts too."""
    fault = rig.box.faults.add("delete-cache", "status", status=status)
    for path in ("", "d"):
        rig.names(path)
    rig.box.put("d/theirs", b"theirs")
    rig.clock.advance(100)
    rig.dcache.expect_changes("", REFRESH_LOOKS)
    for path in ("", "d", "d/e"):
        rig.names(path)
    assert fault.fired == 1
    listing = rig.dcache.at_hand("d", since=rig.clock.monotonic())
    assert listing is not None
    assert {"e", "x"} <= listing.names.keys()
    assert fault.fired == 1
    rig.box.faults.remove(fault)
    rig.clock.advance(REFUSED_PAUSE + 1)
    listing = rig.dcache.at_hand("d", since=rig.clock.monotonic())
    assert listing is not None
    assert "theirs" in listing.names


def test_a_conflict_is_looked_for_behind_the_services_cache(rig: Rig) -> None:
    rig.names("d")
    rig.box.put("d/theirs", b"theirs")
    rig.clock.advance(1)
    listing = rig.dcache.at_hand("d", since=rig.clock.monotonic())
    assert listing is not None
    assert "theirs" in listing.names


# -- many at once -----------------------------------------------------------------------------------------------


def at_once(action: Callable[[int], object], count: int = 16) -> list[object]:
    """What each of `count` threads got, started together; an exception counts as a result."""
    gate = threading.Barrier(count)

    def act(number: int) -> object:
        gate.wait()
        try:
            return action(number)
        except Exception as error:  # noqa: BLE001  it is what this thread got
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(act, range(count)))


def test_sixteen_readers_share_one_fetch(rigs: Callable[..., Rig], box: Sandbox) -> None:
    box.populate(TREE)
    rig = rigs()
    rig.names("")
    box.faults.add("list", "latency", seconds=0.3)
    box.calls.reset()
    found = at_once(lambda _: sorted(rig.dcache.listing("d").names))
    assert found == [["e", "x"]] * 16
    assert [call.subject for call in box.calls.entries("list")] == ["d"]


def test_sixteen_readers_share_one_failure(rigs: Callable[..., Rig], box: Sandbox) -> None:
    box.populate(TREE)
    rig = rigs()
    rig.names("")
    box.faults.add("list", "latency", seconds=0.3)
    box.faults.add("list", "status", status=500)
    box.calls.reset()
    found = at_once(lambda _: rig.dcache.listing("d"))
    assert all(isinstance(error, ServiceError) for error in found), found
    assert len(box.calls.entries("list")) <= QUICK.attempts


def test_renewals_behind_slow_ones_are_not_lost(
    rigs: Callable[..., Rig], box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renewals that wait for their parent's, which waits in line behind them."""
    box.settings.caches_listings = False
    monkeypatch.setattr(dcache_module, "RENEWAL_GRACE", 0.05)
    box.populate({f"{top}/{number}/x": b"x" for top in ("slow", "d") for number in range(CONCURRENT_FETCHES)})
    rig = rigs(bulk=False)
    children = [f"{top}/{number}" for top in ("slow", "d") for number in range(CONCURRENT_FETCHES)]
    for path in ("", "slow", "d", *children):
        rig.names(path)
    rig.clock.advance(TTL + 1)
    rig.names("")
    rig.names("slow")
    box.calls.reset()
    hang = box.faults.add("list", "hang", path="slow/*")
    for path in children[:CONCURRENT_FETCHES]:
        assert rig.names(path) == ["x"]  # the one known, while its renewal hangs
    assert box.calls.wait(lambda calls: sum(call.subject.startswith("slow/") for call in calls) == CONCURRENT_FETCHES)
    for path in [*children[CONCURRENT_FETCHES:], "d"]:
        rig.names(path)
    box.put("d/0/new", b"new")
    box.faults.remove(hang)
    wait_until(lambda: not rig.dcache._flights, "all renewals end")
    assert rig.names("d/0") == ["new", "x"]


def test_an_answer_asked_for_before_an_invalidation_is_not_fresh(rigs: Callable[..., Rig], box: Sandbox) -> None:
    box.populate(TREE)
    rig = rigs()
    rig.names("d")
    rig.clock.advance(TTL + 1)
    rig.names("")
    box.calls.reset()
    hang = box.faults.add("list", "hang", path="d")
    with ThreadPoolExecutor(1) as pool:
        flying = pool.submit(rig.dcache.listing, "d", patient=True)
        assert box.calls.wait(lambda calls: any(call.subject == "d" for call in calls))
        rig.dcache.invalidate("d")
        box.faults.remove(hang)
        flying.result(timeout=patient(20))
    assert rig.calls(lambda: rig.names("d")) > 0
    assert rig.calls(lambda: rig.names("d")) == 0


def test_an_invalidation_elsewhere_does_not_disturb_an_answer_under_way(
    rigs: Callable[..., Rig], box: Sandbox
) -> None:
    box.populate(TREE)
    rig = rigs()
    rig.names("d")
    rig.names("other")
    box.calls.reset()
    hang = box.faults.add("list", "hang", path="d")
    with ThreadPoolExecutor(1) as pool:
        asked = rig.clock.monotonic()
        flying = pool.submit(rig.dcache.listing, "d", since=asked)
        assert box.calls.wait(lambda calls: any(call.subject == "d" for call in calls))
        rig.dcache.invalidate("other")
        box.faults.remove(hang)
        flying.result(timeout=patient(20))
        again = pool.submit(rig.dcache.listing, "d", since=asked)
        assert rig.calls(lambda: again.result(timeout=patient(20))) == 0


# -- calls that fail --------------------------------------------------------------------------------------------

FAULTS: dict[str, dict[str, Any]] = {
    "500": {"kind": "status", "status": 500},
    "403": {"kind": "status", "status": 403, "body": '{"errors": ["A technical problem has occurred"]}'},
    "429": {"kind": "status", "status": 429, "retry_after": 3600},
    "reset": {"kind": "reset"},
    "drop_reply": {"kind": "drop_reply"},
    "html": {"kind": "html"},
    "errors200": {"kind": "errors200"},
    "truncate": {"kind": "truncate"},
    "hang": {"kind": "hang"},
    "non-json": {"kind": "odd", "variation": "non-json"},
    "empty": {"kind": "odd", "variation": "empty"},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_listing_removes_no_name(rigs: Callable[..., Rig], box: Sandbox, fault: str) -> None:
    box.populate(TREE)
    # with everything at once, what is unknown below would be known by now
    rig = rigs(bulk=False, timeouts=brief() if fault == "hang" else PATIENT)
    before = {path: rig.names(path) for path in ("", "d", "d/e")}
    rig.clock.advance(TTL + 1)
    box.remove("d/x")
    box.faults.add("list*", **FAULTS[fault])
    for path, names in before.items():
        assert rig.names(path) == names
    entry = rig.dcache.entry("d/x")
    assert entry is not None
    assert entry.size == 1
    for unknown in ("other", "other/deeper"):
        with pytest.raises(ServiceError) as caught:
            rig.dcache.listing(unknown)
        assert not isinstance(caught.value, NotFound)
    assert rig.changes == []

    box.faults.clear()
    if fault != "429":
        rig.clock.advance(RENEWAL_HOLD + 1)
        assert rig.names("d") == ["e"]
        assert rig.names("other") == ["z"]


def test_a_dead_service_is_not_asked_again_and_again(rig: Rig) -> None:
    """One directory's failure to reach it spares the others' readers the wait."""
    for path in ("", "d", "d/e", "other"):
        rig.names(path)
    rig.clock.advance(TTL + 1)
    rig.box.faults.add("list*", "reset")
    assert 0 < rig.calls(lambda: rig.names("d")) <= 2 * QUICK.attempts
    assert rig.calls(lambda: [rig.names(path) for path in ("", "d", "d/e", "other")]) == 0
    rig.clock.advance(RENEWAL_HOLD + 1)
    assert rig.calls(lambda: rig.names("d")) > 0


@pytest.mark.parametrize("kind", ["status", "reset"])
def test_who_asks_for_the_truth_is_not_held_off_by_a_failure(rig: Rig, kind: str) -> None:
    """A listing has just failed; `refresh` asks anew, once."""
    for path in ("", "d"):
        rig.names(path)
    rig.clock.advance(TTL + 1)
    fault = rig.box.faults.add("list*", kind)
    assert rig.names("d") == ["e", "x"]
    rig.box.put("d/new", b"new")
    rig.dcache.expect_changes("d", REFRESH_LOOKS)
    assert rig.names("d") == ["e", "x"]
    assert rig.calls(lambda: rig.names("d")) == 0
    rig.box.faults.remove(fault)
    rig.dcache.expect_changes("d", REFRESH_LOOKS)
    assert rig.names("d") == ["e", "new", "x"]


def test_a_slow_answer_is_not_waited_for(
    rigs: Callable[..., Rig], box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old listing comes while the new one is still under way, which counts when it lands."""
    box.settings.caches_listings = False
    monkeypatch.setattr(dcache_module, "RENEWAL_GRACE", 0.05)
    box.populate(TREE)
    rig = rigs()
    rig.names("d")
    rig.names("other")
    rig.clock.advance(TTL + 1)
    box.put("d/new", b"new")
    rig.names("")
    hang = box.faults.add("list*", "hang", path="?*")
    assert rig.names("d") == ["e", "x"]
    monkeypatch.setattr(dcache_module, "RENEWAL_GRACE", 1000.0)
    assert rig.names("d") == ["e", "x"], "who comes later does not wait again"
    assert rig.names("other") == ["z"], "nor for another directory"
    assert len(rig.dcache._flights) > 0
    box.faults.remove(hang)
    wait_until(lambda: not rig.dcache._flights, "the renewal lands")
    assert rig.calls(lambda: rig.names("d")) == 0
    assert rig.names("d") == ["e", "new", "x"]


# -- listings on disk -------------------------------------------------------------------------------------------


def test_listings_survive_and_keep_their_age(rig: Rig, rigs: Callable[..., Rig]) -> None:
    for path in ("", "d", "d/e"):
        rig.names(path)
    rig.close()
    again = rigs()
    assert again.calls(lambda: again.names("d/e")) == 0
    assert again.names("d") == ["e", "x"]
    again.close()
    later = rigs()
    later.clock.advance(TTL + 1)
    assert later.calls(lambda: later.names("d")) > 0


def test_offline_answers_from_disk_however_old(rigs: Callable[..., Rig], box: Sandbox) -> None:
    box.populate(TREE)
    rig = rigs(bulk=False)
    rig.names("d/e")
    rig.close()
    offline = rigs(offline=True)
    offline.clock.advance(1e6)

    def look() -> None:
        assert offline.names("d") == ["e", "x"]
        assert offline.names("d/e") == ["y"]
        assert offline.dcache.entry("d/none") is None
        with pytest.raises(Unreachable):
            offline.dcache.listing("other")

    offline.box.calls.reset()
    look()
    assert offline.box.calls.entries() == []


def test_listings_of_a_mount_that_crashed_serve_only_while_the_service_cannot_be_asked(
    rig: Rig, rigs: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may show what was removed just before, and what the journal knows no more: a slow answer is waited for."""
    monkeypatch.setattr(dcache_module, "RENEWAL_GRACE", 0.05)
    monkeypatch.setattr(store_module, "WRITE_INTERVAL", 0.01)
    rig.names("d")
    wait_until(lambda: not rig.store._pending, "the listing is on disk")
    rig.box.remove("d/x")
    fault = rig.box.faults.add("list*", "reset")
    assert rigs().names("d") == ["e", "x"]
    rig.box.faults.remove(fault)
    rig.box.faults.add("list*", "latency", seconds=0.2)
    assert rigs(timeouts=PATIENT).names("d") == ["e"]


def test_listings_of_a_mount_that_crashed_are_asked_for_again_however_many_mounts_later(
    rig: Rig, rigs: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next mount ends in order without having looked."""
    monkeypatch.setattr(store_module, "WRITE_INTERVAL", 0.01)
    rig.names("d")
    wait_until(lambda: not rig.store._pending, "the listing is on disk")
    rig.box.remove("d/x")
    rigs().close()
    assert rigs().names("d") == ["e"]


def test_a_forgotten_directory_is_gone_before_that_is_on_disk(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "WRITE_INTERVAL", 0.01)
    rig.names("d/e")
    wait_until(lambda: not rig.store._pending, "the listing is on disk")
    monkeypatch.setattr(store_module, "WRITE_INTERVAL", 3600.0)
    assert rig.store.load("d/e") is not None
    rig.store.forget("d")
    assert rig.store.load("d/e") is None
    assert rig.store.load("d") is None


def test_a_damaged_store_is_made_anew(rig: Rig, rigs: Callable[..., Rig], tmp_path: Path) -> None:
    rig.names("d")
    rig.close()
    for file in tmp_path.glob("listings.db*"):
        file.write_bytes(b"no database at all" * 100)
    again = rigs()
    assert again.names("d") == ["e", "x"]


# -- walks ------------------------------------------------------------------------------------------------------


def walk(rig: Rig, path: str = "") -> dict[str, int]:
    """What a tree walker sees: the size of every file by its path."""
    found: dict[str, int] = {}
    listing = rig.dcache.listing(path)
    rig.dcache.was_read(path)
    for entry in listing.names.values():
        found |= walk(rig, entry.path) if entry.is_dir else {entry.path: entry.size}
    return found


WIDE = {f"d{number}/e/{name}": b"x" * number for number in range(10) for name in "ab"}
SIZES = {path: len(data) for path, data in WIDE.items()}


@pytest.mark.parametrize("api", ["v1"])
def test_all_entries_say_the_same_as_the_listings(rigs: Callable[..., Rig], box: Sandbox) -> None:
    box.populate(WIDE | TREE)
    one, all_ = rigs(bulk=False), None
    walk(one)
    listed = {path: dict(one.dcache.listing(path).names) for path in ("", "d1", "d1/e", "d", "d/e")}
    one.close()
    one.store.forget("")
    all_ = rigs()
    all_.clock.advance(TTL + 1)
    assert all_.calls(lambda: walk(all_)) == 2
    assert {path: dict(all_.dcache.listing(path).names) for path in listed} == listed
    assert len(box.calls.entries("list-all")) == 1


@pytest.mark.parametrize("api", ["v1"])
@pytest.mark.parametrize(("fault", "for_good"), [("500", False), ("reset", False), ("404", True)])
def test_a_walk_goes_on_without_the_all_entries_call(
    rigs: Callable[..., Rig], box: Sandbox, fault: str, for_good: bool
) -> None:
    box.populate(WIDE)
    rig = rigs()
    box.faults.add("list-all", **(FAULTS | {"404": {"kind": "status", "status": 404}})[fault])
    assert walk(rig) == SIZES
    assert 0 < len(box.calls.entries("list-all")) <= QUICK.attempts, "tried once per walk"
    assert len(box.calls.entries("list")) <= 21
    box.faults.clear()
    box.calls.reset()
    rig.clock.advance(TTL + ALL_ENTRIES_PAUSE)
    assert walk(rig) == SIZES
    assert (len(box.calls.entries("list-all")) == 0) == for_good


def test_an_answer_that_was_overtaken_still_shows_a_later_version(rigs: Callable[..., Rig], box: Sandbox) -> None:
    """It was asked for first, and answered last."""
    box.settings.caches_listings = False
    box.populate({"d/f": b"f", "d/g": b"g"})
    rig = rigs()
    asked_at = rig.clock.monotonic()
    first = rig.dcache.listing("d")
    put_by_others(box, "d/f", b"of others")
    box.remove("d/g")
    rig.clock.advance(TTL + 1)
    overtaken = replace(rig.dcache.listing("d"), asked_at=asked_at)
    for came_last, files in ((first, first), (overtaken, overtaken)):
        rig.dcache.forget("d")
        rig.dcache._put("d", first)
        rig.changes.clear()
        rig.dcache._put("d", came_last)
        assert rig.dcache.known("d") == replace(first, names={**first.names, "f": files.names["f"]})
    assert rig.changes == [("d", {"f"})]


@pytest.mark.parametrize("api", ["v2"])
@pytest.mark.parametrize("answer", ["comes", "fails"])
def test_who_waits_for_all_entries_does_not_ask_for_them_again(
    rigs: Callable[..., Rig], box: Sandbox, answer: str
) -> None:
    """Eight folders are to be listed anew while that call is under way: the next one answers for all of them."""
    box.populate(WIDE)
    rig = rigs(bulk=True)
    folders = [f"d{number}" for number in range(9)]
    for folder in folders:
        rig.dcache.listing(folder)
    box.calls.reset()
    fault = box.faults.add("list-all", "hang", times=1)
    waiting = []
    with ThreadPoolExecutor(len(folders)) as pool:
        try:
            for folder in folders:
                waiting.append(pool.submit(rig.dcache.listing, folder, since=rig.clock.monotonic()))
                wait_until(lambda: fault.fired, "the first one asks")
            wait_until(lambda: len(rig.dcache._flights) == len(folders), "the others wait")
            if answer == "fails":
                box.faults.add("list-all", "status", status=403)
        finally:
            box.faults.remove(fault)
        assert all(sorted(listing.result().names) == ["e"] for listing in waiting)
    assert len(box.calls.entries("list-all")) == 2


@pytest.mark.parametrize("api", ["v1"])
def test_folders_that_only_their_files_tell_of(rigs: Callable[..., Rig], box: Sandbox) -> None:
    """An all-entries answer without folders; later their ids are found when they are needed."""
    box.populate(WIDE)
    rig = rigs()
    box.faults.add("list-all", "odd", variation=lambda value: [item for item in value if item["type"] == "file"])
    assert walk(rig) == SIZES
    box.faults.clear()
    rig.clock.advance(TTL + 1)
    assert rig.names("d3/e") == ["a", "b"]
    box.remove("d4")
    rig.clock.advance(TTL + 1)
    with pytest.raises(NotFound):
        rig.dcache.listing("d4/e")


def test_fetching_ahead_asks_once_for_each_folder(rigs: Callable[..., Rig], box: Sandbox) -> None:
    box.populate(WIDE)
    rig = rigs(bulk=False)
    assert walk(rig) == SIZES
    wait_until(lambda: not rig.dcache._flights, "what is fetched ahead lands")
    # v2: the first listings come at the same time, and all are looked behind; then one for each length
    assert len(box.calls.entries("list")) <= 21 + (0 if rig.api == "v1" else 8)


class Walker:
    """Walks on a clock of its own."""

    def __init__(self, *, bulk: bool = True) -> None:
        self.clock = ManualClock()
        self.walks = Walks(self.clock, bulk=bulk)

    def steps_in(self, siblings: int = 5, *, after: float = 0.0) -> bool:
        """Whether everything is wanted by who reads a folder and, later, one of so many inside it."""
        self.walks.was_read("top")
        self.clock.advance(after)
        return self.walks.wants_everything("top/0", [f"top/{number}" for number in range(siblings)], paged=False)


def test_a_walker_is_told_from_a_person() -> None:
    assert Walker().steps_in()
    assert Walker().steps_in(after=WALK_GAP / 2)
    assert not Walker().steps_in(after=WALK_GAP * 1.5)
    assert not Walker().steps_in(siblings=1), "one call either way"
    assert not Walker().walks.wants_everything("", [], paged=False), "the root has nothing above it"
    assert not Walker().walks.wants_everything("top/0", ["top/0", "top/1"], paged=False), (
        "nobody has read the folder above"
    )


def test_everything_is_not_fetched_twice_in_a_short_time() -> None:
    walker = Walker()
    walker.walks.took_everything(0.5, 10)
    assert not walker.steps_in()
    walker.clock.advance(ALL_ENTRIES_PAUSE)
    assert walker.steps_in()


def test_a_slow_all_entries_call_is_for_long_walks() -> None:
    walker = Walker()
    walker.walks.took_everything(ALL_ENTRIES_SLOW + 1, 10)
    walker.clock.advance(ALL_ENTRIES_PAUSE)
    assert not walker.steps_in(siblings=LONG_WALK - 1)
    assert walker.steps_in(siblings=LONG_WALK)


@pytest.mark.parametrize("for_good", [True, False])
def test_a_failed_all_entries_call(for_good: bool) -> None:
    walker = Walker()
    walker.walks.failed(for_good=for_good)
    assert not walker.steps_in()
    walker.clock.advance(ALL_ENTRIES_PAUSE)
    assert walker.steps_in() != for_good
    assert bool(walker.walks.ahead("top/0", ["top/0", "top/1"], [])) == for_good


def test_what_is_fetched_ahead() -> None:
    """What is inside, then what comes after; never more than a window, nothing for a person."""
    walker = Walker(bulk=False)
    siblings = [f"top/{number}" for number in range(20)]
    assert walker.walks.ahead("top/3", siblings, ["top/3/a"]) == []
    walker.walks.was_read("top")
    assert walker.walks.ahead("top/3", siblings, ["top/3/a"]) == ["top/3/a", *siblings[4 : 4 + FETCH_AHEAD - 1]]
    assert walker.walks.ahead("top/19", siblings, []) == []
    assert len(walker.walks.ahead("top/0", siblings, [f"top/0/{number}" for number in range(50)])) == FETCH_AHEAD
    walker.clock.advance(WALK_GAP * 1.5)
    assert walker.walks.ahead("top/3", siblings, ["top/3/a"]) == []


def test_a_long_walk_stays_a_walk() -> None:
    """It came through the folders above long ago, and has been busy among what is in them ever since."""
    walker = Walker(bulk=False)
    siblings = [f"top/{number}" for number in range(20)]
    walker.walks.was_read("top")
    for folder in siblings[:5]:
        for path in (folder, f"{folder}/in"):
            walker.clock.advance(WALK_GAP * 0.6)
            assert walker.walks.ahead(path, siblings, [f"{folder}/in"]), path
            walker.walks.was_read(path)
    walker.clock.advance(WALK_GAP * 1.5)
    assert walker.walks.ahead("top/5", siblings, []) == []


@pytest.mark.parametrize("api", ["v1"])
def test_going_from_folder_to_folder_costs_three_calls(rigs: Callable[..., Rig], box: Sandbox) -> None:
    """A person is no walker; the third listing within a minute is everything all the same."""
    box.populate(WIDE)
    rig = rigs()

    def stroll() -> None:
        for number in range(10):
            assert rig.names(f"d{number}") == ["e"]
            rig.clock.advance(WALK_GAP * 3)

    assert rig.calls(stroll) == 3
    assert len(box.calls.entries("list-all")) == 1


# -- a folder that is empty at one stroke -------------------------------------------------------------------------


def answers_empty(rig: Rig, times: int, *, path: str = "*") -> None:
    for operation in ("list", "list-all"):
        rig.box.faults.add(operation, "odd", variation=no_entry, times=times, path=path)


def no_entry(answer: Any) -> Any:
    return {"response": []} if isinstance(answer, dict) else []


@pytest.mark.parametrize("path", ["", "d", "d/e"])
@pytest.mark.parametrize("bulk", [False, True])
def test_one_empty_answer_removes_no_name(rigs: Callable[..., Rig], box: Sandbox, path: str, bulk: bool) -> None:
    """Of either call: that lists one folder, and that lists everything."""
    box.populate(TREE)
    rig = rigs(bulk=bulk)
    before = {folder: rig.names(folder) for folder in ("", "d", "d/e")}
    rig.clock.advance(TTL + ALL_ENTRIES_PAUSE)
    assert rig.dcache.listing("", since=rig.clock.monotonic()).names
    answers_empty(rig, 1)
    assert sorted(rig.dcache.listing(path, since=rig.clock.monotonic()).names) == before[path]
    assert {folder: rig.names(folder) for folder in before} == before


def test_one_empty_answer_for_a_folder_that_is_listed_for_the_first_time(
    rigs: Callable[..., Rig], box: Sandbox
) -> None:
    """The service has no empty folders, so one that is listed above has names."""
    box.populate(TREE)
    rig = rigs(bulk=False)
    rig.names("")
    answers_empty(rig, 1)
    assert rig.names("d") == ["e", "x"]


def test_everything_is_empty_only_if_the_root_says_so_too(rigs: Callable[..., Rig], box: Sandbox) -> None:
    box.populate(TREE)
    rig = rigs(bulk=True)
    for folder in ("", "d", "d/e", "other"):
        rig.names(folder)
    rig.clock.advance(TTL + ALL_ENTRIES_PAUSE)
    for path in list(box.paths()):
        box.remove(path)
    assert rig.calls(lambda: rig.names("")) <= 3
    assert rig.names("") == []
    rig.clock.advance(TTL + 1)
    assert rig.calls(lambda: rig.names("")) == 1, "what was empty is believed to be empty"


def test_a_root_with_nothing_in_it_costs_one_call(rigs: Callable[..., Rig]) -> None:
    rig = rigs(bulk=False)
    assert rig.calls(lambda: rig.names("")) == 1
