"""What a differential run stands on: a service, a mount of it and a local disk; and what happens to them.

An event is a list that JSON can hold, as an operation is; `Stage.act` makes it happen and writes it into the history.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cloudsimfs.sandbox import Sandbox, Settings
from cloudsimfs.vfs.names import is_local_name
from fuzzops import Op, block, digest
from harness import ROOT, Mounted, Tree, patient, read_tree, write_tree
from moving import HOUR, Ahead

MOVING = ROOT / "tests/support/moving.py"
SHARED = "s"
MEMORY = Path("/dev/shm")  # a local disk in memory, if there is one
FLUSH_BOUND = 20.0  # seconds that uploads may take once the service answers
LATE = 1000.0  # seconds after which nothing lags
PLENTY = 1_000_000  # calls an hour
DRIVER = "driver"
FIRST = ("a", "b", "c/a", "c/b", "c/c/a", "c/d/a", "d/c/a", "d/c/b", "d/a")  # more than a page of names in a folder


@dataclass(frozen=True)
class Plan:
    """What a seed stands for. Times in seconds. The last members switch parts off.

    Without `hours`, `others` and `lies` the daemon has the machine's clock, and is a little faster.
    """

    seed: int
    api: str
    ttl: int
    write_back: float
    page_size: int
    listing_lag: float
    delete_lag: float
    millis: bool
    shared: bool = True
    faults: bool = True
    lies: bool = True
    kills: bool = True
    clashes: bool = True  # files and folders take each other's names
    leaving: bool = True  # folders are removed and renamed
    hours: bool = False  # the hour's calls run out now and then
    others: bool = True  # another client works in folders in which this one works as well
    workers: int = 4


def plan_of(seed: int, **changes: Any) -> Plan:
    chance = random.Random(f"plan {seed}")
    plan = Plan(
        seed,
        api=chance.choice(["v1", "v2", "auto"]),
        ttl=chance.choice([0, 1, 60]),
        write_back=chance.choice([0, 0.1, 0.1, 2]),
        page_size=chance.choice([3, 3, 5, 10, 50]),
        listing_lag=chance.choice([0, 0, 2]),
        delete_lag=chance.choice([0, 0, 2]),
        millis=chance.random() < 0.3,
        hours=chance.random() < 0.3,
    )
    return replace(plan, **changes)


class Failed(AssertionError):
    """What went wrong. `kind` stays the same if it goes wrong in the same way in another run; `who` saw it."""

    def __init__(self, told: str, *, kind: str = "", who: int | None = None) -> None:
        super().__init__(told)
        self.kind = kind or told.partition(":")[0]
        self.who = who


class Refused(Failed):
    """Files that were closed are not stored, and a flush says so."""


class Stage:
    """`closed` has the digests of all that may ever be on the service."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        self.plan = plan
        self.place = Path(tempfile.mkdtemp(prefix=f"diff-{plan.seed}-", dir=directory))
        memory = MEMORY if os.access(MEMORY, os.W_OK) else directory
        self.local = Path(tempfile.mkdtemp(prefix=f"cloudsimfs-diff-{plan.seed}-", dir=memory))
        settings = Settings(
            hourly_limit=0,
            page_size=plan.page_size,
            listing_lag=plan.listing_lag,
            delete_lag=plan.delete_lag,
            millis=plan.millis,
        )
        self.box = Sandbox(settings=settings)
        ahead = self.place / "ahead"
        self._ahead = Ahead(ahead)
        clock: dict[str, Any] = (
            {"program": [str(MOVING), str(ahead), "cloudsimfs"]} if plan.hours or plan.others or plan.lies else {}
        )
        self.m = Mounted(self.box, self.place, api=plan.api, ttl=plan.ttl, write_back=plan.write_back, **clock)
        self.closed: set[str] = set()
        self._history = open(self.place / "history-driver.jsonl", "w", encoding="utf-8")  # noqa: SIM115  # for the whole run
        self._versions = self.box.record_versions()
        (self.place / "plan.json").write_text(json.dumps(asdict(plan)))

    def end(self) -> None:
        self.m.clean_up()
        self.box.close()
        self._history.close()
        shutil.rmtree(self.local)

    def store(self, files: Tree) -> None:
        """What both have before the first operation."""
        write_tree(self.local, files)
        for path in self.local.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        self.box.populate(files)
        self.box.advance(10)
        self.closed.update(map(digest, files.values()))

    # -- events ------------------------------------------------------------------------------------------------

    def act(self, event: Op) -> None:
        self._history.write(json.dumps([round(time.monotonic(), 4), DRIVER, event]) + "\n")
        self._history.flush()
        getattr(self, "act_" + event[0])(*event[1:])

    def act_fault(self, operation: str, kind: str, values: dict[str, Any]) -> None:
        self.box.faults.add(operation, kind, **values)

    def act_clear(self) -> None:
        self.box.faults.clear()

    def act_limit(self, calls: int) -> None:
        """The account has so many calls an hour; 0: as many as it likes, from the next hour on.

        A service that names no limit any more would have the client wait for one: none does that.
        """
        self.box.settings.hourly_limit = calls or PLENTY
        if not calls:
            self.box.advance(HOUR)
            self._ahead.move(HOUR)

    def act_late(self) -> None:
        """So much later that nothing lags, and that nothing is awaited any more."""
        self.box.advance(LATE)
        self._ahead.move(LATE)

    def act_kill(self) -> None:
        self.m.kill()

    def act_start(self) -> None:
        self.m.start()

    def act_remount(self) -> None:
        self.m.remount()

    def act_remount_at_once(self) -> None:
        self.m.remount("--no-wait")

    def act_forget(self) -> None:
        """Mount with an empty cache: what is on the service is all that is known."""
        assert self.m.umount().returncode == 0
        shutil.rmtree(self.m.cache)
        self.act_late()
        self.m.start()

    def act_settle(self) -> None:
        """Nothing is open: all is stored soon, the same as on the disk, and nothing else ever was.

        Raises Failed.
        """
        self.flush()
        ours = folders(self.plan)
        pending = self.m.pending()
        uploads = [job for job in pending if job["kind"] == "upload" and job["path"].partition("/")[0] in ours]
        if uploads:
            raise Failed(f"not uploaded by a flush: {uploads}")
        self.await_deletes()
        self._compare(self.box.files(), "the service")
        received = self.ours(dict(self._versions))
        strange = [path for path, data in self._versions if path in received and digest(data) not in self.closed]
        if strange:
            raise Failed(f"the service got what was never closed: {strange}")
        self._versions.clear()
        self.act_late()

    def await_deletes(self) -> None:
        """A flush does not wait for a delete that looks for an upload which is not listed yet."""
        until = time.monotonic() + patient(FLUSH_BOUND)
        while pending := self.m.pending():  # the kernel tells a moment later that a removed file was closed
            if time.monotonic() > until:
                raise Failed(f"still pending: {pending}")
            self.act_late()  # what a delete has not found is looked for again, minutes apart
            time.sleep(0.05)

    def act_look_elsewhere(self) -> None:
        """A mount that knows nothing shows the same files. Raises Failed."""
        place = self.place / "elsewhere"
        place.mkdir()
        other = Mounted(self.box, place, api=self.plan.api)
        try:
            other.start()
            self._compare(read_tree(other.path), "another mount")
        finally:
            other.clean_up()
            shutil.rmtree(place)

    def flush(self) -> None:
        """Raises Refused, or Failed if the service has not got all after a while, though nothing is in the way."""
        until = time.monotonic() + patient(FLUSH_BOUND)
        while True:
            try:
                (self.m.path / ".cloudsimfs/flush").write_text("1")
                return
            except OSError as error:
                told = (self.m.path / ".cloudsimfs/status").read_text().splitlines()
                if refused := [line for line in told if line.startswith("refused ")]:
                    raise Refused("\n".join(["flush:", *refused])) from error
                if time.monotonic() > until:
                    raise Failed(f"flush: {error}: {self.m.pending()}") from error
                time.sleep(0.05)

    def drafts(self) -> list[dict[str, Any]]:
        """What is kept for `recover` beside the names."""
        found = json.loads((self.m.path / ".cloudsimfs/recover.json").read_text())
        return [draft for draft in found if not draft["shown"]]

    def discard(self, draft: str) -> None:
        (self.m.path / ".cloudsimfs/recover").write_text(f"discard {draft}")

    @property
    def may_not_list(self) -> bool:
        """Whether the service may leave a listing unanswered now."""
        return 0 < self.box.settings.hourly_limit < PLENTY or any(
            fault.operation in ("*", "list*") and fault.kind != "latency" for fault in self.box.faults.active()
        )

    def ours(self, tree: Tree) -> Tree:
        """The part in which nobody else works."""
        return {path: data for path, data in tree.items() if path.partition("/")[0] in folders(self.plan)}

    def _compare(self, found: Tree, where: str) -> None:
        expected = {path: data for path, data in read_tree(self.local).items() if not is_local_name(Path(path).name)}
        found = self.ours(found)
        wrong = [
            f"{path}: {_told(found.get(path))}, expected {_told(expected.get(path))}"
            for path in sorted(found.keys() | expected.keys())
            if found.get(path) != expected.get(path)
        ]
        if wrong:
            raise Failed(f"{where} differs:\n" + "\n".join(wrong))


def _told(data: bytes | None) -> str:
    return "absent" if data is None else f"{len(data)} bytes {data[:24]!r}"


def folders(plan: Plan) -> list[str]:
    return [*(f"w{number}" for number in range(plan.workers)), SHARED]


def stored_before(plan: Plan) -> dict[str, tuple[int, int]]:
    """What is on the service before the first operation, as arguments of `block`."""
    chance = random.Random(f"stored {plan.seed}")
    paths = [f"{folder}/{path}" for folder in folders(plan) for path in FIRST]
    return {path: (number, chance.choice([0, 100, 5000, 20_000])) for number, path in enumerate(paths, 1)}


def blocks(stored: dict[str, tuple[int, int]]) -> Tree:
    return {path: block(stamp, size) for path, (stamp, size) in stored.items()}
