"""`.simulations/` and `.cloudsimfs/`: a table of virtual files, each with a reader and maybe a command.

One write(2) is one command; it acts at once and fails with the errno of that write and a sentence in
`.simulations/error`. Reading costs no call while the cached state is fresh (design.md section 5).

Threading: called by FUSE callbacks on many threads; `_lock` protects the last error and the last launch, a leaf.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from cloudsimfs import paths
from cloudsimfs.attrs import path_ino
from cloudsimfs.clock import Clock
from cloudsimfs.errors import BadHandle, CloudsimfsError, Denied, Invalid, IsDirectory, NotDirectory, NotFound
from cloudsimfs.inode import Attr
from cloudsimfs.runs import Runs
from cloudsimfs.service import Simulation
from cloudsimfs.service.redact import redact

SIMULATIONS = ".simulations"
STATE = ".cloudsimfs"
TOP_NAMES = (SIMULATIONS, STATE)
STATE_NAMES = ("status", "status.json", "pending", "recover", "recover.json", "refresh", "flush")
FIRST_HANDLE = 1 << 62  # handles from here on belong to virtual files

README = """\
Runs are driven by the files in this folder. From the top of the mount:

  cat .simulations/options/scripts            what software there is (also: cpu, ram)
  echo "cpu=8 ram=highcore script=NAME folder=case1" > .simulations/launch
  cat .simulations/launch                     the last launch: its id
  cat .simulations/runs                       all runs: id status script cpu ram folder started ended
  cat .simulations/<id>/status                one of PENDING RUNNING STOPPING STOPPED COMPLETED ERROR
  tail -f .simulations/<id>/log               the run's output as it grows
  echo 1 > .simulations/<id>/sync             save the current results into the folder; the run goes on
  echo soft > .simulations/<id>/stop          stop at this iteration and save the results
  echo hard > .simulations/<id>/stop          kill it; nothing is saved
  cat .simulations/error                      why the last command failed, and what to do

