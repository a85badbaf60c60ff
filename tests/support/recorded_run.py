"""The standard workload, done on a mount whose cache and state directories are recorded, and what is known of it.

    python recorded_run.py RECORDED PERIOD SYNCED cloudsimfs mount ...

is the mount's daemon: its background fsync runs every PERIOD seconds and is marked in the log. The product knows
nothing of this. The log has marks of three kinds more: when a step of the workload begins and ends, and when the
service has changed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from cloudsimfs.sandbox import Sandbox, Settings
from cloudsimfs.sandbox.blobs import Blob
from cloudsimfs.sandbox.tree import File
from harness import Mounted, wait_until
from recording import Op, Recorder, marker, recorder
from shared_file import publish
from workload import Operation, Tree, Workload, write_all

PERIOD = 0.5  # seconds between the rounds of fsync
LAUNCH = "cpu=2 ram=standard script=heat2d-1.0 folder=moved key=once"
SERVICE = Settings(hourly_limit=0, pending_seconds=3600)
CACHE, STATE = "cache", "state/cloudsimfs"  # each has the directory of the account


class Rounds:
    """How many rounds of fsync the daemon has begun and ended."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.note(0, 0)

    def note(self, begun: int, ended: int) -> None:
        publish(self.file, f"{begun} {ended}".encode())

    @property
    def begun(self) -> int:
        return int(self.file.read_bytes().split()[0])

    @property
    def ended(self) -> int:
        return int(self.file.read_bytes().split()[1])


# -- the workload ----------------------------------------------------------------------------------------------


@dataclass
class Step:
    """An operation, and what it promises: after one that is `synced`, all it has done survives a power loss.

    `draft` is a file that it leaves open, and the bytes that were written to it: what a crash leaves of them is
    kept, and not uploaded. `launched`: the step is the launch. `uploads`: it waits for uploads.
    """

    operation: Operation
    synced: bool = False
    draft: tuple[str, bytes] | None = None
    launched: bool = False
    uploads: bool = False


