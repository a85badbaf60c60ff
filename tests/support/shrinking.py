"""From the history of a differential run that failed to a few steps that fail as well.

    python shrinking.py RUN [SECONDS]       RUN is the directory of the run; prints the steps, and keeps them in it

A history is done again by one process on a new mount, in the order of its moments and with its longer pauses, without
ever more of its steps. A shorter history counts if what fails is the same kind of thing. Since moments matter, each
one is tried several times.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzzops import SLOT, Op, Side, block
from fuzzpair import Mismatch, MountGone, Pair
from fuzzstage import DRIVER, Failed, Plan, Stage, folders, stored_before
from fuzzworker import kind_of
from harness import start_reaper

PAUSE = 0.02  # seconds; shorter ones are not kept
TRIES = 2
SLOTS_EACH = 1000  # slots of one process
Step = list[Any]  # who, operation or event
Fails = Callable[[list[Step]], bool]


def load(run: Path) -> tuple[Plan, list[Step]]:
    plan = Plan(**json.loads((run / "plan.json").read_text()))
    lines = [json.loads(line) for file in run.glob("history-*.jsonl") for line in file.read_text().splitlines()]
    steps: list[Step] = [[DRIVER, ["stored", path, *data]] for path, data in stored_before(plan).items()]
    last = 0.0
    for moment, who, op in sorted(lines, key=lambda line: float(line[0])):
        if last and moment - last > PAUSE:
            steps.append([DRIVER, ["wait", round(moment - last, 3)]])
        steps.append([who, op])
        last = moment
    return plan, steps


class Replay:
    """Does a history again. `told` is what was wrong the last time."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        self._directory = directory
        self._plan = plan
        self.told = ""

    def fails(self, steps: list[Step]) -> str:
        """The kind of what goes wrong in these steps; empty if nothing does."""
        stage = Stage(self._directory, self._plan)
        pair = Pair(Side(f"{stage.m.path}/"), Side(f"{stage.local}/"), tolerant=self._plan.faults or self._plan.lies)
        self.told = ""
        try:
            stage.store({op[1]: block(*op[2:]) for _, op in steps if op[0] == "stored"})
            stage.m.start()
            for who, op in steps:
                self._do(stage, pair, who, op)
            self._do(stage, pair, DRIVER, ["clear"])
            self._do(stage, pair, DRIVER, ["settle"])
            self._do(stage, pair, 0, ["check"])
        except (Failed, Mismatch) as error:
            self.told = str(error)
            return error.kind
        except OSError as error:
            self.told = repr(error)
            return kind_of(error)
        except (MountGone, AssertionError, subprocess.SubprocessError) as error:
            self.told = repr(error)
            return type(error).__name__
        finally:
            for fd in pair.mount.open.values():
                with contextlib.suppress(OSError):
                    os.close(fd)
            stage.end()
        return ""

    def _do(self, stage: Stage, pair: Pair, who: int | str, op: Op) -> None:
        if op[0] == "stored":
            return
        if who != DRIVER:
            if op[0] == "check":
                pair.check(folders(stage.plan))
            elif op[0] not in ("recover", "forgotten"):
                pair.do(own_slot(int(who), op))
        elif op[0] == "wait":
            time.sleep(min(op[1], 5.0))
        elif op[0] == "start":
            with contextlib.suppress(AssertionError):
                stage.act(op)
            pair.recover(folders(stage.plan), None)
        else:
            if op[0] in ("remount", "remount_at_once", "forget", "settle"):
                pair.close_all()
            if op[0] == "settle":
                stage.closed |= pair.closed
            stage.act(op)
            if op[0] == "forget":
                pair.forget(folders(stage.plan))


def own_slot(who: int, op: Op) -> Op:
    """The operation with a slot that no other process has."""
    return [op[0], op[1] + who * SLOTS_EACH, *op[2:]] if op[0] in SLOT or op[0] == "open" else op


def shrink(steps: list[Step], fails: Fails, *, until: float) -> list[Step]:
    """Delta debugging: leave out ever smaller parts as long as it still fails. `until` is monotonic."""
    parts = 2
    while len(steps) > 1 and time.monotonic() < until:
        size = -(-len(steps) // parts)
        for start in range(0, len(steps), size):
            fewer = steps[:start] + steps[start + size :]
            if time.monotonic() > until:
                return steps
            if fewer and fails(fewer):
                steps, parts = fewer, max(parts - 1, 2)
                break
        else:
            if size == 1:
                return steps
            parts = min(2 * parts, len(steps))
    return steps


def shrink_run(run: Path, seconds: float) -> list[Step]:
    """The fewest steps found within this time. Raises Failed if the history does not fail again."""
    plan, steps = load(run)
    with tempfile.TemporaryDirectory(prefix="cloudsimfs-shrink-", ignore_cleanup_errors=True) as directory:
        reaper = start_reaper(Path(directory))
        replay = Replay(Path(directory), plan)
        wanted, steps = first_failure(replay, steps, **json.loads((run / "failure.json").read_text()))
        found = replay.told

        def fails(fewer: list[Step]) -> bool:
            nonlocal found
            for _ in range(TRIES):
                with contextlib.redirect_stdout(io.StringIO()):
                    if replay.fails(fewer) == wanted:
                        found = replay.told
                        return True
            return False

        fewest = shrink(steps, fails, until=time.monotonic() + seconds)
        reaper.communicate()
    lines = [f"# {plan}", f"# {found}".replace("\n", "\n# "), *(json.dumps(step) for step in fewest)]
    (run / "repro").write_text("\n".join(lines) + "\n")
    return fewest


def first_failure(
    replay: Replay, steps: list[Step], *, told: str, kind: str, who: int | None
) -> tuple[str, list[Step]]:
    """How the history fails when it is done again, without the other processes if it does so without them."""
    seen: list[tuple[str, list[Step]]] = []
    for tried in [steps if who is None else [step for step in steps if concerns(step, who)], steps] * TRIES:
        if wanted := replay.fails(tried):
            seen.append((wanted, tried))
            if wanted == kind:
                return seen[-1]
    if not seen:
        raise Failed(f"the history does not fail again: {told}")
    return seen[0]


def concerns(step: Step, who: int) -> bool:
    doer, op = step
    return bool(doer == who or (doer == DRIVER and (op[0] != "stored" or op[1].startswith(f"w{who}/"))))


def main() -> None:
    run = Path(sys.argv[1])
    shrink_run(run, float(sys.argv[2]) if len(sys.argv) > 2 else 120.0)
    print((run / "repro").read_text())


if __name__ == "__main__":
    main()
