"""Simulations: one shared cached list, logs, what may be asked for, and the commands launch, stop and sync.

One list call refreshes every run for everybody who looks; nobody looking means no calls. A launch is sent once:
the intent is in the journal before the POST, an answer that was lost is looked for in the list of runs, and until it
is found the same request is refused, also after a crash (design.md, invariant 7).

Threading: fetches are single-flight; `_lock` protects the tables and is a leaf. No lock is held during a call.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
import shlex
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from cloudsimfs.clock import Clock
from cloudsimfs.errors import (
    Cancelled,
    Exists,
    Invalid,
    LaunchUnresolved,
    NoSuchEntry,
    NotFound,
    Refused,
    ServiceError,
    TryAgain,
    WrongState,
)
from cloudsimfs.journal import Journal, LaunchRow
from cloudsimfs.service import Client, LaunchRequest, RunStatus, Signal, Simulation

log = logging.getLogger(__name__)

OPTIONS_TTL = 24 * 3600.0  # seconds; what may be asked for hardly ever changes
FORBIDDEN = re.compile(r"[\s,()'$~\"#*?]")  # not allowed in a run's folder (service-observed.md, "Limits")
WORDS = ("cpu", "ram", "script", "folder", "nopre", "mesh", "key")
REQUIRED = ("cpu", "ram", "script", "folder")
STOP_WORDS = {
    "soft": Signal.SOFT_STOP,
    "SIGTSTP": Signal.SOFT_STOP,
    "hard": Signal.HARD_STOP,
    "SIGINT": Signal.HARD_STOP,
}


class Storage(Protocol):
    """What a launch needs of the mount's files."""

    def storage_path(self, text: str) -> str:
        """A folder as a user wrote it (storage path, or path within the mount) as a storage path."""

    def check_folder(self, path: str) -> None:
        """Raises NotFound or NotDirectory."""

    def barrier(self, path: str) -> None:
        """Wait until all below is on the service. Raises TryAgain."""

    def refresh(self, path: str) -> None:
        """The service has put, or is about to put, files into this folder."""

    def runs_changed(self, run_ids: list[int], active: frozenset[str]) -> None:
        """These runs are new or have another state; `active` are the folders in which runs are going on."""


