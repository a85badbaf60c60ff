"""A day's work at a mount, what a user and a colleague did in it, and what must hold in the end.

    work        the day: browse, copy a case up, change, rename, remove, launch, follow, sync, stop
    finish      what goes on until all is quiet
    check       what does not hold

A user repeats what fails, a few times. Times are those of a clock that the client and the service share, which runs
ahead of the machine's.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from cloudsimfs.sandbox import Sandbox
from harness import Mounted, Tree, read_tree
from moving import Ahead
from runs_harness import LONG

PACE = 10.0  # seconds of the shared clock in one of the machine's
TRIES = 4  # how often a user repeats what failed
STARTED = ("cpu=2", "cpu=4 key=once")  # what is launched, besides the words that both have
COMMON = "ram=standard script=heat2d-1.0 folder=case"
ENDS = (errno.EEXIST, errno.ENOENT, errno.EINVAL)  # of a command: the same again is no use

STORED: Tree = {
    "study/a.dat": b"a" * 31,
    "study/b.dat": b"b" * 32,
    "study/c.dat": b"c" * 33,
    "study/d.dat": b"d" * 34,
    "study/e.dat": b"e" * 35,
    "log.txt": b"the first line\n",
    "note.txt": b"a note\n",
    "old/x": b"xx",
    "old/y": b"yyy",
    "old/z/deep": b"zzzz",
    "shared": b"as it was",
    "single": b"to be removed",
    "both": b"changed by both",
    "moving": b"to be renamed",
    "reborn": b"removed, and made again later",
    "redone": b"removed, and made again",
}
CASE: Tree = LONG | {"case/mesh/points": b"0 1 2", "case/mesh/cells": b"3"}


@dataclass
class Work:
    """A user at a mount, and a colleague, with what each of them has stored or removed."""

    box: Sandbox
    m: Mounted
    clock: Ahead
    truth: dict[str, set[bytes | None]] = field(default_factory=dict)  # what a path may hold; None: nothing
    closed: set[tuple[str, bytes]] = field(default_factory=set)
    failed: list[str] = field(default_factory=list)
    launched: dict[str, int] = field(default_factory=dict)  # the id that the user was told, by words
    wrong: list[str] = field(default_factory=list)
    ours: dict[str, bytes] = field(default_factory=dict)  # what was closed where a colleague has stored a file too
    _ticking: threading.Lock = field(default_factory=threading.Lock)

    def tick(self, seconds: float) -> None:
        with self._ticking:
            self.clock.move(seconds)
            self.box.advance(seconds)

    # -- what a user does, a few times if it fails -----------------------------------------------------------

    def try_to(self, what: str, act: Callable[[], object], *, fine: tuple[type[OSError], ...] = ()) -> bool:
        for attempt in range(TRIES):
            try:
                act()
                return True
            except fine:
                return True
            except OSError as error:
                self.failed.append(f"{what}: {error.strerror}")
            self.tick(5.0 * 3**attempt)
        return False

    def write(self, path: str, data: bytes) -> None:
        before = self.truth.get(path, {None})
        self.closed.add((path, data))
        done = self.try_to(f"write {path}", lambda: (self.m.path / path).write_bytes(data))
        self.truth[path] = {data} if done else {*before, data, b""}

    def append(self, path: str, data: bytes) -> None:
        (before,) = self.truth[path]

        def act() -> None:
            with open(self.m.path / path, "ab") as file:
                file.write(data)

        after = (before or b"") + data
        self.closed.add((path, after))
        done = self.try_to(f"append {path}", act)
        self.truth[path] = {after} if done else {before, after}

    def rename(self, old: str, new: str) -> None:
        (data,) = self.truth[old]
        if data is not None:
            self.closed.add((new, data))
        done = self.try_to(f"rename {old}", lambda: os.rename(self.m.path / old, self.m.path / new))
        self.truth[old] = {None} if done else {data, None}
        self.truth[new] = {data} if done else {data, None}

    def remove(self, path: str) -> None:
        gone = self.try_to(f"remove {path}", lambda: os.unlink(self.m.path / path), fine=(FileNotFoundError,))
        self.truth[path] = {None} if gone else {*self.truth[path], None}

    def remove_folder(self, top: str) -> None:
        """rm -r: the names that are listed, then the folder."""

        def act() -> None:
            for directory, _, files in os.walk(self.m.path / top, topdown=False, onerror=_raise):
                for name in files:
                    path = Path(directory, name).relative_to(self.m.path).as_posix()
                    os.unlink(Path(directory, name))
                    self.truth[path] = {None}
                os.rmdir(directory)

        self.try_to(f"rm -r {top}", act, fine=(FileNotFoundError,))

    def read(self, path: str) -> None:
        """Reading gives the bytes or fails, and never anything else."""
        found: list[bytes] = []
        if self.try_to(f"read {path}", lambda: found.append((self.m.path / path).read_bytes())):
            wanted = self.truth.get(path, {None})
            if found[-1] not in wanted:
                self.wrong.append(f"read: {path} gave {_short(found[-1])}, not {_shorts(wanted)}")

    def command(self, name: str, text: str, *, tries: int = 30) -> bool:
        """Write a control file, again after EAGAIN and the like."""
        for _ in range(tries):
            try:
                (self.m.path / name).write_text(text)
                return True
            except OSError as error:
                self.failed.append(f"{name} {text}: {error.strerror}: {self.error()[:200]}")
                if error.errno in ENDS:
                    return False
                self.tick(10.0)
        return False

    def error(self) -> str:
        with contextlib.suppress(OSError):
            return (self.m.path / ".simulations/error").read_text().strip()
        return ""

    def flush(self) -> bool:
        return self.command(".cloudsimfs/flush", "1")

    def refresh(self) -> None:
        self.command(".cloudsimfs/refresh", ".")

    def browse(self) -> None:
        for directory, _, files in os.walk(self.m.path):
            for name in files:
                with contextlib.suppress(OSError):
                    os.stat(os.path.join(directory, name))

    # -- what a colleague does -------------------------------------------------------------------------------

    def theirs(self, path: str, data: bytes) -> None:
        self.tick(5.0)
        self.closed.add((path, data))
        self.truth[path] = {data}
        self.box.put(path, data)

    def collide(self, path: str, ours: bytes, theirs: bytes) -> None:
        """Both change a file: it is open here while a colleague stores it. Both versions are kept."""
        before = self.truth[path]

        def act() -> None:
            with open(self.m.path / path, "r+b") as file:
                file.truncate(0)
                file.write(ours)
                if self.truth[path] is before:
                    self.theirs(path, theirs)
                self.refresh()
                os.listdir(self.m.path)

        self.closed.add((path, ours))
        if self.try_to(f"change {path}", act):
            self.ours[path] = ours

    # -- runs ------------------------------------------------------------------------------------------------

    def launch(self, words: str) -> None:
        """Launch, the same again if it fails; with a key once more in any case."""
        for _ in range(TRIES):
            if self.command(".simulations/launch", f"{words} {COMMON}", tries=1):
                answer = (self.m.path / ".simulations/launch").read_text()
                self.launched[words] = int(answer.split()[0].removeprefix("id="))
                return
            if self.failed[-1].find("File exists") >= 0:
                found = re.search(r"run (\d+)", self.failed[-1])
                if found:
                    self.launched[words] = int(found[1])
                return
            self.tick(20.0)

    def see(self, name: str, wanted: Callable[[str], bool], *, looks: int = 40) -> bool:
        """Look at a virtual file until it says something."""
        for _ in range(looks):
            with contextlib.suppress(OSError):
                if wanted((self.m.path / ".simulations" / name).read_text()):
                    return True
            self.tick(2.0)
            time.sleep(0.02)
        return False

    def end_runs(self) -> None:
        for words, run in self.launched.items():
            for _ in range(2):
                self.command(f".simulations/{run}/stop", "hard", tries=2)
                if self.see(f"{run}/status", lambda text: text == "STOPPED\n", looks=15):
                    break
            else:
                self.failed.append(f"stop of {words}: not seen")
        for each in self.box.runs():  # whatever was told: the next steps are about files
            with contextlib.suppress(Exception):
                self.box.stop(each["id"])
        _until(lambda: all(each["status"] in (10, 50, 60) for each in self.box.runs()))


def work(day: Work) -> None:
    """The day itself."""
    day.truth.update((path, {data}) for path, data in STORED.items())
    day.closed.update(STORED.items())
    day.browse()
    day.read("study/a.dat")
    for path, data in CASE.items():
        day.try_to("mkdir", partial((day.m.path / path).parent.mkdir, parents=True, exist_ok=True))
        day.write(path, data)
    day.write("study/b.dat", b"written over")
    day.flush()

    day.theirs("shared", b"by a colleague")
    day.theirs("new/theirs", b"new")
    day.refresh()
    day.browse()
    day.read("shared")
    day.append("log.txt", b"the second line\n")
    day.rename("moving", "moved")
    day.remove("single")
    day.remove("reborn")
    day.remove("redone")
    day.write("redone", b"made again, longer than before")
    day.collide("both", b"ours", b"theirs, and longer")
    day.flush()

    day.theirs("old/theirs", b"stored before the folder is removed")
    day.refresh()
    day.remove_folder("old")
    day.write("reborn", b"made again")
    day.append("log.txt", b"the third line\n")
    day.flush()

    for words in STARTED:
        day.launch(words)
        if "key" in words:
            day.launch(words)
    for run in day.launched.values():
        day.see(f"{run}/status", lambda text: text == "RUNNING\n")
        day.see(f"{run}/log", lambda text: "step" in text or len(text) > 50)
    for run in list(day.launched.values())[:1]:
        day.command(f".simulations/{run}/sync", "1", tries=3)
        _until(lambda: bool(list((day.m.path / "case/results").glob("*"))), turn=lambda: day.tick(2.0))
        for result in sorted((day.m.path / "case/results").glob("*.csv"))[:1]:
            with contextlib.suppress(OSError):
                result.read_bytes()
    day.end_runs()
    for path, data in day.box.files().items():
        if path.startswith("case/"):
            day.truth.setdefault(path, {data})
            day.closed.add((path, data))
    day.refresh()
    day.remove_folder("case")
    day.write("note.txt", b"the day is over\n")


def _raise(error: OSError) -> None:
    raise error


def _until(condition: Callable[[], bool], *, turn: Callable[[], None] = lambda: None, bound: float = 8.0) -> bool:
    end = time.monotonic() + bound
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            if condition():
                return True
        turn()
        time.sleep(0.03)
    return False


@contextlib.contextmanager
def going_on(day: Work) -> Iterator[None]:
    """The shared clock goes on, so that pauses end."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(0.05):
            day.tick(0.05 * PACE)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def start(day: Work) -> None:
    """Mount, once more if that is refused."""
    done = day.m.try_start()
    if done.returncode != 0:
        day.failed.append(f"mount: {done.stderr.strip()}")
        day.m.start()


