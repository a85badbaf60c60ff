"""A service that takes every call and answers none: a reader of what nobody knows waits so long and no longer."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from cloudsimfs.concurrency.waiting import PLACES
from cloudsimfs.listings.dcache import ANSWER_BOUND
from cloudsimfs.sandbox import Sandbox
from harness import MountFactory, errno_of, patient, run, wait_until
from moving import Ahead

TREE = {"d/x": b"x", "never/z": b"z"}


CROWD = """
import os, sys, threading
action, top, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
threading.stack_size(1 << 18)
def act(number):
    try:
        if action == "look":
            os.stat(f"{top}/d{number}/f")
        else:
            os.read(os.open(f"{top}/many/f{number}", os.O_RDONLY), 9)
    except OSError as error:
        os.write(1, b"%d\\n" % error.errno)
for number in range(count):
    threading.Thread(target=act, args=(number,)).start()
"""


def hanging(box: Sandbox) -> Callable[[], object]:
    """Whether a listing hangs."""
    fault = box.faults.add("list*", "hang")
    return lambda: fault.fired


def test_an_unknown_listing_fails_in_time_and_is_there_once_it_has_come(
    box: Sandbox, mount: MountFactory, tmp_path: Path
) -> None:
    box.populate(TREE)
    clock = Ahead(tmp_path / "ahead")
    m = mount(ttl=3600, program=clock.program)
    assert os.listdir(m.path / "d") == ["x"]
    is_asked = hanging(box)
    with ThreadPoolExecutor() as readers:
        waiting = [readers.submit(errno_of, lambda: os.listdir(m.path / "never")) for _ in range(3)]
        wait_until(is_asked, "it is asked for")
        calls = box.calls.api_count()
        assert os.listdir(m.path / "d") == ["x"], "what is known is served"
        clock.move(ANSWER_BOUND + 1)
        assert {each.result(timeout=patient(20)) for each in waiting} == {errno.ETIMEDOUT}
    assert box.calls.api_count() == calls, "all have waited for the same answer"
    box.faults.clear()
    wait_until(lambda: os.listdir(m.path / "never") == ["z"], "it has come")


@pytest.mark.parametrize("api", ["v1"])
def test_what_is_known_to_be_old_is_served_in_the_end(box: Sandbox, mount: MountFactory, tmp_path: Path) -> None:
    box.populate(TREE)
    clock = Ahead(tmp_path / "ahead")
    m = mount(program=clock.program)
    assert os.listdir(m.path / "d") == ["x"]
    assert os.listdir(m.path / "never") == ["z"]
    is_asked = hanging(box)
    (m.path / ".cloudsimfs/refresh").write_text("/")
    with ThreadPoolExecutor() as readers:
        waiting = readers.submit(os.listdir, m.path / "d")
        wait_until(is_asked, "it is asked for")
        clock.move(ANSWER_BOUND + 1)
        assert waiting.result(timeout=patient(20)) == ["x"]
        assert readers.submit(os.listdir, m.path / "never").result(timeout=patient(20)) == ["z"], "one wait for all"
    box.faults.clear()


@pytest.mark.parametrize("api", ["v2"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_who_waits_can_be_interrupted(box: Sandbox, mount: MountFactory, number: signal.Signals) -> None:
    """More often than libfuse has threads: none of them stays with a reader who is gone."""
    box.populate(TREE)
    m = mount()
    is_asked = hanging(box)
    for place in ("never", "never/z"):
        with ExitStack() as stack:
            readers = [
                stack.enter_context(
                    subprocess.Popen(["ls", m.path / place], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                )
                for _ in range(40)
            ]
            wait_until(is_asked, "it is asked for")
            for reader in readers:
                reader.send_signal(number)
            assert {reader.wait(timeout=patient(20)) for reader in readers} == {-number}
    box.faults.clear()
    assert os.listdir(m.path / "never") == ["z"]


@pytest.mark.parametrize(("action", "count"), [("look", PLACES + 60), ("read", 200)])
def test_what_is_known_is_served_however_many_wait(
    box: Sandbox, mount: MountFactory, action: str, count: int
) -> None:
    """Threads that wait for the network are a part of all; who comes when every place is taken is told so."""
    numbers = range(count)
    box.populate({f"d{number}/f": b"f" for number in numbers} | {f"many/f{number}": b"f" for number in numbers})
    box.populate({"known/cached": b"cached"})
    m = mount()
    assert (m.path / "known/cached").read_bytes() == b"cached"
    assert len(os.listdir(m.path / "many")) == len(os.listdir(m.path)) - 2 == count
    for operation in ("list*", "view*", "all-entries", "object-get"):
        box.faults.add(operation, "hang")
    command = [sys.executable, "-c", CROWD, action, str(m.path), str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as crowd:
        try:
            wait_until(lambda: waiting_in(crowd.pid) == min(count, PLACES), "they wait")
            for _ in range(3):
                assert run("cat", m.path / "known/cached") == "cached"
                assert os.listdir(m.path / "known") == ["cached"]
                assert errno_of(lambda: os.stat(m.path / "known/not-there")) == errno.ENOENT
            (m.path / "known/new").write_bytes(b"written meanwhile")
            assert (m.path / "known/new").read_bytes() == b"written meanwhile"
        finally:
            crowd.kill()
        assert crowd.stdout is not None
        told = crowd.stdout.read().split()
    assert set(told) <= {b"%d" % errno.EAGAIN}
    box.faults.clear()
    wait_until(lambda: os.listdir(m.path / "d0") == ["f"], "all is as before")


def waiting_in(pid: int) -> int:
    """How many threads of a process wait in the kernel, for a request or for a page, and not for one another."""
    found = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            place = (task / "wchan").read_text()
            found += place != "0" and "futex" not in place
    return found
