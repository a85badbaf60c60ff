"""Every moment of a recorded run at which the machine may stop, and the proof that nothing is lost by it.

What the disk holds then, and the service, is set up anew, a mount's storage side starts on it, and must show what was
closed, store it, store nothing else, and not launch twice. `recorded_run` makes the run, `powerloss` the disks.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from cloudsimfs import paths
from cloudsimfs.clock import SystemClock
from cloudsimfs.config import Config
from cloudsimfs.control.mounted import MountedCaches, MountedStorage
from cloudsimfs.datacache import rangelog
from cloudsimfs.errors import CloudsimfsError
from cloudsimfs.fuse.pagecache import KernelCache
from cloudsimfs.runs.account import runs_of_account
from cloudsimfs.sandbox import Sandbox
from cloudsimfs.service import Client, Credentials, connect
from cloudsimfs.vfs.filesystem import FileSystem
from cloudsimfs.vfs.names import is_local_name
from powerloss import Disk, History
from recorded_run import CACHE, LAUNCH, STATE, Run, Service, Watched
from recording import Op, load, recorder
from soaking import differences, is_between
from workload import Tree, digest
from world import NEVER, close, started

# What the log says of a file whose bytes a power loss has taken, or may have taken.
GONE = "its bytes are gone", "before its bytes were on the disk"
CONFLICT = ".conflict-"
DRAIN_BOUND = 60.0  # seconds


@dataclass
class Point:
    """A moment of a run: `done` steps have ended, and `begun` have begun. The rest is what survives a power loss."""

    at: int = 0  # operations recorded before
    begun: int = 0
    done: int = 0
    service: int = 0
    safe: int = 0  # steps that had ended when the last round of fsync began that has ended
    _rounds: dict[int, int] = field(default_factory=dict)

    def pass_by(self, op: Op, run: Run) -> None:
        self.at += 1
        if op.kind != "mark":
            return
        assert op.data is not None
        what, number = json.loads(op.data)
        if what == "begin":
            self.begun = number + 1
        elif what == "end":
            self.done = number + 1
            if run.steps[number].synced:
                self.safe = self.done
        elif what == "service":
            self.service = number
        elif what == "sync begins":
            self._rounds[number] = self.done
        elif what == "sync ends":
            self.safe = max(self.safe, self._rounds[number])

    def text(self, run: Run) -> str:
        under_way = f", in `{run.steps[self.done].operation.text}`" if self.begun > self.done else ""
        return f"after {self.at} operations, {self.done} steps done ({self.safe} fsynced){under_way}"


@dataclass
class Found:
    """What a storage side showed after a crash, what it did, and what it said."""

    shown: Tree = field(default_factory=dict)
    half: set[str] = field(default_factory=set)  # shown, and neither closed nor uploaded
    settled: Tree = field(default_factory=dict)  # what it showed in the end
    stored: Tree = field(default_factory=dict)  # what the service had then
    uploaded: set[tuple[str, str]] = field(default_factory=set)  # (path, digest)
    runs: int = 0
    log: list[str] = field(default_factory=list)

    def lost(self) -> set[str]:
        """The paths that the log says were lost. They show an earlier state, which was fsynced, or the service's."""
        return {line.partition(":")[0].strip("/") for line in self.log if any(gone in line for gone in GONE)}


# -- what is found -----------------------------------------------------------------------------------------------


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(logging.Formatter().format(record))


@contextlib.contextmanager
def _log() -> Iterator[list[str]]:
    """The lines that the product logs meanwhile."""
    handler, logger = _Lines(), logging.getLogger("cloudsimfs")
    logger.addHandler(handler)
    try:
        yield handler.lines
    finally:
        logger.removeHandler(handler)


def start_again(disk: Disk, service: Service, api: str, *, rebooted: bool, launched: bool) -> Found:
    """Start on this disk, look, have everything stored, look again. `rebooted`: the machine has gone down.

    `launched`: the launch of the workload had begun, and the user repeats it.
    """
    with tempfile.TemporaryDirectory(prefix="crash-point-") as directory:
        disk.write_to(Path(directory))
        return look(Path(directory), service, api, rebooted=rebooted, launched=launched)


def look(
    directory: Path,
    service: Service,
    api: str,
    *,
    rebooted: bool,
    launched: bool,
    watch: Callable[[Sandbox], object] = lambda _: None,
) -> Found:
    """The same on files that are there. `watch` is given the service before."""
    found = Found()
    boot = mock.patch.object(rangelog, "boot_id", return_value="another") if rebooted else contextlib.nullcontext()
    with boot, _log() as found.log, service.start() as box:
        watch(box)
        versions = box.record_versions()
        client = connect(base_url=box.url, key=box.key, api="v1" if api == "v1" else "v2")
        cache = _account(directory / CACHE)
        config = Config(
            box.url, Credentials(None, box.key), cache, api="v1" if api == "v1" else "v2", write_back=NEVER
        )
        files = started(config, client, SystemClock())
        try:
            files.check()
            found.shown = read_all(files)
            found.half = {inode.path for inode in files.tree.half_written()}
            files.writeback.drain(timeout=DRAIN_BOUND)
            found.settled, found.stored = read_all(files), box.files()
            if launched:
                _launch(files, client, directory)
            found.runs = len(box.runs())
        finally:
            close(files, client)
        found.uploaded = {(path, digest(data)) for path, data in versions}
    return found


