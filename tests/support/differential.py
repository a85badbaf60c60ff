"""Differential fuzz: processes work at random on a mount and on a local disk, and both must answer the same.

All is chosen by a seed but the moments: of kills, of uploads, of what processes do in the folder that they share. A
run is made of epochs: a spell of the service (calm, faults, lies, no network), operations in all processes, and an
end (nothing, kill -9, a remount). Every few epochs, and at the end, the service must have what the disk has, and
never have had anything that was not closed. `shrinking` makes a small repro of a run that failed.
"""

from __future__ import annotations

import contextlib
import json
import random
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cloudsimfs.listings.dcache import ANSWER_BOUND
from fuzzmeet import Meeting
from fuzzstage import SHARED, Failed, Plan, Refused, Stage, blocks, stored_before
from harness import ROOT, client_environment, patient

REPLY_BOUND = 60.0  # seconds that the operations of one epoch may take, on a machine with nothing else to do
Values = dict[str, Any]
FAULTS: list[tuple[str, str, Values]] = [
    ("object-put", "latency", {"seconds": 0.05}),
    ("object-put", "drop_reply", {"probability": 0.3}),
    ("object-put", "status", {"probability": 0.3, "status": 503}),
    ("upload-url", "status", {"probability": 0.3, "status": 500}),
    ("object-get", "reset", {"probability": 0.2}),
    ("delete", "drop_reply", {"probability": 0.3}),
    ("delete", "latency", {"seconds": 0.1}),
    ("delete", "status", {"probability": 0.3, "status": 503}),
    ("list*", "status", {"probability": 0.1, "status": 500}),
    ("view*", "reset", {"probability": 0.2}),
]
LIES: list[tuple[str, str, Values]] = [
    ("list*", "status", {"probability": 0.2, "status": 404}),
    ("object-get", "status", {"probability": 0.2, "status": 404}),
    ("delete", "status", {"probability": 0.2, "status": 404}),
]
PATIENCE = 8.0  # seconds that an epoch of a failing network takes at most
MEETING = 12  # steps
ENDINGS = ("none", "none", "settle", "remount", "remount_at_once", "forget", "kill", "kill", "kill inside")


