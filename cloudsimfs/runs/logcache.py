"""The logs known: those of active runs in memory, whole ones of ended runs on disk too.

Threading: `_lock` protects all; a leaf. Nothing here asks the service.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

from cloudsimfs.runs.store import RunStore
from cloudsimfs.service import Simulation

NEVER, WHOLE = -math.inf, math.inf  # when a log was fetched: not yet; and there is no more to fetch


@dataclass(frozen=True, slots=True)
class Log:
    """A run's output. `fetched_at` is monotonic seconds, from before the call; `whole`: the run had ended."""

    data: bytes
    fetched_at: float
    whole: bool


class LogCache:
    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._logs: dict[int, Log] = {}  # guarded by _lock
        self._on_disk: set[int] = set()  # runs whose whole log is there; guarded by _lock

    def get(self, run: Simulation) -> Log | None:
        """The log as it was last fetched."""
        with self._lock:
            log = self._logs.get(run.id)
        if log is None and not run.active:
            data = self._store.blob(run.id, "log")
            if data is not None:
                log = Log(data, NEVER, whole=True)
                with self._lock:
                    self._logs[run.id] = log
                    self._on_disk.add(run.id)
        return log

    def fetched_at(self, run_id: int) -> float:
        """When the log was last fetched (monotonic seconds), NEVER or WHOLE."""
        with self._lock:
            log = self._logs.get(run_id)
        if log is None:
            return NEVER
        return WHOLE if log.whole else log.fetched_at

    def is_newer(self, run_id: int, moment: float) -> bool:
        """Whether the log was fetched after that moment (monotonic seconds)."""
        with self._lock:
            log = self._logs.get(run_id)
        return log is not None and log.fetched_at > moment

    def of_active(self) -> dict[int, float]:
        """When the logs that may still grow were last fetched (monotonic seconds), by run."""
        with self._lock:
            return {run_id: log.fetched_at for run_id, log in self._logs.items() if not log.whole}

    def put(self, run: Simulation, fetched_at: float) -> bool:
        """Keep the log that came with a run, if one did; whether it differs from the one known."""
        if run.output is None:
            return False
        data = run.output.encode("utf-8", "replace")
        with self._lock:
            old = self._logs.get(run.id)
            if old is not None and (old.whole or old.fetched_at > fetched_at):
                return False
            self._logs[run.id] = Log(data, fetched_at, whole=not run.active)
        return old is None or old.data != data

    def keep(self, run_id: int, log: Log) -> None:
        """Write a whole log to disk, once."""
        with self._lock:
            if not log.whole or run_id in self._on_disk:
                return
            self._on_disk.add(run_id)
        self._store.save_blob(run_id, "log", log.data)
