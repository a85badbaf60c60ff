"""Simulations: one shared list of runs, and their logs.

One list call refreshes every run for everybody who looks; nobody looking means no calls. What is known is kept on
disk (`runstore`) and serves while the service cannot be asked, or takes long to answer. v1's list carries the logs
of all runs; v2's does not, so there a log costs a call of its own unless v1's list may be asked for it (`bulk`).

Threading: `_lock` protects the tables and is a leaf. Calls are made by a small pool, one at a time for each thing
asked for: who comes second waits for the first one's answer. No lock is held during a call.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures import wait as wait_for
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from cloudsimfs.clock import Clock
from cloudsimfs.errors import (
    KeyRefused,
    NoSuchEntry,
    NotFound,
    NotOffered,
    Refused,
    ServiceError,
)
from cloudsimfs.runs.store import RunStore, public
from cloudsimfs.service import Client, Simulation, Urgency

log = logging.getLogger(__name__)

LIST = 0  # what a call in flight is for: the list, else the id of a run
GRACE = 2.0  # seconds a reader waits for a renewal before what is known is served
HOLD = 5.0  # seconds what could not be renewed serves before the service is asked again
STRETCH = 10.0  # times the TTL when no calls are left
SHARE = 0.25  # of the calls left, once more than half are spent, that looking would take until the hour turns
OLDEST = 600.0  # seconds; how old a list that could be renewed may get because of that
WHOLE_LIST = 24 * 3600.0  # seconds between lists of all pages, which see deleted runs go
CALLERS = 4  # calls at the same time
NEVER, WHOLE = -math.inf, math.inf  # when a log was asked for: not yet; and it grows no more


class Watcher(Protocol):
    """Who must hear of changes. Called with no lock held."""

    def results_expected(self, folder: str) -> None:
        """The service has put, or is about to put, files into this folder."""

    def runs_changed(self, run_ids: set[int], active: frozenset[str]) -> None:
        """These runs, or their logs, are new or changed; `active` are the folders in which runs are going on."""


@dataclass(frozen=True, slots=True)
class Log:
    """A run's output. `at` is monotonic seconds, from before the call; `whole`: the run had ended."""

    data: bytes
    at: float
    whole: bool


