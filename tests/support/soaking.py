"""The runs that the suite does a few times and `scripts/soak` as often as wanted; all is chosen by a seed.

A failing run prints its seed. Only the moment of a kill differs from one time to the next, by a few milliseconds.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import fsx
from cloudsimfs.sandbox import Sandbox, Settings
from cloudsimfs.vfs.names import is_local_name
from harness import ROOT, Mounted, Tree, errno_of, patient, read_tree, wait_until
from workload import State, digest, state_at, stored_before

WORKLOAD, FSX = ROOT / "tests/support/workload.py", ROOT / "tests/support/fsx.py"
MOST = 60  # operations before the kill
FAULTS: list[tuple[str, str, dict[str, float]]] = [
    ("object-put", "slow", {"rate": 1_000_000}),
    ("object-put", "latency", {"seconds": 0.05}),
    ("object-put", "drop_reply", {"probability": 0.3}),
    ("upload-url", "status", {"probability": 0.3, "status": 500}),
    ("object-get", "reset", {"probability": 0.1}),
    ("delete", "drop_reply", {"probability": 0.3}),
    ("delete", "latency", {"seconds": 0.1}),
    ("list*", "status", {"probability": 0.02, "status": 500}),
]


# -- a workload, and a daemon that dies ------------------------------------------------------------------------


def crash_run(directory: Path, seed: int, api: str) -> str:
    """Random work, SIGKILL of the daemon at a random moment, once more while it uploads, and the proof.

    Raises AssertionError if anything closed is lost, half-made or stored without having been closed.

    Returns what was under way when the daemon died.
    """
    chance = random.Random(f"crash {seed}")
    with Sandbox(settings=Settings(hourly_limit=0)) as box:
        box.populate(stored_before(seed))
        box.advance(10)
        versions = box.record_versions()
        place = Path(tempfile.mkdtemp(prefix=f"{api}-{seed}-", dir=directory))
        m = Mounted(box, place, api=api, ttl=chance.choice([0, 60]), write_back=chance.choice([0, 0.02, 0.2, 3600]))
        try:
            m.start()
            for operation, kind, values in chance.sample(FAULTS, chance.randrange(3)):
                box.faults.add(operation, kind, **values)
            state = state_at(seed, work_and_kill(m, seed, chance))
            m.start()
            shown = check_shown(m, state)
            kill_while_storing(m, chance)
            box.faults.clear()
            assert check_shown(m, state) == shown, "a second crash changed what shows"
            check_stored(m, state, shown, versions)
            return state.operation.text
        except BaseException:
            print(f"seed {seed}, {api}; the mount's log:\n{m.log()[-6000:]}")
            raise
        finally:
            m.clean_up()


def work_and_kill(m: Mounted, seed: int, chance: random.Random) -> int:
    """How many operations are done when the daemon dies."""
    progress = m.path.with_name("progress")

    def done() -> int:
        return int(progress.read_bytes()) if progress.exists() else 0

    command = [sys.executable, WORKLOAD, m.path, progress, str(seed), str(MOST)]
    enough = chance.randrange(1, MOST)
    child = subprocess.Popen([*map(str, command)], stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: done() >= enough or child.poll() is not None, "the workload goes on", timeout=60)
        time.sleep(chance.random() * 0.03)  # somewhere within an operation
        m.kill()
        _, errors = child.communicate(timeout=patient(60))
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 0 or "Transport endpoint" in errors or "Software caused" in errors, errors
    return done()


def check_shown(m: Mounted, state: State) -> Tree:
    """What the mount shows at once: the state before or after what was under way, no name and no byte else."""
    shown = read_tree(m.path)
    if shown in (state.before, state.after):
        return shown
    text = state.operation.text
    assert not state.operation.atomic, f"{text} is half done: {differences(shown, state.before)}"
    for path in sorted(shown.keys() | state.before.keys() | state.after.keys()):
        found, before, after = shown.get(path), state.before.get(path), state.after.get(path)
        if found != before and found != after:
            assert path == state.operation.path, f"{path} after {text}: {differences(shown, state.before)}"
            assert found is not None
            whole = is_between(found, before or b"", after or b"")
            assert whole, f"{path}: {len(found)} strange bytes after {text}, {len(before or b'')} before"
    return shown


def differences(shown: Tree, expected: Tree) -> list[tuple[str, int | None, int | None]]:
    """(path, bytes shown, bytes expected) of what differs."""
    return [
        (path, len(shown[path]) if path in shown else None, len(expected[path]) if path in expected else None)
        for path in sorted(shown.keys() | expected.keys())
        if shown.get(path) != expected.get(path)
    ]


def is_between(found: bytes, before: bytes, after: bytes) -> bool:
    """Whether a half-made change can have left these bytes."""
    size = len(found)
    if size > max(len(before), len(after)):
        return False
    sides = zip(found, before.ljust(size, b"\0"), after.ljust(size, b"\0"), strict=False)
    return all(byte in (old, new, 0) for byte, old, new in sides)


def kill_while_storing(m: Mounted, chance: random.Random) -> None:
    """The daemon dies again, while it uploads and deletes."""
    flusher = threading.Thread(target=lambda: errno_of(lambda: (m.path / ".cloudsimfs/flush").write_text("1")))
    flusher.start()
    time.sleep(chance.random() * 0.2)
    m.kill()
    flusher.join()
    m.start()


def check_stored(m: Mounted, state: State, shown: Tree, versions: list[tuple[str, bytes]]) -> None:
    """All that was closed is on the service byte for byte, and nothing ever was there that was not closed."""
    m.flush()
    half = {path for path in m.status()["recover"] if not is_local_name(path.rpartition("/")[2])}
    assert half <= {state.operation.path}
    stored = m.box.files()
    kept = {path: data for path, data in stored.items() if path not in half}
    expected = {path: data for path, data in shown.items() if path not in half}
    assert kept == expected, differences(kept, expected)
    found = {(path, digest(data)) for path, data in [*versions, *stored.items()]}
    assert found <= state.closed, sorted(path for path, _ in found - state.closed)
    for path in half:
        with open(m.path / path, "ab"), contextlib.suppress(OSError):
            pass
    assert m.settle() == shown
    assert m.box.key_leaks == []
    assert "Traceback" not in m.log()


# -- one file --------------------------------------------------------------------------------------------------


def fsx_run(m: Mounted, seed: int, operations: int, *, stored: int) -> None:
    """Mount and have one file read and written at random, checked byte for byte, while uploads run.

    `stored` is the size in bytes of the file the service has before; it is fetched as it is needed. Raises
    AssertionError if a read was wrong, or if the service ever got what was not a closed state.
    """
    closed = m.path.with_name("closed")
    if stored:
        m.box.put("f", fsx.base(seed, stored))
    versions = m.box.record_versions()
    m.start()
    command = [sys.executable, FSX, m.path / "f", seed, operations, closed, stored]
    bound = 60 + operations / 20
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=bound, check=False)
    assert done.returncode == 0, f"seed {seed}:\n{done.stderr}"
    final = digest(m.settle()["f"])
    digests = closed.read_text().split()
    found = [digest(data) for _, data in versions]
    assert {path for path, _ in versions} == {"f"}
    assert set(found) <= set(digests)
    assert final == digests[-1] == found[-1]
