"""Fixtures of the tests on a real mount: a sandbox, mounts of it, and the proof that nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import harness
from cloudsimfs.sandbox import Sandbox, Settings
from harness import Mounted, MountFactory, Watchdog, patient
from runs_harness import SHORT, Simulations


@pytest.fixture(scope="session")
def mount_base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory all mounts of the session lie below; empty of mounts and daemons at the end."""
    if not os.path.exists("/dev/fuse"):
        pytest.skip("/dev/fuse is missing: load the kernel module `fuse` or allow the device in the container")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("you may not open /dev/fuse: sudo chmod 0666 /dev/fuse")
    harness.need("fusermount3")
    base = tmp_path_factory.mktemp("mounts")
    reaper = harness.start_reaper(base)
    try:
        yield base
        assert harness.mounts_below(base) == []
        assert harness.processes_below(base) == []
    finally:
        assert reaper.stdin is not None
        reaper.stdin.close()
        reaper.wait(timeout=patient(30))


@pytest.fixture(params=["v1", "v2"])
def api(request: pytest.FixtureRequest) -> str:
    """The API version of the mount; a test that needs only one says so with `parametrize`."""
    found = request.param
    assert isinstance(found, str)
    return found


@pytest.fixture
def box() -> Iterator[Sandbox]:
    """A service without call limits whose runs start at once."""
    threads = set(threading.enumerate())
    with Sandbox(settings=Settings(hourly_limit=0, pending_seconds=0.05)) as running:
        yield running
        assert running.key_leaks == []
    for thread in set(threading.enumerate()) - threads:
        thread.join(timeout=patient(20))  # those of a pool that was shut down are still ending
    left = set(threading.enumerate()) - threads
    assert not left, f"threads left behind: {left}"


@pytest.fixture
def mount(box: Sandbox, mount_base: Path, tmp_path: Path, api: str) -> Iterator[MountFactory]:
    """Makes mounts of `box`; checks their logs and removes them at the end.

    Called with options of `cloudsimfs mount`; `start=False` prepares a mount only.
    """
    made: list[Mounted] = []
    directory = mount_base / tmp_path.name
    directory.mkdir()

    def make(*, start: bool = True, **options: Any) -> Mounted:
        place = directory / f"{len(made)}"
        place.mkdir()
        mounted = Mounted(box, place, **{"api": api, **options})
        made.append(mounted)
        return mounted.start() if start else mounted

    with Watchdog(directory) as watchdog:
        try:
            yield make
        finally:
            harness.clean_up(directory)
    assert not watchdog.fired, "the mount hung and was killed"
    assert harness.mounts_below(directory) == []
    for mounted in made:
        log = mounted.log()
        assert mounted.key not in log
        assert "signature=" not in log, "a signed query was logged"
        if not mounted.expects_trouble:
            found = harness.UNEXPECTED.search(log)
            assert found is None, log[max(0, found.start() - 3000) : found.end() + 3000]


@pytest.fixture
def m(mount: MountFactory) -> Mounted:
    """One mount with the tests' usual options."""
    return mount()


@pytest.fixture
def prepared(mount: MountFactory) -> Mounted:
    """The same, not mounted yet."""
    return mount(start=False)


@pytest.fixture
def sims(box: Sandbox, mount: MountFactory) -> Simulations:
    """A mount with a short case in the storage."""
    box.populate(SHORT)
    return Simulations(mount(run_ttl=0.1))


@pytest.fixture
def run_program() -> Callable[..., str]:
    """Runs a program, or skips the test if it is not installed."""

    def run(program: str, *arguments: str | Path, **options: Any) -> str:
        harness.need(program)
        return harness.run(program, *arguments, **options)

    return run


def pytest_configure() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's is ignored, and so its children's


def pytest_report_header() -> str:
    version = subprocess.run(["fusermount3", "--version"], capture_output=True, text=True, check=False)
    return version.stdout.strip() or "fusermount3 is missing"
