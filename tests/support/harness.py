"""A real mount in a subprocess for the tests, and the means to leave nothing of it behind.

The sandbox runs in a thread of the test process, so nothing here may hold the interpreter's lock while it waits for
the mount. System calls of ordinary file access release it; mapped memory and `Popen(cwd=...)` do not: programs are
started through `Mounted.run`, which changes directory in the child. A mount that hangs is killed by a timer, which
fails the stuck call; should the whole test process die, the reaper (`main` below, a process that waits for that)
cleans up.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import os
import re
import secrets
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cloudsimfs.host.files import is_locked
from cloudsimfs.sandbox import Sandbox
from cloudsimfs.vfs.names import is_local_name
from nursery import OURS, Nursery

ROOT = Path(__file__).resolve().parents[2]
CRASHING = ROOT / "tests/support/crashing.py"
CONTROL_NAMES = (".simulations", ".cloudsimfs")
COMMAND_BOUND = 60.0  # seconds a command or a wait may take
HANG_BOUND = 100.0  # seconds after which a test's mount is killed, if the machine is not busy
LONG = "CLOUDSIMFS_TEST_LONG"  # set where tests may take long: scripts/soak --long
UNEXPECTED = re.compile(r"Traceback|unexpected|AssertionError")
Tree = dict[str, bytes]


def patient(seconds: float) -> float:
    """A bound for a machine with nothing else to do, made longer as this one has more to do than processors.

    No bound is what a test is about: it ends one that would wait for ever.
    """
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def longer(short: int, long: int) -> int:
    """How much of something a test does: `short` in the suite, `long` in `scripts/soak --long`."""
    return long if os.environ.get(LONG) else short


def wait_until(condition: Callable[[], object], what: str, *, timeout: float = 40.0) -> None:
    """Poll until `condition` holds. An OSError of it counts as "not yet"."""
    started, pause = time.monotonic(), 0.001
    while True:
        with contextlib.suppress(OSError):
            if condition():
                return
        waited = time.monotonic() - started
        assert waited < patient(timeout), f"not within {waited:.0f} s: {what}"
        time.sleep(pause)
        pause = min(2 * pause, 0.02)


def run(*command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run a program; its stdout. A failure shows both outputs."""
    changed = ["sh", "-c", 'cd "$0" && exec "$@"', str(cwd)] if cwd is not None else []
    done = subprocess.run(
        [*changed, *map(str, command)],
        capture_output=True,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        text=True,
        errors="surrogateescape",
        timeout=patient(COMMAND_BOUND),
        check=False,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def read_tree(top: Path) -> Tree:
    """Every file below `top` by its path, without what belongs to the mount itself or never leaves it."""
    found: Tree = {}
    for directory, folders, files in os.walk(top, onerror=_raise):
        if Path(directory) == top:
            folders[:] = [name for name in folders if name not in CONTROL_NAMES]
        for name in files:
            if not is_local_name(name):
                file = Path(directory, name)
                found[file.relative_to(top).as_posix()] = file.read_bytes()
    return found


def write_tree(top: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(data)


def _raise(error: OSError) -> None:
    raise error


@functools.cache
def state_home() -> Path:
    """Where this process's mounts record their launches: a machine of its own. Removed at the end."""
    directory = Path(tempfile.mkdtemp(prefix="cloudsimfs-state-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def client_environment() -> dict[str, str]:
    """The environment of a `cloudsimfs` command: this checkout, no settings of whoever runs the tests."""
    homes = {"XDG_CACHE_HOME": "/nonexistent", "XDG_CONFIG_HOME": "/nonexistent", "XDG_STATE_HOME": str(state_home())}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CLOUDSIMFS_")}
    return {**kept, "PYTHONPATH": str(ROOT), **homes}


def cloudsimfs(
    *arguments: str | Path,
    env: Mapping[str, str] | None = None,
    program: Sequence[str] = OURS,
) -> subprocess.CompletedProcess[str]:
    """Run the command line with these arguments, to its end; `program` may be a script that wraps it."""
    words = [*map(str, arguments)]
    return _nursery(os.getpid()).run(program, words, {**client_environment(), **(env or {})}, patient(COMMAND_BOUND))


@functools.cache
def _nursery(_: int) -> Nursery:
    """This process's own: a fork of it makes another."""
    made = Nursery(client_environment())
    atexit.register(made.close)
    return made


def write_key(directory: Path, key: str) -> Path:
    file = directory / f"key-{secrets.token_hex(4)}"
    with open(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as stream:
        stream.write(key + "\n")
    return file


class Mounted:
    """`cloudsimfs mount` of a sandbox on a directory of its own. Create through the `mount` fixture."""

    def __init__(self, box: Sandbox, directory: Path, *, api: str, key: str | None = None, **options: Any) -> None:
        """`program` wraps the command line; the other `options` are its own, as `ttl=0`."""
        self.box = box
        self.path = directory / "mnt"
        self.cache = directory / "cache"
        self.key = key or box.key
        self._log_file = directory / "mount.log"
        self.key_file = write_key(directory, self.key)
        self._program: Sequence[str] = options.pop("program", OURS)
        self._options = {"api": api, "write_back": 0.2, **options}
        self.expects_trouble = False  # the log may hold tracebacks
        self.path.mkdir()

    def start(self) -> Mounted:
        done = self.try_start()
        assert done.returncode == 0, f"mount failed: {done.stderr}\n{self.log()}"
        return self

    def try_start(self, *, crash_at: str | None = None) -> subprocess.CompletedProcess[str]:
        """Mount; the daemon kills itself at `crash_at`, a point of `crashing`."""
        self._wait_for_the_lock()
        program = self._program if crash_at is None else [str(CRASHING), crash_at, "cloudsimfs"]
        given = {
            "url": self.box.url,
            "key_file": self.key_file,
            "cache_dir": self.cache,
            "log_file": self._log_file,
            "log_level": "INFO",
            **self._options,
        }
        words: list[str] = []
        for name, value in given.items():
            option = ("--no-" if value is False else "--") + name.replace("_", "-")
            words += [option] if isinstance(value, bool) else [option, str(value)]
        return cloudsimfs("mount", self.path, *words, program=program)

    def option(self, **changes: Any) -> None:
        """Other options for the next start."""
        self._options.update(changes)

    def log(self) -> str:
        return self._log_file.read_text() if self._log_file.exists() else ""

    @property
    def pids(self) -> list[int]:
        return processes_below(self.path)

    def is_mounted(self) -> bool:
        return str(self.path) in mounts_below(self.path)

    def status(self) -> dict[str, Any]:
        import json

        found = json.loads((self.path / ".cloudsimfs/status.json").read_text())
        assert isinstance(found, dict)
        return found

    def pending(self) -> list[dict[str, Any]]:
        found = self.status()["pending"]
        assert isinstance(found, list)
        return found

    def kill(self) -> None:
        """SIGKILL the daemon, as the OOM killer does; the dead mount stays."""
        end_processes(self.path)
        self._wait_for_the_lock()

    def _wait_for_the_lock(self) -> None:
        """A killed daemon holds it until its last thread is gone; its command line is gone from /proc before."""

        def is_free_or_in_use() -> bool:
            return not any(map(is_locked, self.cache.glob("*/lock"))) or bool(processes_below(self.cache))

        wait_until(is_free_or_in_use, "the killed daemon's lock is free")

    def umount(self, *options: str) -> subprocess.CompletedProcess[str]:
        done = cloudsimfs("umount", self.path, *options)
        if done.returncode == 0:
            wait_until(lambda: not self.pids, "the daemon ends after umount")
        return done

    def remount(self, *options: str) -> None:
        """Unmount in order (waiting for uploads, unless the options say otherwise) and mount anew."""
        done = self.umount(*options)
        assert done.returncode == 0, f"umount failed: {done.stderr}\n{self.log()}"
        self.start()

    def wait_for_death(self) -> None:
        """The daemon, mounted with `crash_at`, has come to its point."""
        wait_until(lambda: not self.pids, "the daemon kills itself")
        self._wait_for_the_lock()

    def crash(self) -> None:
        """Kill the daemon and mount anew."""
        self.kill()
        self.start()

    def flush(self) -> None:
        """Wait until all is on the service."""
        started = time.monotonic()
        while True:
            try:
                (self.path / ".cloudsimfs/flush").write_text("1")
                return
            except OSError as error:
                may_pass = error.errno in (errno.ETIMEDOUT, errno.EAGAIN)
                if not may_pass or time.monotonic() - started > patient(COMMAND_BOUND):
                    raise
                time.sleep(0.05)

    def settle(self) -> Tree:
        """Flush, and check that the service has what the mount shows; returns that."""
        self.flush()
        stored = self.box.files()
        shown = read_tree(self.path)
        assert sorted(stored) == sorted(shown)
        for name, data in stored.items():
            assert data == shown[name], f"{name} differs"
        return stored

    def clean_up(self) -> None:
        clean_up(self.path)


MountFactory = Callable[..., Mounted]


class Watchdog:
    """Kills what is mounted below a directory if a test takes too long; its stuck calls then fail."""

    def __init__(self, base: Path) -> None:
        self.fired = False
        self._base = base
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        started = time.monotonic()
        while (left := started + patient(HANG_BOUND) - time.monotonic()) > 0:
            if self._ended.wait(left):
                return
        self.fired = True
        clean_up(self._base)


# -- what is left, found without touching any mount ----------------------------------------------------------


def mounts_below(base: Path) -> list[str]:
    """Mount points at or below `base`, the last mounted first."""
    found = []
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
        for line in mounts:
            place = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), line.split()[1])
            if place == str(base) or place.startswith(f"{base}/"):
                found.append(place)
    return found[::-1]


def processes_below(base: Path) -> list[int]:
    """Running mount daemons (no zombies) whose command line names `base` or a place below it."""
    found = []
    place = os.fsencode(base)
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if b"cloudsimfs" not in words or b"mount" not in words:
                continue
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX" and any(word == place or word.startswith(place + b"/") for word in words):
                found.append(int(process.name))
    return found


def end_processes(base: Path) -> None:
    for pid in processes_below(base):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not processes_below(base), "killed daemons end")


def clean_up(base: Path) -> None:
    """Kill the daemons below `base` and unmount. In this order: who waits for a daemon gets an error."""
    end_processes(base)
    for place in mounts_below(base):
        subprocess.run(["fusermount3", "-uz", "--", place], capture_output=True, timeout=20, check=False)


def start_reaper(base: Path) -> subprocess.Popen[bytes]:
    """A process that cleans up below `base` when this one has ended, however that happens."""
    return subprocess.Popen(
        [sys.executable, str(Path(__file__)), str(base)],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tests = os.getppid()
    while not select.select([sys.stdin], [], [], 1.0)[0]:  # readable once the test process has ended
        if _is_killed(tests):
            break
    clean_up(Path(sys.argv[1]))


def _is_killed(pid: int) -> bool:
    """Whether a process was sent SIGKILL and cannot end, as one that waits for a hung mount."""
    with contextlib.suppress(OSError):
        masks = re.findall(r"^(?:SigPnd|ShdPnd):\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        return any(int(mask, 16) >> (signal.SIGKILL - 1) & 1 for mask in masks)
    return True


# -- small things several tests need -------------------------------------------------------------------------


def need(program: str) -> str:
    """The path of a program; the test is skipped with its name if it is missing."""
    import pytest

    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


def switch_off(box: Sandbox) -> None:
    """Nobody answers at the service's address any more; nor does a sandbox of another test that gets its port."""
    port = urlsplit(box.url).port
    box.close()
    keeper = socket.socket()  # bound, and not listening: connections are refused
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind(("127.0.0.1", port))
    _keepers.append(keeper)


_keepers: list[socket.socket] = []


def errno_of(action: Callable[[], object]) -> int:
    """The errno an action fails with; 0 if it does not fail."""
    try:
        action()
    except OSError as error:
        return error.errno or -1
    return 0


def backing_files(mounted: Mounted) -> list[Path]:
    """The files in the cache directory that hold bytes (logs and notes have a dot in their names)."""
    return [file for file in mounted.cache.glob("*/data/*") if "." not in file.name]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def cost(box: Sandbox, action: Callable[[], object]) -> Counter[str]:
    """The API calls an action makes, by operation."""
    box.calls.reset()
    action()
    return Counter(call.operation for call in box.calls.entries() if call.is_api)


def moved(box: Sandbox) -> int:
    """Bytes of files that the service has sent."""
    return sum(call.bytes for call in box.calls.entries("object-get"))


def put_by_others(box: Sandbox, path: str, data: bytes) -> None:
    """Later than what is there, by the service's clock, which counts whole seconds."""
    box.advance(5)
    box.put(path, data)


def conflict_copies(tree: Tree) -> Tree:
    return {path: data for path, data in tree.items() if ".conflict-" in path}


def stored_versions(versions: Sequence[tuple[str, bytes]], path: str) -> list[bytes]:
    return [data for name, data in versions if name == path]


if __name__ == "__main__":
    main()
