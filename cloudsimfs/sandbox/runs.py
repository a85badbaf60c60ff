"""Simulations: launched, really computed, followed, stopped, synced (docs/service.md, "Fields" and "States").

Each run has a thread, which waits, copies the folder, reads the solver's log and saves results; nothing else
changes its status but stop requests. Threading: one lock for the state of all runs, never held while waiting.
Must never leave a process or a thread after `close()`, nor compute in the storage itself.
"""

from __future__ import annotations

import enum
import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloudsimfs import paths
from cloudsimfs.sandbox.api import Refusal
from cloudsimfs.sandbox.objects import Links
from cloudsimfs.sandbox.settings import Clock, Settings, sql_time
from cloudsimfs.sandbox.solver import SIGNALS, SYNCED
from cloudsimfs.sandbox.store import NoEntry, Store, Visible

HARD_STOP, SOFT_STOP = "SIGINT", "SIGTSTP"  # docs/service.md, "Endpoints", notes
FORBIDDEN = frozenset(" ,()'$~\"#*?")  # in a run's folder (docs/service.md, "Limits")
SHORT_LACKS = frozenset({"output", "logs"})  # what v2's view-short leaves out
V2_ONLY = frozenset({"cpu_hrs", "cost", "vnc_url"})
_COST_PER_CPU_HOUR = 0.05
_LARGE = 64 * 1024 * 1024  # bytes; larger inputs are linked
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