def remount(day: Work) -> None:
    """Unmount in order, and mount again: what cannot be stored is said."""
    done = day.m.umount()
    if done.returncode != 0:
        day.failed.append(f"umount: {done.stderr.strip()}")
        day.flush()
        done = day.m.umount()
    assert done.returncode == 0, done.stderr
    start(day)


# -- what must hold ------------------------------------------------------------------------------------------


def finish(day: Work) -> None:
    """The lie is over: wait until all is quiet, as it was told or not."""
    day.box.faults.clear()
    for _ in range(14):
        with contextlib.suppress(OSError):
            if not day.m.pending():
                break
        day.command(".cloudsimfs/flush", "1", tries=1)
        day.tick(150.0)
    for seconds in (70.0, 1000.0, 70.0):
        day.tick(seconds)
        day.refresh()
        with contextlib.suppress(OSError):
            read_tree(day.m.path)
        day.command(".cloudsimfs/flush", "1", tries=3)


def check(day: Work) -> list[str]:
    """What is violated, each with the name of the rule first."""
    stored, status = day.box.files(), day.m.status()
    drafts = json.loads((day.m.path / ".cloudsimfs/recover.json").read_text())
    told = {draft["path"] for draft in drafts} | {each["path"] for each in status["undeleted"]}
    told |= {job["path"] for job in status["pending"]}
    beside = {data for path, data in stored.items() if ".conflict-" in path}
    kept = {draft["path"]: Path(draft["file"]).read_bytes() for draft in drafts}
    beside |= set(kept.values())
    found = list(day.wrong)
    for path, wanted in day.truth.items():
        here = stored.get(path)
        if here in wanted:
            continue
        if None in wanted:
            if path not in told:
                found.append(f"removed: {path} is on the service ({_short(here)}), and nobody was told")
        elif path in kept and all(_is_in(data, kept[path] + (here or b"")) for data in wanted):
            continue  # what was appended here and there: `recover` has a part of it
        elif not wanted & beside:
            found.append(f"lost: {path} has {_short(here)}, not {_shorts(wanted)}, and it is nowhere else")
        elif path not in told and not any(copy.startswith(f"{path}.conflict-") for copy in stored):
            found.append(f"untold: {path} has {_short(here)}, not {_shorts(wanted)}")
    for path, data in day.ours.items():
        if data not in beside | {stored.get(path)}:
            found.append(f"lost: {path} was closed with {_short(data)}, and it is nowhere")
    found += _shown(day, stored, told)
    found += _runs(day)
    return found