def _account(above: Path) -> Path:
    """The one account's directory in a cache or state directory; made, if it was not yet."""
    made = list(above.glob("*")) or [above / "account"]
    assert len(made) == 1, f"several accounts: {made}"
    made[0].mkdir(mode=0o700, parents=True, exist_ok=True)
    return made[0]


def read_all(files: FileSystem) -> Tree:
    """Every file that a user sees, but those that never leave the mount."""
    found: Tree = {}
    folders = [paths.ROOT]
    while folders:
        folder = folders.pop()
        for name, attr in files.tree.readdir(folder):
            path = paths.join(folder, name)
            if files.tree.lookup(path).is_dir:
                folders.append(path)
            elif not is_local_name(name):
                found[path] = _read(files, path, attr.size)
    return found


def _read(files: FileSystem, path: str, size: int) -> bytes:
    fh = files.handles.open(path, os.O_RDONLY)
    try:
        buffer = bytearray(size + 1)
        done = 0
        while count := files.handles.read(fh, memoryview(buffer)[done:], done):
            done += count
        return bytes(buffer[:done])
    finally:
        files.handles.release(fh)


def _launch(files: FileSystem, client: Client, directory: Path) -> None:
    clock, caches = SystemClock(), MountedCaches(files.dcache, KernelCache())
    storage = MountedStorage(
        files.tree, files.dcache, files.writeback, client.budget, mountpoint=directory / "mnt", clock=clock
    )
    runs = runs_of_account(
        client,
        files.journal,
        storage,
        caches,
        directory=_account(directory / CACHE),
        launches=_account(directory / STATE),
        ttl=0.0,
        bulk=False,
        clock=clock,
    )
    with contextlib.suppress(CloudsimfsError):  # it may say that nobody knows yet, and that there is no such folder
        runs.launcher.launch(LAUNCH)
    runs.close()


# -- what has to be ----------------------------------------------------------------------------------------------


def faults(run: Run, point: Point, found: Found, *, power: bool) -> list[str]:
    """What is wrong with it, in words."""
    wrong = []
    first, last = (point.safe if power else point.done), point.begun
    tries = [_unexplained(run, point, found, number, power=power) for number in range(first, last + 1)]
    if all(tries):
        best = min(tries, key=len)
        wrong.append(f"shown is no state from step {first} to {last}; nearest to one: {best}")
    if power:  # nothing here knows any more that it has stored the file, so that it takes it for another's
        _accept_copies(run, found)
    drafts = found.half | {step.draft[0] for step in run.steps if step.draft is not None}
    kept = {path: data for path, data in found.stored.items() if path not in drafts}
    for name, other in (("shown", found.shown), ("shown in the end", found.settled)):
        expected = {path: data for path, data in other.items() if path not in drafts}
        if kept != expected:
            wrong.append(f"the service has not what was {name}: {differences(kept, expected)}")
    strange = found.uploaded - {(path, digest(data)) for path, data in run.closed}
    if strange:
        wrong.append(f"uploaded, and never closed: {sorted(path for path, _ in strange)}")
    if found.runs > 1:
        wrong.append(f"{found.runs} runs were started")
    wrong += [f"the log: {line[-2000:]}" for line in found.log if "Traceback" in line]
    return wrong


def _accept_copies(run: Run, found: Found) -> None:
    """Leave out the conflict copies, provided they have what was closed under the name."""
    closed = {(path, digest(data)) for path, data in run.closed}
    for path in [path for path in found.stored if CONFLICT in path]:
        uploaded = (path, digest(found.stored[path]))
        if (path.partition(CONFLICT)[0], uploaded[1]) in closed:
            found.uploaded.discard(uploaded)
            for tree in (found.shown, found.settled, found.stored):
                tree.pop(path, None)


def _unexplained(run: Run, point: Point, found: Found, number: int, *, power: bool) -> list[str]:
    """What keeps `found.shown` from being the state after `number` steps."""
    state, lost = run.states[number], found.lost() if power else set()
    safe = _safe_bytes(run, point)
    service = run.services[point.service].tree()
    earlier = run.states[point.safe : number]
    wrong = []
    for path in sorted(found.shown.keys() | state.keys()):
        shown, expected = found.shown.get(path), state.get(path)
        if shown == expected or _is_under_way(run, point, number, path, shown, power):
            continue
        honest = shown in (None, service.get(path)) and (path in lost or (expected is None and bool(lost)))
        honest |= path in lost and any(state.get(path) == shown for state in earlier)
        draft = power and path in found.half  # its close is not on the disk
        if (honest or draft) and expected not in safe:
            continue
        sizes = [None if data is None else len(data) for data in (shown, expected)]
        wrong.append(f"{path}: {sizes[0]} bytes instead of {sizes[1]}{_what(run, path, shown, expected)}")
    return wrong


