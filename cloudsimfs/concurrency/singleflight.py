"""Single flight: one call at a time for each key. A caller that comes second waits for the answer to the first call.

Where something is known already, nobody waits longer than a grace for its renewal; and after a call that failed or
took longer, what is known serves for a while (it is on hold) before the next try.

Locks: `SingleFlight._lock` is held during `landed` only, never during a call; `Holds._lock` is a leaf.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Generic, NoReturn, TypeVar

from cloudsimfs.clock import Clock
from cloudsimfs.concurrency.waiting import never, place_to_wait
from cloudsimfs.errors import Cancelled, ServiceError, TryAgain

K = TypeVar("K")
T = TypeVar("T")


class Holds(Generic[K]):
    """What could not be renewed, and serves as it is for a while."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._until: dict[K, float] = {}  # monotonic seconds; guarded by _lock

    def hold(self, key: K, seconds: float) -> None:
        with self._lock:
            self._until[key] = self._clock.monotonic() + seconds

    def is_held(self, key: K) -> bool:
        with self._lock:
            return self._clock.monotonic() < self._until.get(key, -math.inf)

    def release(self, key: K) -> None:
        with self._lock:
            self._until.pop(key, None)

    def release_all(self) -> None:
        with self._lock:
            self._until.clear()


class Flight(Future[T], Generic[K, T]):
    """The call for `key`: in line, or under way since `begun_at` (monotonic seconds), which is set once."""

    def __init__(self, key: K) -> None:
        super().__init__()
        self.key = key
        self.begun_at = math.inf


class SingleFlight(Generic[K, T]):
    """Calls are made by up to `workers` threads of this object's own, or by the caller's."""

    def __init__(self, *, workers: int, name: str, clock: Clock) -> None:
        self._clock = clock
        self._holds = Holds[K](clock)
        self._pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._flights: dict[K, Flight[K, T]] = {}  # guarded by _lock

    def close(self) -> None:
        """Make no more calls. Those under way go on; a caller that waits for one in line gets Cancelled."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            flights = list(self._flights.values())
        for flight in flights:
            self.fly(flight, _cancelled)

    def __len__(self) -> int:
        """How many calls are in line or under way."""
        with self._lock:
            return len(self._flights)

    # -- joining, and making the call ------------------------------------------------------------------------

    def join(self, key: K, landed: Callable[[], bool] = never) -> tuple[Flight[K, T], bool] | None:
        """The flight for `key`, and whether it is new: then the caller must `fly` or `submit` it.

        None if there was none and, as `landed` tells, an answer has come since the caller looked.
        """
        with self._lock:
            flight = self._flights.get(key)
            if flight is not None:
                return flight, False
            if landed():
                return None
            flight = self._flights[key] = Flight(key)
            return flight, True

    def start(self, key: K, call: Callable[[], T]) -> Flight[K, T]:
        """The flight for `key`, submitted with this call if it is new."""
        with self._lock:
            flight = self._flights.get(key)
            if flight is not None:
                return flight
            flight = self._flights[key] = Flight(key)
        self.submit(flight, call)
        return flight

    def submit(self, flight: Flight[K, T], call: Callable[[], T]) -> None:
        """Have a thread of the pool make the call."""
        try:
            self._pool.submit(self.fly, flight, call)
        except RuntimeError:  # closed
            self.fly(flight, _cancelled)

    def fly(self, flight: Flight[K, T], call: Callable[[], T]) -> None:
        """Make the call in this thread, unless it is under way already. What it raises goes to those who wait."""
        with self._lock:
            if flight.begun_at < math.inf:
                return
            flight.begun_at = self._clock.monotonic()
        try:
            answer = call()
        except BaseException as error:  # noqa: BLE001  those who wait must hear of it, whatever it is
            self._land(flight)
            flight.set_exception(error)
        else:
            self._land(flight)
            flight.set_result(answer)

    def _land(self, flight: Flight[K, T]) -> None:
        with self._lock:
            del self._flights[flight.key]

    def under_way(self, *keys: K) -> list[Flight[K, T]]:
        """The flights there are for these keys, those in line too."""
        with self._lock:
            return [self._flights[key] for key in keys if key in self._flights]

    # -- while something is known ------------------------------------------------------------------------------

    def renew(self, key: K, call: Callable[[], T], *, known: bool, grace: float, hold: float) -> ServiceError | None:
        """Make the call for `key`, or wait for the one under way.

        If something is `known` already, wait `grace` seconds at most, and return the call's failure, which else is
        raised. After a call that failed or took longer, what is known serves for `hold` seconds without another one.
        """
        if known and self._holds.is_held(key):
            return None
        flight = self.start(key, call)
        try:
            with place_to_wait():
                flight.result(timeout=grace if known else None)
        except FutureTimeout:
            self._holds.hold(key, hold)
        except ServiceError as error:
            self._holds.hold(key, hold)
            if not known:
                raise
            return error
        except TryAgain:  # there is no place to wait
            if not known:
                raise
        return None

    def is_held(self, key: K) -> bool:
        """Whether what is known serves without a call, for the last one failed or took long."""
        return self._holds.is_held(key)

    def release(self, key: K) -> None:
        """The next `renew` makes a call."""
        self._holds.release(key)

    def release_all(self) -> None:
        self._holds.release_all()


def _cancelled() -> NoReturn:
    raise Cancelled("closed while a call was in line")