def _is_in(data: bytes | None, found: bytes) -> bool:
    return data is not None and all(line in found for line in data.splitlines())


def _shown(day: Work, stored: Tree, told: set[str]) -> list[str]:
    """What the mount shows differently from what the service has."""
    try:
        shown = read_tree(day.m.path)
    except OSError as error:
        return [f"hidden: the tree cannot be read: {error}"]
    found = [f"hidden: {path} is on the service, and not shown" for path in stored if path not in shown]
    found += [f"shown: {path} is not on the service" for path in shown if path not in stored]
    found += [
        f"shown: {path} is shown with {_short(shown[path])}, not {_short(stored[path])}"
        for path in stored
        if path in shown and shown[path] != stored[path]
    ]
    return [text for text in found if text.split()[1] not in told]


def _runs(day: Work) -> list[str]:
    found = []
    runs = day.box.runs()
    for words in STARTED:
        cpu = int(words.split()[0].removeprefix("cpu="))
        ids = [run["id"] for run in runs if run["cpu"] == cpu]
        if len(ids) > 1:
            found.append(f"twice: {words} has started the runs {ids}")
        if words in day.launched and day.launched[words] not in ids:
            found.append(f"launch: {words} was told run {day.launched[words]}, and has {ids}")
        was_told = any(text.startswith(f".simulations/launch {words} ") for text in day.failed)
        if ids and words not in day.launched and not was_told:
            found.append(f"launch: {words} has started run {ids}, and nobody was told")
    names = {int(line.split()[0]) for line in (day.m.path / ".simulations/runs").read_text().splitlines()}
    if names != {run["id"] for run in runs}:
        found.append(f"hidden: the runs shown are {sorted(names)}, not {[run['id'] for run in runs]}")
    return found


def _short(data: bytes | None) -> str:
    return "nothing" if data is None else f"{data[:40]!r}{'...' if len(data) > 40 else ''} ({len(data)} bytes)"


def _shorts(wanted: set[bytes | None]) -> str:
    return " or ".join(map(_short, wanted))


def half_made(day: Work, versions: list[tuple[str, bytes]]) -> list[str]:
    """Versions that the service has got, and that nobody has ever closed, but for files that wait in `recover`."""
    found = []
    known = {data for _, data in day.closed}
    for path, data in versions:
        ours = (path, data) in day.closed or (".conflict-" in path and data in known)
        if not ours and not path.startswith("case/") and path not in day.m.status()["recover"]:
            found.append(f"half made: the service was given {path} with {_short(data)}, which nobody closed")
    return found
