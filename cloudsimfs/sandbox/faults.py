"""Faults on demand: which request fails next, and how.

A `Fault` applies to operations of the request log. This module only decides (`Faults.due`); `wire` and `server` act.
Threading: one lock; `Fault` objects are shared, and their counters change under it. Must never fire at random: a
`probability` uses the fault's own seeded generator.
"""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import math
import random
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from cloudsimfs.sandbox import odd

KINDS = (
    "status",  # any status, with `body` and `retry_after` (seconds, or an HTTP date as text)
    "reset",  # RST before the request is processed
    "drop_reply",  # the request is processed, then RST instead of the answer
    "lie",  # the request is processed, then `status` with `body` instead of the answer
    "late",  # `status` with `body` (none: RST) at once; processed when removed, or `amount` requests later if given
    "pretend",  # an object-put is answered as if it were stored
    "stale",  # the answer that the same call got the first time
    "swapped",  # the answer that the call of this operation before this one got: another page, another entry
    "hang",  # no answer for `seconds`, or until the fault is removed; then as usual
    "truncate",  # the full Content-Length, `amount` body bytes (default half), then close
    "corrupt",  # one bit of an upload changes on its way
    "slow",  # `rate` bytes per second, in both directions
    "html",  # a web page instead of an answer, with `status`
    "errors200",  # 200 with {"errors": [...]}
    "null_link",  # the download link is null
    "expired",  # a signed URL refused with `status` (403, 400) and XML
    "redirect",  # 302 to `url`
    "odd",  # an odd shape: a `variation` of `odd`, or a callable that gets the answer
    "latency",  # `seconds` before anything else
)
_STATUS = {"status": 500, "lie": 500, "html": 200, "expired": 403, "redirect": 302}


@dataclass(slots=True, eq=False)
class Fault:
    """One fault. It fires `times` times (None: until removed), after the first `after` matching requests.

    Raises ValueError for an unknown kind, or if a value is missing that the kind needs.
    """

    operation: str  # fnmatch pattern on the operation name
    kind: str
    times: int | None = None
    after: int = 0
    probability: float = 1.0
    seed: int = 0
    version: int | None = None  # 1 or 2: calls of this API version only; None: all
    path: str = "*"  # fnmatch pattern on the storage path of the request
    status: int = 0  # 0: the usual status of the kind
    body: str | None = None
    retry_after: float | str | None = None
    seconds: float | None = None
    amount: int | None = None
    rate: float = 0.0
    url: str | None = None
    variation: str | Callable[[Any], Any] | None = None
    id: int = field(default=0, init=False)
    seen: int = field(default=0, init=False)
    fired: int = field(default=0, init=False)
    removed: bool = field(default=False, init=False)
    _random: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind {self.kind!r}: one of {', '.join(KINDS)}")
        needs = {"slow": self.rate, "redirect": self.url, "odd": self.variation, "latency": self.seconds}
        if not needs.get(self.kind, True):
            raise ValueError(f"a fault of kind {self.kind} needs rate, url, variation or seconds")
        if isinstance(self.variation, str) and self.variation not in odd.KNOWN:
            raise ValueError(f"variation {self.variation!r}: one of {', '.join(sorted(odd.KNOWN))}")
        if not isinstance(self.operation, str) or not isinstance(self.path, str):
            raise ValueError("operation and path are patterns")
        self.status = self.status or _STATUS.get(self.kind, 0)
        self._random = random.Random(self.seed)

    def matches(self, operation: str, version: int, subject: str) -> bool:
        """Whether the fault applies to this request."""
        return (
            self.version in (None, version)
            and fnmatch.fnmatchcase(operation, self.operation)
            and fnmatch.fnmatchcase(subject, self.path)
        )

    def as_json(self) -> dict[str, Any]:
        values = {spec.name: getattr(self, spec.name) for spec in fields(self) if spec.name[0] != "_"}
        if callable(self.variation):
            values["variation"] = "(a callable)"
        return values


_SETTABLE = frozenset(spec.name for spec in fields(Fault) if spec.init)


def from_json(values: Mapping[str, Any]) -> Fault:
    """A fault from the members of a JSON object. Raises ValueError."""
    unknown = set(values) - _SETTABLE
    if unknown or not {"operation", "kind"} <= set(values):
        raise ValueError(f"members are {', '.join(sorted(_SETTABLE))}; operation and kind are required")
    return Fault(**values)


@dataclass(slots=True, eq=False)
class _Effect:
    """What a request does after its answer, and how many requests came since."""

    fault: Fault
    act: Callable[[], object]
    requests: int = 0


class Faults:
    """The faults that are set."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._faults: list[Fault] = []  # guarded by _lock
        self._late: list[_Effect] = []  # guarded by _lock

    def add(self, operation: str, kind: str, **values: Any) -> Fault:
        """Set a fault by its members; see `Fault`. Raises ValueError or TypeError."""
        return self.set(Fault(operation, kind, **values))

    def set(self, fault: Fault) -> Fault:
        with self._lock:
            fault.id = next(self._ids)
            self._faults.append(fault)
        return fault

    def remove(self, fault: Fault) -> None:
        """Remove a fault. Requests that hang because of it continue, and what it made late is done now."""
        self._remove([fault])

    def clear(self) -> None:
        self._remove(self.active())

    def active(self) -> list[Fault]:
        with self._lock:
            return list(self._faults)

    def due(self, operation: str, version: int, subject: str) -> ActiveFaults:
        """The faults that fire for this request; each is counted as fired. What is late enough is done first."""
        with self._lock:
            fired = [f for f in self._faults if f.matches(operation, version, subject) and _fires(f)]
            for effect in self._late:
                effect.requests += 1
        self._do_late(lambda effect: effect.requests > (effect.fault.amount or math.inf))
        return ActiveFaults(fired, self._postpone)

    def _postpone(self, fault: Fault, act: Callable[[], object]) -> None:
        with self._lock:
            self._late.append(_Effect(fault, act))

    def _do_late(self, due: Callable[[_Effect], bool]) -> None:
        with self._lock:
            effects = [effect for effect in self._late if due(effect)]
            self._late = [effect for effect in self._late if effect not in effects]
        for effect in effects:
            with contextlib.suppress(Exception):  # too late: what it changes is gone by now
                effect.act()

    def _remove(self, faults: Iterable[Fault]) -> None:
        with self._lock:
            for fault in faults:
                fault.removed = True
            self._faults = [fault for fault in self._faults if not fault.removed]
        self._do_late(lambda effect: effect.fault.removed)


class ActiveFaults:
    """The faults that fire for one request."""

    def __init__(self, faults: list[Fault], postpone: Callable[[Fault, Callable[[], object]], None]) -> None:
        self._faults = faults
        self._postpone = postpone

    def get(self, kind: str) -> Fault | None:
        return next((fault for fault in self._faults if fault.kind == kind), None)

    def all(self, kind: str) -> list[Fault]:
        return [fault for fault in self._faults if fault.kind == kind]

    def late(self, act: Callable[[], object]) -> Fault | None:
        """Have `act` done later, if a fault says so: returns that one."""
        fault = self.get("late")
        if fault is not None:
            self._postpone(fault, act)
        return fault


def _fires(fault: Fault) -> bool:
    fault.seen += 1
    if fault.seen <= fault.after or (fault.times is not None and fault.fired >= fault.times):
        return False
    if fault.probability < 1.0 and fault._random.random() >= fault.probability:
        return False
    fault.fired += 1
    return True
