"""Without the service: offline by wish, a dead network, listings that fail. What is known serves; nothing is lost."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import Mounted, MountFactory, errno_of, read_tree, switch_off

TREE = {"d/x": b"x" * 1000, "d/e/y": b"yy", "unread": b"unread" * 10, "never/z": b"z"}


def walk(top: Path) -> list[str]:
    return sorted(f"{directory}/{name}" for directory, _, names in os.walk(top) for name in names)


def get_to_know(m: Mounted) -> None:
    """List all but `never`, read all but `unread`; the root is not read, lest it look like a walk through all."""
    assert sorted(os.listdir(m.path / "d")) == ["e", "x"]
    assert os.listdir(m.path / "d/e") == ["y"]
    assert (m.path / "d/x").read_bytes() == TREE["d/x"]


def check_known(m: Mounted) -> None:
    assert set(os.listdir(m.path)) >= {"d", "unread", "never"}
    assert walk(m.path / "d") == [f"{m.path}/d/e/y", f"{m.path}/d/x"]
    assert (m.path / "d/x").stat().st_size == 1000
    assert (m.path / "unread").stat().st_size == 60
    for absent in ("none", "d/none", "d/e/none", "none/deeper"):
        assert errno_of((m.path / absent).stat) == errno.ENOENT


# -- --offline ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["v1"])  # with v2, too, no call is made; what would be called does not matter
def test_offline_serves_what_is_known_and_makes_no_call(box: Sandbox, mount: MountFactory) -> None:
    box.populate(TREE)
    m = mount(run_ttl=0)
    get_to_know(m)
    assert m.umount().returncode == 0
    box.calls.reset()
    m.option(offline=True, ttl=0)
    m.start()
    check_known(m)
    check_known(m)
    assert errno_of((m.path / "unread").read_bytes) == errno.EHOSTUNREACH
    assert errno_of(lambda: os.listdir(m.path / "never")) == errno.EHOSTUNREACH
    assert errno_of((m.path / "never/z").stat) == errno.EHOSTUNREACH
    assert (m.path / ".cloudsimfs/status").read_text()
    assert errno_of((m.path / ".simulations/runs").read_text) in {0, errno.EHOSTUNREACH}
    assert box.calls.entries() == []


def remount_offline(m: Mounted) -> None:
    assert m.umount().returncode == 0
    m.option(offline=True)
    m.start()


@pytest.mark.parametrize("api", ["v1"])
def test_offline_reads_what_is_cached(box: Sandbox, mount: MountFactory) -> None:
    box.populate(TREE)
    m = mount()
    get_to_know(m)
    remount_offline(m)
    assert (m.path / "d/x").read_bytes() == TREE["d/x"]


def test_what_is_written_offline_goes_up_at_the_next_mount(box: Sandbox, mount: MountFactory) -> None:
    box.populate(TREE)
    m = mount()
    get_to_know(m)
    remount_offline(m)
    box.calls.reset()
    (m.path / "d/new").write_bytes(b"new")
    (m.path / "fresh").mkdir()
    (m.path / "fresh/file").write_bytes(b"file")
    (m.path / "d/e/y").unlink()
    assert (m.path / "d/new").read_bytes() == b"new"
    assert sorted(os.listdir(m.path / "d")) == ["e", "new", "x"]
    m.remount("--no-wait")
    assert sorted(os.listdir(m.path / "d")) == ["e", "new", "x"], "also in the next mount offline"
    assert os.listdir(m.path / "fresh") == ["file"]
    assert m.umount("--no-wait").returncode == 0
    assert box.calls.entries() == []
    assert box.files() == TREE

    del m._options["offline"]
    m.start()
    m.flush()
    expected = TREE | {"d/new": b"new", "fresh/file": b"file"}
    del expected["d/e/y"]
    assert box.files() == expected
    assert read_tree(m.path) == expected


@pytest.mark.parametrize("api", ["v1"])
def test_offline_mounts_of_an_unknown_account_tell_absent_from_unknown(box: Sandbox, mount: MountFactory) -> None:
    box.populate(TREE)
    m = mount(start=False, offline=True)
    if m.try_start().returncode == 0:
        assert errno_of((m.path / "d").stat) == errno.EHOSTUNREACH
        assert errno_of(lambda: os.listdir(m.path)) == errno.EHOSTUNREACH
    assert box.calls.entries() == []


# -- a dead network -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["v1"])
def test_a_known_account_is_mounted_on_a_dead_network(box: Sandbox, mount: MountFactory) -> None:
    box.populate(TREE)
    m = mount(ttl=0)
    get_to_know(m)
    assert m.umount().returncode == 0
    switch_off(box)
    m.start()
    check_known(m)
    (m.path / "d/new").write_bytes(b"new")
    assert (m.path / "d/new").read_bytes() == b"new"
    assert errno_of((m.path / "unread").read_bytes) == errno.EHOSTUNREACH
    assert sorted(os.listdir(m.path / "d")) == ["e", "new", "x"]


@pytest.mark.parametrize("api", ["v1"])
def test_an_unknown_account_is_not_mounted_on_a_dead_network(box: Sandbox, mount: MountFactory) -> None:
    switch_off(box)
    m = mount(start=False)
    done = m.try_start()
    assert done.returncode != 0
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "refused" in done.stderr
    assert "Traceback" not in m.log()
    assert not m.is_mounted()


@pytest.mark.parametrize("api", ["v2"])
def test_the_network_dies_while_mounted_and_comes_back(box: Sandbox, mount: MountFactory) -> None:
    box.populate(TREE)
    m = mount(ttl=0)
    get_to_know(m)
    box.faults.add("*", "reset")
    for _ in range(3):
        check_known(m)
    (m.path / "d/new").write_bytes(b"new")
    (m.path / "d/e/y").unlink()
    assert sorted(os.listdir(m.path / "d")) == ["e", "new", "x"]
    assert os.listdir(m.path / "d/e") == []
    assert (m.path / "d/x").read_bytes() == TREE["d/x"], "cached"
    assert errno_of((m.path / "never/z").stat) == errno.EHOSTUNREACH
    box.faults.clear()
    expected = {name: data for name, data in TREE.items() if name != "d/e/y"} | {"d/new": b"new"}
    m.flush()
    assert box.files() == expected


# -- listings that fail, others do not ------------------------------------------------------------------------------


@pytest.mark.parametrize(("api", "kind"), [("v2", "status"), ("v1", "hang")])
def test_a_failing_listing_removes_no_name(box: Sandbox, mount: MountFactory, kind: str) -> None:
    """Also while calls hang everything known is answered; the fault is lifted only afterwards."""
    box.populate(TREE)
    m = mount(ttl=0)
    get_to_know(m)
    box.remove("d/x")
    fault = box.faults.add("list*", kind)
    for _ in range(2):
        assert sorted(os.listdir(m.path / "d")) == ["e", "x"]
        check_known(m)
    if kind != "hang":  # what is not known has nothing but the call to wait for
        assert errno_of((m.path / "never/z").stat) == errno.EIO
    (m.path / "d/new").write_bytes(b"new")
    os.rename(m.path / "d/new", m.path / "d/newer")
    assert sorted(os.listdir(m.path / "d")) == ["e", "newer", "x"]
    box.faults.remove(fault)
    m.flush()
    assert box.files()["d/newer"] == b"new"


def test_a_refused_first_listing_keeps_nobody_from_what_is_known(box: Sandbox, mount: MountFactory) -> None:
    """Nor from what waits: one refusal proves nothing (docs/service.md, "Envelopes")."""
    box.populate({"d/f": b"f"})
    m = mount(ttl=0, write_back=3600)
    assert os.listdir(m.path) == ["d"]
    (m.path / "new").write_bytes(b"waits")
    assert m.umount("--no-wait").returncode == 0
    fault = box.faults.add("list*", "status", status=403, body='{"errors": ["A technical problem has occurred"]}')
    m.start()
    assert sorted(os.listdir(m.path)) == ["d", "new"]
    box.faults.remove(fault)
    m.flush()
    assert box.files() == {"d/f": b"f", "new": b"waits"}
