"""What things cost: calls per operation, as the service counts (docs/architecture.md, "Costs")."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest

from cloudsimfs.sandbox import Sandbox
from cloudsimfs.service import connect
from cloudsimfs.writeback import viewcache
from harness import Mounted, MountFactory, cost, read_tree, run, wait_until, write_tree
from moving import Ahead

FILES = {f"case/{number:02}": b"%d" % number for number in range(50)}
MANY = {f"case/{number:03}": b"%d" % number * 500 for number in range(300)}


def list_calls(api: str, entries: int, folders: int = 1) -> int:
    """v1 lists a folder in one call; v2 alone in pages of 50 from both ends, and most of them twice."""
    return folders if api == "v1" else folders * 2 * max(1, entries // 50)


def test_listing_and_stat(box: Sandbox, mount: MountFactory, api: str) -> None:
    box.populate(FILES)
    m = mount()

    def ls() -> None:
        for entry in os.scandir(m.path / "case"):
            assert entry.stat().st_size > 0

    assert cost(box, ls) == {"list": list_calls(api, 50)}
    assert cost(box, ls) == {}
    assert cost(box, lambda: run("ls", "-l", m.path / "case")) == {}
    assert cost(box, lambda: run("find", m.path, "-type", "f")) <= Counter({"simulations": 2})


def test_missing_names_cost_nothing(box: Sandbox, mount: MountFactory) -> None:
    box.populate(FILES)
    m = mount()
    os.listdir(m.path / "case")

    def probe() -> None:
        for number in range(100):
            assert not (m.path / f"case/missing-{number}").exists()
            assert not (m.path / f"missing-{number}/deep").exists()

    assert cost(box, probe) == {}


@pytest.mark.parametrize("api", ["v1", "v2", "auto"])
def test_copying_300_small_files_in_and_removing_them(box: Sandbox, m: Mounted, api: str, tmp_path: Path) -> None:
    """Rows 9 and 12 of docs/architecture.md, "Costs": one call a file, one in all; a delete, a look before it."""
    write_tree(tmp_path, MANY)

    def copy() -> None:
        run("cp", "-r", tmp_path / "case", m.path / "case")
        m.flush()
        settle_cache(box, api)

    copied = cost(box, copy)
    assert copied["upload-url"] == 300
    assert sum(copied.values()) <= 303, copied
    assert box.files() == MANY

    def remove() -> None:
        run("rm", "-r", m.path / "case")
        m.flush()

    removed = cost(box, remove)
    assert removed["delete"] == 1
    pages = list_calls(api, 300) if api == "v2" else 1  # what a folder holds is looked at before it is deleted
    assert sum(removed.values()) <= 2 + pages + (api != "v1"), removed
    assert box.files() == {}


@pytest.mark.parametrize("api", ["v1", "v2", "auto"])
def test_removing_300_files_in_20_folders(box: Sandbox, mount: MountFactory, api: str, tmp_path: Path) -> None:
    """v2 alone: a call for each folder, one for that above, one for all that has several pages' length, a delete."""
    box.populate({f"big/{number}": b"x" for number in range(60)})
    m = mount()
    os.listdir(m.path / "big")  # shows how long a page is
    write_tree(tmp_path, {f"case/{folder}/{number}": b"x" for folder in range(20) for number in range(15)})
    run("cp", "-r", tmp_path / "case", m.path / "case")
    m.flush()
    settle_cache(box, api)

    def remove() -> None:
        run("rm", "-r", m.path / "case")
        m.flush()

    removed = cost(box, remove)
    assert removed["delete"] == 1
    assert sum(removed.values()) <= (21 + 3 if api == "v2" else 4), removed
    assert not [path for path in box.paths() if path.startswith("case")]


def settle_cache(box: Sandbox, api: str) -> None:
    """v2 is told after a burst of uploads."""
    if api != "v1":
        assert box.calls.wait(lambda calls: any(call.operation == "delete-cache" for call in calls))


