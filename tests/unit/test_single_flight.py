"""Single flight: who calls, who waits, and for how long what is known serves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from cloudsimfs.clock import ManualClock
from cloudsimfs.concurrency.singleflight import Holds, SingleFlight
from cloudsimfs.errors import Cancelled, Unreachable
from harness import patient, wait_until

HOLD = 5.0  # seconds
BRIEF = 0.01  # seconds


class Service:
    """Counts its calls, and answers when it may."""

    def __init__(self) -> None:
        self.calls = 0
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.failure: Exception | None = None

    def __call__(self) -> int:
        self.calls += 1
        assert self.may_answer.wait(patient(20))
        if self.failure is not None:
            raise self.failure
        return self.calls


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(auto=False)


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.may_answer.set()


@pytest.fixture
def flights(clock: ManualClock, service: Service) -> Iterator[SingleFlight[str, int]]:
    made = SingleFlight[str, int](workers=1, name="test", clock=clock)
    yield made
    service.may_answer.set()
    made.close()


def test_all_callers_get_the_answer_to_one_call(flights: SingleFlight[str, int], service: Service) -> None:
    service.may_answer.clear()
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(lambda: flights.start("k", service).result(patient(20))) for _ in range(8)]
        wait_until(lambda: service.calls, "the call begins")
        assert len(flights) == 1
        service.may_answer.set()
        assert {answer.result() for answer in answers} <= {1, 2}
    assert len(flights) == 0


def test_a_failure_reaches_all_that_wait_and_the_next_call_is_new(
    flights: SingleFlight[str, int], service: Service
) -> None:
    service.may_answer.clear()
    service.failure = ValueError("not a ServiceError")
    first = flights.start("k", service)
    assert flights.start("k", service) is first
    service.may_answer.set()
    with pytest.raises(ValueError):
        first.result(patient(20))
    service.failure = None
    assert flights.start("k", service).result(patient(20)) == 2


def test_a_caller_that_cannot_wait_in_line_makes_the_call_itself(
    flights: SingleFlight[str, int], service: Service
) -> None:
    service.may_answer.clear()
    flights.start("first", service)
    wait_until(lambda: service.calls, "the only worker is busy")
    second = flights.start("second", lambda: -1)
    flights.fly(second, lambda: 7)
    assert second.result(0) == 7
    flights.fly(second, lambda: pytest.fail("it has landed"))


def test_nobody_flies_for_an_answer_that_has_come_meanwhile(flights: SingleFlight[str, int]) -> None:
    assert flights.join("k", lambda: True) is None
    joined = flights.join("k", lambda: False)
    assert joined is not None
    flight, mine = joined
    assert mine
    assert flights.join("k", lambda: True) == (flight, False)
    assert flights.under_way("k", "other") == [flight]


def test_what_is_known_serves_while_a_call_takes_long(
    flights: SingleFlight[str, int], service: Service, clock: ManualClock
) -> None:
    service.may_answer.clear()
    assert flights.renew("k", service, known=True, grace=BRIEF, hold=HOLD) is None
    assert flights.is_held("k")
    service.may_answer.set()
    wait(flights.under_way("k"))
    flights.renew("k", service, known=True, grace=patient(20), hold=HOLD)
    assert service.calls == 1
    clock.advance(HOLD)
    flights.renew("k", service, known=True, grace=patient(20), hold=HOLD)
    assert service.calls == 2


def test_a_failure_is_raised_only_where_nothing_is_known(flights: SingleFlight[str, int], service: Service) -> None:
    service.failure = Unreachable("gone")
    with pytest.raises(Unreachable):
        flights.renew("k", service, known=False, grace=patient(20), hold=HOLD)
    assert flights.renew("k", service, known=True, grace=patient(20), hold=HOLD) is None
    assert service.calls == 1
    flights.release("k")
    assert flights.renew("k", service, known=True, grace=patient(20), hold=HOLD) is service.failure


def test_closing_lets_nobody_wait_for_ever(flights: SingleFlight[str, int], service: Service) -> None:
    service.may_answer.clear()
    running = flights.start("first", service)
    wait_until(lambda: service.calls, "the only worker is busy")
    in_line = flights.start("second", service)
    flights.close()
    for flight in (in_line, flights.start("third", service)):
        with pytest.raises(Cancelled):
            flight.result(0)
    service.may_answer.set()
    assert running.result(patient(20)) == 1


def test_holds_end_by_time_and_by_release(clock: ManualClock) -> None:
    holds = Holds[str](clock)
    for key in "ab":
        holds.hold(key, HOLD)
    clock.advance(HOLD - 1)
    assert holds.is_held("a")
    holds.release("a")
    assert (holds.is_held("a"), holds.is_held("b")) == (False, True)
    clock.advance(1)
    assert not holds.is_held("b")
    holds.hold("a", HOLD)
    holds.release_all()
    assert not holds.is_held("a")
