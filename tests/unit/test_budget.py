"""The account's calls: reports, the hour, the reserve, waiting, and Retry-After."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from cloudsimfs.clock import ManualClock
from cloudsimfs.errors import BudgetSpent, Cancelled
from cloudsimfs.service.budget import Budget, Urgency
from harness import patient, wait_until

HOUR_START = 1_700_002_800.0  # a full clock hour


def headers(used: int, limit: int = 100, **others: int) -> dict[str, str]:
    told = {"x-ratelimit-hourly-limit": str(limit), "x-ratelimit-hourly-used": str(used)}
    told.update({f"x-ratelimit-{name.replace('_', '-')}": str(value) for name, value in others.items()})
    return told


class Account:
    """A budget on a manual clock, ten minutes into a clock hour."""

    def __init__(self, calls_per_hour: int | None = None, *, auto: bool = True) -> None:
        self.clock = ManualClock(HOUR_START + 600, auto=auto)
        self.stop = threading.Event()
        self.budget = Budget(self.clock, self.stop, calls_per_hour)

    def call(self, used: int | None = None, limit: int = 100, urgency: Urgency = Urgency.NORMAL) -> None:
        ticket = self.budget.acquire(urgency)
        self.budget.settle(ticket, None if used is None else headers(used, limit))

    def refused(self, urgency: Urgency = Urgency.NORMAL) -> BudgetSpent:
        with pytest.raises(BudgetSpent) as caught:
            self.budget.acquire(urgency)
        return caught.value


@pytest.fixture
def waiting() -> Iterator[Account]:
    account = Account(auto=False)
    yield account
    account.stop.set()


def test_without_any_limit_all_calls_go() -> None:
    account = Account()
    for _ in range(1000):
        account.call()
    state = account.budget.snapshot()
    assert (state.limit, state.remaining, state.used, state.calls) == (None, None, 1000, 1000)


def test_a_setting_bounds_the_calls_of_a_clock_hour() -> None:
    account = Account(calls_per_hour=20)
    for _ in range(18):
        account.call()
    error = account.refused()
    assert "18 of 20 API calls" in str(error)
    assert error.retry_after == 3000.0
    assert account.budget.snapshot().resets_at == HOUR_START + 3600
    account.clock.advance(3000)
    account.call()
    assert account.budget.snapshot().used == 1


def test_the_reserve_is_for_control() -> None:
    account = Account()
    account.call(94)
    account.call(95)
    account.refused()
    for used in range(96, 101):
        account.call(used, urgency=Urgency.CONTROL)
    account.refused(Urgency.CONTROL)


def test_the_reserve_is_a_tenth_at_most() -> None:
    account = Account(calls_per_hour=9)
    for _ in range(9):
        account.call()
    account.refused()
    assert account.budget.snapshot().reserve == 0


def test_zero_is_unlimited() -> None:
    account = Account()
    account.call(500, limit=0)
    account.call(501, limit=0)
    assert account.budget.snapshot().remaining is None


def test_the_lower_of_setting_and_report_counts() -> None:
    account = Account(calls_per_hour=50)
    account.call(44, limit=100)
    account.call(45, limit=100)
    account.refused()
    assert account.budget.snapshot().limit == 50


def test_the_services_count_is_the_truth() -> None:
    account = Account()
    account.call(1)
    account.call(60)  # another client of the same account
    assert account.budget.snapshot().used == 60


def test_calls_in_flight_are_counted() -> None:
    account = Account()
    account.call(90)
    tickets = [account.budget.acquire(Urgency.NORMAL) for _ in range(5)]
    account.refused()
    account.budget.cancel(tickets.pop())
    account.budget.settle(account.budget.acquire(Urgency.NORMAL), headers(91))


def test_late_replies_do_not_turn_the_hour() -> None:
    account = Account()
    first = account.budget.acquire(Urgency.NORMAL)
    second = account.budget.acquire(Urgency.NORMAL)
    account.budget.settle(second, headers(51))
    account.budget.settle(first, headers(50))
    state = account.budget.snapshot()
    assert (state.used, state.window_known) == (51, False)


def test_a_reply_from_the_hour_before_does_not_spend_the_new_one() -> None:
    account = Account()
    account.call(used=90)
    account.clock.advance(60)
    account.call(used=1)  # the hour has turned: its end is known from now on
    account.clock.advance(3599)
    late = [account.budget.acquire(Urgency.NORMAL) for _ in range(2)]
    account.clock.advance(1)
    account.budget.snapshot()
    for used, ticket in zip((99, 100), late, strict=True):
        account.budget.settle(ticket, headers(used))
    assert account.budget.snapshot().used == 2
    account.call(used=2)
    assert account.budget.snapshot().used == 2


def test_a_reply_from_before_the_hour_may_have_turned_leaves_the_probe() -> None:
    account = Account()
    account.call(used=90)
    late = account.budget.acquire(Urgency.NORMAL)
    account.clock.advance(3000)
    account.budget.snapshot()
    account.budget.settle(late, headers(100))
    account.call(used=1)
    assert account.budget.snapshot().used == 1


def test_a_smaller_count_turns_the_hour() -> None:
    account = Account()
    account.call(80)
    account.clock.advance(60)
    account.call(1)
    state = account.budget.snapshot()
    assert (state.used, state.window_known, state.resets_at) == (1, True, HOUR_START + 660 + 3600)
    account.call(95)
    account.refused()
    account.clock.advance(3600)
    assert account.budget.snapshot().used == 0


def test_a_spent_hour_is_probed_once_in_five_minutes() -> None:
    account = Account()
    account.call(94)
    account.call(100)
    account.refused()
    account.clock.advance(301)
    account.call(100)
    account.refused()
    account.clock.advance(301)
    account.call(1)
    account.call(2)
    assert account.budget.snapshot().remaining == 93


def test_an_old_report_is_void_after_an_hour() -> None:
    account = Account()
    account.call(95)
    account.clock.advance(3601)
    for _ in range(95):
        account.call()
    account.refused()


def test_daily_limit() -> None:
    account = Account()
    ticket = account.budget.acquire(Urgency.NORMAL)
    account.budget.settle(ticket, headers(1, daily_limit=200, daily_used=196))
    assert "of this day" in str(account.refused())
    account.budget.acquire(Urgency.CONTROL)


def test_background_waits_until_the_hour_turns(waiting: Account) -> None:
    waiting.call(95)
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(waiting.budget.acquire, Urgency.BACKGROUND)
        while not waiting.clock.waiting:
            assert not waiter.done()
        assert waiting.budget.snapshot().waiting == 1
        while not waiter.done():
            waiting.clock.advance(300)
        assert waiting.clock.now() >= HOUR_START + 3600
        waiting.budget.settle(waiter.result(), headers(1))
    assert waiting.budget.snapshot().waiting == 0


def test_waiting_ends_with_stop(waiting: Account) -> None:
    waiting.call(95)
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(waiting.budget.acquire, Urgency.BACKGROUND)
        while not waiting.clock.waiting:
            assert not waiter.done()
        waiting.stop.set()
        with pytest.raises(Cancelled):
            waiter.result(patient(10))


def test_a_deadline_bounds_the_background_too() -> None:
    account = Account()
    account.call(95)
    with pytest.raises(BudgetSpent):
        account.budget.acquire(Urgency.BACKGROUND, account.clock.monotonic() + 10)


@pytest.mark.parametrize("urgency", list(Urgency))
def test_retry_after_wins(urgency: Urgency) -> None:
    account = Account()
    account.call(10)
    assert account.budget.refused(120.0) == 120.0
    state = account.budget.snapshot()
    assert (state.remaining, state.resets_at, state.window_known) == (0, HOUR_START + 720, True)
    with pytest.raises(BudgetSpent) as caught:
        account.budget.acquire(urgency, account.clock.monotonic() + 60)
    assert caught.value.retry_after == 120.0
    account.budget.acquire(urgency, account.clock.monotonic() + 180)
    assert account.clock.now() >= HOUR_START + 720


@pytest.mark.parametrize("seconds", [3601.0, 86400.0, 999_999_999.0])
@pytest.mark.parametrize("urgency", list(Urgency))
def test_retry_after_ends_with_the_hour(urgency: Urgency, seconds: float) -> None:
    account = Account()
    account.call(10)
    assert account.budget.refused(seconds) == 3000.0
    account.clock.advance(3000.0)
    account.budget.acquire(urgency, account.clock.monotonic())


def test_control_is_tried_in_spite_of_retry_after() -> None:
    account = Account()
    account.call(10)
    account.budget.refused(999_999_999.0)
    assert account.refused(Urgency.CONTROL).retry_after == 300.0
    account.clock.advance(301)
    account.refused()
    account.call(11, urgency=Urgency.CONTROL)
    account.budget.refused(999_999_999.0)
    account.refused(Urgency.CONTROL)
    account.clock.advance(301)
    account.call(12, urgency=Urgency.CONTROL)
    account.refused(Urgency.CONTROL)


def test_a_call_that_is_served_ends_retry_after() -> None:
    account = Account()
    account.call(10)
    late = account.budget.acquire(Urgency.NORMAL)
    account.budget.refused(999_999_999.0)
    account.budget.settle(late, headers(11), served=True)  # sent before the refusal: it proves nothing
    account.refused()
    account.clock.advance(301)
    account.budget.settle(account.budget.acquire(Urgency.CONTROL), headers(12), served=True)
    account.call(13)


def test_control_is_tried_in_a_spent_hour_that_has_long_to_go() -> None:
    account = Account()
    account.call(80)
    account.call(1)  # the hour has turned: its end is known from now on
    account.call(100)
    assert account.refused(Urgency.CONTROL).retry_after == 300.0
    account.clock.advance(301)
    assert account.refused().retry_after == 3600.0 - 301
    account.call(100, urgency=Urgency.CONTROL)
    account.refused(Urgency.CONTROL)


@pytest.mark.parametrize("urgency", list(Urgency))
def test_refusals_without_a_time_do_not_add_up(urgency: Urgency) -> None:
    account = Account()
    account.call(10)
    for _ in range(5):
        assert account.budget.refused(None) == 60.0
    account.clock.advance(60)
    account.budget.acquire(urgency, account.clock.monotonic())


def test_retry_after_of_a_spent_hour_renews_it() -> None:
    account = Account()
    account.call(100)
    account.budget.refused(90.0)
    account.clock.advance(91)
    account.call(1)
    assert account.budget.snapshot().used == 1


def test_a_refusal_without_a_time_blocks_for_a_minute() -> None:
    account = Account()
    account.call()
    assert account.budget.refused(None) == 60.0
    account.refused()
    account.clock.advance(61)
    account.call()


@pytest.mark.parametrize("value", ["", "x", "-1", "1e9", "9" * 40])
def test_odd_headers_are_no_report(value: str) -> None:
    account = Account()
    ticket = account.budget.acquire(Urgency.NORMAL)
    account.budget.settle(ticket, {"x-ratelimit-hourly-limit": value, "x-ratelimit-hourly-used": value})
    assert account.budget.snapshot().used == 1


def test_many_threads_never_exceed_the_limit() -> None:
    account = Account(calls_per_hour=200)

    def caller() -> int:
        done = 0
        while True:
            try:
                ticket = account.budget.acquire(Urgency.CONTROL)
            except BudgetSpent:
                return done
            account.budget.settle(ticket)
            done += 1

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(lambda _: caller(), range(8))) == 200


class JumpingClock(ManualClock):
    """Its wall clock can be set back, as by NTP after a start with a wrong clock; `monotonic` goes on."""

    behind = 0.0

    def now(self) -> float:
        return super().now() - self.behind


def test_a_clock_set_back_does_not_stop_all_calls_for_days() -> None:
    clock = JumpingClock(HOUR_START + 600)
    budget = Budget(clock, threading.Event())
    budget.settle(budget.acquire(Urgency.NORMAL), headers(100))
    clock.behind = 3 * 86400.0
    with pytest.raises(BudgetSpent) as caught:
        budget.acquire(Urgency.NORMAL)
    assert caught.value.retry_after == 300.0
    assert budget.snapshot().resets_at == clock.now() + 3000.0
    clock.advance(3000.0)
    budget.acquire(Urgency.NORMAL)


# -- other programs of the account ------------------------------------------------------------------------------


def test_after_a_pause_the_first_call_goes_alone(waiting: Account) -> None:
    """Its reply has what others have used meanwhile, so that many calls at once do not use up their reserve."""
    waiting.call(used=50)
    waiting.clock.advance(60)
    first = waiting.budget.acquire(Urgency.NORMAL)
    deadline = waiting.clock.monotonic() + 30
    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(waiting.budget.acquire, Urgency.NORMAL, deadline) for _ in range(4)]
        wait_until(lambda: waiting.budget.snapshot().waiting == 4, "they wait")
        waiting.budget.settle(first, headers(95))
        waiting.clock.advance(0.1)
        assert all(isinstance(other.exception(timeout=patient(10)), BudgetSpent) for other in others)
    assert waiting.budget.snapshot().used == 95


def test_a_first_call_that_is_not_answered_holds_up_the_others_for_a_second() -> None:
    account = Account()
    account.call(used=50)
    account.clock.advance(60)
    account.budget.acquire(Urgency.NORMAL)
    before = account.clock.monotonic()
    for _ in range(8):
        account.budget.acquire(Urgency.NORMAL, before + 30)
    assert account.clock.monotonic() - before < 1.5