def test_one_large_file_up(box: Sandbox, m: Mounted, api: str) -> None:
    """Row 10 of the targets."""
    block = os.urandom(1 << 20)

    def copy() -> None:
        with open(m.path / "large", "wb", buffering=0) as file:
            for _ in range(64):
                file.write(block)
        m.flush()

    assert cost(box, copy) == {"upload-url": 1} | ({"delete-cache": 1} if api == "v2" else {})
    assert box.entry("large")["size"] == 64 << 20
    assert box.calls.counts()["object-put"] == 1


def test_an_editor_saves_20_times(box: Sandbox, mount: MountFactory, api: str, tmp_path: Path) -> None:
    """Row 11 of the targets: one upload once the pause is as long as the delay, no temporary file stored."""
    box.put("case/dict", b"version 0")
    clock, delay = Ahead(tmp_path / "ahead"), 30.0  # seconds
    m = mount(write_back=delay, ttl=3600, program=clock.program)
    os.listdir(m.path / "case")
    versions = box.record_versions()
    box.calls.reset()
    for number in range(20):
        save(m.path / "case/dict", b"version %d" % number)
        clock.move(delay / 3)
    assert versions == []
    clock.move(delay)
    wait_until(lambda: versions and not m.pending(), "the last version is stored")
    settle_cache(box, api)
    assert versions == [("case/dict", b"version 19")]
    assert sum(call.is_api for call in box.calls.entries()) <= 3
    assert m.settle() == {"case/dict": b"version 19"}


