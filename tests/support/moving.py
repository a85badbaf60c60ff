"""A mount whose clock a test moves: `python moving.py FILE cloudsimfs mount ...`.

FILE holds the seconds by which its time is ahead of the machine's (`Ahead` writes it). The product knows nothing of
this: its clock is wrapped, and so is every wait with a bound, before the command line starts. Its hour begins with
the mount, so that none turns unasked in a test.
"""

from __future__ import annotations

import struct
import sys
import threading
import time
from pathlib import Path

from shared_file import publish

HOUR = 3600.0  # seconds
LOOK = 0.05  # seconds between looks whether the clock was moved


class Ahead:
    """The test's hand on the clock."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.seconds = 0.0
        self.move(0.0)

    @property
    def program(self) -> list[str]:
        """For `harness.Mounted`."""
        return [__file__, str(self._file), "cloudsimfs"]

    def move(self, seconds: float) -> None:
        self.seconds += seconds
        publish(self._file, struct.pack("d", self.seconds))


def wrap(file: Path) -> None:
    from cloudsimfs.clock import SystemClock

    back = time.time() % HOUR
    wait = threading.Condition.wait

    def ahead() -> float:
        return float(struct.unpack("d", file.read_bytes())[0])

    def monotonic(_: object = None) -> float:
        return time.monotonic() + ahead()

    def wait_for_either(condition: threading.Condition, timeout: float | None = None) -> bool:
        if timeout is None:
            return wait(condition)
        until = monotonic() + timeout
        while (left := until - monotonic()) > 0:
            if wait(condition, min(left, LOOK)):
                return True
        return False

    def sleep(_: object, seconds: float) -> None:
        threading.Event().wait(seconds)

    for name, function in {
        "now": lambda _: time.time() - back + ahead(),
        "monotonic": monotonic,
        "sleep": sleep,
    }.items():
        setattr(SystemClock, name, function)
    setattr(threading.Condition, "wait", wait_for_either)  # noqa: B010  mypy knows the method


def main() -> None:
    from cloudsimfs.cli import main as command_line

    wrap(Path(sys.argv[1]))
    sys.argv[1:] = sys.argv[3:]
    command_line(prog_name="cloudsimfs")


if __name__ == "__main__":
    main()
