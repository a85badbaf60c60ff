"""The options of a launch: the values that the service offers, kept for a day and on disk.

Threading: `_lock` protects the values, a leaf. Calls are single-flight, made by the caller's thread, with no lock.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import wait
from functools import partial

from cloudsimfs.clock import Clock
from cloudsimfs.concurrency.singleflight import Holds, SingleFlight
from cloudsimfs.errors import Invalid, ServiceError
from cloudsimfs.runs.store import RunStore
from cloudsimfs.service import Client, Urgency

NAMES = ("cpu", "ram", "scripts")
OPTIONS_TTL = 24 * 3600.0  # seconds; the options hardly ever change
DOUBT_TTL = 600.0  # seconds, if a value is wanted that is not among them
RENEWAL_HOLD = 30.0  # seconds that what could not be renewed serves before the next call
ALL = "all"  # one hold for all options: if one cannot be renewed, the others cannot either

Values = tuple[str, ...]


class LaunchOptions:
    def __init__(self, client: Client, store: RunStore, *, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._flights = SingleFlight[str, Values](workers=1, name="options", clock=clock)
        self._holds = Holds[str](clock)
        self._lock = threading.Lock()
        # when they were fetched (wall seconds), and the values, by name; guarded by _lock
        self._fetched = {name: saved for name in NAMES if (saved := store.options(name)) is not None}
        self._calls: dict[str, Callable[..., Values]] = {
            "cpu": client.cpu_values,
            "ram": client.ram_values,
            "scripts": client.scripts,
        }

    def cached(self, name: str) -> Values:
        """The values as they were last fetched, none before that; makes no call."""
        fetched = self._last(name)
        return () if fetched is None else fetched[1]

    def values(self, name: str, *, ttl: float = OPTIONS_TTL, urgency: Urgency = Urgency.NORMAL) -> Values:
        """The values of an option, at most `ttl` seconds old; older if the service cannot be asked now.

        Raises the ServiceError of the call if none are cached.
        """
        while True:
            last = self._last(name)
            if last is not None and (self._clock.now() - last[0] < ttl or self._holds.is_held(ALL)):
                return last[1]
            joined = self._flights.join(name, partial(self._has_news, name, last))
            if joined is None:
                continue
            flight, mine = joined
            if not mine:
                wait([flight])
                continue
            self._flights.fly(flight, partial(self._fetch, name, urgency))
            try:
                return flight.result()
            except ServiceError:
                if last is None:
                    raise
                return last[1]

    def _last(self, name: str) -> tuple[float, Values] | None:
        with self._lock:
            return self._fetched.get(name)

    def _has_news(self, name: str, last: tuple[float, Values] | None) -> bool:
        return self._last(name) is not last

    def _fetch(self, name: str, urgency: Urgency) -> Values:
        now = self._clock.now()
        try:
            values = self._calls[name](urgency=urgency)
        except ServiceError:
            if self._last(name) is not None:
                self._holds.hold(ALL, RENEWAL_HOLD)
            raise
        with self._lock:
            self._fetched[name] = (now, values)
        self._store.save_options(name, now, values)
        return values

    def check(self, name: str, word: str, value: str) -> None:
        """Raises Invalid, naming near values, if a launch's `word` may not have this value."""
        if value not in self.values(name, urgency=Urgency.CONTROL):
            check_value(word, value, self.values(name, ttl=DOUBT_TTL, urgency=Urgency.CONTROL))


def check_value(what: str, value: str, allowed: Iterable[str]) -> None:
    """Raises Invalid, naming near values, if `value` is not one of `allowed`."""
    values = list(allowed)
    if value in values:
        return
    if value.isdecimal() and all(number.isdecimal() for number in values):
        near = sorted(sorted(values, key=lambda number: abs(int(number) - int(value)))[:4], key=int)
    else:
        near = difflib.get_close_matches(value, values, n=3, cutoff=0.5) or values[:12]
    among = "" if len(near) == len(values) else ", among others"
    raise Invalid(f"{what} {value!r} is not offered; there is: {', '.join(near)}{among}")
