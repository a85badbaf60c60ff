"""fsync(2), O_SYNC and sync(2): what they wait for, on this disk (the default) or until the service has the file."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import Mounted, MountFactory, errno_of, run, wait_until


@pytest.fixture(params=["v2"])
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def m(mount: MountFactory) -> Mounted:
    return mount(fsync="remote", write_back=3600)


def test_fsync_remote_waits_for_the_service(box: Sandbox, m: Mounted) -> None:
    with open(m.path / "f", "w+b", buffering=0) as file:
        for number in range(3):
            os.pwrite(file.fileno(), b"%d" % number * 100_000, number * 50_000)
            assert box.files().get("f") != (m.path / "f").read_bytes()
            os.fsync(file.fileno())
            assert box.files()["f"] == (m.path / "f").read_bytes()
        file.write(b"not synced")
        uploads = box.calls.counts()["object-put"]
        assert uploads == 3
    assert m.settle()["f"].startswith(b"not synced")


@pytest.mark.parametrize("flag", [os.O_SYNC, os.O_DSYNC])
def test_each_write_of_a_synchronous_file_is_stored(box: Sandbox, m: Mounted, flag: int) -> None:
    fd = os.open(m.path / "f", os.O_WRONLY | os.O_CREAT | flag)
    try:
        for number in range(3):
            os.write(fd, b"%d" % number)
            assert box.files()["f"] == b"012"[: number + 1]
    finally:
        os.close(fd)


def test_its_failure_is_an_errno(box: Sandbox, m: Mounted) -> None:
    box.faults.add("upload-url", "status", status=403, body='{"errors": ["Unauthorized."]}')
    with open(m.path / "f", "wb", buffering=0) as file:
        file.write(b"data")
        assert errno_of(lambda: os.fsync(file.fileno())) == errno.EACCES
        box.faults.clear()
        os.fsync(file.fileno())
        assert box.files() == {"f": b"data"}


def test_it_can_be_interrupted(box: Sandbox, m: Mounted) -> None:
    box.faults.add("object-put", "hang")
    script = "import os; f = open('f', 'wb', buffering=0); f.write(b'data'); print(flush=True); os.fsync(f.fileno())"
    command = ["sh", "-c", 'cd "$0" && exec "$@"', str(m.path), sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert box.calls.wait(lambda calls: any(call.operation == "object-put" for call in calls))
        process.send_signal(signal.SIGINT)
        wait_until(lambda: process.poll() is not None, "the program ends")
    box.faults.clear()
    assert m.settle() == {"f": b"data"}


def test_a_file_that_stays_here_is_synced_here(box: Sandbox, m: Mounted) -> None:
    with open(m.path / ".f.swp", "wb", buffering=0) as file:
        file.write(b"swap")
        os.fsync(file.fileno())
    assert box.files() == {}


@pytest.mark.parametrize("flags", [0, os.O_SYNC])
def test_fsync_local_makes_no_call(box: Sandbox, mount: MountFactory, flags: int) -> None:
    """And what it has synced is in the journal and in the file when it returns."""
    m = mount(write_back=3600)
    box.calls.reset()
    fd = os.open(m.path / "f", os.O_RDWR | os.O_CREAT | flags)
    os.write(fd, b"synced")
    if not flags:
        os.fsync(fd)
    assert box.calls.entries() == []
    m.kill()
    assert errno_of(lambda: os.close(fd)) != 0
    m.start()
    assert m.settle() == {"f": b"synced"}


def test_sync_writes_mapped_pages(m: Mounted, tmp_path: Path) -> None:
    """sync(2) has the kernel write what is mapped. It does not tell the mount, which syncs by itself within 5 s."""
    (m.path / "f").write_bytes(bytes(10_000))
    script = (
        "import mmap, os; f = open('f', 'r+b'); m = mmap.mmap(f.fileno(), 0); m[:6] = b'mapped'; os.sync();"
        "assert open('f', 'rb').read(6) == b'mapped'; os._exit(0)"
    )
    run("python3", "-c", script, cwd=m.path)
    m.flush()
    assert (m.path / "f").read_bytes().startswith(b"mapped")