def _what(run: Run, path: str, shown: bytes | None, expected: bytes | None) -> str:
    if shown is None or expected is None:
        return ""
    if shown == expected.ljust(len(shown), b"\0")[: len(shown)]:
        return " (cut)"
    if is_between(shown, expected, b""):
        return " (with zeros)"
    return " (of another moment)" if any(state.get(path) == shown for state in run.states) else " (mixed)"


def _safe_bytes(run: Run, point: Point) -> set[bytes]:
    """The contents that were fsynced: whatever was done to their names since, they are there."""
    return set(run.states[point.safe].values())


def _is_under_way(run: Run, point: Point, number: int, path: str, shown: bytes | None, power: bool) -> bool:
    """Whether the step after `number`, which has begun, or a file that was left open, explains this."""
    for step in run.steps[: point.begun]:
        if step.draft is not None and step.draft[0] == path:
            if shown is None or step.draft[1].startswith(shown):
                return True
            return power and is_between(shown, step.draft[1], b"")
    if number >= point.begun:
        return False
    operation = run.steps[number].operation
    before, after = run.states[number].get(path), run.states[number + 1].get(path)
    if operation.atomic:
        return False
    if shown == after:
        return True
    return path == operation.path and shown is not None and is_between(shown, before or b"", after or b"")


# -- all of them -------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What was checked, and what was wrong."""

    prefixes: int = 0
    power_losses: int = 0
    again: int = 0  # second crashes
    same: int = 0  # left out: the disk was as at another point
    failures: list[str] = field(default_factory=list)


def check(
    run: Run,
    seed: int,
    *,
    most: int = 0,
    overtaking: bool = False,
    prefixes: Collection[int] | None = None,
    powers: Collection[int] | None = None,
) -> Tally:
    """Check the points of `prefixes` for the death of the daemon, and those of `powers` for a power loss, with up to
    `most` reorderings each (`History.after_power_loss`); None: every point.
    """
    chance = random.Random(f"reorderings {seed}")
    tally, point, history, seen = Tally(), Point(), History(), set[tuple[object, ...]]()
    for op in run.ops:
        history.do(op)
        point.pass_by(op, run)
        disks: list[tuple[str, Disk]] = []
        if prefixes is None or point.at in prefixes:
            disks.append(("", history.live))
        if powers is None or point.at in powers:
            disks += history.after_power_loss(chance, most, overtaking=overtaking)
        for said, disk in disks:
            key = (disk.digest(), point.begun, point.done, point.safe if said else -1, point.service)
            if key in seen:
                tally.same += 1
                continue
            seen.add(key)
            tally.prefixes += not said
            tally.power_losses += bool(said)
            _check_one(run, point, said, disk, tally)
    return tally


def _check_one(run: Run, point: Point, said: str, disk: Disk, tally: Tally) -> None:
    launched = any(step.launched for step in run.steps[: point.begun])
    service = run.services[point.service]
    try:
        found = start_again(disk, service, run.api, rebooted=bool(said), launched=launched)
        wrong = faults(run, point, found, power=bool(said))
    except Exception as error:  # noqa: BLE001  whatever it is, the point is told
        wrong = [f"{type(error).__name__}: {error}"]
    if wrong:
        how = f"power loss ({said[:300]})" if said else "the daemon dies"
        tally.failures.append(f"{point.text(run)}: {how}:\n    " + "\n    ".join(wrong))


def crash_again(run: Run, at: int, directory: Path, seed: int, count: int) -> Tally:
    """The daemon dies after `at` operations, and that which is started then dies at `count` moments of its start, its
    uploads and its end.
    """
    point, history, again, tally = Point(), History(), History(), Tally()
    for op in run.ops[:at]:
        history.do(op)
        point.pass_by(op, run)
    (directory / "store").mkdir(parents=True)
    history.live.write_to(directory / "store")
    watched: list[Watched] = []
    with recorder(directory) as made:
        before = len(load(made.log))

        def watch(box: Sandbox) -> None:
            watched.append(Watched(box, lambda number: made.mark(json.dumps(["service", number]))))

        look(made.path, run.services[point.service], run.api, rebooted=False, launched=False, watch=watch)
        ops = made.close()
    service, moments = 0, random.Random(f"again {seed}").sample(range(before, len(ops)), count)
    for number, op in enumerate(ops):
        again.do(op)
        if op.kind == "mark" and op.data is not None:
            service = json.loads(op.data)[1]
        if number in moments:
            tally.prefixes += 1
            state = watched[0].states[service]
            found = start_again(again.live, state, run.api, rebooted=False, launched=False)
            said = point.text(run)
            tally.failures += [
                f"{said}, and {number - before} after its start: {each}"
                for each in faults(run, point, found, power=False)
            ]
    return tally
