"""One run: a thread that waits, copies the folder, reads the solver's log and saves results.

Nothing else changes the run's status but stop requests. Threading: the lock is that of all runs (`Runs`), and is
never held while waiting. Must never leave a process or a thread behind, nor compute in the storage itself.
"""

from __future__ import annotations

import enum
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
from cloudsimfs.sandbox.settings import Clock, Settings, sql_time
from cloudsimfs.sandbox.solver import SIGNALS, SYNCED
from cloudsimfs.sandbox.store import Store, Visible

SHORT_LACKS = frozenset({"output", "logs"})  # fields that v2's view-short leaves out
V2_ONLY = frozenset({"cpu_hrs", "cost", "vnc_url"})
_COST_PER_CPU_HOUR = 0.05
_LINK_ABOVE = 64 * 1024 * 1024  # bytes; larger inputs are linked into the working directory, not copied
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


class Status(enum.IntEnum):
    """docs/service.md, "States". Not the client's table: a mistake must not hide in both."""

    COMPLETED = 10
    PENDING = 20
    RUNNING = 30
    STOPPING = 40
    STOPPED = 50
    ERROR = 60

    @property
    def active(self) -> bool:
        return self in (Status.PENDING, Status.RUNNING, Status.STOPPING)


class Run:
    """One run. `lock` is that of all runs; `request` is a launch that has passed `Runs`."""

    def __init__(
        self,
        run_id: int,
        request: dict[str, Any],
        directory: Path,
        store: Store,
        clock: Clock,
        settings: Settings,
        lock: threading.Lock,
    ) -> None:
        self.id = run_id
        self.status = Status.PENDING  # guarded by lock, as all below
        self._request = request
        self._folder: str = request["folder"]
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
        self._woken = threading.Event()  # a stop came before the solver started
        self._process: subprocess.Popen[bytes] | None = None
        self._saved: dict[str, tuple[int, int]] = {}  # used by the thread only: the stamp of each work file as stored
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
        self._request = {**self._request, **fields}
        self._folder = self._request["folder"]

    def images(self) -> list[Path]:
        return sorted(self._work.rglob("*.png"))

    def fields_locked(self) -> dict[str, Any]:
        """The fields of docs/service.md, "Fields", with those that only v2 has."""
        end = self._ended if self._ended is not None else self._clock.now()
        hours = max(0.0, end - self._started) / 3600 * self._request["cpu"] if self._started else 0.0
        return {
            "id": self.id,
            "mdate": sql_time(self._changed),
            "user_id": 7,
            "bucket": "sandbox-user-7",
            "cpu": self._request["cpu"],
            "ram": self._request["ram"],
            "nopre": self._request["nopre"],
            "folder": self._folder,
            "mesh": self._request["mesh"],
            "script": self._request["script"],
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
        self._keep_images_only()
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
        """Start the solver; None if a stop came first."""
        # The solver inherits the mask: a signal sent before its handlers exist waits instead of ending it.
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
                process_group=0,  # so that Ctrl-C in a terminal reaches the sandbox only
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
                    if file.blob.size > _LINK_ABOVE:
                        os.link(file.blob.file, target)  # safe: the solver replaces files, it never writes into one
                    else:
                        shutil.copyfile(file.blob.file, target)
                except FileNotFoundError:
                    continue  # deleted or replaced meanwhile: the run starts without it
            self._saved[relative] = _stamp(target)

    def _save(self) -> None:
        """Store the files that are new or changed in the working directory."""
        for file in sorted(self._work.rglob("*")):
            relative = file.relative_to(self._work).as_posix()
            if not file.is_file() or file.suffix == ".tmp" or self._saved.get(relative) == _stamp(file):
                continue
            self._saved[relative] = _stamp(file)
            self._store.put_data(paths.join(self._folder, relative), file, Visible.LAGGED)

    def _keep_images_only(self) -> None:
        """Free the disk; images stay, because links to them can still be requested."""
        for file in self._work.rglob("*"):
            if file.is_file() and file.suffix != ".png":
                file.unlink()

    def _to_locked(self, status: Status) -> None:
        self.status = status
        self._changed = self._clock.now()


def _stamp(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_mtime_ns, status.st_size