class Runs:
    """`ttl` in seconds: how long a list or a log is believed. `bulk`: v1's list may be asked for v2's logs."""

    def __init__(
        self, client: Client, store: RunStore, watcher: Watcher, *, ttl: float, bulk: bool, clock: Clock
    ) -> None:
        self._client = client
        self._store = store
        self._watcher = watcher
        self._ttl = ttl
        self._clock = clock
        self._bulk = bulk
        self._pool = ThreadPoolExecutor(max_workers=CALLERS, thread_name_prefix="runs")
        self._lock = threading.Lock()
        # all guarded by _lock
        self._runs: Mapping[int, Simulation] | None = None  # None: no list was ever had
        self._at = NEVER  # monotonic seconds, from before the call
        self._expired_at = NEVER  # monotonic; a list asked for before is old
        self._whole_at = NEVER  # wall seconds; when all pages were had
        saved = store.runs()
        if saved is not None:
            self._whole_at, self._runs = saved[0], {run.id: run for run in saved[1]}
        self._logs: dict[int, Log] = {}
        self._kept: set[int] = set()  # runs whose whole log is on disk
        self._flights: dict[int, Future[None]] = {}
        self._held: dict[int, float] = {}  # what could not be renewed, until when

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    # -- looking -----------------------------------------------------------------------------------------

    def all(self) -> Mapping[int, Simulation]:
        """Every run by id, at most `ttl` old; older if the service cannot be asked now."""
        if not self._is_fresh(self.listed_at):
            self._await(LIST, self.renew, known=self.known() is not None)
        return self.known() or {}

    def recent(self) -> Mapping[int, Simulation]:
        """The same, never older than `ttl`, even with the last calls. Raises the ServiceError of the call."""
        if self._clock.monotonic() - self.listed_at >= self._ttl:
            self.refresh()
        return self.known() or {}

    def known(self) -> Mapping[int, Simulation] | None:
        """What was last listed; asks nobody. None if nothing ever was."""
        with self._lock:
            return self._runs

    def known_run(self, run_id: int) -> Simulation | None:
        """What was last told of a run; asks nobody."""
        return (self.known() or {}).get(run_id)

    def get(self, run_id: int) -> Simulation:
        """Raises NotFound."""
        run = self.known_run(run_id)
        if run is None or not self._is_fresh(self.log_at(run_id)):  # the log comes with all the rest of the run
            run = self.all().get(run_id)
        if run is None:
            raise no_run(run_id)
        return run

    def expire(self) -> None:
        """The next look asks the service."""
        with self._lock:
            self._at, self._expired_at = NEVER, self._clock.monotonic()
            self._held.clear()

    @property
    def listed_at(self) -> float:
        with self._lock:
            return self._at

    def _is_fresh(self, at: float) -> bool:
        age = self._clock.monotonic() - at
        if age < self._ttl:
            return True
        budget = self._client.budget
        if budget.stretch(STRETCH) == 1.0:
            return False
        return age < min(OLDEST, max(self._ttl * budget.stretch(STRETCH), budget.pace(SHARE)))

    def refresh(self) -> None:
        """A list asked for from now on, with the last calls of the hour if need be."""
        with self._lock:
            other = self._flights.get(LIST)
        if other is not None:
            wait_for([other])
        self._fly(LIST, lambda: self.renew(urgency=Urgency.CONTROL)).result()

    def _await(self, key: int, call: Callable[[], None], *, known: bool) -> None:
        """Make the call. If something is `known`, a failed or long one is not worth an error or a wait."""
        with self._lock:
            held = self._clock.monotonic() < self._held.get(key, NEVER)
        if held and known:
            return
        flight = self._fly(key, call)
        try:
            flight.result(timeout=GRACE if known else None)
        except FutureTimeout:
            self._hold(key)
        except ServiceError as error:
            self._hold(key)
            if not known:
                raise
            log.warning("%s is stale: %s", f"run {key}" if key else "the list of runs", error)

    def _let_land(self, *keys: int) -> None:
        """Let the calls for `keys` end that are under way, unless they are known to take long."""
        with self._lock:
            now = self._clock.monotonic()
            flights = [
                self._flights[key] for key in keys if key in self._flights and self._held.get(key, NEVER) <= now
            ]
        wait_for(flights, timeout=GRACE)

    def _hold(self, key: int) -> None:
        with self._lock:
            self._held[key] = self._clock.monotonic() + HOLD

    def _fly(self, key: int, call: Callable[[], None]) -> Future[None]:
        """The call for `key` that is under way, or this one."""

        def fly() -> None:
            try:
                call()
            finally:
                with self._lock:
                    del self._flights[key]

        with self._lock:
            if key not in self._flights:
                self._flights[key] = self._pool.submit(fly)
            return self._flights[key]

    # -- logs --------------------------------------------------------------------------------------------

    def log(self, run_id: int) -> bytes:
        """A run's output, at most `ttl` old; older if the service cannot be asked now."""
        run = self.known_run(run_id) or self.get(run_id)
        found = self._log(run)
        if not run.active and (found is None or not found.whole):
            self._let_land(LIST, run_id)  # asked for before the end, they lack the last lines
            found = self._log(run)
        if found is None or (not found.whole and not (run.active and self._is_fresh(found.at))):
            if self._is_v1():
                self._await(LIST, self.renew, known=found is not None)
            elif self._bulk and self._wants_other_logs(run_id):
                with suppress(ServiceError):
                    self._fly(LIST, lambda: self.renew(logs=True)).result()
            if self._log(run) is found:  # a list without it
                self._await(run_id, lambda: self.renew_log(run_id), known=found is not None)
            found = self._log(run)
        if found is not None and found.whole and run_id not in self._kept:
            self._store.save_blob(run_id, "log", found.data)
            self._kept.add(run_id)
        return b"" if found is None else found.data

    def known_log(self, run_id: int) -> bytes:
        """What is known of it; asks nobody."""
        run = self.known_run(run_id)
        found = None if run is None else self._log(run)
        return b"" if found is None else found.data

    def _log(self, run: Simulation) -> Log | None:
        with self._lock:
            found = self._logs.get(run.id)
        if found is None and not run.active:
            data = self._store.blob(run.id, "log")
            if data is not None:
                found = Log(data, NEVER, whole=True)
                with self._lock:
                    self._logs[run.id] = found
                    self._kept.add(run.id)
        return found

    def log_at(self, run_id: int) -> float:
        """When the log was last asked for (monotonic), NEVER or WHOLE."""
        with self._lock:
            found = self._logs.get(run_id)
        if found is None:
            return NEVER
        return WHOLE if found.whole else found.at

    def _wants_other_logs(self, run_id: int) -> bool:
        """Whether logs of other active runs were asked for of late: then all at once are cheaper."""
        with self._lock:
            others = [found for other, found in self._logs.items() if other != run_id and not found.whole]
        return any(self._is_fresh(found.at) for found in others)

    def lists_logs(self, wanted: int) -> bool:
        """Whether a list is the cheapest way to so many logs."""
        return self._is_v1() or (self._bulk and wanted > 1)

    def _is_v1(self) -> bool:
        try:
            return self._client.api_version == "v1"
        except ServiceError:  # not found out yet, and it cannot be now
            return False

    # -- asking the service ------------------------------------------------------------------------------

    def renew(self, *, logs: bool = False, urgency: Urgency = Urgency.NORMAL) -> None:
        """Ask for the list; `logs`: with all logs."""
        asked, asked_wall = self._clock.monotonic(), self._clock.now()
        older: dict[int, Simulation] | None = None  # those on the pages nobody needs

        def enough(found: list[Simulation]) -> bool:
            nonlocal older
            older = self._ended_before(found)
            return older is not None

        try:
            found = self._client.simulations(logs=logs, enough=enough, urgency=urgency)
        except (KeyRefused, NotOffered, NoSuchEntry, Refused):
            if logs:
                self._bulk = False  # it matters in v2 only
            raise
        with self._lock:
            if older is None:
                self._whole_at = asked_wall
            self._at = asked if asked >= self._expired_at else NEVER
            self._held.pop(LIST, None)
        self._take({**(older or {}), **{run.id: run for run in found}}, asked)

    def _ended_before(self, found: list[Simulation]) -> dict[int, Simulation] | None:
        """The known runs older than these newest ones, if they are known to change no more; None: look at them."""
        ids = [run.id for run in found]
        with self._lock:
            known, age = self._runs, self._clock.now() - self._whole_at
        if not ids or ids != sorted(ids, reverse=True) or known is None or age > WHOLE_LIST:
            return None
        older = {run_id: run for run_id, run in known.items() if run_id < ids[-1]}
        return None if any(run.active for run in older.values()) else older

    def renew_log(self, run_id: int) -> None:
        """Ask for one run with its log."""
        asked = self._clock.monotonic()
        detail = self._client.simulation(run_id)
        with self._lock:
            self._held.pop(run_id, None)
        self._take({run_id: detail}, asked, is_list=False)

    def _take(self, found: dict[int, Simulation], asked: float, *, is_list: bool = True) -> None:
        """Put what came into the tables and tell the watcher what is new."""
        with self._lock:
            before = self._runs or {}
            changed = {run.id for run in found.values() if self._take_log_locked(run, asked)}
            fresh = {run.id: self._settled_locked(run, asked) for run in found.values()}
            if not is_list:
                fresh = {**before, **fresh}
            self._runs = fresh
            whole_at = self._whole_at
        for run in fresh.values():
            old = before.get(run.id)
            if old == run:
                continue
            changed.add(run.id)
            if old is not None and old.active and old.status != run.status:
                self._watcher.results_expected(run.folder)
        gone = before.keys() - fresh.keys()
        if fresh != before:
            self._store.save_runs(whole_at, fresh.values())
        active = frozenset(run.folder for run in fresh.values() if run.active)
        self._watcher.runs_changed(changed | gone, active)

    def _take_log_locked(self, run: Simulation, asked: float) -> bool:
        """Whether its log is new."""
        old = self._logs.get(run.id)
        if run.output is None or (old is not None and (old.whole or old.at > asked)):
            return False
        data = run.output.encode("utf-8", "replace")
        self._logs[run.id] = Log(data, asked, whole=not run.active)
        return old is None or old.data != data

    def _settled_locked(self, run: Simulation, asked: float) -> Simulation:
        """What is kept of a run; what is known of it already if that was asked for later."""
        found = self._logs.get(run.id)
        if found is not None and found.at > asked and self._runs is not None and run.id in self._runs:
            return self._runs[run.id]
        return replace(run, output=None, raw=public(run))


def no_run(run_id: int) -> NotFound:
    return NotFound(f"no run {run_id}; `cloudsimfs runs` lists them")
