"""Launching: the words of the command, and that one command starts one run (docs/architecture.md, invariant 7).

The order of the steps: 1 check the words; 2 wait until all files below the folder are stored; 3 list the runs; 4
write the intent to the account's book (`book`); 5 POST; 6 write the outcome to the book. If it is killed before 4,
nothing was sent. After 4 the same request is refused until the run is found in the list, or the user says that there
is none. Nor is the service's refusal believed blindly: before the same is sent again, the list is looked at.

Other machines have books of their own: only the list shows what they have launched.

Threading: one launch at a time, of all threads and processes of the account, by a lock on a file of the book.
"""

from __future__ import annotations

import json
import logging
import re
import shlex
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from cloudsimfs.clock import Clock
from cloudsimfs.errors import (
    Cancelled,
    CloudsimfsError,
    Exists,
    Invalid,
    LaunchUnresolved,
    ServiceError,
    TryAgain,
)
from cloudsimfs.journal.rows import LaunchRow
from cloudsimfs.runs.book import LaunchBook
from cloudsimfs.runs.list import RunList
from cloudsimfs.runs.options import LaunchOptions, check_value
from cloudsimfs.runs.store import RunStore
from cloudsimfs.service import Client, LaunchRequest, Simulation, Urgency
from cloudsimfs.text import agree, listed

log = logging.getLogger(__name__)

FORBIDDEN = re.compile(r"[\s,()'$~\"#*?]")  # not allowed in a run's folder (docs/service.md, "Limits")
REQUIRED = ("cpu", "ram", "script", "folder")
SWITCHES = ("force", "yes", "dry-run")
WORDS = (*REQUIRED, "nopre", "mesh", "key", *SWITCHES)
DOUBT = 10.0  # seconds after a refusal for which a launch with a key waits: the run may be listed late
RECENT = timedelta(days=1)  # an ended run that began longer ago is not taken for another machine's with this key
EXAMPLE = "cpu=8 ram=highcore script=NAME folder=PATH"


class Storage(Protocol):
    """What a launch needs of the files."""

    def storage_path(self, text: str) -> str:
        """A folder as a user wrote it (storage path, or path within the mount) as a storage path."""

    def check_folder(self, path: str) -> None:
        """Raises NotFound or NotDirectory."""

    def barrier(self, path: str) -> None:
        """Wait until all below is on the service. Raises TryAgain."""


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """A checked command. `key`: never launch twice for it; `force`: forget an unresolved launch; `yes`: launch even
    if another machine may have launched for the same key.
    """

    request: LaunchRequest
    key: str | None
    force: bool
    yes: bool
    dry_run: bool