def save(file: Path, data: bytes) -> None:
    """As editors do."""
    temporary = file.with_name(".goutputstream-X1Y2Z3")
    with open(temporary, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    os.rename(temporary, file)


@pytest.mark.parametrize("api", ["v2"])
@pytest.mark.parametrize("temporary", ["dict.tmp", "dictXXXXaa", ".dict.swx"])
def test_a_temporary_name_that_nobody_knows_is_not_uploaded_either(
    box: Sandbox, mount: MountFactory, temporary: str
) -> None:
    """It is renamed before the delay is over."""
    box.put("dict", b"version 0")
    m = mount(write_back=3600)
    versions = box.record_versions()
    for number in range(5):
        (m.path / temporary).write_bytes(b"version %d" % number)
        os.rename(m.path / temporary, m.path / "dict")
    assert m.settle() == {"dict": b"version 4"}
    assert versions == [("dict", b"version 4")]


def test_small_files_written_one_by_one_share_a_cache_delete(box: Sandbox, mount: MountFactory, api: str) -> None:
    m = mount(write_back=0)
    box.calls.reset()
    started = time.monotonic()
    for number in range(10):
        (m.path / f"{number}").write_bytes(b"x")
    wait_until(lambda: len(box.files()) == 10 and not m.pending(), "all is stored")
    if api == "v2":
        assert box.calls.wait(lambda calls: any(call.operation == "delete-cache" for call in calls))
        assert box.calls.counts()["delete-cache"] <= 2 + (time.monotonic() - started) // viewcache.BURST_LOOK
    assert box.calls.counts()["upload-url"] == 10


def test_reading_a_folder(box: Sandbox, mount: MountFactory, api: str) -> None:
    box.populate(FILES)
    m = mount()
    expected = {"list": list_calls(api, 50), "download-url": 50}
    assert cost(box, lambda: read_tree(m.path / "case")) == expected
    assert cost(box, lambda: read_tree(m.path / "case")) == {}


def test_a_large_file_costs_one_link(box: Sandbox, mount: MountFactory) -> None:
    box.put_sparse("large", 100 << 20)
    m = mount()

    def read() -> None:
        with open(m.path / "large", "rb", buffering=0) as file:
            for offset in (99 << 20, 0, 50 << 20):
                assert len(os.pread(file.fileno(), 1 << 20, offset)) == 1 << 20
            while file.read(1 << 20):
                pass

    assert cost(box, read) == {"download-url": 1}
    transferred = sum(call.bytes for call in box.calls.entries("object-get"))
    assert transferred <= 125 << 20, "hardly anything is fetched twice"


def test_deleting_a_stored_folder(box: Sandbox, mount: MountFactory, api: str) -> None:
    box.populate(FILES | {"kept": b"kept"})
    m = mount()

    def remove() -> None:
        run("rm", "-r", m.path / "case")
        m.flush()

    found = cost(box, remove)
    assert found["delete"] == 1
    assert sum(found.values()) <= 1 + 2 * list_calls(api, 50) + (api == "v2")
    assert m.settle() == {"kept": b"kept"}


@pytest.mark.parametrize("api", ["v1", "auto"])
def test_removed_trees_share_one_look(box: Sandbox, mount: MountFactory, api: str) -> None:
    """What others have put there since is looked for in all of them by one call, made after the last removal."""
    trees = ["a", "b", "c"]
    box.populate({f"{top}/{sub}/{name}": b"x" for top in trees for sub in "st" for name in "fg"} | {"kept": b"kept"})
    m = mount()
    read_tree(m.path)

    def remove() -> None:
        run("rm", "-r", *(m.path / top for top in trees))
        wait_until(lambda: not m.pending(), "all is deleted")

    assert cost(box, remove) == {"delete": 3, "list-all": 1} | ({"delete-cache": 1} if api == "auto" else {})
    assert m.settle() == {"kept": b"kept"}


def test_deleting_what_was_copied_in(box: Sandbox, m: Mounted) -> None:
    """Also when no listing has shown the files yet, a folder goes in a few calls."""
    write_tree(m.path, FILES)
    m.flush()

    def remove() -> None:
        run("rm", "-r", m.path / "case")
        m.flush()

    assert sum(cost(box, remove).values()) <= 8
    assert m.settle() == {}


def test_renaming_a_stored_folder(box: Sandbox, mount: MountFactory, api: str) -> None:
    box.populate(FILES)
    m = mount()

    def rename() -> None:
        os.rename(m.path / "case", m.path / "moved")
        m.flush()

    found = cost(box, rename)
    assert found["upload-url"] == found["download-url"] == 50
    assert found["delete"] == 1
    assert sum(found.values()) <= 101 + 3 * list_calls(api, 50)


@pytest.mark.parametrize("api", ["v2"])
def test_the_budget_is_kept(box: Sandbox, mount: MountFactory) -> None:
    """Our own limit holds; what is cached can be read, what is written waits, and the user can see why."""
    box.populate({"d/x": b"x", "e/y": b"y"})
    m = mount(calls_per_hour=12)
    assert (m.path / "d/x").read_bytes() == b"x"
    for number in range(12):
        (m.path / f"new-{number}").write_bytes(b"%d" % number)
    wait_until(lambda: any("waiting" in line for line in status(m)), "the status says that uploads wait")
    assert sum(call.is_api for call in box.calls.entries()) <= 12
    assert (m.path / "d/x").read_bytes() == b"x"
    assert (m.path / "new-11").read_bytes() == b"11"
    assert sum(call.is_api for call in box.calls.entries()) <= 12


@pytest.mark.parametrize("api", ["v1"])
def test_the_status_counts_the_calls_of_other_programs(box: Sandbox, mount: MountFactory, api: str) -> None:
    """As the service has said with the mount's last call."""
    box.populate({"d/x": b"x"})
    m = mount()
    with connect(base_url=box.url, key=box.key, api="v1") as script:
        for _ in range(7):
            script.cpu_values()
    os.listdir(m.path / "d")
    assert f"calls     {box.calls.api_count()} used this hour, " in (m.path / ".cloudsimfs/status").read_text()


def status(m: Mounted) -> list[str]:
    return (m.path / ".cloudsimfs/status").read_text().splitlines()


@pytest.mark.parametrize("api", ["v1"])
def test_a_store_that_is_down_costs_one_call_per_file(box: Sandbox, mount: MountFactory) -> None:
    m = mount(write_back=0)
    box.faults.add("object-put", "status", status=503)
    for number in range(10):
        (m.path / f"f{number}").write_bytes(b"x")
    wait_until(lambda: sum(1 for job in m.pending() if job["attempts"] >= 2) == 10, "all failed twice", timeout=60)
    assert box.calls.counts()["upload-url"] <= 10
    box.faults.clear()
    assert len(m.settle()) == 10
    assert box.calls.counts()["upload-url"] <= 10
