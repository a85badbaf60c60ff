"""The command line of `cloudsimfs` without its start: a process that has loaded it all forks one for each command.

A mount begun here has a clock that a test moves (`moving`). A daemon's command line in /proc is what it would be, so
that `harness` finds it.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness import client_environment

ROOM = 500  # bytes of the command line in /proc that a command may have


class Nursery:
    """Runs commands as `harness.cloudsimfs` does; for one thread."""

    def __init__(self) -> None:
        command = [sys.executable, __file__, "-" * ROOM]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=client_environment(), text=True)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def __call__(
        self, *arguments: str | Path, env: Mapping[str, str] | None = None, program: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        """`program` is empty, or names the file that says by how much the clock is ahead."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert not env
        words = [*map(str, arguments)]
        self._process.stdin.write(json.dumps([words, list(program)]) + "\n")
        self._process.stdin.flush()
        status, out, err = json.loads(self._process.stdout.readline())
        return subprocess.CompletedProcess(words, status, out, err)


def main() -> None:
    import cloudsimfs.cli
    import cloudsimfs.mount  # noqa: F401  loaded once, for all

    for line in sys.stdin:
        words, program = json.loads(line)
        files = [os.memfd_create(name) for name in ("out", "err")]
        child = os.fork()
        if child == 0:
            _run(words, program, files)
        _, status = os.waitpid(child, 0)
        said = [os.pread(file, 1 << 20, 0).decode("utf-8", "replace") for file in files]
        for file in files:
            os.close(file)
        print(json.dumps([os.waitstatus_to_exitcode(status), *said]), flush=True)


def _run(words: list[str], program: list[str], files: list[int]) -> None:
    """The child's whole life."""
    status = 1
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, target in ((null, 0), (files[0], 1), (files[1], 2)):
            os.dup2(fd, target)
        _rename(["python", "cloudsimfs", *words])
        if program:
            from moving import wrap

            wrap(Path(program[0]))
        cloudsimfs_main(words)
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def cloudsimfs_main(words: list[str]) -> None:
    from cloudsimfs.cli import main as command_line

    command_line(args=words, prog_name="cloudsimfs")


def _rename(words: list[str]) -> None:
    """Have /proc show these words as the command line."""
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    ctypes.memmove(
        start, b"\0".join(map(os.fsencode, words))[: end - start - 1].ljust(end - start, b"\0"), end - start
    )


if __name__ == "__main__":
    main()