class Launcher:
    """Launches with one account."""

    def __init__(
        self,
        client: Client,
        runs: RunList,
        options: LaunchOptions,
        storage: Storage,
        book: LaunchBook,
        store: RunStore,
        *,
        clock: Clock,
    ) -> None:
        self._client = client
        self._runs = runs
        self._options = options
        self._storage = storage
        self._book = book
        self._store = store
        self._clock = clock
        self._closed = threading.Event()

    def launch(self, command: str) -> int | None:
        """Start the run that the words ask for and return its id, once all files below its folder are stored.

        None if that was to be checked only. Raises Invalid, NotFound, TryAgain, Exists if an earlier launch of the
        same request turns out to have started a run (or a run of another machine may be this key's), or the
        ServiceError of the call.
        """
        wanted = self._checked(parse_command(command))
        with self._book.alone():
            earlier = self._earlier(wanted)
            if earlier is not None or wanted.dry_run:
                return earlier
            request = wanted.request
            self._storage.barrier(request.folder)
            if request.mesh is not None:
                self._storage.barrier(request.mesh)
            runs = self._runs.fetch_now()  # what others launched until now must not be taken for ours later
            if wanted.key is not None and not wanted.yes:
                self._refuse_twin(wanted, runs)
            run_id = self._post(self._book.intend(request, wanted.key, runs))
        log.info("launched run %d in /%s", run_id, request.folder)
        self._runs.invalidate()
        return run_id

    def last(self) -> str:
        """The answer to the last launch, kept by `keep_last`; empty if there was none."""
        return self._store.launched()

    def keep_last(self, answer: str) -> None:
        self._store.save_launched(answer)

    def unresolved(self) -> str:
        """A line for each launch that got no answer and was not found in the list since."""
        try:
            rows = self._book.rows()
        except CloudsimfsError as error:
            return f"nothing can be launched: {error}\n"
        requests = [row.request for row in rows if row.run is None and row.refused is None]
        return "".join(
            f"a launch got no answer (cpu={request.cpu} ram={request.ram} script={request.script} "
            f"folder={request.folder}): write the same again to find out whether it started a run\n"
            for request in requests
        )

    def close(self) -> None:
        self._closed.set()
        self._book.close()

    # -- once --------------------------------------------------------------------------------------------

    def _post(self, row: LaunchRow) -> int:
        """Send the request, once, and write the outcome to the book. An uncertain failure leaves the intent there."""
        try:
            run_id = self._client.launch(row.request)
        except (LaunchUnresolved, Cancelled) as error:
            return self._resolved(row, self._look_for(row, str(error)))
        except ServiceError as error:
            self._book.refuse(row, str(error), self._clock.now())
            raise
        if run_id in row.known:
            run_id = self._look_for(row, f"the service answered with the id of the older run {run_id}")
        return self._resolved(row, run_id)

    def _resolved(self, row: LaunchRow, run_id: int) -> int:
        self._book.resolve(row, run_id)
        return run_id

    def _earlier(self, wanted: LaunchCommand) -> int | None:
        """The run of the same key, if there is one. Raises if an earlier launch must be cleared up first."""
        for row in self._book.rows():
            same_key = row.token is not None and row.token == wanted.key
            if row.run is not None:
                if same_key:
                    return _same(row.request, wanted, row.run)
            elif row.request == wanted.request or same_key:
                if wanted.force and not wanted.dry_run:
                    log.warning("a launch in /%s without answer is forgotten by request", row.request.folder)
                    self._book.drop(row)
                    continue
                run_id = self._outcome(row, wanted)
                if run_id is None:
                    continue
                if same_key:
                    return _same(row.request, wanted, run_id)
                raise Exists(f"the earlier launch did start run {run_id}; launch again if you want a second one")
        return None

    def _outcome(self, row: LaunchRow, wanted: LaunchCommand) -> int | None:
        """The run that an earlier launch has started; None if it was refused, and the list shows that it was.

        Raises TryAgain as long as neither is certain.
        """
        if row.refused is None:
            run_id = self._look_for(row, "an earlier launch of the same run got no answer")
        else:
            reason = f"an earlier launch of the same run was answered with an error ({row.refused})"
            found, left = self._new_runs(row, reason), row.refused_at + DOUBT - self._clock.now()
            if not found and wanted.key is not None and not wanted.dry_run and left > 0:
                self._clock.wait(self._closed, min(left, DOUBT))
                found = self._new_runs(row, reason)
            if not found:
                if not wanted.dry_run:
                    self._book.drop(row)
                return None
            run_id = _only(found, reason)
        if not wanted.dry_run:
            self._book.resolve(row, run_id)
        return run_id

    def _look_for(self, row: LaunchRow, reason: str) -> int:
        """The run that a launch without answer has started. Raises TryAgain as long as the list does not tell."""
        found = self._new_runs(row, reason)
        if not found:
            raise TryAgain(
                f"{reason}, and no new run is to be seen. Look at .simulations/runs again in some minutes; if there "
                "is still none, add force=1 to launch anew"
            )
        return _only(found, reason)

    def _new_runs(self, row: LaunchRow, reason: str) -> list[int]:
        """The runs with the words of a launch that were not there before it, and are not of another launch here.

        Raises TryAgain if the list cannot be had.
        """
        self._runs.invalidate()
        with suppress(ServiceError):  # v2 may show an old list until then
            self._client.server_cache.delete(Urgency.CONTROL)
        try:
            runs = self._runs.fetch_now()
        except ServiceError as error:
            raise TryAgain(
                f"{reason}, and the list of runs cannot be had ({error}): write the same again later"
            ) from error
        others = {each.run for each in self._book.rows()}
        return [run.id for run in runs.values() if run.id not in row.known | others and _is_run_of(run, row.request)]

    def _refuse_twin(self, wanted: LaunchCommand, runs: Mapping[int, Simulation]) -> None:
        """Raises Exists if another machine may have launched for this key: there is such a run, not launched here."""
        ours = {row.run for row in self._book.rows()}
        for run in runs.values():
            if run.id not in ours and _is_run_of(run, wanted.request) and (run.active or _is_recent(run)):
                raise Exists(
                    f"run {run.id} has the same words, and it was not launched from this machine: it may be the run "
                    f"of key={wanted.key}. To launch another one, add yes=1 (`--yes`)"
                )

    # -- the words -----------------------------------------------------------------------------------------

    def _checked(self, words: dict[str, str]) -> LaunchCommand:
        """Raises Invalid, NotFound or NotDirectory for what cannot be."""
        for name in ("nopre", *SWITCHES):
            if words.get(name, "0") not in ("0", "1"):
                hint = "0 asks for a SPOT instance, 1 for a REGULAR one" if name == "nopre" else "1 or nothing"
                raise Invalid(f"{name}={words[name]}: {hint}")
        folder = self._folder("folder", words["folder"])
        mesh = self._folder("mesh", words["mesh"]) if "mesh" in words else None
        if mesh is not None and self._client.api_version == "v1":
            raise Invalid("mesh: API v1 takes none; leave it out, or mount with --api v2")
        self._options.check("cpu", "cpu", words["cpu"])
        self._options.check("ram", "ram", words["ram"])
        self._options.check("scripts", "script", words["script"])
        for path in (folder, mesh):
            if path is not None:
                self._storage.check_folder(path)
        nopre = int(words["nopre"]) if "nopre" in words else None
        request = LaunchRequest(words["cpu"], words["ram"], words["script"], folder, nopre, mesh)
        force, yes, dry_run = (words.get(name) == "1" for name in SWITCHES)
        return LaunchCommand(request, words.get("key"), force, yes, dry_run)

    def _folder(self, word: str, text: str) -> str:
        path = self._storage.storage_path(text)
        forbidden = FORBIDDEN.search(path)
        if forbidden is not None:
            raise Invalid(
                f"{word} {path!r}: the service runs nothing in a folder with {forbidden[0]!r} in its name; rename it"
            )
        if not path or ".." in path.split("/"):
            raise Invalid(f"{word}={text}: name a folder of the storage, below its top")
        return path