class Worker:
    """The driver's end of one process."""

    def __init__(self, number: int, stage: Stage) -> None:
        self.name = f"w{number}"
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/support/fuzzworker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=client_environment(),
        )
        self.tell(
            {
                "number": number,
                "seed": stage.plan.seed,
                "folders": [self.name, SHARED],
                "clashes": stage.plan.clashes,
                "leaving": stage.plan.leaving,
                "mount": str(stage.m.path),
                "local": str(stage.local),
                "lock": str(stage.place / "lock"),
                "history": str(stage.place / f"history-{number}.jsonl"),
            }
        )

    def tell(self, line: Values) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()

    def answer(self, until: float) -> Values:
        """Raises Failed if there is none until then (monotonic seconds)."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, until - time.monotonic()))
        line = self._process.stdout.readline() if ready else ""
        if not line:
            raise Failed(f"process {self.name} {'ended' if ready else 'hangs'}")
        found = json.loads(line)
        assert isinstance(found, dict)
        return found

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


class Run:
    """One seed, from an empty cache to the last comparison."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        self.plan = plan
        self.stage = Stage(directory, plan)
        self.done = 0  # operations
        self.kills = 0
        self.failed = 0  # operations that the network made fail
        self._spent = False
        self._chance = random.Random(f"epochs {plan.seed}")
        self._workers: list[Worker] = []
        self._meetings: list[Meeting] = []
        self.met = 0  # meetings with another client

    def start(self) -> None:
        self.stage.store(blocks(stored_before(self.plan)))
        self.stage.m.start()
        self._workers = [Worker(number, self.stage) for number in range(self.plan.workers)]

    def end(self) -> None:
        for worker in self._workers:
            worker.end()
        self.stage.end()

    def epoch(self, count: int) -> None:
        """So many operations in each process, and an end. Raises Failed."""
        tolerant = self._spell()
        ending = self._chance.choice(ENDINGS)
        if ending.startswith("kill") and not self.plan.kills:
            ending = "none"
        inside = ending == "kill inside"
        work: Values = {
            "count": count,
            "folders": 2 if self.plan.shared and not inside else 1,
            "seconds": PATIENCE if tolerant else REPLY_BOUND,
        }
        with self._meeting() if self.plan.others and not inside else contextlib.nullcontext():
            answers = self._all("run", tolerant=tolerant, kill=inside, **work)
        self.done += sum(answer["done"] for answer in answers)
        if ending.startswith("kill"):
            if not inside:
                self._kill()
            self._clear()
            self._ended()
            self.stage.act(["start"])
            self._all("recover", shared=True)
        elif any("gone" in answer for answer in answers):
            raise Failed("the daemon died by itself")
        else:
            self._clear()
            if ending != "none":
                self.settle(ending)

    def settle(self, how: str = "settle") -> None:
        """Nothing is open; a remount, if wanted; nothing has changed by it."""
        self._all("close")
        if how != "remount_at_once":
            self._flush()
            self.stage.act(["late"])
            self.stage.await_deletes()
            for meeting in self._meetings:
                meeting.verify()
            self._meetings.clear()
        else:
            self._ended()
        self.stage.act([how])
        if how == "forget":
            self._all("forget", shared=True)
        else:
            self._all("check", shared=True)

    def _ended(self) -> None:
        for meeting in self._meetings:
            meeting.restarted = True

    def _flush(self) -> None:
        """What others have kept from being stored is told first. Raises Failed."""
        while True:
            try:
                self.stage.flush()
                return
            except Failed as error:
                taken = [meeting.take_drafts() for meeting in self._meetings]
                if not (isinstance(error, Refused) and any(taken)):
                    told = [str(meeting) for meeting in self._meetings if f"{meeting.folder}/" in str(error)]
                    raise Failed("\n".join([str(error), *told])) from error

    @contextlib.contextmanager
    def _meeting(self) -> Iterator[None]:
        """With another client, while the processes work. It is verified the next time that all is at rest."""
        self.met += 1
        meeting = Meeting(self.stage, self.met, random.Random(f"meeting {self.plan.seed} {self.met}"))
        self._meetings.append(meeting)
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(meeting.run, MEETING)
            yield
        done.result()

    def _spell(self) -> bool:
        """Choose what the service does for a while. Returns whether operations may fail by it."""
        spell = self._chance.choice(["calm", "calm", "faults", "lies", "offline", "spent"])
        faults: list[tuple[str, str, Values]] = []
        if spell == "faults" and self.plan.faults:
            faults = self._chance.sample(FAULTS, 3)
        elif spell == "lies" and self.plan.lies:
            faults = self._chance.sample(LIES, 2)
        elif spell == "offline" and self.plan.faults:
            faults = [("*", "reset", {})]
        elif spell == "spent" and self.plan.hours:
            self.stage.act(["limit", self._chance.choice([1, 20, 100])])
            self._spent = True
        for operation, kind, values in faults:
            self.stage.act(["fault", operation, kind, {"seed": self._chance.randrange(1000), **values}])
        return bool(faults) or self._spent

    def _clear(self) -> None:
        self.stage.act(["clear"])
        if self._spent:
            self.stage.act(["limit", 0])
            self._spent = False

    def _kill(self) -> None:
        self.kills += 1
        self.stage.act(["kill"])

    def _all(
        self, what: str, *, shared: bool = False, tolerant: bool = False, kill: bool = False, **arguments: Any
    ) -> list[Values]:
        """Have all processes do this. With `shared`, the first one does it for the shared folder, too."""
        for number, worker in enumerate(self._workers):
            given = {"folders": 2 if number == 0 else 1} if shared else arguments
            worker.tell({"do": what, "tolerant": tolerant, "with": given})
        if kill:
            time.sleep(self._chance.random() * 0.5)
            self._kill()
        until = time.monotonic() + patient(REPLY_BOUND + (ANSWER_BOUND if self._spent else 0.0))
        answers = [worker.answer(until) for worker in self._workers]
        for answer in answers:
            self.stage.closed.update(answer["closed"])
            self.failed += answer["failed"]
        for number, answer in enumerate(answers):
            if "mismatch" in answer:
                told = f"w{number}: {json.dumps(answer['mismatch'])}"
                raise Failed(told, kind=answer["kind"], who=number)
        return answers


def differential_run(directory: Path, plan: Plan, operations: int, *, epoch: int = 250) -> Run:
    """So many operations in all. Raises Failed (or what a command failed with), and says where its history is."""
    run = Run(directory, plan)
    try:
        run.start()
        while run.done < operations:
            run.epoch(epoch)
        run.settle()
        run.stage.act(["look_elsewhere"])
    except BaseException as error:
        failure = {"told": str(error), "kind": getattr(error, "kind", ""), "who": getattr(error, "who", None)}
        (run.stage.place / "failure.json").write_text(json.dumps(failure))
        print(f"{plan}, after {run.done} operations; its history is in {run.stage.place}")
        raise
    finally:
        run.end()
    shutil.rmtree(run.stage.place)
    return run