A launch first waits until all files below its folder are stored.
"""


@dataclass(frozen=True, slots=True)
class File:
    """A virtual file. `live` files are read anew at every read, others once per open."""

    read: Callable[[], bytes] | None = None
    write: Callable[[str], None] | None = None
    live: bool = False
    size: Callable[[], int] | None = None  # cheaper than reading; for what needs a call of its own

    @property
    def perm(self) -> int:
        return (0o444 if self.read else 0) | (0o200 if self.write else 0)


@dataclass(frozen=True, slots=True)
class Folder:
    names: Callable[[], list[str]]


@dataclass(frozen=True, slots=True)
class Link:
    target: str


@dataclass(frozen=True, slots=True)
class Handle:
    """An open virtual file, with what it held when it was opened."""

    path: str
    file: File
    snapshot: bytes
    failed: dict[bytes, CloudsimfsError] = field(default_factory=dict)  # the last command, if it failed


Node = File | Folder | Link


class Mounted(Protocol):
    """What `.cloudsimfs/` shows and does."""

    def status(self) -> dict[str, object]: ...
    def status_text(self) -> str: ...
    def pending_text(self) -> str: ...
    def drafts(self) -> list[dict[str, object]]: ...
    def recover(self, command: str) -> None: ...
    def refresh(self, path: str) -> None: ...
    def storage_path(self, text: str) -> str: ...
    def flush(self) -> None: ...


def _kind(node: Node) -> int:
    """The file type bits of stat(2)."""
    if isinstance(node, Folder):
        return stat.S_IFDIR
    return stat.S_IFLNK if isinstance(node, Link) else stat.S_IFREG


def is_control(path: str) -> bool:
    return path.partition("/")[0] in TOP_NAMES


class Control:
    def __init__(
        self, runs: Runs, mounted: Mounted, budget: Callable[[], dict[str, object]], *, clock: Clock
    ) -> None:
        self._runs = runs
        self._budget = budget
        self._clock = clock
        self._lock = threading.Lock()
        self._error = ""  # guarded by _lock
        self._launched = ""  # guarded by _lock
        self._handles: dict[int, Handle] = {}  # guarded by _lock
        self._next = itertools.count(FIRST_HANDLE)
        self._born_ns = int(clock.now() * 1e9)
        text = self._text
        self._static: dict[str, Node] = {
            SIMULATIONS: Folder(self._simulations_names),
            f"{SIMULATIONS}/README": text(lambda: README),
            f"{SIMULATIONS}/launch": File(lambda: self._launched.encode(), self._launch),
            f"{SIMULATIONS}/options": Folder(lambda: ["cpu", "ram", "scripts"]),
            f"{SIMULATIONS}/options/cpu": self._option("cpu"),
            f"{SIMULATIONS}/options/ram": self._option("ram"),
            f"{SIMULATIONS}/options/scripts": self._option("scripts"),
            f"{SIMULATIONS}/runs": text(lambda: _lines(map(_row, self._newest_first()))),
            f"{SIMULATIONS}/runs.json": text(lambda: _json([_public(run) for run in self._newest_first()])),
            f"{SIMULATIONS}/error": text(lambda: self._error),
            f"{SIMULATIONS}/budget": text(self._budget_text),
            f"{SIMULATIONS}/latest": Folder(lambda: sorted(self._latest())),
            STATE: Folder(lambda: list(STATE_NAMES)),
            f"{STATE}/status": text(mounted.status_text),
            f"{STATE}/status.json": text(lambda: _json(mounted.status())),
            f"{STATE}/pending": text(mounted.pending_text),
            f"{STATE}/recover": File(write=mounted.recover),
            f"{STATE}/recover.json": text(lambda: _json(mounted.drafts())),
            f"{STATE}/refresh": File(write=lambda word: mounted.refresh(mounted.storage_path(word))),
            f"{STATE}/flush": File(write=lambda _: mounted.flush()),
        }

    @staticmethod
    def _text(read: Callable[[], str]) -> File:
        return File(lambda: read().encode())

    def _budget_text(self) -> str:
        values = self._budget()
        resets_at = time.localtime(float(str(values["resets_at"])))
        shown = {**values, "resets_at": time.strftime("%Y-%m-%dT%H:%M:%S%z", resets_at)}
        return "".join(f"{name} {'-' if value is None else value}\n" for name, value in shown.items())

    def _option(self, name: str) -> File:
        """Looking at it, as tree walkers do, costs no call: its size is 0 until it was read."""
        return File(
            lambda: _lines(self._runs.option(name)).encode(),
            size=lambda: len(_lines(self._runs.known_option(name)).encode()),
        )

    # -- the tree ----------------------------------------------------------------------------------------

    def node(self, path: str) -> Node:
        found = self._static.get(path)
        if found is not None:
            return found
        match = re.fullmatch(rf"{re.escape(SIMULATIONS)}/(\d{{1,18}}|latest)(?:/(.+))?", path)
        if match is None:
            raise NotFound(f"/{path}")
        if match[1] == "latest":
            return self._latest_link(match[2])
        run = self._runs.get(int(match[1]))
        if match[2] is None:
            return Folder(lambda: sorted(self._of_run(run)))
        try:
            return self._of_run(run)[match[2]]
        except KeyError:
            raise NotFound(f"/{path}") from None

    def _of_run(self, run: Simulation) -> dict[str, Node]:
        """The table of one run's files."""
        runs = self._runs

        def value(read: Callable[[Simulation], object]) -> File:
            return self._text(lambda: f"{read(runs.get(run.id))}\n")

        def show_log(*, look: bool) -> bytes:
            return runs.output(run.id, look=look).encode("utf-8", "replace")

        table: dict[str, Node] = {
            "status": value(lambda run: run.status_name),
            "script": value(lambda run: run.script),
            "cpu": value(lambda run: run.cpu),
            "ram": value(lambda run: run.ram),
            "nopre": value(lambda run: "" if run.nopre is None else run.nopre),
            "folder": value(lambda run: run.folder),
            "started": value(lambda run: run.started),
            "ended": value(lambda run: run.ended),
            "info.json": self._text(lambda: _json(_public(runs.get(run.id)))),
            "log": File(lambda: show_log(look=True), live=True, size=lambda: len(show_log(look=False))),
            "stop": File(write=lambda word: runs.stop(run.id, word)),
            "sync": File(write=lambda word: runs.sync(run.id, word)),
        }
        folder = run.folder.strip("/")
        if folder and ".." not in folder.split("/"):
            table["results"] = Link(f"../../{folder}")
        return table

    def _simulations_names(self) -> list[str]:
        fixed = ["README", "launch", "options", "runs", "runs.json", "error", "budget", "latest"]
        return fixed + [str(run_id) for run_id in sorted(self._runs.all())]

    def _newest_first(self) -> list[Simulation]:
        return sorted(self._runs.all().values(), key=lambda run: -run.id)

    def _latest(self) -> dict[str, int]:
        """The newest run by the last part of its folder's name."""
        newest: dict[str, int] = {}
        for run in self._newest_first():
            newest.setdefault(run.folder.strip("/").rpartition("/")[2] or "root", run.id)
        return newest

    def _latest_link(self, name: str | None) -> Node:
        run_id = self._latest().get(name or "")
        if run_id is None:
            raise NotFound(f"no run in a folder named {name}")
        return Link(f"../{run_id}")

    # -- what operations asks ----------------------------------------------------------------------------

    def getattr(self, path: str, *, uid: int, gid: int) -> Attr:
        """The size of a file that somebody follows may cost a call when it is old."""
        node = self.node(path)
        look = path in self.followed()
        if isinstance(node, Folder):
            perm, size = 0o555, 0
        elif isinstance(node, Link):
            perm, size = 0o777, len(node.target.encode())
        elif node.size is not None and not look:
            perm, size = node.perm, node.size()
        else:
            perm, size = node.perm, len(node.read()) if node.read else 0
        born = self._born_ns
        return Attr(path_ino(path), _kind(node) | perm, size, born, born, born, uid, gid)

    def readdir(self, path: str) -> list[tuple[str, int, int]]:
        """(name, file type, inode number) of all in a virtual folder."""
        node = self.node(path)
        if not isinstance(node, Folder):
            raise NotDirectory(f"/{path}")
        below = [(name, paths.join(path, name)) for name in node.names()]
        return [(name, _kind(self.node(child)), path_ino(child)) for name, child in below]

    def readlink(self, path: str) -> str:
        node = self.node(path)
        if not isinstance(node, Link):
            raise Invalid(f"/{path} is no link")
        return node.target

    def open(self, path: str, flags: int) -> int:
        """A handle; `flags` are the system's O_ flags. What is not live is read now."""
        node = self.node(path)
        if not isinstance(node, File):
            raise IsDirectory(f"/{path}")
        access = flags & os.O_ACCMODE
        if (access != os.O_RDONLY and node.write is None) or (access == os.O_RDONLY and node.read is None):
            raise Denied(f"/{path} is not made for that")
        snapshot = b"" if node.read is None or access == os.O_WRONLY else node.read()
        with self._lock:
            fh = next(self._next)
            self._handles[fh] = Handle(path, node, snapshot)
        return fh

    def _handle(self, fh: int) -> Handle:
        with self._lock:
            found = self._handles.get(fh)
        if found is None:
            raise BadHandle(f"handle {fh}")
        return found

    def release(self, fh: int) -> None:
        with self._lock:
            self._handles.pop(fh, None)

    def followed(self) -> set[str]:
        """The paths of the live files that are open."""
        with self._lock:
            return {handle.path for handle in self._handles.values() if handle.file.live}

    def read(self, fh: int, size: int, offset: int) -> bytes:
        handle = self._handle(fh)
        data = handle.file.read() if handle.file.live and handle.file.read else handle.snapshot
        return data[offset : offset + size]

    def write(self, fh: int, data: bytes) -> None:
        """One command. Its failure stays readable in `.simulations/error`."""
        handle = self._handle(fh)
        again = handle.failed.pop(data, None)
        if again is not None:
            raise again  # a buffering writer's close() repeats what could not be written: not a second command
        try:
            self._command(handle.file, data)
        except CloudsimfsError as error:
            handle.failed.clear()
            handle.failed[data] = error
            raise

    def _command(self, file: File, data: bytes) -> None:
        assert file.write is not None
        try:
            word = data.decode("utf-8").strip()
        except UnicodeDecodeError:
            raise self._failed(Invalid("a command is text")) from None
        if not word:
            raise self._failed(Invalid("an empty command"))
        try:
            file.write(word)
        except CloudsimfsError as error:
            raise self._failed(error) from error

    def _failed(self, error: CloudsimfsError) -> CloudsimfsError:
        with self._lock:
            self._error = redact(f"{error}\n")
        return error

    def _launch(self, command: str) -> None:
        run_id = self._runs.launch(command)
        with self._lock:
            self._launched = f"id={run_id} {' '.join(command.split())}\n"
            self._error = ""


def run_paths(run_ids: Iterable[int]) -> list[str]:
    """The paths whose contents change with the state of these runs."""
    of_run = [
        f"{SIMULATIONS}/{run_id}/{name}" for run_id in run_ids for name in ("status", "ended", "info.json", "log")
    ]
    return [SIMULATIONS, f"{SIMULATIONS}/runs", f"{SIMULATIONS}/runs.json", *of_run]


def _lines(items: Iterable[object]) -> str:
    return "".join(f"{item}\n" for item in items)


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n"


def _row(run: Simulation) -> str:
    fields = (run.id, run.status_name, run.script, run.cpu, run.ram, run.folder, run.started, run.ended)
    return " ".join(str(field).replace(" ", "T") or "-" for field in fields)


def _public(run: Simulation) -> dict[str, object]:
    """Every field but the personal one (service-observed.md: `vnc_url` is never shown by default)."""
    return {key: value for key, value in run.raw.items() if key != "vnc_url"}
