"""Writing to a mount that makes no calls: nobody waits for what it cannot do, and the next online mount does it."""

from __future__ import annotations

import errno
import os

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import Mounted, MountFactory, cloudsimfs, errno_of, wait_until
from runs_harness import SHORT, WORDS


@pytest.fixture(params=["v1"])
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def offline(box: Sandbox, mount: MountFactory) -> Mounted:
    """Offline, with all folders known and nothing to be uploaded yet."""
    box.populate({**SHORT, "old": b"old", "kept": b"kept"})
    m = mount()
    for directory, _, _ in os.walk(m.path):
        os.listdir(directory)
    for name in ("cpu", "ram", "scripts"):
        (m.path / ".simulations/options" / name).read_text()
    m.option(offline=True)
    m.remount()
    box.calls.reset()
    return m


def test_it_unmounts_at_once_and_says_what_waits(box: Sandbox, offline: Mounted) -> None:
    m = offline
    (m.path / "new").write_bytes(b"new")
    (m.path / "old").unlink()
    done = m.umount()
    assert done.returncode == 0
    assert not m.is_mounted()
    assert "uploading" not in done.stdout
    assert done.stderr.startswith(f"note: 2 operations (0.0 MiB) wait in {m.cache}")
    assert "/new" in done.stderr
    assert "/old" in done.stderr
    assert "for the next mount" in done.stderr
    assert "without --offline" in done.stderr
    assert box.calls.entries() == []
    m.option(offline=False)
    m.start()
    m.flush()
    wait_until(lambda: "old" not in box.files(), "the delete is made")
    assert box.files()["new"] == b"new"


def test_flush_says_so_with_a_status(offline: Mounted) -> None:
    m = offline
    assert cloudsimfs("flush", m.path).returncode == 0
    (m.path / "new").write_bytes(b"new")
    done = cloudsimfs("flush", m.path)
    assert done.returncode == 1
    assert "this mount is offline: 1 file waits for the next online mount" in done.stderr
    (m.path / "new2").write_bytes(b"new")
    (m.path / "old").unlink()
    assert errno_of(lambda: (m.path / ".cloudsimfs/flush").write_text("1")) == errno.EHOSTUNREACH
    assert "2 files and 1 delete wait" in (m.path / ".simulations/error").read_text()
    assert m.status()["offline"] is True
    assert "offline" in (m.path / ".cloudsimfs/status").read_text()


def test_nothing_pending_needs_no_note(offline: Mounted) -> None:
    done = offline.umount()
    assert (done.returncode, done.stderr) == (0, "")


def test_a_launch_does_not_wait_for_what_waits_for_the_next_mount(box: Sandbox, offline: Mounted) -> None:
    m = offline
    (m.path / "case/new").write_bytes(b"new")
    assert errno_of(lambda: (m.path / ".simulations/launch").write_text(WORDS)) == errno.EHOSTUNREACH
    assert "offline: 1 file waits" in (m.path / ".simulations/error").read_text()
    assert box.runs() == []


def test_fsync_of_the_service_is_an_errno(offline: Mounted) -> None:
    m = offline
    m.option(fsync="remote")
    m.remount()
    with open(m.path / "f", "wb", buffering=0) as file:
        file.write(b"synced here")
        assert errno_of(lambda: os.fsync(file.fileno())) == errno.EHOSTUNREACH
    m.option(offline=False)
    m.remount()
    assert m.settle()["f"] == b"synced here"
