"""Another client works in the folders in which this machine works: what may be lost there, and what may not.

A meeting is a few random steps in a folder of its own: the other client stores, replaces and removes; here files are
written, appended to, removed and renamed; uploads and deletes may be held up, listings and answers may lie for a
moment. Each version has a size of its own, so that a listing tells it. In the end the service must have

- each version of others that nobody here has removed or replaced after it was shown here. One that was stored while
  ours waited must be there if a listing has shown it before ours went up (README, "Limits");
- each version of ours that was not replaced later, by us or by others. What was appended to a file that others have
  removed or replaced may be kept here instead: `flush` says so, and `recover` has it.

And this machine must show what the service has. What was stored here comes back there once if others have removed it
before any listing has shown it (docs/architecture.md, "Data").
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzzops import Op, block
from fuzzstage import Failed, Stage
from fuzzversion import Version, sizes
from harness import Tree, patient

APART = 5.0  # seconds of the service's clock between two changes that are told apart
LOOKS = 3.0  # seconds within which what the service has must show
NAMES = "abcdefghij"


@dataclass
class Meeting:
    """Steps may run while other processes work; `verify` wants them to be at rest, and all to be stored."""

    stage: Stage
    number: int
    chance: random.Random
    steps: list[Op] = field(default_factory=list)
    versions: list[Version] = field(default_factory=list)
    changed: dict[str, int | None] = field(default_factory=dict)  # changed here, during which hold-up
    reads: bool = True  # whatever is shown here is read, so that its bytes are here
    hold: int = 0  # counts the hold-ups
    held: list[Any] = field(default_factory=list)  # the faults of this one
    overtaken: set[str] = field(default_factory=set)  # stored files that others have removed or replaced
    origins: dict[str, str] = field(default_factory=dict)  # names that were renamed here, and from where
    listed: set[str] = field(default_factory=set)  # the paths of the last listing
    removed: set[str] = field(default_factory=set)  # names that were unlinked here: `flush` has no word for them
    restarted: bool = False  # the mount has ended since, and with it what `flush` would tell

    def __post_init__(self) -> None:
        self.folder = f"m{self.number}"
        self.top = self.stage.m.path
        self.reads = self.chance.random() < 0.5
        for name in self.chance.sample(NAMES, self.chance.randrange(1, 8)):
            self._others_store(f"{self.folder}/{name}")
        if self.chance.random() < 0.5:
            self._others_store(f"{self.folder}/sub/{self.chance.choice(NAMES)}")

    def run(self, count: int) -> None:
        """Raises Failed."""
        kinds: list[Callable[[], None]] = [
            self._others_put, self._others_put, self._others_remove, self._write, self._append, self._append,
            self._unlink, self._remove_all, self._rename, self._look, self._look, self._hold_up, self._hold_up,
            self._let_go, self._wait, self._lie, self._list_while_others_remove,
        ]  # fmt: skip
        self._look()
        try:
            for _ in range(count):
                self.chance.choice(kinds)()
        finally:
            self._let_go()

    def verify(self) -> None:
        """Raises Failed."""
        if self.take_drafts() - self.removed and not self.restarted:
            self._fail("kept for recover, and flush did not say so", {})
        stored = self._stored()
        for version in self.versions:
            if version.must and not (version.endangered and version.since != -1) and not version.is_in(stored):
                whose = "ours" if version.ours else "theirs"
                self._fail(f"lost: {whose}, {version.path}, {len(version.data)} bytes, {version}", stored)
        until = time.monotonic() + patient(LOOKS + self.stage.plan.write_back)
        while (shown := self._shown()) != (at_last := self._stored()):
            if time.monotonic() > until:
                self._fail(f"shown: {sizes(shown)}", at_last)
            time.sleep(0.2)
        again = {path: data for path, data in at_last.items() if path not in stored}
        uploaded = all(path in self.origins or self._is_ours(data) for path, data in again.items())
        if {**stored, **again} != at_last or not uploaded:
            self._fail(f"changed by itself: {sizes(at_last)}", stored)

    def _stored(self) -> Tree:
        return {path: data for path, data in self.stage.box.files().items() if path.startswith(f"{self.folder}/")}

    def _is_ours(self, data: bytes) -> bool:
        return any(version.ours and version.is_in({"": data}) for version in self.versions)

    def take_drafts(self) -> set[str]:
        """Discard what is kept of changes that cannot be stored, once it is looked at. Returns the paths.

        Raises Failed if others have not been in the way.
        """
        drafts = [draft for draft in self.stage.drafts() if draft["path"].startswith(f"{self.folder}/")]
        for draft in drafts:
            path = draft["path"].partition(".conflict-")[0]
            self.steps.append(["kept", draft["path"], draft["size"], draft["missing"]])
            kept = file.read_bytes() if (file := Path(draft["file"])).exists() else b""
            if not {path, self.origins.get(path)} & self.overtaken or not draft["missing"]:
                self._fail(f"kept for recover without a reason: {draft}", {})
            for version in self.versions:
                if version.path == path and version.appended and kept.endswith(version.appended):
                    version.must = False
            self.stage.discard(draft["id"])
        return {draft["path"] for draft in drafts}

    def _shown(self) -> Tree:
        """What there is, after a refresh. The kernel may keep an older answer for a second."""
        self._refresh()
        with contextlib.suppress(OSError):
            return {path: (self.top / path).read_bytes() for path in self._walk(self.folder)}
        return {}

    def _fail(self, what: str, stored: Tree) -> None:
        raise Failed(f"{self}\n{what}\nstored: {sizes(stored)}")

    def __str__(self) -> str:
        return "\n".join([f"meeting {self.folder}", *map(str, self.steps)])

    # -- the other client --------------------------------------------------------------------------------------

    def _others_store(self, path: str) -> None:
        self._is_overtaken(path)
        version = Version(path, self._new_bytes(), ours=False)
        if path in self.changed:
            version.endangered, version.since = True, self.changed[path]
        self.stage.box.advance(APART)
        self.steps.append(["others store", path, len(version.data)])
        self.stage.box.put(path, version.data)
        self.stage.box.advance(APART)
        self.versions.append(version)

    def _others_put(self) -> None:
        self._others_store(self._path())

    def _others_remove(self) -> None:
        self._remove(self._path())

    def _remove(self, path: str) -> None:
        if not self._is_overtaken(path):
            return
        self.steps.append(["others remove", path])
        with contextlib.suppress(KeyError):
            self.stage.box.remove(path)

    def _is_overtaken(self, path: str) -> bool:
        """Whether something is stored there. It is theirs to replace or to remove."""
        before = self.stage.box.files().get(path)
        if before is None:
            return False
        self.overtaken.add(path)
        for version in self.versions:
            if version.data == before or (version.end and before.endswith(version.data)):
                version.must = False
        return True

    def _list_while_others_remove(self) -> None:
        """What is there all the time is listed. If the service does not answer, what it has listed last is."""
        listed = {path for path in self.stage.box.paths() if path.startswith(f"{self.folder}/")}
        gone = set(self.chance.sample(sorted(listed), min(len(listed), self.chance.randrange(1, 4))))
        stay = {path for path in listed - gone - self.changed.keys() if path.count("/") == 1}
        if self.stage.may_not_list:
            stay &= self.listed
        delay = self.chance.choice([0.0, 0.01, 0.03])
        fault = self.stage.box.faults.add("list*", "latency", seconds=0.02, path=self.folder)

        def remove() -> None:
            for path in sorted(gone):
                time.sleep(delay)
                self._remove(path)

        (thread := threading.Thread(target=remove)).start()
        found = self._refresh() and self._names()
        thread.join()
        self.stage.box.faults.remove(fault)
        self.steps.append(["list meanwhile", sorted(found) if found else found])
        if found and (missing := stay - {f"{self.folder}/{name}" for name in found}):
            self._fail(f"not listed, though there all the time: {sorted(missing)}", {})

    # -- here --------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        path, data = self._path(), self._new_bytes()
        self._note_shown(path)
        if self._try(["write", path, len(data)], lambda: (self.top / path).write_bytes(data)):
            self._changed(path)
            self.versions.append(Version(path, data, ours=True))

    def _append(self) -> None:
        path, data = self._path(), self._new_bytes()

        def act() -> None:
            with open(self.top / path, "ab", buffering=0) as file:
                file.write(data)

        self._note_shown(path)
        known = [version for version in self.versions if version.path == path and version.must]
        if self._try(["append", path, len(data)], act):
            sure = len(known) == 1 and known[0].shown and not known[0].end and path not in self.changed
            self._changed(path)
            whole = known[0].data + data if sure else data
            self.versions.append(Version(path, whole, ours=True, end=not sure, appended=data))

    def _unlink(self) -> None:
        self._unlink_one(self._path())

    def _unlink_one(self, path: str) -> None:
        self._note_shown(path)
        if self._try(["unlink", path], lambda: (self.top / path).unlink()):
            self._changed(path)
            self.removed.add(path)

    def _remove_all(self) -> None:
        """`rm -r`, and others may store something in the middle of it."""
        names = self._names()
        between = self.chance.randrange(-3, 12)
        for number, name in enumerate(sorted(names)):
            if number == between:
                self._others_put()
            self._unlink_one(f"{self.folder}/{name}")
        if between >= len(names) or self.chance.random() < 0.3:
            self._others_put()
        self._try(["rmdir", self.folder], lambda: (self.top / self.folder).rmdir())

    def _rename(self) -> None:
        old, new = self._path(), self._path()
        if old == new:
            return  # if others replace it at that very moment, libfuse waits for itself (README, "Limits")
        self._note_shown(old)
        self._note_shown(new)
        moved = [version for version in self.versions if version.path == old and version.must and version.shown]
        if self._try(["rename", old, new], lambda: os.rename(self.top / old, self.top / new)):
            self._changed(new)
            self._changed(old)
            self.origins[new] = self.origins.pop(old, old)
            for version in moved:
                version.must, version.path = True, new

    def _look(self) -> None:
        """`refresh` and `ls -l`: what is shown now is known here."""
        if not self._refresh():
            return
        if self.reads:
            for path in self._walk(self.folder):
                with contextlib.suppress(OSError):
                    (self.top / path).read_bytes()
        for version in self.versions:
            with contextlib.suppress(OSError):
                if version.endangered and version.since == self.hold and self.held:
                    version.since = -1  # a listing has shown it, and ours still waits
                elif not version.endangered and (self.top / version.path).stat().st_size == len(version.data):
                    version.shown = True

    def _note_shown(self, path: str) -> None:
        """What a name shows now is what a change of it, by the next call, takes the place of."""
        with contextlib.suppress(OSError):
            size = (self.top / path).stat().st_size
            for version in self.versions:
                if version.path == path and not version.endangered and size == len(version.data):
                    version.shown = True

    def _changed(self, path: str) -> None:
        """Something here took the place of what was under this name."""
        self.changed[path] = self.hold if self.held else None
        for version in self.versions:
            if version.path == path and (version.ours or version.shown):
                version.must = False
            elif version.path == path and not version.endangered:
                version.endangered, version.since = True, self.changed[path]

    def _wait(self) -> None:
        time.sleep(self.chance.choice([0.05, 0.2, 0.5]))

    # -- the service -------------------------------------------------------------------------------------------

    def _hold_up(self) -> None:
        """Nothing that is done here goes out for a while."""
        if self.held:
            return
        self.hold += 1
        self.steps.append(["hold up"])
        for operation in ("upload*", "object-put", "delete"):
            fault = self.stage.box.faults.add(operation, "status", status=503, path=f"{self.folder}*")
            self.held.append(fault)

    def _let_go(self) -> None:
        if self.held:
            self.steps.append(["let go"])
        for fault in self.held:
            self.stage.box.faults.remove(fault)
        self.held = []

    def _lie(self) -> None:
        """The next answers are wrong."""
        operation = self.chance.choice(["list*", "object-get", "delete"])
        times = self.chance.randrange(1, 4)
        self.steps.append(["lie", operation, times])
        self.stage.box.faults.add(operation, "status", status=404, times=times, path=f"{self.folder}*")

    # -- helpers -----------------------------------------------------------------------------------------------

    def _path(self) -> str:
        return f"{self.folder}/{self.chance.choice(NAMES)}"

    def _new_bytes(self) -> bytes:
        count = len(self.versions) + len(self.steps)
        return block(900_000_000 + self.number * 1000 + count, 100 + 37 * count)

    def _try(self, op: Op, act: Callable[[], object]) -> bool:
        try:
            act()
        except OSError as error:
            self.steps.append([*op, errno.errorcode.get(error.errno or 0)])
            if op[0] in ("write", "append"):
                for version in self.versions:  # it may be half done
                    version.must = version.must and version.path != op[1]
            return False
        self.steps.append(op)
        return True

    def _refresh(self) -> bool:
        control = Path(self.top, ".cloudsimfs/refresh")
        return self._try(["refresh"], lambda: control.write_text(self.folder)) and bool(self._names() or True)

    def _names(self) -> list[str]:
        try:
            names = os.listdir(self.top / self.folder)
        except OSError:
            names = []
        self.steps.append(["list", sorted(names)])
        self.listed = {f"{self.folder}/{name}" for name in names}
        return names

    def _walk(self, folder: str) -> list[str]:
        found = []
        for directory, _, files in os.walk(self.top / folder):
            found += [Path(directory, name).relative_to(self.top).as_posix() for name in files]
        return found
