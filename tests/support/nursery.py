"""The command line of `cloudsimfs` without its start: a process that has loaded it all forks one for each command.

What a command does is the same as in a process of its own, and costs a tenth: its daemon's command line in /proc is
what it would be, so that `harness` finds it. What only a start from nothing shows, as a module that is missing, other
tests see (tests/programs, `test_mount_command`).
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

OURS = ("-m", "cloudsimfs")
ROOM = 3000  # bytes of the command line in /proc that a command may have
MESSAGE = 1 << 16  # bytes


class Nursery:
    """Runs commands as `subprocess.run` does, from any thread. Ends with the process that made it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """`environment` is what the commands' modules are loaded in."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno()), "-" * ROOM]
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=dict(environment)
            )

    def close(self) -> None:
        self._socket.close()
        self._process.wait()

    def run(
        self, program: Sequence[str], words: Sequence[str], env: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """`program` is `OURS`, or a script and what precedes `words` on its command line. `timeout` is in seconds.

        Raises subprocess.TimeoutExpired; the command was killed.
        """
        with contextlib.ExitStack() as stack:
            out, err = (stack.enter_context(open(os.memfd_create(name), "rb")) for name in ("out", "err"))
            ours, theirs = socket.socketpair()
            stack.enter_context(ours)
            with theirs:
                request = json.dumps([list(program), list(words), dict(env), os.getcwd()]).encode()
                socket.send_fds(self._socket, [request], [out.fileno(), err.fileno(), theirs.fileno()])
            status = _status(ours, timeout, [sys.executable, *program, *words])
            printed, complained = (os.pread(file.fileno(), 1 << 24, 0).decode() for file in (out, err))
            return subprocess.CompletedProcess([*program, *words], status, printed, complained)


def _status(ours: socket.socket, timeout: float, command: list[str]) -> int:
    """What the command's parent says: first its number, then its status."""
    integers = array.array("i")
    deadline = time.monotonic() + timeout
    while len(integers) < 2:
        ours.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            said = ours.recv(integers.itemsize)
        except TimeoutError:
            if integers:
                os.kill(integers[0], signal.SIGKILL)
            raise subprocess.TimeoutExpired(command, timeout) from None
        assert said, "the process that starts commands has died"
        integers.frombytes(said)
    return integers[1]


# -- the process that starts commands ------------------------------------------------------------------------


def main() -> None:
    import cloudsimfs.cli
    import cloudsimfs.mount  # noqa: F401  loaded once, for all

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C is for the tests, at whose end this one ends
    gc.freeze()
    requests = socket.socket(fileno=int(sys.argv[1]))
    requests.set_inheritable(False)
    while True:
        message, files, _, _ = socket.recv_fds(requests, MESSAGE, 3)
        if not message:
            return
        if os.fork() == 0:
            requests.close()
            _parent(message, files)
        for file in files:
            os.close(file)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _parent(message: bytes, files: list[int]) -> None:
    """The whole life of a command's parent, which waits for its end."""
    *output, teller = files
    command = os.fork()
    if command == 0:
        os.close(teller)
        _command(message, output)
    os.write(teller, array.array("i", [command]).tobytes())
    _, status = os.waitpid(command, 0)
    with contextlib.suppress(BrokenPipeError):  # nobody waits any longer
        os.write(teller, array.array("i", [os.waitstatus_to_exitcode(status)]).tobytes())
    os._exit(0)


def _command(message: bytes, output: list[int]) -> None:
    """The whole life of a command."""
    status = 1
    try:
        program, words, env, directory = json.loads(message)
        for target, file in enumerate(output, 1):
            os.dup2(file, target)
            os.close(file)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(env)
        sys.path[1:1] = env.get("PYTHONPATH", "").split(":")
        _rename([sys.executable, *program, *words])
        _start(program, words)
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    except BaseException:  # noqa: BLE001  as the interpreter does it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _start(program: list[str], words: list[str]) -> None:
    sys.argv[:] = [*program, *words]
    if tuple(program) == OURS:
        del sys.argv[0]
        runpy.run_module(OURS[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(program[0]).parent)
        runpy.run_path(program[0], run_name="__main__")


def _rename(words: list[str]) -> None:
    """Have /proc show these words as the command line."""
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    line = b"\0".join(map(os.fsencode, words))
    assert len(line) < end - start, "ROOM is too small"
    ctypes.memmove(start, line.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    main()
