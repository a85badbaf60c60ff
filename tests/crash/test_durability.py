"""What was closed is safe: daemons killed at any moment, bad networks, failing uploads; nothing lost or mixed."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from pathlib import Path

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import (
    Mounted,
    MountFactory,
    cloudsimfs,
    errno_of,
    read_tree,
    run,
    stored_versions,
    wait_until,
    write_tree,
)

MANY = {f"case/{number:02}": os.urandom(20_000) for number in range(30)}
FOLDER = {f"case/sub{number % 3}/{number}": b"%d" % number for number in range(30)}


def read_and_stored(m: Mounted) -> dict[str, bytes]:
    """What the mount shows before anything is flushed, checked to be what the service has afterwards."""
    shown = read_tree(m.path)
    assert m.settle() == shown
    return shown


# -- kill -9 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write_back", [0, 3600])
def test_a_closed_file_survives_a_kill(box: Sandbox, mount: MountFactory, write_back: float) -> None:
    box.put("old", b"old version")
    m = mount(write_back=write_back)
    data = os.urandom(3_000_000)
    versions = box.record_versions()
    (m.path / "new").write_bytes(data)
    (m.path / "old").write_bytes(b"new version")
    m.crash()
    assert read_and_stored(m) == {"new": data, "old": b"new version"}
    assert stored_versions(versions, "new") in ([data], [data, data]), "at most the one that was cut off again"
    if write_back:
        assert len(versions) == 2, "each is stored once"


def test_a_closed_rewrite_survives_a_kill(box: Sandbox, mount: MountFactory) -> None:
    data = bytearray(os.urandom(6_000_000))
    box.put("f", bytes(data))
    m = mount(write_back=3600)
    with open(m.path / "f", "r+b") as file:
        file.write(b"begin")
        file.seek(5_000_000)
        file.write(b"middle")
    data[:5] = b"begin"
    data[5_000_000:5_000_006] = b"middle"
    m.crash()
    assert read_and_stored(m) == {"f": bytes(data)}


def kill_while_writing(m: Mounted, data: bytes) -> None:
    """Leave `f` written to and not closed when the daemon dies."""
    with contextlib.suppress(OSError), open(m.path / "f", "wb", buffering=0) as file:
        file.write(data)
        m.kill()


def test_a_file_open_for_writing_is_kept_and_not_uploaded(box: Sandbox, m: Mounted) -> None:
    versions = box.record_versions()
    kill_while_writing(m, b"half")
    m.start()
    assert (m.path / "f").read_bytes() == b"half"
    m.flush()
    m.remount()
    assert (m.path / "f").read_bytes() == b"half"
    assert versions == []
    assert "/f: was open for writing" in (m.path / ".cloudsimfs/status").read_text()
    with open(m.path / "f", "ab"):
        pass
    assert m.settle() == {"f": b"half"}
    assert "was open" not in (m.path / ".cloudsimfs/status").read_text()


def test_a_kill_during_an_overwrite_keeps_the_closed_state(box: Sandbox, mount: MountFactory) -> None:
    """`f` is closed, not uploaded yet, and truncated anew when the daemon dies."""
    m = mount(write_back=3600)
    versions = box.record_versions()
    (m.path / "f").write_bytes(b"the closed state")
    kill_while_writing(m, b"half")
    m.start()
    assert (m.path / "f").read_bytes() == b"the closed state"
    m.settle()
    assert stored_versions(versions, "f") == [b"the closed state"]


def test_a_kill_during_many_uploads(box: Sandbox, m: Mounted) -> None:
    box.faults.add("object-put", "slow", rate=100_000)
    versions = box.record_versions()
    write_tree(m.path, MANY)
    assert box.calls.wait(lambda calls: sum(call.operation == "object-put" for call in calls) >= 3)
    m.crash()
    box.faults.clear()
    assert read_and_stored(m) == MANY
    assert all(data == MANY[path] for path, data in versions)


@pytest.mark.parametrize("deletes", [0, 1, 3])
def test_a_kill_during_rm(box: Sandbox, mount: MountFactory, deletes: int) -> None:
    box.populate(FOLDER | {"kept": b"kept"})
    m = mount()
    box.faults.add("delete", "latency", seconds=0.1)
    flusher = _flush_while_it_lives(m, "rm", "-r", "case")
    if deletes:
        assert box.calls.wait(lambda calls: any(call.operation == "delete" for call in calls))
    m.kill()
    flusher.join()
    m.start()
    assert read_and_stored(m) == {"kept": b"kept"}


@pytest.mark.parametrize("uploads", [0, 1, 12])
def test_a_kill_while_a_renamed_folder_moves(box: Sandbox, mount: MountFactory, uploads: int) -> None:
    box.populate(FOLDER | {"kept": b"kept"})
    m = mount()
    box.faults.add("object-put", "latency", seconds=0.05)
    flusher = _flush_while_it_lives(m, "mv", "case", "moved")
    box.calls.wait(lambda calls: sum(call.operation == "object-put" for call in calls) >= uploads)
    m.kill()
    flusher.join()
    m.start()
    moved = {path.replace("case", "moved", 1): data for path, data in FOLDER.items()}
    assert read_and_stored(m) == moved | {"kept": b"kept"}


def _flush_while_it_lives(m: Mounted, *command: str) -> threading.Thread:
    """Run a command on the mount, then have its work done in the background until the daemon is killed."""
    run(*command, cwd=m.path)

    def flush() -> None:
        errno_of(lambda: (m.path / ".cloudsimfs/flush").write_text("1"))

    thread = threading.Thread(target=flush)
    thread.start()
    return thread


def test_renames_and_deletes_survive_a_kill(box: Sandbox, mount: MountFactory) -> None:
    box.populate({"a": b"a", "b": b"b", "d/c": b"c"})
    m = mount(write_back=3600)
    os.rename(m.path / "a", m.path / "b")
    (m.path / "d/c").unlink()
    (m.path / "d").rmdir()
    (m.path / "empty").mkdir()
    m.crash()
    assert read_tree(m.path) == {"b": b"a"}
    assert (m.path / "empty").is_dir()
    assert not (m.path / "d").exists()
    assert m.settle() == {"b": b"a"}


def test_a_dead_mount_is_replaced(m: Mounted) -> None:
    (m.path / "f").write_bytes(b"f")
    m.kill()
    # A question that the kernel took before it saw the daemon's end is aborted once (ECONNABORTED).
    wait_until(lambda: errno_of(lambda: os.listdir(m.path)) == errno.ENOTCONN, "the mount is dead")
    m.start()
    assert m.settle() == {"f": b"f"}
    m.kill()
    done = m.umount()
    assert done.returncode == 0, done.stderr
    assert not m.is_mounted()


# -- bad networks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["v2"])
@pytest.mark.parametrize(
    ("operation", "kind", "values"),
    [
        ("upload-url", "status", {"status": 500}),
        ("upload-url", "reset", {}),
        ("upload-url", "html", {}),
        ("object-put", "status", {"status": 503}),
        ("object-put", "reset", {}),
        ("object-put", "expired", {}),
        ("object-put", "drop_reply", {}),
    ],
)
def test_uploads_are_tried_again(
    box: Sandbox, mount: MountFactory, operation: str, kind: str, values: dict[str, int]
) -> None:
    m = mount()
    fault = box.faults.add(operation, kind, times=3, **values)
    data = os.urandom(2_000_000)
    versions = box.record_versions()
    (m.path / "f").write_bytes(data)
    assert (m.path / "f").read_bytes() == data
    wait_until(lambda: box.files() == {"f": data} and not m.pending(), "the file is stored in the end", timeout=40)
    assert fault.fired == 3
    assert all(stored == data for stored in stored_versions(versions, "f"))


@pytest.mark.parametrize("kind", ["truncate", "reset", "expired", "html"])
def test_reads_are_whole(box: Sandbox, mount: MountFactory, kind: str) -> None:
    data = os.urandom(3_000_000)
    box.put("f", data)
    m = mount()
    box.faults.add("object-get", kind, times=1)
    assert (m.path / "f").read_bytes() == data
    box.faults.clear()
    assert (m.path / "f").read_bytes() == data


def test_a_dead_service_costs_no_names(box: Sandbox, mount: MountFactory, api: str) -> None:
    """Failed listings serve what was known; unknown is not absent (docs/architecture.md, invariant 4d)."""
    box.populate({"d/x": b"x", "e/y": b"y"})
    m = mount(ttl=0)
    assert (m.path / "d/x").read_bytes() == b"x"
    box.faults.add("*", "status", status=500)
    assert sorted(os.listdir(m.path / "d")) == ["x"]
    assert (m.path / "d/x").read_bytes() == b"x"
    if api == "v2":  # on v1 everything was listed by the third call
        assert errno_of(lambda: os.listdir(m.path / "e")) == errno.EIO
    (m.path / "d/new").write_bytes(b"written while it was dead")
    assert (m.path / "d/new").read_bytes() == b"written while it was dead"
    box.faults.clear()
    assert m.settle() == {"d/x": b"x", "e/y": b"y", "d/new": b"written while it was dead"}


def test_unmounting_with_a_dead_network(box: Sandbox, m: Mounted) -> None:
    box.faults.add("upload-url", "reset")
    (m.path / "f").write_bytes(b"f")
    done = m.umount()
    assert done.returncode != 0
    assert done.stderr.count("\n") == 1
    assert "not on the service yet" in done.stderr
    assert "--no-wait" in done.stderr
    assert m.is_mounted()
    assert m.umount("--no-wait").returncode == 0
    assert not m.is_mounted()
    assert box.files() == {}
    box.faults.clear()
    m.start()
    assert m.settle() == {"f": b"f"}


def test_unmounting_waits_for_uploads(box: Sandbox, mount: MountFactory) -> None:
    m = mount(write_back=3600)
    write_tree(m.path, MANY)
    assert m.umount().returncode == 0
    assert box.files() == MANY


def test_unmounting_in_use(m: Mounted) -> None:
    with open(m.path / "f", "wb") as file:
        file.write(b"f")
        file.flush()
        done = m.umount()
        assert done.returncode != 0
        assert "busy" in done.stderr
        assert m.is_mounted()
    assert m.umount().returncode == 0
    assert m.box.files() == {"f": b"f"}


@pytest.mark.parametrize("api", ["v2"])
@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("fusermount3: failed to open /etc/mtab: No such file", "failed to open /etc/mtab: No such file"),
        ("fusermount3: failed to unmount {0}: Not permitted", "Not permitted"),
        ("fusermount3: one: more\\n/tmp: and another", "one: more; /tmp: and another"),
        ("", "fusermount3 failed"),
    ],
)
def test_why_it_could_not_be_unmounted_is_said_whole(
    m: Mounted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, shown: str
) -> None:
    fusermount = tmp_path / "fusermount3"
    fusermount.write_text(f"#!/bin/sh\nprintf '{said.format(m.path)}\\n' >&2\nexit 1\n")
    fusermount.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        done = m.umount()
    assert (done.returncode, done.stderr) == (1, f"Error: {m.path}: {shown}\n")


# -- generations ---------------------------------------------------------------------------------------------


def test_a_rewrite_during_an_upload_wins(box: Sandbox, mount: MountFactory) -> None:
    m = mount(write_back=0)
    old, new = os.urandom(1_500_000), os.urandom(1_400_000)
    versions = box.record_versions()
    box.faults.add("object-put", "slow", rate=1_000_000)
    (m.path / "f").write_bytes(old)
    assert box.calls.wait(lambda calls: any(call.operation == "object-put" for call in calls))
    (m.path / "f").write_bytes(new)
    box.faults.clear()
    assert m.settle() == {"f": new}
    assert set(stored_versions(versions, "f")) <= {old, new}


def test_every_stored_version_was_a_closed_state(box: Sandbox, mount: MountFactory) -> None:
    """A file is rewritten in many ways while slow uploads run: no half-made state ever gets out."""
    m = mount(write_back=0)
    box.faults.add("object-put", "slow", rate=3_000_000, probability=0.5)
    versions = box.record_versions()
    closed: set[bytes] = set()
    file = m.path / "f"
    for number in range(25):
        block = bytes([number]) * 300_000
        match number % 4:
            case 0:
                file.write_bytes(block)
            case 1:
                with open(file, "ab", buffering=0) as stream:
                    stream.write(block)
                    stream.write(block)
            case 2:
                with open(file, "r+b", buffering=0) as stream:
                    stream.write(block[:1000])
                    stream.seek(200_000)
                    stream.write(block[:1000])
            case _:
                os.truncate(file, 150_000)
        closed.add(file.read_bytes())
        if number % 5 == 4:
            wait_until(lambda: not m.pending(), "uploads catch up")
    final = file.read_bytes()
    assert m.settle() == {"f": final}
    assert stored_versions(versions, "f")[-1] == final
    assert set(stored_versions(versions, "f")) <= closed


def test_deleting_during_an_upload(box: Sandbox, mount: MountFactory) -> None:
    m = mount(write_back=0)
    box.faults.add("object-put", "slow", rate=1_000_000)
    (m.path / "f").write_bytes(os.urandom(1_500_000))
    assert box.calls.wait(lambda calls: any(call.operation == "object-put" for call in calls))
    (m.path / "f").unlink()
    box.faults.clear()
    assert m.settle() == {}


def test_renaming_during_an_upload(box: Sandbox, mount: MountFactory) -> None:
    m = mount(write_back=0)
    data = os.urandom(1_500_000)
    box.faults.add("object-put", "slow", rate=1_000_000)
    (m.path / "f").write_bytes(data)
    assert box.calls.wait(lambda calls: any(call.operation == "object-put" for call in calls))
    os.rename(m.path / "f", m.path / "g")
    box.faults.clear()
    assert m.settle() == {"g": data}


def test_a_rename_never_leaves_the_service_without_the_file(box: Sandbox, mount: MountFactory) -> None:
    """Upload first, delete after (docs/architecture.md, invariant 2c), also when a flush fails."""
    box.put("a", b"precious")
    m = mount()
    box.faults.add("object-put", "status", status=500)
    os.rename(m.path / "a", m.path / "b")
    for _ in range(2):
        assert errno_of(lambda: (m.path / ".cloudsimfs/flush").write_text("1")) == errno.EAGAIN
        assert box.files() == {"a": b"precious"}
    box.faults.clear()
    seen: list[dict[str, bytes]] = []

    def moved() -> bool:
        seen.append(box.files())
        return seen[-1] == {"b": b"precious"} and not m.pending()

    wait_until(moved, "the rename is done on the service", timeout=40)
    assert all(b"precious" in files.values() for files in seen)


def test_moving_in_a_file_of_another_filesystem(m: Mounted, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"from outside")
    run("mv", tmp_path / "f", m.path / "f")
    assert not (tmp_path / "f").exists()
    m.crash()
    assert m.settle() == {"f": b"from outside"}


def test_a_cache_too_small_says_so(mount: MountFactory) -> None:
    m = mount(cache_size="2M", write_back=3600)
    assert errno_of(lambda: (m.path / "f").write_bytes(bytes(3 << 20))) == errno.ENOSPC
    (m.path / "f").unlink()
    (m.path / "g").write_bytes(b"fits")
    assert m.settle() == {"g": b"fits"}


def test_two_mounts_of_one_cache(box: Sandbox, mount: MountFactory) -> None:
    first = mount()
    second = mount(start=False, cache_dir=first.cache)
    done = second.try_start()
    assert done.returncode != 0
    assert "in use by another mount" in done.stderr
    assert not second.is_mounted()
    assert cloudsimfs("umount", second.path).returncode != 0