def _is_run_of(run: Simulation, wanted: LaunchRequest) -> bool:
    return (str(run.cpu), run.ram, run.script, run.folder) == (wanted.cpu, wanted.ram, wanted.script, wanted.folder)


def _is_recent(run: Simulation) -> bool:
    """Whether the run began within a day. Where its time cannot be read, it did not."""
    try:
        started = datetime.fromisoformat(run.started)
    except ValueError:
        return False
    return datetime.now(UTC) - (started if started.tzinfo else started.replace(tzinfo=UTC)) < RECENT


def _only(found: Collection[int], reason: str) -> int:
    """The one run that was found. Raises TryAgain if there are several: no guess is made about money."""
    if len(found) > 1:
        raise TryAgain(
            f"{reason}, and there are several new runs with these words ({listed([*map(str, sorted(found))])}): look "
            "which of them are yours, and add force=1 to launch anew"
        )
    return next(iter(found))


def _same(request: LaunchRequest, wanted: LaunchCommand, run_id: int) -> int:
    """The run of a key, if the words are the same as then."""
    if request != wanted.request:
        raise Invalid(f"key={wanted.key} has launched run {run_id} with other words; take a new key for another run")
    return run_id


def parse_command(command: str) -> dict[str, str]:
    """`cpu=8 ram=...` or the same as a JSON object, as a dict. Raises Invalid."""
    try:
        if command.lstrip().startswith("{"):
            pairs = json.loads(command, object_pairs_hook=lambda items: [(key, _word(value)) for key, value in items])
        else:
            pairs = [_pair(word) for word in shlex.split(command)]
    except ValueError as error:
        raise Invalid(f"the command cannot be read: {error}; write: {EXAMPLE}") from error
    for key, _ in pairs:
        check_value("word", key, WORDS)
    words = dict(pairs)
    if len(words) < len(pairs):
        raise Invalid("a word is given twice")
    missing = [key for key in REQUIRED if not words.get(key)]
    if missing:
        raise Invalid(f"{listed(missing)} {agree(len(missing), 'is', 'are')} missing; write: {EXAMPLE}")
    return words


def _pair(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals:
        raise Invalid(f"{word!r} is not a word of the form name=value; write: {EXAMPLE}")
    return key, value


def _word(value: object) -> str:
    """A JSON value as a word: true and false are 1 and 0."""
    if isinstance(value, bool):
        return str(int(value))
    if not isinstance(value, (str, int)):
        raise Invalid(f"{value!r}: a value is text or a whole number")
    return str(value)
