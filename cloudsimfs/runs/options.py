"""What a launch may ask for: the service's lookups, kept for a day and on disk.

Threading: `_lock` protects what is known, a leaf; `_asking` is held during the one call that everybody wants.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Iterable

from cloudsimfs.clock import Clock
from cloudsimfs.errors import Invalid, ServiceError
from cloudsimfs.runs.store import RunStore
from cloudsimfs.service import Client, Urgency

NAMES = ("cpu", "ram", "scripts")
TTL = 24 * 3600.0  # seconds; what may be asked for hardly ever changes
DOUBT_TTL = 600.0  # seconds, if a value is wanted that is not among them
HOLD = 30.0  # seconds what could not be renewed serves before the service is asked again


class LaunchOptions:
    def __init__(self, client: Client, store: RunStore, *, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._asking = threading.Lock()
        self._lock = threading.Lock()
        self._known = {name: found for name in NAMES if (found := store.options(name)) is not None}  # at, values
        self._held = 0.0  # wall seconds; until then what is known serves
        self._calls: dict[str, Callable[..., tuple[str, ...]]] = {
            "cpu": client.cpu_values,
            "ram": client.ram_values,
            "scripts": client.scripts,
        }

    def cached(self, name: str) -> tuple[str, ...]:
        """The values as they were last fetched, none before that; makes no call."""
        with self._lock:
            return self._known.get(name, (0.0, ()))[1]

    def values(self, name: str, *, ttl: float = TTL, urgency: Urgency = Urgency.NORMAL) -> tuple[str, ...]:
        """The values of a lookup; old ones if the service cannot be asked now. `ttl` in seconds."""
        with self._asking:
            now = self._clock.now()
            with self._lock:
                at, values = self._known.get(name, (0.0, None))
            if values is not None and (now - at < ttl or now < self._held):
                return values
            try:
                fresh = self._calls[name](urgency=urgency)
            except ServiceError:
                if values is None:
                    raise
                self._held = now + HOLD
                return values
            with self._lock:
                self._known[name] = (now, fresh)
        self._store.save_options(name, now, fresh)
        return fresh

    def check(self, name: str, word: str, value: str) -> None:
        """Raises Invalid, naming near values, if a launch's `word` may not have this value."""
        if value not in self.values(name, urgency=Urgency.CONTROL):
            check_value(word, value, self.values(name, ttl=DOUBT_TTL, urgency=Urgency.CONTROL))


def check_value(what: str, value: str, allowed: Iterable[str]) -> None:
    """Raises Invalid, naming near values, if `value` is not one of `allowed`."""
    values = list(allowed)
    if value in values:
        return
    if value.isdecimal() and all(each.isdecimal() for each in values):
        near = sorted(sorted(values, key=lambda each: abs(int(each) - int(value)))[:4], key=int)
    else:
        near = difflib.get_close_matches(value, values, n=3, cutoff=0.5) or values[:12]
    among = "" if len(near) == len(values) else ", among others"
    raise Invalid(f"{what} {value!r} is not offered; there is: {', '.join(near)}{among}")