class Standard:
    """What users do, step by step. Each does what its text says on `m`, and to the model of the disk."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"standard {seed}")
        self.opened: list[int] = []
        self.stored = {
            "old": self._bytes(90_000),
            "cut": self._bytes(70_000),
            "listed": self._bytes(5000),
            "dir/a": self._bytes(3000),
            "dir/b": self._bytes(200_000),
            "dir/sub/c": self._bytes(1000),
            "gone/a": self._bytes(100),
            "gone/b": self._bytes(5000),
            **{f"big/{number}": self._bytes(400_000) for number in range(6)},
        }

    def steps(self, m: Mounted, rounds: Rounds) -> Iterator[Step]:
        yield self._call("mkdir case", lambda top: (top / "case").mkdir())
        yield self._write("case/a", 70_000)
        yield self._write("case/b", 140_000)
        yield self._append("case/a", 30_000)
        yield self._rename("case/b", "case/c")
        yield self._wait("tick", m, rounds)
        yield self._rewrite("old", 66_000, 1000)
        yield self._append("listed", 4000)
        yield self._truncate("cut", 10)
        yield self._save("case/a", 90_000)
        yield self._save("listed", 7000)
        yield self._rename("case", "moved", folder=True)
        yield self._call("launch", self._launch, launched=True)
        yield self._write("moved/a", 80_000)
        yield self._unlink("moved/c")
        yield self._rename("dir/a", "renamed")
        yield self._rename("moved/a", "dir/b")
        yield self._fsynced("synced", 100_000)
        yield self._leave_open("draft", 150_000)
        yield self._call("look", self._look)
        yield self._wait("tock", m, rounds)
        yield self._unlink("gone/a")
        yield self._unlink("gone/b")
        yield self._call("rmdir gone", lambda top: (top / "gone").rmdir())
        yield self._append("synced", 30_000)
        yield self._write("case2", 131_073)
        yield self._rewrite("case2", 0, 70_000)
        yield self._save("old", 130_000)
        yield self._call("flush", lambda _: m.flush())
        yield self._write("last", 70_000)
        yield self._rename("dir", "dir2", folder=True)

    def _bytes(self, size: int) -> bytes:
        return self._random.randbytes(size)

    def _call(self, text: str, act: Callable[[Path], object], *, launched: bool = False) -> Step:
        uploads = text in ("launch", "flush")
        return Step(Operation(text, act, lambda _: None, atomic=True), launched=launched, uploads=uploads)

    def _write(self, path: str, size: int) -> Step:
        data = self._bytes(size)
        act = lambda top: (top / path).write_bytes(data)  # noqa: E731
        return Step(Operation(f"write {path} {size}", act, lambda files: files.update({path: data}), path))

    def _append(self, path: str, size: int) -> Step:
        data = self._bytes(size)

        def act(top: Path) -> None:
            with open(top / path, "ab", buffering=0) as file:
                write_all(file.fileno(), data)

        return Step(
            Operation(f"append {path} {size}", act, lambda files: files.update({path: files[path] + data}), path)
        )

    def _rewrite(self, path: str, offset: int, size: int) -> Step:
        data = self._bytes(size)

        def act(top: Path) -> None:
            with open(top / path, "r+b", buffering=0) as file:
                file.seek(offset)
                write_all(file.fileno(), data)

        def apply(files: Tree) -> None:
            old = files[path]
            files[path] = old[:offset] + data + old[offset + size :]

        return Step(Operation(f"rewrite {path} {offset} {size}", act, apply, path))

    def _truncate(self, path: str, size: int) -> Step:
        def apply(files: Tree) -> None:
            files[path] = files[path][:size]

        return Step(Operation(f"truncate {path} {size}", lambda top: os.truncate(top / path, size), apply, path))

    def _save(self, path: str, size: int) -> Step:
        """As editors do."""
        data = self._bytes(size)

        def act(top: Path) -> None:
            with open(top / f"{path}.new~", "wb", buffering=0) as file:
                write_all(file.fileno(), data)
                os.fsync(file.fileno())
            os.rename(top / f"{path}.new~", top / path)

        return Step(Operation(f"save {path} {size}", act, lambda files: files.update({path: data}), atomic=True))

    def _fsynced(self, path: str, size: int) -> Step:
        data = self._bytes(size)

        def act(top: Path) -> None:
            with open(top / path, "wb", buffering=0) as file:
                write_all(file.fileno(), data)
                os.fsync(file.fileno())

        apply = lambda files: files.update({path: data})  # noqa: E731
        return Step(Operation(f"write and fsync {path} {size}", act, apply, path), synced=True)

    def _rename(self, old: str, new: str, *, folder: bool = False) -> Step:
        def apply(files: Tree) -> None:
            moved = {path: files.pop(path) for path in list(files) if path == old or path.startswith(f"{old}/")}
            files.update({new + path[len(old) :]: data for path, data in moved.items()})

        what = "rename folder" if folder else "rename"
        return Step(Operation(f"{what} {old} {new}", lambda top: os.rename(top / old, top / new), apply, atomic=True))

    def _unlink(self, path: str) -> Step:
        return Step(
            Operation(f"unlink {path}", lambda top: (top / path).unlink(), lambda files: files.pop(path), atomic=True)
        )

    def _leave_open(self, path: str, size: int) -> Step:
        data = self._bytes(size)

        def act(top: Path) -> None:
            self.opened.append(os.open(top / path, os.O_WRONLY | os.O_CREAT, 0o644))
            write_all(self.opened[-1], data)

        return Step(Operation(f"leave open {path}", act, lambda _: None, atomic=True), draft=(path, data))

    def _wait(self, path: str, m: Mounted, rounds: Rounds) -> Step:
        """Have all before it fsynced: this file makes sure that another round comes."""
        data = self._bytes(10)

        def act(top: Path) -> None:
            before = rounds.begun
            (top / path).write_bytes(data)
            wait_until(lambda: rounds.ended > before, "closed files are fsynced")
            m.box.advance(10)  # what is stored next is later by the service's clock, whatever it rounds

        return Step(Operation(f"wait {path}", act, lambda files: files.update({path: data}), path))

    def _launch(self, top: Path) -> None:
        (top / ".simulations/launch").write_text(LAUNCH)

    def _look(self, top: Path) -> None:
        """Read more than the cache may keep."""
        for path in self.stored:
            if path.startswith("big/"):
                assert (top / path).read_bytes() == self.stored[path]


def random_steps(seed: int, count: int, stored: Tree) -> Iterator[Step]:
    """Operations of `workload`, in which any may follow any other."""
    work = Workload(seed)
    work.files = dict(stored)
    for _ in range(count):
        yield Step(work.next())


# -- the service -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Service:
    """What the service had at one moment."""

    files: tuple[File, ...]
    folders: dict[str, int]
    runs: int

    def tree(self) -> Tree:
        return {file.path: file.blob.read() for file in self.files}

    @contextlib.contextmanager
    def start(self) -> Iterator[Sandbox]:
        """A service that has it again."""
        with Sandbox(settings=SERVICE) as box:
            box.advance(60)  # its clock was moved in the run, too
            box._store.restore(self.files, self.folders)
            for _ in range(self.runs):
                _launch(box)
            yield box


def _launch(box: Sandbox) -> None:
    """Have the workload's run, whose folder may be gone by now."""
    folder = LAUNCH.partition("folder=")[2].split()[0]
    with mock.patch.object(box._store, "known_files", return_value={folder: None}):
        box.launch(folder)


