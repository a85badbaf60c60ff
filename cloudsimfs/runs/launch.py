"""Launching: the words of the command, and that one command starts one run (docs/architecture.md, invariant 7).

The order of the steps: 1 check the words; 2 wait until all files below the folder are stored; 3 list the runs; 4
write the intent to the journal; 5 POST; 6 write the outcome to the journal. If it is killed before 4, nothing was
sent. After 4 the same request is refused until the run is found in the list, or the user says that there is none.

Threading: one launch at a time, of all threads and processes of the account, by a lock on a file.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cloudsimfs.errors import (
    Cancelled,
    Exists,
    Invalid,
    LaunchUnresolved,
    ServiceError,
    TryAgain,
)
from cloudsimfs.host.files import lock_file
from cloudsimfs.journal.journal import Journal
from cloudsimfs.runs.list import RunList
from cloudsimfs.runs.options import LaunchOptions, check_value
from cloudsimfs.runs.store import RunStore
from cloudsimfs.service import Client, LaunchRequest, Simulation, Urgency
from cloudsimfs.text import agree, listed

log = logging.getLogger(__name__)

FORBIDDEN = re.compile(r"[\s,()'$~\"#*?]")  # not allowed in a run's folder (docs/service.md, "Limits")
REQUIRED = ("cpu", "ram", "script", "folder")
SWITCHES = ("force", "dry-run")
WORDS = (*REQUIRED, "nopre", "mesh", "key", *SWITCHES)
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
    """A checked command. `key`: never launch twice for it; `force`: forget an unresolved launch."""

    request: LaunchRequest
    key: str | None
    force: bool
    dry_run: bool


class Launcher:
    """`lock_file` is one for all processes that launch with this account."""

    def __init__(
        self,
        client: Client,
        runs: RunList,
        options: LaunchOptions,
        storage: Storage,
        journal: Journal,
        store: RunStore,
        *,
        lock_file: Path,
    ) -> None:
        self._client = client
        self._runs = runs
        self._options = options
        self._storage = storage
        self._journal = journal
        self._store = store
        self._lock_file = lock_file

    def launch(self, command: str) -> int | None:
        """Start the run that the words ask for and return its id, once all files below its folder are stored.

        None if that was to be checked only. Raises Invalid, NotFound, TryAgain, Exists if an earlier launch of the
        same request turns out to have started a run, or the ServiceError of the call.
        """
        wanted = self._checked(parse_command(command))
        with self._alone():
            earlier = self._earlier(wanted)
            if earlier is not None or wanted.dry_run:
                return earlier
            request = wanted.request
            self._storage.barrier(request.folder)
            if request.mesh is not None:
                self._storage.barrier(request.mesh)
            row = self._journal.intend_launch(request, wanted.key, self._runs.fresh())
            run_id = self._post(request, row)
            self._journal.resolve_launch(row, run_id)
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
        requests = [row.request for row in self._journal.launches() if row.run is None]
        return "".join(
            f"a launch got no answer (cpu={request.cpu} ram={request.ram} script={request.script} "
            f"folder={request.folder}): write the same again to find out whether it started a run\n"
            for request in requests
        )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        fd = lock_file(self._lock_file, wait=True)
        try:
            yield
        finally:
            os.close(fd)

    # -- once --------------------------------------------------------------------------------------------

    def _post(self, request: LaunchRequest, row: int) -> int:
        """Send the request, once. A certain failure is dropped from the journal; an uncertain one stays there."""
        try:
            return self._client.launch(request)
        except (LaunchUnresolved, Cancelled) as error:
            known = next(launch.known for launch in self._journal.launches() if launch.id == row)
            return self._look_for(request, known, str(error))
        except ServiceError:
            self._journal.drop_launch(row)
            raise

    def _earlier(self, wanted: LaunchCommand) -> int | None:
        """The run of the same key, if there is one. Raises if an earlier launch must be cleared up first."""
        for row in self._journal.launches():
            same_key = row.token is not None and row.token == wanted.key
            if row.run is not None:
                if same_key:
                    return _same(row.request, wanted, row.run)
            elif row.request == wanted.request or same_key:
                if wanted.force and not wanted.dry_run:
                    log.warning("a launch in /%s without answer is forgotten by request", row.request.folder)
                    self._journal.drop_launch(row.id)
                    continue
                run_id = self._look_for(row.request, row.known, "an earlier launch of the same run got no answer")
                if not wanted.dry_run:
                    self._journal.resolve_launch(row.id, run_id)
                if same_key:
                    return _same(row.request, wanted, run_id)
                raise Exists(f"the earlier launch did start run {run_id}; launch again if you want a second one")
        return None

    def _look_for(self, wanted: LaunchRequest, known: frozenset[int], reason: str) -> int:
        """The run that a launch without answer has started. Raises TryAgain as long as the list shows none."""
        self._runs.invalidate()
        with suppress(ServiceError):  # v2 may show an old list until then; v1 does not offer the call
            self._client.delete_cache(urgency=Urgency.CONTROL)
        try:
            runs = self._runs.fresh()
        except ServiceError as error:
            raise TryAgain(
                f"{reason}, and the list of runs cannot be had ({error}): write the same again later"
            ) from error
        for run in runs.values():
            if run.id not in known and _is_run_of(run, wanted):
                return run.id
        raise TryAgain(
            f"{reason}, and no new run is to be seen. Look at .simulations/runs again in some minutes; if there "
            "is still none, add force=1 to launch anew"
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
        return LaunchCommand(request, words.get("key"), words.get("force") == "1", words.get("dry-run") == "1")

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
