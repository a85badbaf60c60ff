"""Commands to a run: stop, softly or hard, and save the results now.

The run's state is checked first, so that the service is not asked for what it would refuse.

Threading: none of its own; the caller's thread makes the calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from cloudsimfs.errors import Invalid, NoSuchEntry, Refused, WrongState
from cloudsimfs.runs.list import RunList, Watcher, no_run
from cloudsimfs.service import Client, RunStatus, Signal, Simulation

log = logging.getLogger(__name__)

STOPPABLE = (RunStatus.PENDING, RunStatus.RUNNING)
STOP_WORDS = {
    "soft": Signal.SOFT_STOP,
    "SIGTSTP": Signal.SOFT_STOP,
    "hard": Signal.HARD_STOP,
    "SIGINT": Signal.HARD_STOP,
}


class RunCommands:
    def __init__(self, client: Client, runs: RunList, watcher: Watcher) -> None:
        self._client = client
        self._runs = runs
        self._watcher = watcher

    def stop(self, run_id: int, word: str) -> None:
        """Stop a run `soft` or `hard`. Raises Invalid, NotFound, WrongState."""
        signal = STOP_WORDS.get(word)
        if signal is None:
            raise Invalid(f"{word!r}: write `soft` (saves the results) or `hard` (saves nothing)")
        hard = signal is Signal.HARD_STOP
        states = (
            (*STOPPABLE, RunStatus.STOPPING) if hard else STOPPABLE
        )  # a soft stop that takes too long may be made hard
        self._send(run_id, "stopped", states, lambda: self._client.stop(run_id, signal))

    def sync(self, run_id: int, word: str) -> None:
        """Have a run save its current results and go on. Raises Invalid, NotFound, WrongState."""
        if word != "1":
            raise Invalid(f"{word!r}: write `1` to have run {run_id} save its results now")
        self._send(run_id, "synced", (RunStatus.RUNNING,), lambda: self._client.sync(run_id))

    def _send(self, run_id: int, done: str, states: tuple[RunStatus, ...], call: Callable[[], None]) -> None:
        run = self._checked(run_id, done, states)
        try:
            call()
        except NoSuchEntry:
            raise no_run(run_id) from None
        except Refused as error:
            raise WrongState(f"run {run_id} could not be {done}: {error}") from error
        log.info("run %d: to be %s", run_id, done)
        self._runs.invalidate()
        self._watcher.results_expected(run.folder)

    def _checked(self, run_id: int, done: str, states: tuple[RunStatus, ...]) -> Simulation:
        run = self._runs.cached_run(run_id)
        if run is None or run.status not in states:
            self._runs.fetch_now()  # it may be new, or its state may have changed since
            run = self._runs.cached_run(run_id)
        if run is None:
            raise no_run(run_id)
        if run.status not in states:
            allowed = " or ".join(state.name for state in states)
            raise WrongState(f"run {run_id} is {run.status_name}; only one that is {allowed} can be {done}")
        return run