class Runs:
    """`ttl` in seconds: how long a list or a log is believed."""

    def __init__(self, client: Client, storage: Storage, journal: Journal, *, ttl: float, clock: Clock) -> None:
        self._client = client
        self._storage = storage
        self._journal = journal
        self._ttl = ttl
        self._clock = clock
        self._lock = threading.Lock()
        self._fetching = threading.Lock()  # held during the one list call; taken by those who wait for its answer
        self._launching = threading.Lock()  # one launch at a time, so that "a new run" is unambiguous
        self._runs: dict[int, Simulation] = {}
        self._runs_at: float | None = None  # monotonic seconds
        self._details: dict[int, tuple[float, Simulation]] = {}
        self._options: dict[str, tuple[float, tuple[str, ...]]] = {}

    # -- looking -----------------------------------------------------------------------------------------

    def all(self) -> dict[int, Simulation]:
        """Every run by id, at most `ttl` old; older if the service cannot be asked now."""
        asked = self._clock.monotonic()
        with self._fetching:
            with self._lock:
                at, known = self._runs_at, self._runs
            if at is not None and (asked < at or self._clock.monotonic() - at < self._ttl):
                return known
            try:
                fresh = {run.id: run for run in self._client.simulations()}
            except ServiceError as error:
                if at is None:
                    raise
                log.warning("the list of runs is stale: %s", error)
                return known
            with self._lock:
                self._runs, self._runs_at = fresh, self._clock.monotonic()
        changed = [run for run in fresh.values() if known.get(run.id) != run]
        for run in changed:
            before = known.get(run.id)
            if before is not None and before.active and before.status != run.status:
                self._storage.refresh(run.folder)
        active = frozenset(run.folder.strip("/") for run in fresh.values() if run.active)
        self._storage.runs_changed([run.id for run in changed], active)
        return fresh

    def known(self) -> dict[int, Simulation]:
        """What `all` last answered; asks nobody."""
        with self._lock:
            return self._runs

    def get(self, run_id: int) -> Simulation:
        try:
            return self.all()[run_id]
        except KeyError:
            raise NotFound(f"no run {run_id}; `cat .simulations/runs` lists them") from None

    def output(self, run_id: int, *, look: bool) -> str:
        """The run's log. With `look` off, what is known of it without a call of its own."""
        run = self.known().get(run_id) or self.get(run_id)
        if run.output is not None:  # v1's list carries every log
            return run.output
        with self._lock:
            at, detail = self._details.get(run_id, (None, None))
        if look and (at is None or detail is None or self._is_old(at, run, detail)):
            asked = self._clock.monotonic()
            try:
                detail = self._client.simulation(run_id)
            except ServiceError:
                if detail is None:
                    raise
            with self._lock:
                self._details[run_id] = (asked, detail)
                self._runs = {**self._runs, run_id: replace(detail, output=None)}  # the newer state of it
        return "" if detail is None else detail.output or ""

    def _is_old(self, at: float, run: Simulation, detail: Simulation) -> bool:
        ended_and_whole = not run.active and detail.status == run.status
        return not ended_and_whole and self._clock.monotonic() - at >= self._ttl

    def option(self, name: str) -> tuple[str, ...]:
        """The values a launch may use for `cpu`, `ram` or `scripts`."""
        with self._lock:
            at, values = self._options.get(name, (None, ()))
        if at is not None and self._clock.monotonic() - at < OPTIONS_TTL:
            return values
        lookup: dict[str, Callable[[], tuple[str, ...]]] = {
            "cpu": self._client.cpu_values,
            "ram": self._client.ram_values,
            "scripts": self._client.scripts,
        }
        values = lookup[name]()
        with self._lock:
            self._options[name] = (self._clock.monotonic(), values)
        return values

    def known_option(self, name: str) -> tuple[str, ...]:
        """What `option` last answered, nothing before it was asked; asks nobody."""
        with self._lock:
            return self._options.get(name, (0.0, ()))[1]

    # -- commands ----------------------------------------------------------------------------------------

    def _expire(self) -> None:
        with self._lock:
            if self._runs_at is not None:
                self._runs_at -= self._ttl

    def launch(self, command: str) -> int:
        """Start the run that the words ask for and return its id, once all files below its folder are stored.

        The same `key` never launches twice. Raises Invalid, NotFound, TryAgain, Exists if an earlier launch of the
        same request turns out to have started a run, or the ServiceError of the call.
        """
        words = parse_command(command)
        token = words.pop("key", None)
        with self._launching:
            request = self._request(words)
            earlier = self._earlier(request, token)
            if earlier is not None:
                return earlier
            self._storage.barrier(request.folder)
            if request.mesh is not None:
                self._storage.barrier(request.mesh)
            self._expire()
            row = self._journal.intend_launch(request, token, self.all())
            run_id = self._post(request, row)
            self._journal.resolve_launch(row, run_id)
        log.info("launched run %d in /%s", run_id, request.folder)
        self._expire()
        return run_id

    def _post(self, request: LaunchRequest, row: int) -> int:
        """Send it, once. What fails for certain leaves no trace; anything else stays in the journal."""
        try:
            return self._client.launch(request)
        except (LaunchUnresolved, Cancelled) as error:
            return self._look_for(next(found for found in self._journal.launches() if found.id == row), str(error))
        except ServiceError:
            self._journal.drop_launch(row)
            raise

    def _earlier(self, request: LaunchRequest, token: str | None) -> int | None:
        """The run of the same key, if there is one. Raises if an earlier launch must be cleared up first."""
        for row in self._journal.launches():
            if row.run is not None:
                if row.token is not None and row.token == token:
                    return row.run
            elif row.request == request or (token is not None and row.token == token):
                found = self._look_for(row, "an earlier launch of the same run got no answer")
                self._journal.resolve_launch(row.id, found)
                if row.token is not None and row.token == token:
                    return found
                raise Exists(f"the earlier launch did start run {found}; launch again if you want a second one")
        return None

    def _look_for(self, row: LaunchRow, reason: str) -> int:
        """The run that a lost answer spoke of. Raises TryAgain while none is to be seen."""
        self._expire()
        wanted = row.request
        for run in self.all().values():
            same = (str(run.cpu), run.ram, run.script, run.folder.strip("/"))
            if run.id not in row.known and same == (wanted.cpu, wanted.ram, wanted.script, wanted.folder):
                return run.id
        raise TryAgain(f"{reason}. No new run is to be seen yet: look at .simulations/runs before you try again")

    def _request(self, words: dict[str, str]) -> LaunchRequest:
        folder = self._storage.storage_path(words["folder"])
        mesh = None if "mesh" not in words else self._storage.storage_path(words["mesh"])
        for path in (folder, mesh or ""):
            found = FORBIDDEN.search(path)
            if found is not None:
                raise Invalid(f"folder {path!r}: the service runs nothing in a folder with {found[0]!r} in its name")
        check_value("cpu", words["cpu"], self.option("cpu"))
        check_value("ram", words["ram"], self.option("ram"))
        check_value("script", words["script"], self.option("scripts"))
        if words.get("nopre", "0") not in ("0", "1"):
            raise Invalid(f"nopre={words['nopre']}: 0 asks for a SPOT instance, 1 for a REGULAR one")
        self._storage.check_folder(folder)
        nopre = int(words["nopre"]) if "nopre" in words else None
        return LaunchRequest(words["cpu"], words["ram"], words["script"], folder, nopre, mesh)

    def stop(self, run_id: int, word: str) -> None:
        """Stop a run `soft` or `hard`. Raises Invalid, NotFound, WrongState."""
        signal = STOP_WORDS.get(word)
        if signal is None:
            raise Invalid(f"{word!r}: write `soft` (saves the results) or `hard` (saves nothing)")
        run = self._in_state(run_id, "stopped", (RunStatus.PENDING, RunStatus.RUNNING))
        try:
            self._client.stop(run_id, signal)
        except NoSuchEntry:
            raise NotFound(f"no run {run_id}") from None
        except Refused as error:
            raise WrongState(f"run {run_id} could not be stopped: {error}") from error
        self._expire()
        self._storage.refresh(run.folder)

    def sync(self, run_id: int, word: str) -> None:
        """Have a run save its current results and go on. Raises Invalid, NotFound, WrongState."""
        if word != "1":
            raise Invalid(f"{word!r}: write `1` to have run {run_id} save its results now")
        run = self._in_state(run_id, "synced", (RunStatus.RUNNING,))
        try:
            self._client.sync(run_id)
        except NoSuchEntry:
            raise NotFound(f"no run {run_id}") from None
        except Refused as error:
            raise WrongState(f"run {run_id} could not be synced: {error}") from error
        self._storage.refresh(run.folder)

    def _in_state(self, run_id: int, what: str, states: tuple[RunStatus, ...]) -> Simulation:
        run = self.get(run_id)
        if run.status not in states:
            self._expire()  # it may have moved on since
            run = self.get(run_id)
        if run.status not in states:
            allowed = " or ".join(state.name for state in states)
            raise WrongState(f"run {run_id} is {run.status_name}; only one that is {allowed} can be {what}")
        return run


