"""Waits and shapes of answers, on a real mount: found by review, each shown by one test."""

from __future__ import annotations

import os
import subprocess
import time

import pytest
from conftest import MountFactory
from harness import wait_until

from cloudsimfs.sandbox import Sandbox

WORDS = "cpu=2 ram=standard script=heat2d-1.0 folder=case"


def shell(command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["sh", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


@pytest.mark.parametrize("api", ["v1"])
@pytest.mark.parametrize("variation", ["size-null", "size-missing"])
def test_appending_to_a_file_of_unknown_size_keeps_what_it_had(
    box: Sandbox, mount: MountFactory, variation: str
) -> None:
    """service-observed.md tolerates entries without a size; they are not empty files."""
    box.put("log", b"precious\n")
    box.faults.add("list", "odd", variation=variation)
    m = mount()
    try:
        with open(m.path / "log", "ab", buffering=0) as file:
            file.write(b"more\n")
    except OSError:
        pass  # a refusal loses nothing
    box.faults.clear()
    m.flush()
    assert box.files()["log"] in (b"precious\n", b"precious\nmore\n")


@pytest.mark.parametrize("api", ["v1"])
def test_another_clients_bytes_are_shown_though_written_right_after_ours(box: Sandbox, mount: MountFactory) -> None:
    """The same size and within two seconds: the store's ETags tell the two apart, the listing does not."""
    m = mount(write_back=0, ttl=0)
    (m.path / "f").write_bytes(b"ours")
    wait_until(lambda: not m.pending(), "ours is stored")
    box.put("f", b"them")
    os.listdir(m.path)
    wait_until(lambda: (m.path / "f").read_bytes() == b"them", "theirs is shown", timeout=6)


@pytest.mark.parametrize("api", ["v1"])
def test_a_launch_that_waits_for_an_upload_can_be_killed(box: Sandbox, mount: MountFactory) -> None:
    """design.md, invariant 6: every wait is killable; a barrier may take 15 minutes."""
    box.put("case/heat.ini", b"steps = 1\n")
    m = mount(write_back=3600)
    (m.path / "case/heat.ini").write_bytes(b"steps = 2\n")
    box.faults.add("object-put", "hang")
    with shell(f"echo '{WORDS}' > {m.path}/.simulations/launch") as process:
        assert box.calls.wait(lambda calls: any(call.operation == "object-put" for call in calls))
        process.kill()
        try:
            process.wait(timeout=5)
            dead = True
        except subprocess.TimeoutExpired:
            dead = False
        box.faults.clear()
        process.wait(timeout=20)
    assert dead, "still there five seconds after SIGKILL"


@pytest.mark.parametrize("api", ["v1"])
def test_a_status_is_read_at_once_while_the_service_hangs(box: Sandbox, mount: MountFactory) -> None:
    """What is known is served, as it is for listings."""
    m = mount(run_ttl=0.1)
    (m.path / ".simulations/runs").read_text()
    time.sleep(0.2)
    box.faults.add("simulations", "hang")
    with shell(f"cat {m.path}/.simulations/runs") as process:
        try:
            process.wait(timeout=8)
            answered = True
        except subprocess.TimeoutExpired:
            answered = False
        box.faults.clear()
        process.wait(timeout=20)
    assert answered, "nothing for eight seconds"


@pytest.mark.parametrize("api", ["v1"])
def test_a_launch_without_calls_says_so_at_once(box: Sandbox, mount: MountFactory) -> None:
    """The barrier's uploads wait for the hour to turn; who launches must hear EDQUOT, not wait 15 minutes."""
    box.put("case/heat.ini", b"steps = 1\n")
    m = mount(write_back=3600)
    (m.path / ".simulations/runs").read_text()
    for name in ("cpu", "ram", "scripts"):
        (m.path / ".simulations/options" / name).read_text()
    (m.path / "case/heat.ini").write_bytes(b"steps = 2\n")
    box.settings.hourly_limit = box.calls.api_count() + 1
    os.listdir(m.path / "case")
    (m.path / ".cloudsimfs/refresh").write_text("case")
    os.listdir(m.path / "case")  # the last call
    with shell(f"echo '{WORDS}' > {m.path}/.simulations/launch") as process:
        try:
            process.wait(timeout=8)
            answered = True
        except subprocess.TimeoutExpired:
            answered = False
        budget = m.status()["budget"]
        m.kill()
        process.wait(timeout=20)
    assert budget["remaining"] == 0, "the test has spent the hour's calls"
    assert answered, "nothing for eight seconds"


@pytest.mark.parametrize("api", ["v1"])
def test_a_store_that_is_down_does_not_cost_the_hours_calls(box: Sandbox, mount: MountFactory) -> None:
    """An upload link is good for 15 minutes: a PUT that failed needs no new one."""
    m = mount(write_back=0)
    box.faults.add("object-put", "status", status=503)
    for number in range(10):
        (m.path / f"f{number}").write_bytes(b"x")
    time.sleep(12)
    assert box.calls.counts()["upload-url"] <= 12


@pytest.mark.parametrize("api", ["v1"])
def test_refused_deletes_do_not_cost_the_hours_calls(box: Sandbox, mount: MountFactory) -> None:
    box.populate({f"f{number}": b"" for number in range(10)} | {"kept": b""})
    m = mount(write_back=0)
    box.faults.add("delete", "status", status=400)
    for number in range(10):
        (m.path / f"f{number}").unlink()
    time.sleep(12)
    assert box.calls.api_count() <= 25