class Watched:
    """Notes each state of a service, and calls `changed` with its number, before the client has its answer."""

    def __init__(self, box: Sandbox, changed: Callable[[int], object]) -> None:
        self.states: list[Service] = []
        self._box = box
        self._lock = threading.Lock()
        self._kept: dict[tuple[int, float, str], File] = {}
        self._look()
        self._changed = changed
        for owner, name in ((box._store, "put"), (box._store, "delete"), (box._runs, "launch")):
            setattr(owner, name, self._watching(getattr(owner, name)))

    def _watching(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                result = act(*arguments, **options)
                self._look()
                self._changed(len(self.states) - 1)
            return result

        return watched

    def _look(self) -> None:
        store = self._box._store
        files = tuple(self._keep(file) for file in store.files().values())
        self.states.append(Service(files, store.folder_ids(), len(self._box.runs())))

    def _keep(self, file: File) -> File:
        """With its bytes in memory: those of a replaced version are removed."""
        key = (file.id, file.created, file.blob.etag)
        if key not in self._kept:
            blob = Blob(file.blob.size, file.blob.etag, data=file.blob.read())
            self._kept[key] = File(file.id, file.path, file.created, blob)
        return self._kept[key]


# -- a recorded run ----------------------------------------------------------------------------------------------


@dataclass
class Run:
    """All that is known of a recorded run. `states[n]` is what a disk holds after n steps."""

    ops: list[Op]
    api: str
    services: list[Service]
    steps: list[Step]
    states: list[Tree]
    closed: set[tuple[str, bytes]] = field(default_factory=set)  # every (path, bytes) that was a closed state

    def __post_init__(self) -> None:
        self.closed |= {(path, data) for state in self.states for path, data in state.items()}
        for step in self.steps:
            if step.operation.closed is not None:
                self.closed.add((step.operation.path, step.operation.closed))


def record(directory: Path, api: str, seed: int, *, more: int = 0, uploads: bool = True) -> Run:
    """Do the standard workload, and `more` random operations, on a mount in `directory`; its daemon is killed.

    Without `uploads` everything waits here, and nothing is launched.
    """
    directory.mkdir(exist_ok=True)
    standard = Standard(seed)
    with Sandbox(settings=SERVICE) as box, recorder(directory / "recorder") as made:
        box.populate(standard.stored)
        box.advance(10)
        watched = Watched(box, lambda number: made.mark(json.dumps(["service", number])))
        rounds = Rounds(directory / "rounds")
        program = [__file__, str(made.path), str(PERIOD), str(rounds.file), "cloudsimfs"]
        m = Mounted(box, directory, api=api, program=program, cache_size="1M" if uploads else "20M", ttl=60)
        m.option(write_back=0.2 if uploads else 3600)
        m.cache = made.path / CACHE
        m.start()
        steps: list[Step] = []
        states = [dict(standard.stored)]
        try:
            for step in itertools.chain(standard.steps(m, rounds), random_steps(seed, more, states[-1])):
                if step.uploads and not uploads:
                    continue
                _do(step, m, made, len(steps))
                steps.append(step)
                states.append(dict(states[-1]))
                step.operation.apply(states[-1])
        finally:
            m.kill()
            for fd in standard.opened:
                with contextlib.suppress(OSError):
                    os.close(fd)
            m.clean_up()
        assert "Traceback" not in m.log(), m.log()
        return Run(made.close(), api, watched.states, steps, states)


def _do(step: Step, m: Mounted, made: Recorder, number: int) -> None:
    made.mark(json.dumps(["begin", number]))
    step.operation.act(m.path)
    made.mark(json.dumps(["end", number]))


# -- its daemon --------------------------------------------------------------------------------------------------


def wrap(recorded: Path, period: float, rounds: Rounds) -> None:
    from cloudsimfs.writeback import fsyncer

    os.environ["XDG_STATE_HOME"] = str(recorded / "state")
    fsyncer.PERIOD = period
    sync, numbers = fsyncer.Fsyncer._write, itertools.count(1)  # one at a time

    def marked(self: fsyncer.Fsyncer) -> None:
        fd = marker(recorded)
        number = next(numbers)
        rounds.note(number, number - 1)
        os.write(fd, json.dumps(["sync begins", number]).encode())
        sync(self)
        os.write(fd, json.dumps(["sync ends", number]).encode())
        os.close(fd)
        rounds.note(number, number)

    setattr(fsyncer.Fsyncer, "_write", marked)  # noqa: B010  mypy knows the method


def main() -> None:
    from cloudsimfs.cli import main as command_line

    wrap(Path(sys.argv[1]), float(sys.argv[2]), Rounds(Path(sys.argv[3])))
    sys.argv[1:] = sys.argv[5:]
    command_line(prog_name="cloudsimfs")


if __name__ == "__main__":
    main()
