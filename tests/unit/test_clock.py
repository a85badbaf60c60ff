"""The clocks that waiting and ageing code is given."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from cloudsimfs.clock import Clock, ForwardClock, ManualClock, SystemClock
from harness import patient


@pytest.mark.parametrize("kind", [SystemClock, ManualClock])
def test_time_passes_by_waiting(kind: type[Clock]) -> None:
    clock, event = kind(), threading.Event()
    wall, mono = clock.now(), clock.monotonic()
    clock.sleep(0.01)
    assert not clock.wait(event, 0.01)
    clock.sleep(-1)
    assert clock.monotonic() - mono >= 0.02
    assert clock.now() - wall > 0
    event.set()
    assert clock.wait(event, 100)
    assert clock.wait(event, None)


def test_a_manual_clock_moves_by_hand() -> None:
    clock = ManualClock(100.0, auto=False)
    with ThreadPoolExecutor(2) as pool:
        event = threading.Event()
        sleeper = pool.submit(clock.sleep, 60)
        waiter = pool.submit(clock.wait, event, 90)
        while clock.waiting < 2:
            assert not sleeper.done()
        clock.advance(60)
        sleeper.result(patient(10))
        assert not waiter.done()
        event.set()
        assert waiter.result(patient(10))
    assert (clock.now(), clock.monotonic()) == (160.0, 60.0)


def test_a_forward_clock_goes_on_while_the_wall_clock_is_set_back() -> None:
    behind = 0.0

    class Wall(ManualClock):
        def now(self) -> float:
            return super().now() - behind

    wall = Wall(10_000.0)
    clock = ForwardClock(wall)
    wall.advance(5.0)
    assert clock.now() == 10_005.0
    behind = 5000.0
    wall.advance(5.0)
    assert (clock.now(), clock.shown(clock.now())) == (10_010.0, 5010.0)
    behind = 0.0  # forward again, as after a machine's sleep
    assert clock.now() == 15_010.0
