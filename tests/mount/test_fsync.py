"""fsync(2), O_SYNC and sync(2): what they wait for, on this disk (the default) or until the service has the file."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import ROOT, Mounted, MountFactory, errno_of, wait_until
from syncing import Synced, noted_in

SYNCING = ROOT / "tests/support/syncing.py"


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


# -- what is on the disk when it returns -----------------------------------------------------------------------


@dataclass
class Syncs:
    """A mount, and what it has synced."""

    m: Mounted
    notes: Path

    def by_request(self) -> list[Synced]:
        """Not what the rounds in the background do."""
        return [synced for synced in noted_in(self.notes) if synced.thread != "fsyncer"]


@pytest.fixture
def syncs(mount: MountFactory, tmp_path: Path) -> Callable[..., Syncs]:
    """Makes mounts that note their syncs."""

    def make(**options: Any) -> Syncs:
        notes = tmp_path / "syncs"
        return Syncs(mount(program=[str(SYNCING), str(notes), "cloudsimfs"], write_back=3600, **options), notes)

    return make


def fsync_is_asked_for(fd: int) -> None:
    os.write(fd, b"synced")
    os.fsync(fd)


def fdatasync_is_asked_for(fd: int) -> None:
    os.write(fd, b"synced")
    os.fdatasync(fd)


def each_write_is_to_be_synced(fd: int) -> None:
    os.write(fd, b"synced")


@pytest.mark.parametrize(
    ("flags", "write"),
    [(0, fsync_is_asked_for), (0, fdatasync_is_asked_for), (os.O_SYNC, each_write_is_to_be_synced)],
)
def test_fsync_local_has_the_disk_write_and_makes_no_call(
    box: Sandbox, syncs: Callable[..., Syncs], flags: int, write: Callable[[int], None]
) -> None:
    """The bytes, their name, then the row that speaks of them; all is there after a kill."""
    mounted = syncs()
    m = mounted.m
    fd = os.open(m.path / "f", os.O_RDWR | os.O_CREAT | flags)
    box.calls.reset()
    before = len(mounted.by_request())
    write(fd)
    synced = mounted.by_request()[before:]
    assert [each.what for each in synced] == ["bytes", "names", "rows"]
    assert synced[0].size == len(b"synced")
    assert box.calls.entries() == []
    m.kill()
    assert errno_of(lambda: os.close(fd)) != 0
    m.start()
    assert m.settle() == {"f": b"synced"}


def test_a_file_that_stays_here_is_synced_here(box: Sandbox, syncs: Callable[..., Syncs]) -> None:
    mounted = syncs(fsync="remote")
    with open(mounted.m.path / ".f.swp", "wb", buffering=0) as file:
        before = len(mounted.by_request())
        file.write(b"swap")
        os.fsync(file.fileno())
        assert [each.what for each in mounted.by_request()[before:]] == ["bytes", "names", "rows"]
    assert box.files() == {}


def test_an_unmount_leaves_nothing_to_a_power_loss(syncs: Callable[..., Syncs]) -> None:
    mounted = syncs()
    (mounted.m.path / "f").write_bytes(b"closed")
    assert mounted.m.umount("--no-wait").returncode == 0
    assert [each.what for each in noted_in(mounted.notes)][-3:] == ["bytes", "names", "rows"]


def test_sync_writes_mapped_pages(mount: MountFactory) -> None:
    """sync(2) has the kernel write what is mapped: the mount has it then, whatever becomes of the program."""
    m = mount(write_back=3600)
    (m.path / "f").write_bytes(bytes(10_000))
    script = (
        "import mmap, os, signal; f = open('f', 'r+b'); m = mmap.mmap(f.fileno(), 0); m[:6] = b'mapped'; os.sync();"
        "print(flush=True); signal.pause()"
    )
    command = ["sh", "-c", 'cd "$0" && exec "$@"', str(m.path), sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        m.kill()
        kept = [file.read_bytes()[:6] for file in m.cache.glob("**/data/*") if "." not in file.name]
        process.kill()
    assert b"mapped" in kept
    m.start()
