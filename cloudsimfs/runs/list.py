"""The list of runs, shared by everybody who looks. Nobody looking means no calls.

What is known is kept on disk (`runs.store`), and serves while the service cannot be asked, or takes long to answer.

    cached        what was last fetched; makes no call
    all, get      fetched within the TTL, or, if that fails or takes long, what is cached
    fetch         makes the call; `fetch_now`: with the last calls of the hour, and never joins an earlier one
    renew         makes the call once for all who want it now, and waits for it, briefly if something is cached
    invalidate    the next look makes a call

Threading: `_lock` protects the table; under it only that of the log cache is taken. Calls are single-flight, made by
a small pool. No lock is held during a call.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from cloudsimfs.clock import Clock
from cloudsimfs.concurrency.singleflight import SingleFlight
from cloudsimfs.errors import (
    KeyRefused,
    NoSuchEntry,
    NotFound,
    NotOffered,
    Refused,
    ServiceError,
)
from cloudsimfs.runs.logcache import NEVER, LogCache
from cloudsimfs.runs.store import RunStore, public
from cloudsimfs.service import Client, RunStatus, Simulation, Urgency

log = logging.getLogger(__name__)

LIST = 0  # the key of a call for the list; a run's id is that of a call for the run
RENEWAL_GRACE = 2.0  # seconds a reader waits for a renewal before what is cached is served
RENEWAL_HOLD = 5.0  # seconds that what could not be renewed serves before the next call
TTL_STRETCH = 10.0  # factor applied to the TTL when no calls are left
LOOKING_SHARE = 0.25  # of the calls left, which looking may spend until the hour turns, once half are spent
MAX_LIST_AGE = 600.0  # seconds; the oldest list that is served to save calls
WHOLE_LIST_TTL = 24 * 3600.0  # seconds between lists of all pages, by which deleted runs are noticed
CALLERS = 4  # calls at the same time


class Watcher(Protocol):
    """Hears of changes. Called with no lock held."""

    def results_expected(self, folder: str) -> None:
        """The service is about to put files into this folder."""

    def results_saved(self, folder: str) -> None:
        """The service has put files into this folder: a run has ended."""

    def runs_changed(self, run_ids: set[int], active: frozenset[str]) -> None:
        """These runs, or their logs, are new or changed; runs are going on in the folders `active`."""


class RunList:
    """`ttl` in seconds: how long a list or a log is believed. `bulk`: v1's list may be asked for v2's logs."""

    def __init__(
        self,
        client: Client,
        store: RunStore,
        logs: LogCache,
        watcher: Watcher,
        *,
        ttl: float,
        bulk: bool,
        clock: Clock,
    ) -> None:
        self._client = client
        self._store = store
        self._logs = logs
        self._watcher = watcher
        self._ttl = ttl
        self._clock = clock
        self._bulk = bulk
        self._flights = SingleFlight[int, None](workers=CALLERS, name="runs", clock=clock)
        self._lock = threading.Lock()
        # all guarded by _lock
        self._runs: Mapping[int, Simulation] | None = None  # None: no list was ever fetched
        self._fetched_at = NEVER  # monotonic seconds, from before the call
        self._invalidated_at = NEVER  # monotonic seconds; a list fetched before is out of date
        self._whole_at = NEVER  # wall seconds; when all pages were fetched
        saved = store.runs()
        if saved is not None:
            self._whole_at, self._runs = saved[0], {run.id: run for run in saved[1]}

    def close(self) -> None:
        self._flights.close()

    # -- looking -----------------------------------------------------------------------------------------

    def cached(self) -> Mapping[int, Simulation] | None:
        """The list as it was last fetched; makes no call. None if none ever was."""
        with self._lock:
            return self._runs

    def cached_run(self, run_id: int) -> Simulation | None:
        """A run as it was last fetched; makes no call."""
        return (self.cached() or {}).get(run_id)

    def all(self) -> Mapping[int, Simulation]:
        """Every run by id, at most `ttl` old; older if the service cannot be asked now."""
        if not self.is_fresh(self.fetched_at):
            self.renew(known=self.cached() is not None)
        return self.cached() or {}

    def get(self, run_id: int) -> Simulation:
        """A run, as `all` has it. Raises NotFound."""
        run = self.cached_run(run_id)
        if run is None or not self.is_fresh(self.run_fetched_at(run_id)):
            run = self.all().get(run_id)
        if run is None:
            raise no_run(run_id)
        return run

    def invalidate(self) -> None:
        """The next look makes a call."""
        with self._lock:
            self._fetched_at, self._invalidated_at = NEVER, self._clock.monotonic()
        self._flights.release_all()

    @property
    def fetched_at(self) -> float:
        """When the list was last fetched (monotonic seconds), or NEVER."""
        with self._lock:
            return self._fetched_at

    def run_fetched_at(self, run_id: int) -> float:
        """When a run was last fetched with its log (monotonic seconds), NEVER, or WHOLE if its log grows no more."""
        return self._logs.fetched_at(run_id)

    def is_fresh(self, fetched_at: float) -> bool:
        """Whether what was fetched at that moment (monotonic seconds) serves without a call."""
        age = self._clock.monotonic() - fetched_at
        if age < self._ttl:
            return True
        budget = self._client.budget
        stretch = budget.stretch(TTL_STRETCH)
        if stretch == 1.0:
            return False
        return age < min(MAX_LIST_AGE, max(self._ttl * stretch, budget.pace(LOOKING_SHARE)))

    # -- one call for everybody --------------------------------------------------------------------------

    def renew(self, *, known: bool) -> None:
        """Fetch the list once for all who want it now. `known`: something serves if that fails or takes long."""
        self._renew(LIST, known=known)

    def renew_run(self, run_id: int, *, known: bool) -> None:
        """The same for one run with its log."""
        self._renew(run_id, known=known)

    def _renew(self, key: int, *, known: bool) -> None:
        def call() -> None:
            if key == LIST:
                self.fetch()
            else:
                self.fetch_run(key)

        failure = self._flights.renew(key, call, known=known, grace=RENEWAL_GRACE, hold=RENEWAL_HOLD)
        if failure is not None:
            log.warning("%s is stale: %s", f"run {key}" if key else "the list of runs", failure)

    def renew_with_logs(self) -> None:
        """Fetch the list with all logs, if the service offers that; a failure does not matter."""
        if self._bulk:
            with suppress(ServiceError):
                self._flights.start(LIST, lambda: self.fetch(logs=True)).result()

    def let_land(self, run_id: int) -> None:
        """Let the calls for the list and this run end that are under way, unless they are known to take long."""
        keys = [key for key in (LIST, run_id) if not self._flights.is_held(key)]
        wait(self._flights.under_way(*keys), timeout=RENEWAL_GRACE)

    def fetch_now(self) -> Mapping[int, Simulation]:
        """Every run by id, by a call that begins from now on, with the last calls of the hour if need be.

        Raises the ServiceError of the call.
        """
        wait(self._flights.under_way(LIST))
        self._flights.start(LIST, lambda: self.fetch(urgency=Urgency.CONTROL)).result()
        return self.cached() or {}

    # -- asking the service ------------------------------------------------------------------------------

    @property
    def is_v1(self) -> bool:
        """Whether the list carries all logs by itself; False as long as that cannot be found out."""
        try:
            return self._client.api_version == "v1"
        except ServiceError:
            return False

    def lists_logs(self, wanted: int) -> bool:
        """Whether a list is the cheapest way to `wanted` logs."""
        return self.is_v1 or (self._bulk and wanted > 1)

    def fetch(self, *, logs: bool = False, urgency: Urgency = Urgency.NORMAL) -> None:
        """Make the call for the list; `logs`: with all logs. Raises its ServiceError."""
        begun_at, begun_wall = self._clock.monotonic(), self._clock.now()
        older: dict[int, Simulation] | None = None  # the runs on pages that need not be fetched

        def enough(newest: list[Simulation]) -> bool:
            nonlocal older
            older = self._ended_before(newest)
            return older is not None

        try:
            runs = self._client.simulations(logs=logs, enough=enough, urgency=urgency)
        except (KeyRefused, NotOffered, NoSuchEntry, Refused):
            if logs:
                self._bulk = False  # it matters in v2 only
            raise
        with self._lock:
            if older is None:
                self._whole_at = begun_wall
            self._fetched_at = begun_at if begun_at >= self._invalidated_at else NEVER
        self._flights.release(LIST)
        self._take({**(older or {}), **{run.id: run for run in runs}}, begun_at)

    def _ended_before(self, newest: list[Simulation]) -> dict[int, Simulation] | None:
        """The cached runs older than these newest ones, if all of them have ended. None: fetch them too."""
        ids = [run.id for run in newest]
        with self._lock:
            cached, age = self._runs, self._clock.now() - self._whole_at
        if not ids or ids != sorted(ids, reverse=True) or cached is None or age > WHOLE_LIST_TTL:
            return None
        older = {run_id: run for run_id, run in cached.items() if run_id < ids[-1]}
        return None if any(run.active for run in older.values()) else older

    def fetch_run(self, run_id: int) -> None:
        """Make the call for one run with its log. Raises its ServiceError."""
        begun_at = self._clock.monotonic()
        run = self._client.simulation(run_id)
        self._flights.release(run_id)
        self._take({run_id: run}, begun_at, is_list=False)

    def _take(self, fetched: dict[int, Simulation], begun_at: float, *, is_list: bool = True) -> None:
        """Put what was fetched into the tables, and tell the watcher what is new."""
        with self._lock:
            before = self._runs or {}
            changed = {run.id for run in fetched.values() if self._logs.put(run, begun_at)}
            runs = {run.id: self._settled_locked(run, begun_at) for run in fetched.values()}
            if not is_list:
                runs = {**before, **runs}
            self._runs = runs
            whole_at = self._whole_at
        for run in runs.values():
            old = before.get(run.id)
            if old == run:
                continue
            changed.add(run.id)
            if old is None or not old.active or old.status == run.status:
                continue
            if not run.active:
                self._watcher.results_saved(run.folder)
            elif run.status == RunStatus.STOPPING:
                self._watcher.results_expected(run.folder)
        removed = before.keys() - runs.keys()
        if runs != before:
            self._store.save_runs(whole_at, runs.values())
        active = frozenset(run.folder for run in runs.values() if run.active)
        self._watcher.runs_changed(changed | removed, active)

    def _settled_locked(self, run: Simulation, begun_at: float) -> Simulation:
        """What to cache of a run: the cached one, if that was fetched later, with its log."""
        if self._runs is not None and run.id in self._runs and self._logs.is_newer(run.id, begun_at):
            return self._runs[run.id]
        return replace(run, output=None, raw=public(run))


def no_run(run_id: int) -> NotFound:
    return NotFound(f"no run {run_id}; `cloudsimfs runs` lists them")
