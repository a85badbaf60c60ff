"""The barrier before a launch, and `flush`: what they must wait for, what they refuse, and who may go on waiting."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import Mounted, MountFactory, errno_of, wait_until

WORDS = "cpu=2 ram=standard script=heat2d-1.0 folder=case"


def flush_errno(m: Mounted) -> int:
    return errno_of(lambda: (m.path / ".cloudsimfs/flush").write_text("1"))


def wait_for_call(box: Sandbox, operation: str) -> None:
    assert box.calls.wait(lambda calls: any(call.operation == operation for call in calls))


def launch_in_a_shell(m: Mounted) -> subprocess.Popen[bytes]:
    command = f"echo '{WORDS}' > {m.path}/.simulations/launch"
    return subprocess.Popen(
        ["sh", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


@pytest.mark.parametrize("api", ["v2"])
def test_the_service_is_told_of_an_upload_that_ended_while_it_was_being_told(
    box: Sandbox, mount: MountFactory
) -> None:
    """DELETE /user/delete-cache for `a` has no answer yet when `b` is stored: another one is needed."""
    m = mount(write_back=0)
    box.faults.add("delete-cache", "slow", rate=20, times=1)  # the answer takes its time, the deed is done
    (m.path / "case").mkdir()
    (m.path / "case/a").write_bytes(b"a")
    wait_for_call(box, "delete-cache")
    (m.path / "case/b").write_bytes(b"b")
    m.flush()
    assert box.known_paths("case") == ["case/a", "case/b"], "what a run would see"
    assert box.calls.counts()["delete-cache"] == 2


@pytest.mark.parametrize("api", ["v1"])
def test_a_renamed_file_still_open_holds_the_barrier_up(box: Sandbox, mount: MountFactory) -> None:
    """write, fsync, rename, and only then close: neither `flush` nor a launch may pass before it is stored."""
    m = mount(write_back=0)
    with open(m.path / "f.part", "wb", buffering=0) as file:
        file.write(b"bytes")
        os.fsync(file.fileno())
        os.rename(m.path / "f.part", m.path / "f")
        assert flush_errno(m) == errno.EBUSY
    assert m.settle() == {"f": b"bytes"}


@pytest.mark.parametrize("api", ["v1"])
def test_what_never_leaves_the_mount_holds_nobody_up(box: Sandbox, mount: MountFactory) -> None:
    """An editor has its swap file open and synced as long as it runs."""
    m = mount(write_back=0)
    with open(m.path / ".f.swp", "wb", buffering=0) as file:
        file.write(b"bytes")
        os.fsync(file.fileno())
        assert flush_errno(m) == 0


@pytest.mark.parametrize("api", ["v1"])
def test_nothing_is_launched_over_a_file_the_crash_left_half_written(box: Sandbox, mount: MountFactory) -> None:
    """The run would see the version before, or no file at all, and costs money."""
    box.put("case/heat.ini", b"steps = 1\n")
    m = mount()
    with contextlib.suppress(OSError), open(m.path / "case/heat.ini", "r+b", buffering=0) as file:
        file.write(b"steps = 2\n")
        m.kill()
    m.start()
    assert (m.path / "case/heat.ini").read_bytes() == b"steps = 2\n", "what the user sees"
    assert errno_of(lambda: (m.path / ".simulations/launch").write_text(WORDS + "\n")) == errno.EBUSY
    error = (m.path / ".simulations/error").read_text()
    assert "/case/heat.ini" in error
    assert "cloudsimfs recover" in error
    assert box.runs() == []


@pytest.mark.parametrize("api", ["v1"])
def test_a_launch_that_waits_for_an_upload_can_be_killed(box: Sandbox, mount: MountFactory) -> None:
    box.put("case/heat.ini", b"steps = 1\n")
    m = mount(write_back=3600)
    (m.path / "case/heat.ini").write_bytes(b"steps = 2\n")
    box.faults.add("object-put", "hang")
    with launch_in_a_shell(m) as process:
        wait_for_call(box, "object-put")
        process.kill()
        wait_until(lambda: process.poll() is not None, "the process ends")
        box.faults.clear()
    assert box.runs() == []


@pytest.mark.parametrize("api", ["v1"])
def test_a_launch_without_calls_for_its_uploads_says_so_at_once(box: Sandbox, mount: MountFactory) -> None:
    """The uploads wait for the hour to turn; who launches must hear EDQUOT, long before the watchdog does."""
    box.put("case/heat.ini", b"steps = 1\n")
    m = mount(write_back=3600)
    (m.path / ".simulations/runs").read_text()
    for name in ("cpu", "ram", "scripts"):
        (m.path / ".simulations/options" / name).read_text()
    (m.path / "case/heat.ini").write_bytes(b"steps = 2\n")
    box.settings.hourly_limit = box.calls.api_count() + 1
    (m.path / ".cloudsimfs/refresh").write_text("case")
    os.listdir(m.path / "case")  # the last call
    assert m.status()["budget"]["remaining"] == 0
    assert errno_of(lambda: (m.path / ".simulations/launch").write_text(WORDS)) == errno.EDQUOT
    assert box.runs() == []
    m.kill()  # its upload waits for the next hour


@pytest.mark.parametrize("api", ["v1"])
@pytest.mark.parametrize("control", [".cloudsimfs/flush", ".simulations/launch"])
def test_a_file_that_is_given_up_while_it_is_waited_for_holds_the_barrier_up(
    box: Sandbox, mount: MountFactory, control: str
) -> None:
    """Others have removed it before its unchanged part was fetched: what was appended is kept, and is not stored."""
    box.populate({"case/heat.ini": b"steps = 1\n", "case/mesh": b"mesh"})
    m = mount(write_back=3600)
    m.expects_trouble = True
    with open(m.path / "case/heat.ini", "ab") as file:
        file.write(b"cpu = 2\n")
    box.remove("case/heat.ini")
    assert errno_of(lambda: (m.path / control).write_text(WORDS)) == errno.EAGAIN
    assert m.status()["recover"] == ["case/heat.ini"]
    m.crash()
    assert errno_of(lambda: (m.path / control).write_text(WORDS)) == errno.EAGAIN, "nobody has dealt with it"
    assert box.runs() == []
    (m.path / "case/heat.ini").write_bytes(b"steps = 1\ncpu = 2\n")
    m.crash()
    assert errno_of(lambda: (m.path / control).write_text(WORDS)) == 0
    assert box.files()["case/heat.ini"] == b"steps = 1\ncpu = 2\n"