class Status(enum.IntEnum):
    """docs/service.md, "States". The sandbox's own table: it must not share a mistake with the client's."""

    COMPLETED = 10
    PENDING = 20
    RUNNING = 30
    STOPPING = 40
    STOPPED = 50
    ERROR = 60

    @property
    def active(self) -> bool:
        return self in (Status.PENDING, Status.RUNNING, Status.STOPPING)


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
        self._runs: dict[int, _Run] = {}  # guarded by: _lock
        self._closed = False  # guarded by: _lock

    def launch(self, data: dict[str, Any]) -> int:
        """Start a run, return its id. Raises Refusal for what docs/service.md, "Fields" does not allow."""
        asked = self._checked(data)
        with self._lock:
            if self._closed:
                raise Refusal(503, "the service is shutting down")
            run_id = next(self._ids)
            run = _Run(
                run_id,
                asked,
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
        urls = [(picture, self._links.download("", picture)) for picture in run.pictures()]
        return {**fields, "images": [{"name": picture.name, "url": url} for picture, url in urls]}

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
        """Have the results so far saved. Raises NoEntry, or Refusal if the run is not running."""
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
        """Kill what runs and wait until it is gone."""
        with self._lock:
            self._closed = True
            runs = list(self._runs.values())
            for run in runs:
                if run.status.active:
                    run.stop_locked(hard=True)
        for run in runs:
            run.join()

    def _find(self, run_id: int) -> _Run:
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


class _Run:
    """One run. Its lock is that of all runs."""

    def __init__(
        self,
        run_id: int,
        asked: dict[str, Any],
        directory: Path,
        store: Store,
        clock: Clock,
        settings: Settings,
        lock: threading.Lock,
    ) -> None:
        self.id = run_id
        self.status = Status.PENDING  # guarded by: lock, as all below
        self._asked = asked
        self._folder: str = asked["folder"]
        self._work = directory
        self._store = store
        self._clock = clock
        self._settings = settings
        self._lock = lock
        self._launched = clock.now()
        self._changed = self._launched
        self._started: float | None = None
        self._ended: float | None = None
        self._log: list[str] = []
        self._hard = self._soft = False
        self._woken = threading.Event()  # a stop came while pending
        self._process: subprocess.Popen[bytes] | None = None
        self._saved: dict[str, tuple[int, int]] = {}  # the thread's own: what storage has of each work file
        self._thread = threading.Thread(target=self._main, name=f"run-{run_id}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    # -- requests -----------------------------------------------------------------------------------

    def stop_locked(self, *, hard: bool) -> None:
        if not self.status.active or (self._soft and not hard):
            raise Refusal(409, f"the simulation is {self.status.name}")
        self._hard, self._soft = self._hard or hard, True
        self._to_locked(Status.STOPPING)
        self._woken.set()
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL if hard else signal.SIGTSTP)

    def sync_locked(self) -> None:
        if self.status is not Status.RUNNING or self._process is None:
            raise Refusal(409, f"the simulation is {self.status.name}")
        self._process.send_signal(signal.SIGQUIT)

    def say_locked(self, text: str) -> None:
        self._log.append(text)

    def alter_locked(self, fields: Mapping[str, Any]) -> None:
        self._asked = {**self._asked, **fields}
        self._folder = self._asked["folder"]

    def pictures(self) -> list[Path]:
        return sorted(self._work.rglob("*.png"))

    def fields_locked(self) -> dict[str, Any]:
        """docs/service.md, "Fields", and what v2 adds (docs/service.md)."""
        end = self._ended if self._ended is not None else self._clock.now()
        hours = max(0.0, end - self._started) / 3600 * self._asked["cpu"] if self._started else 0.0
        return {
            "id": self.id,
            "mdate": sql_time(self._changed),
            "user_id": 7,
            "bucket": "sandbox-user-7",
            "cpu": self._asked["cpu"],
            "ram": self._asked["ram"],
            "nopre": self._asked["nopre"],
            "folder": self._folder,
            "mesh": self._asked["mesh"],
            "script": self._asked["script"],
            "clean": 0,
            "idate": sql_time(self._launched),
            "edate": sql_time(self._ended),
            "status": int(self.status),
            "pid": self._process.pid if self._process else 0,
            "tid": None,
            "output": "".join(self._log),
            "images": [],
            "cpu_hrs": round(hours, 4),
            "cost": round(hours * _COST_PER_CPU_HOUR, 4),
            "vnc_url": None,
        }

    # -- the run's thread ---------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            end = self._compute()
        except OSError as error:
            with self._lock:
                self._log.append(f"error: the machine failed: {error.strerror}\n")
            end = Status.ERROR
        self._keep_pictures_only()
        with self._lock:
            self._ended = self._clock.now()
            self._to_locked(end)

    def _compute(self) -> Status:
        if self._woken.wait(self._settings.pending_seconds):
            return Status.STOPPED
        self._copy_in()
        process = self._spawn()
        if process is None:
            return Status.STOPPED
        with process:
            assert process.stdout is not None
            for raw in process.stdout:
                line = raw.decode("utf-8", "replace")
                with self._lock:
                    self._log.append(line)
                if line.startswith(SYNCED):
                    self._save()
        with self._lock:
            hard, soft = self._hard, self._soft
        if hard:
            return Status.STOPPED
        self._save()
        if soft:
            return Status.STOPPED
        return Status.COMPLETED if process.returncode == 0 else Status.ERROR

    def _spawn(self) -> subprocess.Popen[bytes] | None:
        """Start the solver, unless a stop came first."""
        # Inherited: a signal sent before the solver can take it waits instead of ending it.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        path = os.pathsep.join(filter(None, (str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH"))))
        with self._lock:
            if self._soft:
                return None
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "cloudsimfs.sandbox.solver"],
                cwd=self._work,
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=0,  # the terminal's Ctrl-C is for the sandbox
            )
            self._started = self._clock.now()
            self._to_locked(Status.RUNNING)
            return self._process

    def _copy_in(self) -> None:
        self._work.mkdir(parents=True)
        for path, file in self._store.known_files(self._folder).items():
            relative = path[len(self._folder) + 1 :]
            target = self._work / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            if file.blob.file is None:
                target.write_bytes(file.blob.read())
            else:
                try:
                    if file.blob.size > _LARGE:
                        os.link(file.blob.file, target)  # the solver replaces files, it never writes into one
                    else:
                        shutil.copyfile(file.blob.file, target)
                except FileNotFoundError:
                    continue  # deleted or replaced since: the run goes without it
            self._saved[relative] = _stamp(target)

    def _save(self) -> None:
        """Store what is new or changed in the working directory."""
        for file in sorted(self._work.rglob("*")):
            relative = file.relative_to(self._work).as_posix()
            if not file.is_file() or file.suffix == ".tmp" or self._saved.get(relative) == _stamp(file):
                continue
            self._saved[relative] = _stamp(file)
            blob = self._store.blobs.make(file)
            self._store.put(paths.join(self._folder, relative), blob, Visible.LAGGED)

    def _keep_pictures_only(self) -> None:
        """Free the disk; the pictures stay, for they can still be asked for."""
        for file in self._work.rglob("*"):
            if file.is_file() and file.suffix != ".png":
                file.unlink()

    def _to_locked(self, status: Status) -> None:
        self.status = status
        self._changed = self._clock.now()


def _stamp(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_mtime_ns, status.st_size
