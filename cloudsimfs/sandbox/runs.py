"""All runs of the account: launched, listed, stopped, synced (docs/service.md, "Fields" and "States").

Threading: one lock for the state of all runs, never held while waiting. Must never leave a process or a thread
after `close()`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloudsimfs.sandbox.api import Refusal
from cloudsimfs.sandbox.objects import Links
from cloudsimfs.sandbox.run import Run
from cloudsimfs.sandbox.settings import Clock, Settings
from cloudsimfs.sandbox.store import NoEntry, Store

HARD_STOP, SOFT_STOP = "SIGINT", "SIGTSTP"  # docs/service.md, "Notes"
FORBIDDEN = frozenset(" ,()'$~\"#*?")  # in a run's folder (docs/service.md, "Limits")


class Runs:
    """All runs of the account."""

    def __init__(self, directory: Path, store: Store, links: Links, clock: Clock, settings: Settings) -> None:
        self._directory = directory
        self._store = store
        self._links = links
        self._clock = clock
        self._settings = settings
        self._lock = threading.Lock()
        self._ids = itertools.count(4711)
        self._runs: dict[int, Run] = {}  # guarded by _lock
        self._closed = False  # guarded by _lock

    def launch(self, data: dict[str, Any]) -> int:
        """Start a run, return its id. Raises Refusal for what docs/service.md, "Fields" does not allow."""
        request = self._checked(data)
        with self._lock:
            if self._closed:
                raise Refusal(503, "the service is shutting down")
            run_id = next(self._ids)
            run = Run(
                run_id,
                request,
                self._directory / str(run_id),
                self._store,
                self._clock,
                self._settings,
                self._lock,
            )
            self._runs[run_id] = run
        run.start()
        return run_id

    def get(self, run_id: int) -> dict[str, Any]:
        """One run with all its fields. Raises NoEntry."""
        run = self._find(run_id)
        with self._lock:
            fields = run.fields_locked()
        images = [{"name": image.name, "url": self._links.download("", image)} for image in run.images()]
        return {**fields, "images": images}

    def all(self) -> list[dict[str, Any]]:
        """All runs, oldest first."""
        with self._lock:
            ids = list(self._runs)
        return [self.get(run_id) for run_id in ids]

    def stop(self, run_id: int, name: str) -> None:
        """Hard or soft stop. Raises NoEntry, or Refusal for another signal or an ended run."""
        run = self._find(run_id)
        if name not in (HARD_STOP, SOFT_STOP):
            raise Refusal(400, "stop takes the signals SIGINT and SIGTSTP")
        with self._lock:
            run.stop_locked(hard=name == HARD_STOP)

    def sync(self, run_id: int) -> None:
        """Have the run save its results so far. Raises NoEntry, or Refusal if the run is not running."""
        run = self._find(run_id)
        with self._lock:
            run.sync_locked()

    def say(self, run_id: int, text: str) -> None:
        """Append to a run's log. Raises NoEntry."""
        run = self._find(run_id)
        with self._lock:
            run.say_locked(text)

    def alter(self, run_id: int, fields: Mapping[str, Any]) -> None:
        """Have a run list these fields, which no launch would allow. Raises NoEntry."""
        run = self._find(run_id)
        with self._lock:
            run.alter_locked(fields)

    def forget(self, run_id: int) -> None:
        """Delete a run from the list. Raises NoEntry."""
        self._find(run_id)
        with self._lock:
            del self._runs[run_id]

    def close(self) -> None:
        """Kill the runs that are active, and wait until their threads have ended."""
        with self._lock:
            self._closed = True
            runs = list(self._runs.values())
            for run in runs:
                if run.status.active:
                    run.stop_locked(hard=True)
        for run in runs:
            run.join()

    def _find(self, run_id: int) -> Run:
        with self._lock:
            run = self._runs.get(run_id)
        if run is None:
            raise NoEntry(run_id)
        return run

    def _checked(self, data: dict[str, Any]) -> dict[str, Any]:
        options = self._settings
        allowed = {"cpu": [str(cpu) for cpu in options.cpus], "ram": options.rams, "script": options.scripts}
        for name, values in allowed.items():
            if str(data.get(name)) not in values:
                raise Refusal(400, f"{name} must be one of {', '.join(values)}")
        folder, mesh = str(data.get("folder", "")).strip("/"), data.get("mesh")
        if not folder or FORBIDDEN & set(folder):
            raise Refusal(400, "folder is missing, or holds a space or one of , ( ) ' $ ~ \" # * ?")
        for needed in (folder, mesh):
            if needed is not None and not self._store.known_files(str(needed).strip("/")):
                raise Refusal(400, f"folder {needed} does not exist")
        nopre = data.get("nopre", 1)
        if nopre not in (0, 1):
            raise Refusal(400, "nopre must be 0 or 1")
        return {**data, "cpu": int(data["cpu"]), "folder": folder, "mesh": mesh, "nopre": int(nopre)}
