"""What close() accepted survives a kill at any later moment, also while the file is being written to again."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import Mounted, MountFactory, backing_files, run, stored_versions, wait_until

CLOSED = os.urandom(400_000)


def overwrite(fd: int) -> None:
    os.pwrite(fd, b"half" * 1000, 100_000)


def append(fd: int) -> None:
    os.lseek(fd, 0, os.SEEK_END)
    os.write(fd, b"tail")


def append_then_overwrite(fd: int) -> None:
    append(fd)
    overwrite(fd)
    append(fd)


def cut_off(fd: int) -> None:
    os.ftruncate(fd, 1000)
    os.pwrite(fd, b"behind the cut", 200_000)


def begin_anew(fd: int) -> None:
    os.ftruncate(fd, 0)
    os.write(fd, b"anew")


def die_in(m: Mounted, work: Callable[[int], None]) -> None:
    """Kill the daemon while `f`, opened anew, is being worked on."""
    with contextlib.suppress(OSError), open(m.path / "f", "r+b", buffering=0) as file:
        work(file.fileno())
        m.kill()


@pytest.mark.parametrize("work", [overwrite, append, append_then_overwrite, cut_off, begin_anew])
@pytest.mark.parametrize(("api", "base"), [("v1", None), ("v2", os.urandom(500_000))])
def test_a_closed_state_survives_what_is_written_after_it(
    box: Sandbox, mount: MountFactory, work: Callable[[int], None], base: bytes | None
) -> None:
    """`base` is stored before: then the closed state has parts that are only on the service."""
    if base is not None:
        box.put("f", base)
    m = mount(write_back=3600)
    versions = box.record_versions()
    if base is None:
        expected = CLOSED
        (m.path / "f").write_bytes(CLOSED)
    else:
        expected = base[:300_000] + CLOSED[:1000] + base[301_000:]
        with open(m.path / "f", "r+b") as file:
            file.seek(300_000)
            file.write(CLOSED[:1000])
    die_in(m, work)
    m.start()
    assert (m.path / "f").read_bytes() == expected
    m.settle()
    assert stored_versions(versions, "f") == [expected]


def test_a_closed_state_survives_in_the_middle_of_its_upload(box: Sandbox, mount: MountFactory) -> None:
    m = mount(write_back=0)
    box.faults.add("object-put", "slow", rate=200_000)
    (m.path / "f").write_bytes(CLOSED)
    assert box.calls.wait(lambda calls: any(call.operation == "object-put" for call in calls))
    die_in(m, overwrite)
    box.faults.clear()
    m.start()
    assert m.settle() == {"f": CLOSED}


@pytest.mark.parametrize("api", ["v1"])
def test_a_stored_state_survives_before_it_is_listed(box: Sandbox, mount: MountFactory) -> None:
    m = mount(write_back=0)
    (m.path / "f").write_bytes(CLOSED)
    m.flush()
    die_in(m, overwrite)
    m.start()
    assert (m.path / "f").read_bytes() == CLOSED


@pytest.mark.parametrize("api", ["v2"])
def test_the_next_close_takes_the_place_of_the_last(box: Sandbox, mount: MountFactory) -> None:
    """And leaves no copies behind."""
    m = mount(write_back=3600)
    expected = bytearray(CLOSED)
    (m.path / "f").write_bytes(CLOSED)
    for number in range(5):
        with open(m.path / "f", "r+b") as file:
            file.seek(number * 50_000)
            file.write(b"%d" % number * 3000)
        expected[number * 50_000 : number * 50_000 + 3000] = b"%d" % number * 3000
    wait_until(lambda: len(backing_files(m)) == 1, "what was replaced is removed once the disk has the journal")
    m.crash()
    assert m.settle() == {"f": bytes(expected)}


@pytest.mark.parametrize("api", ["v2"])
def test_a_reader_and_a_mapping_see_what_is_written_over_a_closed_state(mount: MountFactory) -> None:
    m = mount(write_back=3600)
    (m.path / "f").write_bytes(CLOSED)
    with open(m.path / "f", "rb", buffering=0) as reader, open(m.path / "f", "r+b", buffering=0) as writer:
        assert reader.read(10) == CLOSED[:10]
        writer.write(b"overwritten")
        assert os.pread(reader.fileno(), 11, 0) == b"overwritten"
        assert os.pread(reader.fileno(), 100, 300_000) == CLOSED[300_000:300_100]
    script = (
        "import mmap; f = open('f', 'r+b'); m = mmap.mmap(f.fileno(), 0); m[5:11] = b'MAPPED'; m.flush(); f.close()"
    )
    run("python3", "-c", script, cwd=m.path)
    m.crash()
    assert (m.path / "f").read_bytes() == b"overwMAPPED" + CLOSED[11:]
    assert len(CLOSED) > mmap.PAGESIZE


@pytest.mark.parametrize("api", ["v2"])
def test_a_duplicate_that_is_closed_ends_no_file(box: Sandbox, mount: MountFactory) -> None:
    """A child that ends closes its copies of the descriptors: that costs no copy of the file at each write."""
    m = mount(write_back=3600)
    with open(m.path / "g", "w+b", buffering=0) as file:
        file.write(CLOSED)
        for number in range(20):
            os.close(os.dup(file.fileno()))
            os.pwrite(file.fileno(), b"x", number)
            os.fsync(file.fileno())
        assert len(backing_files(m)) == 1
    m.crash()
    assert m.settle()["g"] == b"x" * 20 + CLOSED[20:]


@pytest.mark.parametrize("api", ["v2"])
@pytest.mark.parametrize("work", [overwrite, append])
def test_a_rename_while_a_closed_file_is_being_changed(
    box: Sandbox, mount: MountFactory, work: Callable[[int], None]
) -> None:
    box.put("f", b"stored long ago")
    m = mount(write_back=3600)
    (m.path / "f").write_bytes(CLOSED)
    with contextlib.suppress(OSError), open(m.path / "f", "r+b", buffering=0) as file:
        work(file.fileno())
        os.rename(m.path / "f", m.path / "g")
        work(file.fileno())
        m.kill()
    m.start()
    assert m.settle() == {"g": CLOSED}
