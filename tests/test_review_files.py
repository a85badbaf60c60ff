"""What a closed file may expect, on a real mount: found by review, each shown by one test."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import pytest
from conftest import MountFactory
from harness import Mounted, errno_of, wait_until

from cloudsimfs.sandbox import Sandbox

FAR = 10**19  # nanoseconds: the year 2286; more than SQLite's 64-bit integers hold
WORDS = "cpu=2 ram=standard script=heat2d-1.0 folder=case"


def backing_files(m: Mounted) -> list[Path]:
    """The files in the cache directory that hold bytes (logs have a dot in their names)."""
    return [file for file in m.cache.glob("*/data/*") if "." not in file.name]


def flush_errno(m: Mounted) -> int:
    return errno_of(lambda: (m.path / ".cloudsimfs/flush").write_text("1"))


def wait_for_call(box: Sandbox, operation: str) -> None:
    assert box.calls.wait(lambda calls: any(call.operation == operation for call in calls))


@pytest.mark.parametrize("api", ["v2"])  # v1 loses it too; its fix may look for minutes
def test_a_folder_made_over_a_removed_file_is_not_deleted_in_its_place(box: Sandbox, mount: MountFactory) -> None:
    """The file's upload is called off and never lands; its pending delete then finds the folder under its name."""
    m = mount(write_back=0)
    fault = box.faults.add("object-put", "slow", rate=1_000_000, path="f")
    (m.path / "f").write_bytes(bytes(20_000_000))
    wait_for_call(box, "object-put")
    (m.path / "f").unlink()
    (m.path / "f").mkdir()
    (m.path / "f/precious").write_bytes(b"precious")
    box.faults.remove(fault)
    wait_until(lambda: box.paths() == ["f/precious"], "the new file is stored")
    looked = box.calls.counts()["list"]
    wait_until(lambda: box.calls.counts()["list"] > looked, "the pending delete looks for what it is to delete")
    wait_until(lambda: box.calls.counts()["delete"] or not m.pending(), "and decides", timeout=15)
    assert box.files() == {"f/precious": b"precious"}


@pytest.mark.parametrize("api", ["v1"])
def test_a_backing_file_cut_by_a_power_loss_is_not_uploaded_as_zeros(box: Sandbox, mount: MountFactory) -> None:
    """The row is on the disk and the bytes are not, as after a power loss within seconds of the close."""
    box.put("f", b"the version before")
    m = mount(write_back=3600)
    (m.path / "f").write_bytes(b"the next version, closed")
    m.kill()
    (backing,) = (file for file in backing_files(m) if file.read_bytes().startswith(b"the next"))
    os.truncate(backing, 0)
    m.start()
    flush_errno(m)
    assert box.files()["f"] == b"the version before"


@pytest.mark.parametrize("api", ["v1"])
def test_a_backing_file_removed_while_mounted_is_not_uploaded_as_zeros(box: Sandbox, mount: MountFactory) -> None:
    """Somebody cleans up ~/.cache while a closed file waits for its upload."""
    box.put("f", b"the version before")
    m = mount(write_back=3600)
    m.expects_trouble = True
    (m.path / "f").write_bytes(b"the next version, closed")
    wait_until(lambda: m.pending(), "the upload is queued")
    for backing in backing_files(m):
        backing.unlink()
    flush_errno(m)
    assert box.files()["f"] == b"the version before"


@pytest.mark.parametrize("api", ["v1"])
def test_a_far_time_does_not_keep_a_file_from_being_stored(box: Sandbox, mount: MountFactory) -> None:
    """`cp -p` and `tar` of files with broken times: set between the write and the close."""
    m = mount()
    m.expects_trouble = True  # tracebacks in the log
    with open(m.path / "f", "wb", buffering=0) as file:
        file.write(b"bytes")
        errno_of(lambda: os.utime(file.fileno(), ns=(FAR, FAR)))
        assert errno_of(file.close) == 0
    assert m.settle() == {"f": b"bytes"}