# -- the words of a launch -------------------------------------------------------------------------------


def parse_command(command: str) -> dict[str, str]:
    """`cpu=8 ram=...` or the same as a JSON object, as a dict. Raises Invalid."""
    try:
        if command.lstrip().startswith("{"):
            pairs = [(str(key), str(value)) for key, value in json.loads(command).items()]
        else:
            pairs = []
            for word in shlex.split(command):
                key, equals, value = word.partition("=")
                if not equals:
                    raise Invalid(f"{word!r} is not a word of the form name=value")
                pairs.append((key, value))
    except ValueError as error:
        raise Invalid(f"the command cannot be read: {error}") from error
    for key, _ in pairs:
        check_value("word", key, WORDS)
    words = dict(pairs)
    if len(words) < len(pairs):
        raise Invalid("a word is given twice")
    missing = [key for key in REQUIRED if not words.get(key)]
    if missing:
        raise Invalid(f"{' and '.join(missing)} missing; write: cpu=8 ram=highcore script=NAME folder=PATH")
    return words


def check_value(what: str, value: str, allowed: Iterable[str]) -> None:
    """Raises Invalid, naming near values, if `value` is not one of `allowed`."""
    values = list(allowed)
    if value in values:
        return
    near = difflib.get_close_matches(value, values, n=3, cutoff=0.5) or values[:12]
    raise Invalid(f"{what} {value!r} is not offered; there is: {', '.join(near)}")
