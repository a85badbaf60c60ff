"""What `mount`, `status`, `flush` and `umount` say when the service is silent, the daemon is dead, or files wait."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import MountFactory, cloudsimfs, switch_off, wait_until
from systemd_harness import command

pytestmark = pytest.mark.parametrize("api", ["v1"])


# -- a service that does not answer ------------------------------------------------------------------------------


def test_a_mount_on_a_dead_network_says_so(box: Sandbox, mount: MountFactory) -> None:
    box.populate({"d/f": b"f"})
    m = mount(ttl=0, calls_per_hour=1000)
    assert (m.path / "d/f").read_bytes() == b"f"
    assert m.umount().returncode == 0
    switch_off(box)
    before = time.time()
    done = m.try_start()
    assert (done.returncode, done.stdout) == (0, "")
    (line,) = done.stderr.splitlines()
    assert re.fullmatch(
        f"note: {box.url} does not answer \\(.*refused.*\\): what was listed before is shown, and changes wait",
        line,
    )
    text = cloudsimfs("status", m.path)
    assert text.returncode == 0
    assert re.search(r"^no answer since \d\d:\d\d: .*refused", text.stdout, re.MULTILINE)
    outage = m.status()["outage"]
    assert before - 1 <= outage["since"] <= time.time() + 1
    assert "refused" in outage["text"]
    assert "cloudsimfs_service_silent 1\n" in (m.path / ".cloudsimfs/metrics").read_text()


def test_a_service_that_answers_again_is_silent_no_more(box: Sandbox, mount: MountFactory) -> None:
    m = mount(ttl=0)
    assert m.status()["outage"] is None
    assert "cloudsimfs_service_silent 0\n" in (m.path / ".cloudsimfs/metrics").read_text()
    box.faults.add("*", "status", status=503)
    wait_until(lambda: list(m.path.iterdir()) == [] and m.status()["outage"], "a listing has failed")
    assert "no answer" in (m.path / ".cloudsimfs/status").read_text()
    box.faults.clear()
    wait_until(lambda: list(m.path.iterdir()) == [] and not m.status()["outage"], "a listing has succeeded")
    assert "no answer" not in (m.path / ".cloudsimfs/status").read_text()


def test_limits_that_nobody_has_told_are_unknown(box: Sandbox, mount: MountFactory) -> None:
    m = mount(ttl=0)
    assert "no limit" in (m.path / ".cloudsimfs/status").read_text()
    budget = m.status()["budget"]
    assert (budget["limit"], budget["remaining"], budget["limit_known"]) == (None, None, True)
    assert "limit_known True\n" in (m.path / ".simulations/budget").read_text()
    assert m.umount().returncode == 0
    switch_off(box)
    m.start()
    text = (m.path / ".cloudsimfs/status").read_text()
    assert "limit unknown" in text
    assert "no limit" not in text
    budget = m.status()["budget"]
    assert (budget["limit"], budget["remaining"], budget["limit_known"]) == (None, None, False)
    assert "limit -\n" in (m.path / ".simulations/budget").read_text()
    assert "limit_known False\n" in (m.path / ".simulations/budget").read_text()
    metrics = (m.path / ".cloudsimfs/metrics").read_text()
    assert "cloudsimfs_api_limit_known 0\n" in metrics
    assert "cloudsimfs_api_calls_limit" not in metrics


# -- what remains ------------------------------------------------------------------------------------------------


def test_flush_and_umount_advise_what_they_have(box: Sandbox, mount: MountFactory) -> None:
    m = mount(write_back=0)
    box.faults.add("upload-url", "status", status=500)
    (m.path / "f").write_bytes(b"f")
    wait_until(lambda: m.pending()[0]["error"], "the upload has failed")
    done = cloudsimfs("flush", m.path)
    assert done.returncode == 1
    assert "not on the service yet: 1 operation (0.0 MiB)" in done.stderr
    assert "go on while it is mounted; flush again later" in done.stderr
    assert "--no-wait" not in done.stderr
    done = cloudsimfs("umount", m.path)
    assert done.returncode == 1
    assert "--no-wait unmounts now, and the next mount continues" in done.stderr


def test_an_unmount_that_does_not_wait_says_what_remains(box: Sandbox, mount: MountFactory) -> None:
    box.populate({"old": b"o"})
    m = mount(write_back=3600)
    done = m.umount("--no-wait")
    assert (done.returncode, done.stderr) == (0, "")  # nothing remains
    m.start()
    (m.path / "f").write_bytes(b"x" * (3 << 20))
    (m.path / "g").write_bytes(b"x" * (1 << 19))
    done = m.umount("--no-wait")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith(f"note: 2 operations (3.5 MiB) wait in {m.cache}")
    assert " for the next mount (/" in done.stderr
    m.start()
    (m.path / "g").unlink()
    assert m.umount("--no-wait").stderr.startswith("note: 1 operation (3.0 MiB) waits in ")


# -- a dead daemon -----------------------------------------------------------------------------------------------


def test_a_dead_mount_is_named_with_the_remedy(mount: MountFactory) -> None:
    dead, alive = mount(), mount()
    dead.kill()
    said = (
        f"{dead.path}: its daemon died: `cloudsimfs mount {dead.path}` mounts it again, nothing that was closed is "
        f"lost; `cloudsimfs umount {dead.path}` removes what is left of it"
    )
    for words in (["status"], ["flush"], ["status", dead.path], ["status", dead.path / "f", "--json"]):
        done = command(*words, among=[dead])
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"Error: {said}\n"
    done = command("status", among=[dead, alive])
    assert done.returncode == 0
    assert f"service   {alive.box.url}" in done.stdout
    assert done.stderr == f"note: {said}\n"
    done = command("status", "--json", among=[dead, alive])
    assert json.loads(done.stdout)["mountpoint"] == str(alive.path)
    done = command("umount", among=[dead])
    assert (done.returncode, done.stderr) == (0, "")


def test_unmounting_when_nothing_is_mounted(mount: MountFactory, tmp_path: Path) -> None:
    assert mount is not None  # its log is checked at the end
    done = command("umount", among=[])
    assert done.returncode == 1
    assert done.stderr == "Error: no cloudsimfs is mounted\n"
