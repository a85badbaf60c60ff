"""What following costs: the list of runs and the poller against the sandbox, on a clock moved by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cloudsimfs.clock import ManualClock
from cloudsimfs.runs.list import RENEWAL_GRACE, RENEWAL_HOLD, WHOLE_LIST_TTL, RunList
from cloudsimfs.runs.logcache import LogCache
from cloudsimfs.runs.logs import RunLogs
from cloudsimfs.runs.poller import Followed, Poller
from cloudsimfs.runs.store import RunStore
from cloudsimfs.sandbox import Sandbox, Settings
from cloudsimfs.service import connect
from harness import wait_until

TTL = 15.0
STEP = 5.0  # seconds the clock is moved at a time
STOPPED = 50  # the status of a run that was stopped (docs/service.md, "States")


class Rig:
    """A list of runs with its poller, and what they told."""

    def __init__(self, box: Sandbox, directory: Path, *, api: str, bulk: bool) -> None:
        self.box = box
        self.clock = ManualClock(auto=False)
        self.client = connect(base_url=box.url, key=box.key, api=api, clock=self.clock)  # type: ignore[arg-type]
        self.expected: list[str] = []
        self.saved: list[str] = []
        self.changed: set[int] = set()
        store = RunStore(directory)
        logs = LogCache(store)
        self.runs = RunList(self.client, store, logs, self, ttl=TTL, bulk=bulk, clock=self.clock)
        self.logs = RunLogs(self.runs, logs)
        self.poller = Poller(self.runs, self.client.budget, ttl=TTL, clock=self.clock)

    def results_expected(self, folder: str) -> None:
        self.expected.append(folder)

    def results_saved(self, folder: str) -> None:
        self.saved.append(folder)

    def runs_changed(self, run_ids: set[int], active: frozenset[str]) -> None:
        self.changed |= run_ids

    def launch(self, count: int) -> list[int]:
        """Runs that stay pending."""
        return [self.box.launch("case") for _ in range(count)]

    def say(self, run_id: int, line: str) -> None:
        self.box.say(run_id, line)

    def end(self, run_id: int) -> None:
        self.box.stop(run_id)
        wait_until(lambda: self.box.run(run_id)["status"] == STOPPED, "the run ends")

    def calls(self, action: Callable[[], object]) -> list[str]:
        self.box.calls.reset()
        action()
        return [call.operation for call in self.box.calls.entries()]

    def pass_time(self, seconds: float) -> None:
        """The poller does what it wants to do at each step."""
        for _ in range(int(seconds / STEP)):
            self.box.advance(STEP)
            self.clock.advance(STEP)
            self.poller._woken.set()  # to see at once that the pace has changed
            wait_until(lambda: not self._is_due() and self.clock.waiting, "the poller does what is due")

    def _is_due(self) -> bool:
        due = self.poller._due()
        return due is not None and due[2] <= self.clock.monotonic()

    def close(self) -> None:
        self.poller.close()
        self.runs.close()
        self.client.close()


@pytest.fixture
def box() -> Iterator[Sandbox]:
    with Sandbox(settings=Settings(hourly_limit=0, pending_seconds=3600.0)) as running:
        running.put("case/heat.ini", b"")
        yield running


@pytest.fixture
def rigs(box: Sandbox, tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(api: str = "v2", *, bulk: bool = False) -> Rig:
        made.append(Rig(box, tmp_path, api=api, bulk=bulk))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


# -- the list ------------------------------------------------------------------------------------------------


def test_pages_that_cannot_be_news_are_not_asked_for(box: Sandbox, rigs: Callable[..., Rig]) -> None:
    box.settings.page_size = 3
    rig = rigs()
    ids = rig.launch(7)
    for run_id in ids[:6]:
        rig.end(run_id)
    assert len(rig.calls(rig.runs.fetch_now)) == 4  # at first all pages, and the empty one
    for first_active, pages in ((6, 1), (7, 1)):
        rig.runs.invalidate()
        assert len(rig.calls(rig.runs.fetch_now)) == pages, first_active
        ids += rig.launch(1)
    rig.runs.invalidate()
    assert len(rig.calls(rig.runs.fetch_now)) == 1
    assert sorted(rig.runs.all()) == ids
    for run_id in ids[6:]:
        rig.end(run_id)
    rig.runs.invalidate()
    rig.runs.fetch_now()
    assert not any(run.active for run in rig.runs.all().values())


def test_an_active_run_on_a_later_page_is_looked_at(box: Sandbox, rigs: Callable[..., Rig]) -> None:
    box.settings.page_size = 3
    rig = rigs()
    old = rig.launch(1)[0]
    for run_id in rig.launch(5):
        rig.end(run_id)
    rig.runs.fetch_now()
    rig.end(old)
    rig.runs.invalidate()
    assert rig.runs.fetch_now()[old].status_name == "STOPPED"


def test_a_deleted_run_is_gone_after_a_day(box: Sandbox, rigs: Callable[..., Rig]) -> None:
    box.settings.page_size = 2
    rig = rigs()
    ids = rig.launch(5)
    for run_id in ids:
        rig.end(run_id)
    rig.runs.fetch_now()
    box.forget_run(ids[0])
    rig.runs.invalidate()
    assert sorted(rig.runs.fetch_now()) == ids
    rig.clock.advance(WHOLE_LIST_TTL + 1)
    assert sorted(rig.runs.fetch_now()) == ids[1:]


@pytest.mark.parametrize("api", ["v1", "v2"])
def test_what_is_known_outlives_the_mount_and_the_network(box: Sandbox, rigs: Callable[..., Rig], api: str) -> None:
    first = rigs(api)
    run_id = first.launch(1)[0]
    first.say(run_id, "a line\n")
    first.end(run_id)
    assert first.logs.read(run_id) == b"a line\n"
    box.faults.add("*", "reset")
    second = rigs(api)
    known = second.runs.cached()
    assert known is not None
    assert known[run_id].status_name == "STOPPED"
    assert second.logs.read(run_id) == b"a line\n"


def test_a_service_that_does_not_answer_is_not_waited_for(
    box: Sandbox, rigs: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudsimfs.runs.list.RENEWAL_GRACE", 0.2)
    rig = rigs()
    run_id = rig.launch(1)[0]
    rig.runs.fetch_now()
    fault = box.faults.add("simulations", "hang")
    rig.runs.invalidate()
    box.calls.reset()
    for _ in range(3):  # the first one waits for a moment
        assert run_id in rig.runs.all()
    assert box.calls.counts()["simulations"] == 1
    assert RENEWAL_HOLD > RENEWAL_GRACE
    box.faults.remove(fault)


def test_the_log_of_a_run_that_has_ended_is_whole(box: Sandbox, rigs: Callable[..., Rig]) -> None:
    """Also for who comes while the answer to somebody who asked before the end is on its way."""
    rig = rigs()
    run_id = rig.launch(1)[0]
    rig.say(run_id, "a line\n")
    rig.runs.fetch_now()
    box.calls.reset()
    slow = box.faults.add("simulation", "slow", rate=1000.0)
    with ThreadPoolExecutor(1) as pool:
        earlier = pool.submit(rig.logs.read, run_id)
        assert box.calls.wait(lambda calls: any(call.status for call in calls))
        rig.say(run_id, "the last line\n")
        rig.end(run_id)
        box.faults.remove(slow)
        rig.runs.invalidate()
        rig.runs.fetch_now()
        assert rig.logs.read(run_id) == b"a line\nthe last line\n"
        earlier.result()


# -- following -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["v1", "v2"])
def test_nobody_following_means_no_calls(box: Sandbox, rigs: Callable[..., Rig], api: str) -> None:
    rig = rigs(api)
    run_id, other = rig.launch(2)
    rig.logs.read(run_id)
    what = Followed(run_id, log=True)
    rig.poller.follow(what)
    assert len(rig.calls(lambda: rig.pass_time(2 * TTL))) in (1, 2)
    rig.poller.unfollow(what)
    rig.pass_time(2 * TTL)
    assert rig.calls(lambda: rig.pass_time(1800)) == []
    rig.end(other)
    rig.runs.fetch_now()
    rig.poller.follow(Followed(other, log=False))  # it has ended
    assert rig.calls(lambda: rig.pass_time(600)) == []


@pytest.mark.parametrize("api", ["v1", "v2"])
def test_one_call_brings_state_and_log(box: Sandbox, rigs: Callable[..., Rig], api: str) -> None:
    rig = rigs(api)
    run_id = rig.launch(1)[0]
    rig.logs.read(run_id)
    for log in (True, False):
        rig.poller.follow(Followed(run_id, log=log))
    rig.say(run_id, "a line\n")
    rig.end(run_id)
    calls = rig.calls(lambda: rig.pass_time(2 * TTL))
    assert len(calls) == 1
    assert rig.logs.cached(run_id) == b"a line\n"
    assert (rig.expected, rig.saved) == ([], ["case"])
    assert run_id in rig.changed
    assert rig.calls(lambda: rig.pass_time(600)) == []


@pytest.mark.parametrize(("api", "limit", "log"), [("v1", 100, True), ("v2", 100, False)])
def test_an_hour_of_following_leaves_calls(
    box: Sandbox, rigs: Callable[..., Rig], api: str, limit: int, log: bool
) -> None:
    box.settings.hourly_limit = limit
    rig = rigs(api)
    run_id = rig.launch(1)[0]
    rig.runs.fetch_now()
    rig.poller.follow(Followed(run_id, log=log))
    begun = rig.calls(lambda: rig.pass_time(120))
    assert len(begun) >= 4, "at first it is quick"
    rest = rig.calls(lambda: rig.pass_time(3480))
    assert limit / 5 < len(begun) + len(rest) < 0.9 * limit


@pytest.mark.parametrize(("api", "bulk"), [("v1", True), ("v2", True), ("v2", False)])
def test_fifty_logs_followed_for_half_an_hour(box: Sandbox, rigs: Callable[..., Rig], api: str, bulk: bool) -> None:
    box.settings.hourly_limit = 500
    rig = rigs(api, bulk=bulk)
    ids = rig.launch(50)
    numbers = itertools.count()

    def half_an_hour() -> None:
        for run_id in ids:
            rig.logs.read(run_id)
            rig.poller.follow(Followed(run_id, log=True))
        for _ in range(6):
            for run_id in ids:
                rig.say(run_id, f"line {next(numbers)}\n")
            rig.pass_time(300)

    calls = rig.calls(half_an_hour)
    assert len(calls) < 250
    if bulk:
        assert set(calls[3:]) == {"simulations"}
    for run_id in ids:
        expected = box.run(run_id)["output"].encode()
        assert rig.logs.cached(run_id).count(b"\n") >= (6 if bulk else 2)
        assert expected.startswith(rig.logs.cached(run_id))


def test_a_command_makes_the_next_looks_quick(box: Sandbox, rigs: Callable[..., Rig]) -> None:
    box.settings.hourly_limit = 100
    rig = rigs()
    run_id = rig.launch(1)[0]
    rig.runs.fetch_now()
    rig.poller.follow(Followed(run_id, log=False))
    rig.pass_time(1200)
    slow = len(rig.calls(lambda: rig.pass_time(60)))
    rig.poller.hurry()
    assert len(rig.calls(lambda: rig.pass_time(60))) > slow


def test_a_failing_service_is_asked_no_more_often(box: Sandbox, rigs: Callable[..., Rig]) -> None:
    rig = rigs("v1")
    run_id = rig.launch(1)[0]
    rig.runs.fetch_now()
    rig.poller.follow(Followed(run_id, log=True))
    box.faults.add("simulations", "status", status=400)
    assert 3 < len(rig.calls(lambda: rig.pass_time(300))) <= 300 / TTL
    box.faults.clear()
    rig.say(run_id, "back\n")
    rig.pass_time(600)
    assert rig.logs.cached(run_id) == b"back\n"
