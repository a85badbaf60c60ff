"""Unmounting in every way loses nothing, and says how far it is."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudsimfs.cli import mounting
from cloudsimfs.sandbox import Sandbox
from harness import Mounted, MountFactory, client_environment, patient, run, wait_until, write_tree

FILES = {f"case/{number}": os.urandom(20_000) for number in range(10)}


@pytest.fixture(params=["v2"])
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def by_signal(m: Mounted) -> None:
    for pid in m.pids:
        os.kill(pid, signal.SIGTERM)


def by_fusermount(m: Mounted) -> None:
    run("fusermount3", "-u", m.path)


@pytest.mark.parametrize("end", [by_signal, by_fusermount])
@pytest.mark.parametrize("uploads", [0, 2])
def test_ends_without_umount_lose_nothing(
    box: Sandbox, mount: MountFactory, end: Callable[[Mounted], None], uploads: int
) -> None:
    m = mount(write_back=0 if uploads else 3600)
    box.faults.add("object-put", "slow", rate=40_000)
    write_tree(m.path, FILES)
    assert box.calls.wait(lambda calls: sum(call.operation == "object-put" for call in calls) >= uploads)
    end(m)
    wait_until(lambda: not m.pids and not m.is_mounted(), "the daemon ends")
    assert all(data == FILES[path] for path, data in box.files().items())
    box.faults.clear()
    m.start()
    assert m.settle() == FILES


def test_umount_can_be_interrupted(box: Sandbox, mount: MountFactory) -> None:
    m = mount(write_back=0)
    box.faults.add("object-put", "slow", rate=500_000)
    data = os.urandom(16_000_000)
    (m.path / "f").write_bytes(data)
    terminal, theirs = pty.openpty()
    command = [sys.executable, "-m", "cloudsimfs", "umount", str(m.path)]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, env=client_environment()) as process:
        os.close(theirs)
        shown = b""
        while not re.search(rb"\D[1-9]\d?%", shown):
            shown += os.read(terminal, 1000)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=patient(20)) == 130
        assert process.stderr is not None
        told = process.stderr.read().decode()
    os.close(terminal)
    assert b"uploading" in shown
    assert "still mounted: not on the service yet: 1 operation (" in told
    assert "safe in" in told
    assert "Traceback" not in told
    assert m.is_mounted()
    assert m.umount("--no-wait").returncode == 0
    box.faults.clear()
    m.start()
    assert m.settle() == {"f": data}


def test_status_tells_how_far_uploads_are(box: Sandbox, mount: MountFactory) -> None:
    m = mount(write_back=0)
    fault = box.faults.add("object-put", "slow", rate=2_000_000)
    (m.path / "f").write_bytes(os.urandom(12_000_000))
    wait_until(lambda: (m.status()["uploads"]["seconds"] or 0) > 0, "the rate is known")
    found = m.status()
    assert 0 < found["uploads"]["left"] < 12_000_000
    assert found["uploads"]["rate"] > 0
    assert 0 < found["pending"][0]["sent"] < 12_000_000
    text = (m.path / ".cloudsimfs/status").read_text()
    assert "pending   1 operation, " in text
    assert "MiB/s: about" in text
    assert "sending   /f: " in text
    box.faults.add("object-put", "status", status=403, times=4)
    box.faults.remove(fault)
    (m.path / "f").write_bytes(b"anew")
    m.flush()
    assert "PUT upload link: HTTP 403" in m.status()["last_error"]["text"]
    assert "solved" in (m.path / ".cloudsimfs/status").read_text()


@pytest.mark.parametrize("api", ["v1"])
def test_metrics_are_what_prometheus_reads(box: Sandbox, mount: MountFactory) -> None:
    m = mount(write_back=3600)
    os.listdir(m.path)
    (m.path / "f").write_bytes(bytes(5000))

    def metrics() -> dict[str, float]:
        lines = (m.path / ".cloudsimfs/metrics").read_text().splitlines()
        samples = [line.split(" ") for line in lines if not line.startswith("#")]
        assert [line.split(" ")[2] for line in lines if line.startswith("# TYPE")] == [name for name, _ in samples]
        return {name: float(value) for name, value in samples}

    found = metrics()
    assert found["cloudsimfs_pending_operations"] == 1
    assert found["cloudsimfs_pending_bytes"] == 5000
    assert found["cloudsimfs_failing_operations"] == 0
    assert found["cloudsimfs_uploaded_bytes_total"] == 0
    assert found["cloudsimfs_api_calls_total"] == box.calls.api_count()
    m.flush()
    found = metrics()
    assert found["cloudsimfs_pending_operations"] == 0
    assert found["cloudsimfs_uploaded_bytes_total"] == 5000
    assert found["cloudsimfs_api_calls_total"] == box.calls.api_count()


def test_a_process_has_ended_once_its_last_thread_has() -> None:
    """Until then it holds its files, and with them the lock that the next mount needs."""
    script = "import ctypes, threading; threading.Thread(target=input).start(); ctypes.CDLL(None).pthread_exit(None)"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as process:
        stat = Path(f"/proc/{process.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", "the main thread ends")
        assert not mounting._has_ended(process.pid)
        process.kill()
        wait_until(lambda: mounting._has_ended(process.pid), "all of it has ended, and nobody has reaped it")
        assert process.poll() is not None
    assert mounting._has_ended(process.pid)
