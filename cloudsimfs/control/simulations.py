"""`.simulations/`: the table of its files, folders and links (docs/architecture.md, "Runs as files").

Reading costs no call while the cached state is fresh; only writes act. Names and values from the service are not
trusted: a name that is not fit for a file is left out, and a value is shown on one line.

Threading: called by FUSE callbacks on many threads. `_lock` is a leaf; it protects the last error and launch.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict

from cloudsimfs import paths
from cloudsimfs.control.virtual import File, Folder, Link, Node, as_json, text
from cloudsimfs.errors import CloudsimfsError, NotFound, ServiceError
from cloudsimfs.redact import redact
from cloudsimfs.runs.account import AccountRuns
from cloudsimfs.runs.options import NAMES
from cloudsimfs.runs.poller import Followed
from cloudsimfs.service import Simulation
from cloudsimfs.text import printable

SIMULATIONS = ".simulations"
README = """\
Runs are driven by the files in this folder. `ls -a` of the folder above does not list it, so that programs that walk
over the drive (cp -r, tar, a backup) do not copy every log. Name it, and it is there. From the top of the mount:

  cat .simulations/options/scripts            what software there is (also: cpu, ram)
  echo "cpu=8 ram=highcore script=NAME folder=case1" > .simulations/launch
  cat .simulations/launch                     the last launch: its id
  cat .simulations/runs                       all runs: id status script cpu ram folder started ended
  cat .simulations/<id>/status                one of PENDING RUNNING STOPPING STOPPED COMPLETED ERROR
  tail -f .simulations/<id>/log               the run's output as it grows
  ls .simulations/<id>/images                 the run's images
  ls .simulations/<id>/results/               the folder it runs in
  cat .simulations/latest/case1/status        the same of the newest run in a folder
  echo 1 > .simulations/<id>/sync             save the current results into the folder; the run goes on
  echo soft > .simulations/<id>/stop          stop at this iteration and save the results
  echo hard > .simulations/<id>/stop          kill it; nothing is saved
  cat .simulations/error                      why the last command failed, and what to do
  cat .simulations/budget                     how many API calls are left

Words of a launch, also as a JSON object:
  folder=PATH   the folder to run in: as it is called in the storage, or its path in the mount
  nopre=0|1     0 asks for a SPOT instance, 1 for a REGULAR one, if the account may choose
  mesh=PATH     a folder with the mesh (API v2)
  key=TOKEN     any word; the same key never launches twice from this machine, however often it is written
  yes=1         launch although a run with the same words may be this key's, launched by another machine
  dry-run=1     check everything, start nothing
  force=1       forget an earlier launch that got no answer