@pytest.mark.parametrize("api", ["v2"])
def test_the_service_is_told_of_an_upload_that_ended_while_it_was_being_told(
    box: Sandbox, mount: MountFactory
) -> None:
    """DELETE /user/delete-cache for `a` has no answer yet when `b` is stored: another one is needed."""
    m = mount(write_back=0)
    box.faults.add("delete-cache", "slow", rate=10, times=1)  # the answer takes its time, the deed is done
    (m.path / "case").mkdir()
    (m.path / "case/a").write_bytes(b"a")
    wait_for_call(box, "delete-cache")
    (m.path / "case/b").write_bytes(b"b")
    m.flush()  # the barrier before a launch
    assert sorted(box._store.known_files("case")) == ["case/a", "case/b"], "what a run would see"


@pytest.mark.parametrize("api", ["v1"])
def test_a_page_that_answers_an_upload_is_no_stored_file(box: Sandbox, mount: MountFactory) -> None:
    """A proxy's page with status 200 in place of the object store's answer."""
    m = mount()
    box.faults.add("object-put", "html", times=1)
    (m.path / "f").write_bytes(b"bytes")
    m.flush()
    assert box.files() == {"f": b"bytes"}


@pytest.mark.parametrize("api", ["v1"])
def test_a_renamed_file_still_open_holds_the_barrier_up(box: Sandbox, mount: MountFactory) -> None:
    """write, fsync, rename, and only then close: `flush` and a launch must not pass before it is stored."""
    m = mount(write_back=0)
    with open(m.path / "f.part", "wb", buffering=0) as file:
        file.write(b"bytes")
        os.fsync(file.fileno())
        assert flush_errno(m) == errno.EBUSY, "as long as it has its first name the barrier knows it"
        os.rename(m.path / "f.part", m.path / "f")
        assert flush_errno(m) == errno.EBUSY or box.files() == {"f": b"bytes"}
    assert m.settle() == {"f": b"bytes"}


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
    assert errno_of(lambda: (m.path / ".simulations/launch").write_text(WORDS + "\n")) != 0
    assert box.runs() == []


@pytest.mark.parametrize("api", ["v1"])
def test_a_stored_file_with_an_editors_name_is_uploaded_after_a_crash_too(box: Sandbox, mount: MountFactory) -> None:
    """`notes~` is on the service: what is written to it goes up, and must after a kill as well."""
    box.put("notes~", b"before")
    m = mount(write_back=3600)
    (m.path / "notes~").write_bytes(b"after")
    m.crash()
    assert (m.path / "notes~").read_bytes() == b"after"
    m.flush()
    assert box.files() == {"notes~": b"after"}


@pytest.mark.parametrize("api", ["v1"])
def test_another_clients_version_is_not_overwritten_unseen(box: Sandbox, mount: MountFactory) -> None:
    """design.md section 4: ours goes beside it as `name.conflict-<host>-<time>`."""
    box.put("f", b"base")
    m = mount(write_back=3600, ttl=0)
    (m.path / "f").write_bytes(b"ours")
    box.put("f", b"the work of somebody else")
    os.listdir(m.path)
    m.flush()
    assert b"the work of somebody else" in box.files().values()
    assert b"ours" in box.files().values()


@pytest.mark.parametrize("api", ["v1"])
def test_a_change_of_a_file_others_have_replaced_reaches_the_service(box: Sandbox, mount: MountFactory) -> None:
    """A few bytes of a stored file are changed here; before the rest is fetched, another client replaces it."""
    box.put("f", os.urandom(6_000_000))
    m = mount(write_back=0.5)
    with open(m.path / "f", "r+b", buffering=0) as file:
        file.write(b"ours")
        box.put("f", os.urandom(5_000_000))
    wait_until(lambda: not m.pending(), "the upload ends, under whatever name", timeout=12)
