"""One process of the differential fuzz: `python fuzzworker.py`, told what to do by lines of JSON.

The first line is its setup. Each later one is a command, answered by one line: `closed` has the digests of what was
closed, `mismatch` what is wrong, `gone` the operation that was under way when the daemon died.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

from fuzzgen import Generator
from fuzzops import SLOT, Op, Side
from fuzzpair import Mismatch, MountGone, Pair


class Worker:
    def __init__(self, setup: dict[str, Any]) -> None:
        self._number: int = setup["number"]
        self._folders: list[str] = setup["folders"]
        self._pair = Pair(Side(setup["mount"] + "/"), Side(setup["local"] + "/"))
        seed = f"{setup['seed']} {self._number}"
        first_stamp = (self._number + 1) * 10_000_000
        names = {"clashes": setup["clashes"], "leaving": setup["leaving"]}
        self._generator = Generator(seed, self._pair.local.top, self._folders, first_stamp=first_stamp, **names)
        self._history: TextIO = open(setup["history"], "w", encoding="utf-8")  # noqa: SIM115  # for the whole life
        self._lock = os.open(setup["lock"], os.O_RDWR | os.O_CREAT)
        self._under_way: Op | None = None
        self._shared: set[int] = set()  # slots with files of shared folders

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        self._pair.tolerant = command.get("tolerant", False)
        try:
            answer = getattr(self, command["do"])(**command.get("with", {}))
        except Mismatch as mismatch:
            answer = {"mismatch": mismatch.told, "kind": mismatch.kind}
        except MountGone as gone:
            self._under_way = gone.op
            answer = {"gone": gone.op}
        except OSError as error:
            answer = {"mismatch": f"{command['do']}: {error}", "kind": kind_of(error)}
        self._history.flush()
        found = {"closed": sorted(self._pair.closed), "failed": self._pair.failed}
        self._pair.closed.clear()
        self._pair.failed = 0
        return {"done": 0, **found, **(answer or {})}

    def run(self, count: int, folders: int, seconds: float) -> dict[str, Any]:
        """So many operations in the first so many folders, or fewer if they take longer."""
        until, done = time.monotonic() + seconds, 0
        while done < count and time.monotonic() < until:
            try:
                op = self._generator.next(folders)
            except FileNotFoundError:
                continue  # it looked into a shared folder that another process was removing
            self._do(op)
            done += 1
        for op in [["close", slot] for slot in sorted(self._shared)]:
            self._do(op)
        return {"done": done}

    def close(self) -> None:
        """So that nothing is open."""
        for op in self._generator.closings():
            self._do(op)
        self._pair.close_all()
        self._shared.clear()

    def recover(self, folders: int) -> None:
        """The daemon has died, and the drive is mounted again: compare the first so many folders."""
        self._log(["recover"])
        self._generator.forget()
        self._shared.clear()
        under_way, self._under_way = self._under_way, None
        self._pair.recover(self._folders[:folders], under_way)

    def forget(self, folders: int) -> None:
        """The drive has an empty cache: the files are those of the disk, and all else is as it is shown."""
        self._log(["forgotten"])
        self._generator.forget()
        self._pair.forget(self._folders[:folders])

    def check(self, folders: int) -> None:
        self._log(["check"])
        self._pair.check(self._folders[:folders])

    # -- one operation -----------------------------------------------------------------------------------------

    def _do(self, op: Op) -> None:
        shared = self._is_shared(op)
        with self._alone() if shared else contextlib.nullcontext():
            self._log(op)
            self._pair.shared = shared
            self._pair.do(op)
        if shared and op[0] == "open" and op[1] in self._pair.local.open:
            self._shared.add(op[1])
        elif op[0] == "close":
            self._shared.discard(op[1])

    def _is_shared(self, op: Op) -> bool:
        if op[0] == "wait":
            return False
        if op[0] in SLOT:
            return op[1] in self._shared
        path = op[2] if op[0] == "open" else op[1]
        return not path.startswith(self._folders[0])

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else works in the shared folders: what is done on both sides comes in one order."""
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _log(self, op: Op) -> None:
        self._history.write(json.dumps([round(time.monotonic(), 4), self._number, op]) + "\n")


def kind_of(error: OSError) -> str:
    return f"OSError {error.errno}"


def main() -> None:
    os.umask(0o022)
    worker = Worker(json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        print(json.dumps(worker.answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