A launch first waits until all files below its folder are stored, and returns when the service has given an id.
"""


class Simulations:
    """`changed` is called with the paths, below the mount, of virtual files whose contents a command has changed."""

    def __init__(
        self,
        account: AccountRuns,
        *,
        changed: Callable[[list[str]], None],
    ) -> None:
        self._account = account
        self._runs = account.runs
        self._logs = account.logs
        self._images = account.images
        self._options = account.options
        self._commands = account.commands
        self._launcher = account.launcher
        self._poller = account.poller
        self._budget = account.budget
        self._changed = changed
        self._lock = threading.Lock()
        self._error = self._launcher.unresolved()  # guarded by _lock
        self._launched = self._launcher.last()  # guarded by _lock
        self._newest: tuple[Mapping[int, Simulation], dict[str, Simulation]] = ({}, {})
        self._table: dict[str, Node] = {
            "": Folder(self._names),
            "README": text(lambda: README),
            "launch": File(lambda: self._launched.encode("utf-8", "replace"), self._launch),
            "options": Folder(lambda: list(NAMES)),
            **{f"options/{name}": self._option(name) for name in NAMES},
            "runs": text(lambda: "".join(map(_row, self._newest_first()))),
            "runs.json": text(lambda: as_json(list(map(_info, self._newest_first())))),
            "error": text(lambda: self._error),
            "budget": text(self._budget_text),
        }

    def close(self) -> None:
        self._account.close()

    def node(self, path: str) -> Node:
        """What is at a path below `.simulations/`. Raises NotFound."""
        node = self._table.get(path)
        if node is not None:
            return node
        top, _, rest = path.partition("/")
        if top == "latest":
            return self._latest(rest)
        if re.fullmatch(r"[1-9][0-9]{0,18}", top):
            return self._of_run(self._run(int(top)), rest)
        raise NotFound(f"/{SIMULATIONS}/{path}")

    def follow(self, live: Followed) -> None:
        """Keep an open file up to date until `unfollow`."""
        self._poller.follow(live)

    def unfollow(self, live: Followed) -> None:
        self._poller.unfollow(live)

    def _run(self, run_id: int) -> Simulation:
        try:
            return self._runs.get(run_id)
        except NotFound as error:
            self.failed(error)  # `echo soft > .simulations/99/stop` fails here, before any open(2)
            raise

    def failed(self, error: CloudsimfsError) -> None:
        """Show why a command failed in `.simulations/error`."""
        with self._lock:
            self._error = redact(f"{printable(str(error))}\n")
        self._changed([f"{SIMULATIONS}/error", f"{SIMULATIONS}/budget"])

    def succeeded(self) -> None:
        """A command was carried out: clear the error."""
        with self._lock:
            self._error = ""
        self._poller.hurry()
        self._changed([f"{SIMULATIONS}/error", f"{SIMULATIONS}/budget", f"{SIMULATIONS}/launch"])

    # -- at the top ----------------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        fixed = [name for name in self._table if name and "/" not in name]
        try:
            return [*fixed, "latest", *map(str, sorted(self._runs.all()))]
        except ServiceError:  # the README must be there even then
            return [*fixed, "latest"]

    def _newest_first(self) -> list[Simulation]:
        return sorted(self._runs.all().values(), key=lambda run: -run.id)

    def _option(self, name: str) -> File:
        """A file of options. Its size is 0 until it was read, so that stat(2) costs no API call."""

        def lines(values: Iterable[str]) -> bytes:
            return "".join(f"{value}\n" for value in values).encode("utf-8", "replace")

        return File(lambda: lines(self._options.values(name)), cached=lambda: lines(self._options.cached(name)))

    def _budget_text(self) -> str:
        values: dict[str, object] = asdict(self._budget.snapshot())
        resets_at = time.localtime(float(str(values["resets_at"])))
        values["resets_at"] = time.strftime("%Y-%m-%dT%H:%M:%S%z", resets_at)
        return "".join(f"{name} {'-' if value is None else value}\n" for name, value in values.items())

    def _launch(self, command: str) -> bytes:
        run_id = self._launcher.launch(command)
        answer = f"id={'-' if run_id is None else run_id} {' '.join(command.split())}\n"
        if run_id is not None:
            self._launcher.keep_last(answer)
        with self._lock:
            self._launched = answer
        return answer.encode("utf-8", "replace")

    # -- the newest runs ---------------------------------------------------------------------------------

    def _latest(self, path: str) -> Node:
        """Links to the newest run of each folder, in folders as in the storage.

        If there are runs both in a folder and below it, its name is a folder that holds the run's files, as links,
        and the folders below.
        """
        newest = self._newest_by_folder()
        inner = f"{path}/" if path else ""
        below = {folder[len(inner) :].partition("/")[0] for folder in newest if folder.startswith(inner)}
        if path in newest and not below:
            return Link("../" * (path.count("/") + 1) + str(newest[path].id))
        if path in newest:
            return Folder(lambda: sorted(below | set(self._run_names(newest[path]))))
        if below or not path:
            return Folder(lambda: sorted(below))
        folder, _, name = path.rpartition("/")
        if folder in newest and name in self._run_names(newest[folder]):
            return Link("../" * (folder.count("/") + 2) + f"{newest[folder].id}/{name}")
        raise NotFound(f"/{SIMULATIONS}/latest/{path}: no run in a folder of that name")

    def _newest_by_folder(self) -> dict[str, Simulation]:
        """Computed once for each list of runs: a listing of `latest/` needs it for every name."""
        runs = self._runs.all()
        computed_for, newest = self._newest
        if computed_for is not runs:
            newest = {run.folder: run for _, run in sorted(runs.items()) if _is_safe_path(run.folder)}
            self._newest = (runs, newest)
        return newest

    # -- one run -----------------------------------------------------------------------------------------

    def _of_run(self, run: Simulation, path: str) -> Node:
        if not path:
            return Folder(lambda: self._run_names(run))
        if path.startswith("images/"):
            return self._image(run.id, path.removeprefix("images/"))
        try:
            return self._run_table(run)[path]
        except KeyError:
            raise NotFound(f"/{SIMULATIONS}/{run.id}/{path}") from None

    def _run_names(self, run: Simulation) -> list[str]:
        return sorted(self._run_table(run))

    def _run_table(self, run: Simulation) -> dict[str, Node]:
        runs = self._runs
        values = {name: value for name, value in _values(run).items() if name != "id"}

        def value(name: str) -> File:
            return text(lambda: f"{printable(str(_values(runs.get(run.id))[name]))}\n")

        def status(run: Simulation | None) -> bytes:
            return b"" if run is None else f"{run.status_name}\n".encode()

        table: dict[str, Node] = {name: value(name) for name in values}
        table |= {
            "status": File(
                lambda: status(runs.get(run.id)),
                live=Followed(run.id, log=False),
                cached=lambda: status(runs.cached_run(run.id)),
            ),
            "info.json": text(lambda: as_json(_info(runs.get(run.id)))),
            "log": File(
                lambda: self._logs.read(run.id),
                live=Followed(run.id, log=True),
                cached=lambda: self._logs.cached(run.id),
            ),
            "images": Folder(lambda: self._images.names(run.id)),
            "stop": File(write=lambda word: self._commands.stop(run.id, word)),
            "sync": File(write=lambda word: self._commands.sync(run.id, word)),
        }
        if _is_safe_path(run.folder):
            table["results"] = Link(f"../../{run.folder}")
        return table

    def _image(self, run_id: int, name: str) -> Node:
        stored = self._images.linked(run_id, name)
        if stored is not None:
            return Link(f"../../../{stored}")
        return File(lambda: self._images.read(run_id, name))


def run_paths(run_ids: Iterable[int]) -> list[str]:
    """The paths of the virtual files whose contents change with these runs."""
    of_all = ("runs", "runs.json", "budget", "latest")
    of_each = ("", "status", "started", "ended", "info.json", "log", "images")
    names = [*of_all, *(f"{run_id}/{name}".rstrip("/") for run_id in run_ids for name in of_each)]
    return [SIMULATIONS, *(f"{SIMULATIONS}/{name}" for name in names)]


def _is_safe_path(path: str) -> bool:
    return all(map(paths.is_safe_name, path.split("/")))


def _values(run: Simulation) -> dict[str, object]:
    """A run's values, by the names of the files that show them."""
    return {
        "id": run.id,
        "status": run.status_name,
        "script": run.script,
        "cpu": run.cpu,
        "ram": run.ram,
        "nopre": "" if run.nopre is None else run.nopre,
        "folder": run.folder,
        "started": run.started,
        "ended": run.ended,
    }


def _info(run: Simulation) -> dict[str, object]:
    """Every field as the service sent it, and the names it has here."""
    return {**_values(run), **run.raw, "status_name": run.status_name}


def _row(run: Simulation) -> str:
    """A run as a line of words: times as in ISO 8601, other white space escaped as in fstab(5)."""
    times = (run.started.replace(" ", "T"), run.ended.replace(" ", "T"))
    fields = (run.id, run.status_name, run.script, run.cpu, run.ram, run.folder, *times)
    return " ".join(printable(str(field)).replace(" ", r"\040") or "-" for field in fields) + "\n"
