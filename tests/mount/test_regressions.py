"""Failures that the random operations of `test_mount_model.py` found, shortened, each under a name."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudsimfs.sandbox import Sandbox
from cloudsimfs.writeback.deletes import LATE_LOOKS
from harness import Mounted, MountFactory, errno_of, read_tree, run, wait_until
from moving import Ahead


def test_a_removed_folder_made_anew_is_empty(box: Sandbox, mount: MountFactory) -> None:
    """The tombstones below a folder must cover its folders too."""
    box.populate({"a/x": b"x", "a/c/d/y": b"y"})
    m = mount(ttl=0)
    run("rm", "-r", m.path / "a")
    m.crash()
    (m.path / "a").mkdir()
    assert os.listdir(m.path / "a") == []
    m.settle()
    assert os.listdir(m.path / "a") == []


def test_rewritten_within_a_second_and_removed_by_another_client(box: Sandbox, mount: MountFactory) -> None:
    """Two versions with the same size and second look alike in a listing; it confirms the later one all the same."""
    m = mount(ttl=0)
    for data in (b"one", b"two", b"six"):
        (m.path / "f").write_bytes(data)
        assert m.settle() == {"f": data}
    box.advance(10)
    box.remove("f")
    wait_until(lambda: read_tree(m.path) == {}, "the file goes")


@pytest.mark.parametrize("api", ["v2"])
def test_the_service_learns_of_an_upload_although_the_daemon_was_killed_after_it(
    box: Sandbox, mount: MountFactory
) -> None:
    m = mount(write_back=0)
    fault = box.faults.add("delete-cache", "status", status=500)
    (m.path / "f").write_bytes(b"f")
    wait_until(lambda: box.files() == {"f": b"f"} and not m.pending(), "the file is stored, and the journal knows")
    m.kill()
    box.faults.remove(fault)
    box.calls.reset()
    m.start()
    m.flush()
    assert box.calls.counts()["delete-cache"] == 1


def test_a_folder_that_another_client_removed_is_absent(box: Sandbox, mount: MountFactory) -> None:
    """Not EIO: v2 answers 403 for an unknown id."""
    box.populate({"d/x": b"x", "kept": b"kept"})
    m = mount(ttl=2)
    assert (m.path / "d").is_dir()
    box.remove("d")
    seen: set[int] = set()

    def is_refused() -> bool:
        seen.add(errno_of(lambda: os.listdir(m.path / "d")))
        return seen != {0}

    wait_until(is_refused, "the folder is refused")
    assert seen <= {0, errno.ENOENT}
    wait_until(lambda: read_tree(m.path) == {"kept": b"kept"}, "the folder goes")


def test_a_rename_whose_bytes_are_lost_keeps_the_old_name(box: Sandbox, mount: MountFactory) -> None:
    """Backing files that went missing are never uploaded as zeros, nor is the only copy deleted."""
    data = os.urandom(100_000)
    box.put("old", data)
    m = mount(write_back=3600)
    with open(m.path / "old", "r+b") as file:
        file.write(b"changed")
    os.rename(m.path / "old", m.path / "new")
    m.kill()
    for backing in m.cache.rglob("data/*"):
        backing.unlink()
    m.start()
    m.settle()
    assert data in box.files().values()


@pytest.mark.parametrize("api", ["v1"])
def test_a_removed_file_stays_removed_though_its_upload_is_listed_late(
    box: Sandbox, mount: MountFactory, tmp_path: Path
) -> None:
    """v1's listings may lag: what was uploaded and removed must be looked for until it shows, then deleted."""
    box.settings.listing_lag = 600
    clock = Ahead(tmp_path / "ahead")
    m = mount(ttl=0, program=clock.program)
    (m.path / "g").write_bytes(b"soon gone")
    m.flush()
    assert box.files() == {"g": b"soon gone"}
    (m.path / "g").unlink()
    looked = box.calls.counts()["list"]
    assert box.calls.wait(lambda calls: sum(call.operation == "list" for call in calls) > looked)
    box.advance(700)
    clock.move(LATE_LOOKS[0] + 1)
    wait_until(lambda: box.files() == {}, "the late file is deleted after all")
    assert not (m.path / "g").exists()


def test_a_folder_made_anew_after_its_delete_costs_no_second_delete(box: Sandbox, mount: MountFactory) -> None:
    box.populate({"d/e/f": b"f", "d/x": b"x"})
    m = mount(ttl=0)
    os.rename(m.path / "d/e", m.path / "e")
    m.flush()
    deletes = box.calls.counts()["delete"]
    (m.path / "d/e").mkdir()
    m.flush()
    assert box.calls.counts()["delete"] == deletes
    assert os.listdir(m.path / "d/e") == []
    assert box.files() == {"e/f": b"f", "d/x": b"x"}


def test_a_folder_made_anew_and_removed_again_stays_removed(box: Sandbox, mount: MountFactory) -> None:
    box.populate({"d/e/f": b"f", "d/x": b"x"})
    m = mount()
    run("rm", "-r", m.path / "d/e")
    (m.path / "d/e").mkdir()
    (m.path / "d/e").rmdir()
    assert os.listdir(m.path / "d") == ["x"]
    m.flush()
    assert os.listdir(m.path / "d") == ["x"]
    run("rm", "-r", m.path / "d")
    m.flush()
    assert box.files() == {}


@pytest.mark.parametrize("api", ["v2"])
def test_a_folder_moved_over_a_removed_one_keeps_its_files(box: Sandbox, mount: MountFactory) -> None:
    """Also those further down: the pending delete of `d/c`, which no listing has shown, is called off."""
    box.put("c/c/a", b"moved")
    m = mount(ttl=0, write_back=0)
    (m.path / "d/c").mkdir(parents=True)
    for name in ("a", "b"):
        (m.path / "d/c" / name).write_bytes(b"soon gone")
    wait_until(lambda: len(box.files()) == 3 and not m.pending(), "all is stored")
    run("rm", "-r", m.path / "d")
    os.rename(m.path / "c", m.path / "d")
    m.crash()
    assert read_tree(m.path) == {"d/c/a": b"moved"}
    assert m.settle() == {"d/c/a": b"moved"}


@pytest.mark.parametrize("api", ["v2"])
def test_a_folder_removed_before_it_was_listed_does_not_come_back(box: Sandbox, mount: MountFactory) -> None:
    """Its file is stored, and a listing that does not show that yet is no proof of its absence."""
    box.settings.cache_seconds = 30
    m = mount(ttl=0, write_back=0)
    (m.path / "d").mkdir()
    (m.path / "d/f").write_bytes(b"f")
    wait_until(lambda: box.files() and not m.pending(), "the file is stored")
    assert os.listdir(m.path / "d") == ["f"]
    run("rm", "-r", m.path / "d")
    box.advance(60)  # now it is listed; the delete is held back for a while
    assert "d" not in os.listdir(m.path)
    m.flush()
    assert box.files() == {}


@pytest.mark.parametrize("api", ["v2"])
def test_a_folder_made_over_a_removed_file_is_not_deleted_in_its_place(box: Sandbox, mount: MountFactory) -> None:
    """The file's upload is called off and never lands; its pending delete then finds the folder under its name."""
    m = mount(write_back=0)
    fault = box.faults.add("object-put", "slow", rate=1_000_000, path="f")
    (m.path / "f").write_bytes(bytes(20_000_000))
    assert box.calls.wait(lambda calls: any(call.operation == "object-put" for call in calls))
    (m.path / "f").unlink()
    (m.path / "f").mkdir()
    (m.path / "f/precious").write_bytes(b"precious")
    box.faults.remove(fault)
    wait_until(lambda: box.paths() == ["f/precious"], "the new file is stored")
    m.flush()  # the pending delete has looked for what it is to delete
    assert box.files() == {"f/precious": b"precious"}
    assert box.calls.counts()["delete"] == 0


@pytest.mark.parametrize("api", ["v1"])
def test_a_far_time_does_not_keep_a_file_from_being_stored(box: Sandbox, mount: MountFactory) -> None:
    """`cp -p` and `tar` of files with broken times: more nanoseconds than the journal's 64 bits hold."""
    m = mount()
    with open(m.path / "f", "wb", buffering=0) as file:
        file.write(b"bytes")
        os.utime(file.fileno(), ns=(10**19, 10**19))
    assert m.settle() == {"f": b"bytes"}
    assert (m.path / "f").stat().st_mtime_ns == 2**63 - 1


@pytest.mark.parametrize("api", ["v1"])
def test_a_stored_file_with_an_editors_name_is_uploaded_after_a_crash_too(box: Sandbox, mount: MountFactory) -> None:
    """`notes~` is on the service: what is written to it goes up, and must after a kill as well."""
    box.put("notes~", b"before")
    m = mount(write_back=3600)
    (m.path / "notes~").write_bytes(b"after")
    m.crash()
    assert (m.path / "notes~").read_bytes() == b"after"
    m.flush()
    assert box.files() == {"notes~": b"after"}


@pytest.mark.parametrize("api", ["v1"])
def test_a_folder_removed_while_one_of_its_files_is_being_deleted(box: Sandbox, mount: MountFactory) -> None:
    """The delete under way is part of the folder's: its tombstone must not outlive both and hide what others make."""
    box.populate({"d/a": b"a", "d/b": b"b", "kept": b"kept"})
    m = mount(ttl=0)
    os.listdir(m.path / "d")
    box.faults.add("delete", "latency", seconds=1.0, times=1)
    (m.path / "d/a").unlink()
    flusher = threading.Thread(target=m.flush)
    flusher.start()
    assert box.calls.wait(lambda calls: any(call.operation == "delete" for call in calls))
    (m.path / "d/b").unlink()
    (m.path / "d").rmdir()
    flusher.join()
    assert m.settle() == {"kept": b"kept"}
    box.advance(1000)
    box.put("d/a", b"made by others")
    wait_until(lambda: read_tree(m.path).get("d/a") == b"made by others", "what others made shows")


@pytest.mark.parametrize("how", ["removed", "moved"])
def test_a_folder_that_goes_while_its_file_is_being_uploaded_stays_gone(
    box: Sandbox, mount: MountFactory, how: str
) -> None:
    """The upload may land after the folder has left its name: the service lists it then, the mount must not."""
    m = mount(ttl=0, write_back=0)
    (m.path / "d/d").mkdir(parents=True)
    fault = box.faults.add("object-put", "hang", path="d/d/f")
    (m.path / "d/d/f").write_bytes(b"f")
    wait_until(lambda: any(job["sent"] for job in m.pending()), "its bytes are on the way, and may land")
    if how == "removed":
        run("rm", "-r", m.path / "d")
    else:
        os.rename(m.path / "d", m.path / "e")
    expected = {"removed": {}, "moved": {"e/d/f": b"f"}}[how]
    box.put("d/d/f", b"f")  # what hangs has landed all the same
    assert "d" not in os.listdir(m.path)
    (m.path / "c/x").mkdir(parents=True)
    os.rename(m.path / "c", m.path / "d")
    assert os.listdir(m.path / "d") == ["x"]
    assert os.listdir(m.path / "d/x") == []
    box.faults.remove(fault)
    m.flush()
    wait_until(lambda: box.files() == expected, "what landed is deleted")
    assert read_tree(m.path) == expected


@pytest.mark.parametrize(("api", "then"), [("v1", "rmdir"), ("v2", "rename"), ("v1", "rename-full"), ("v2", "crash")])
def test_a_folder_made_over_a_removed_file_and_gone_again(box: Sandbox, mount: MountFactory, then: str) -> None:
    """The removed file is not back, and its delete does not hit what takes the name next."""
    box.populate({"f": b"old", "g": b"g"})
    m = mount(write_back=0)  # the next file is stored while the delete of the first is held back
    read_tree(m.path)
    expected = {"f": b"new", "g": b"g"}
    (m.path / "f").unlink()
    (m.path / "f").mkdir()
    if then == "rename-full":
        (m.path / "f/x").write_bytes(b"x")
        wait_until(lambda: "f/x" in box.files(), "it is stored")
        expected["d/x"] = b"x"
    if then == "crash":
        m.crash()
    if then in ("rmdir", "crash"):
        (m.path / "f").rmdir()
    else:
        os.rename(m.path / "f", m.path / "d")
    assert "f" not in os.listdir(m.path)
    (m.path / "f").write_bytes(b"new")
    wait_until(lambda: box.files().get("f") == b"new", "it is stored")
    assert m.settle() == expected
    m.crash()
    assert m.settle() == expected


@pytest.mark.parametrize("how", ["rm", "mv", "rm stored", "mv stored", "crash", "made anew"])
def test_a_removed_folder_stays_gone_when_a_file_has_had_its_name(
    box: Sandbox, mount: MountFactory, how: str
) -> None:
    """Its files are deleted one by one then. What the service still lists of it must not show in between."""
    box.settings.delete_lag, box.settings.caches_listings = 600, False  # nobody refreshes here
    box.populate({"d/a": b"a", "d/s/b": b"b", "kept": b"kept"})
    m = mount(ttl=0, write_back=0 if "stored" in how else 3600)
    run("rm", "-r", m.path / "d")
    (m.path / "d").write_bytes(b"x")
    if "stored" in how:
        wait_until(lambda: box.files().get("d") == b"x", "it is stored")
    if how == "crash":
        m.crash()
    expected = {"kept": b"kept"}
    if "mv" in how:
        os.rename(m.path / "d", m.path / "e")
        expected["e"] = b"x"
    else:
        (m.path / "d").unlink()
    assert sorted(os.listdir(m.path)) == sorted(expected)
    if how == "made anew":
        (m.path / "d").mkdir()
        assert os.listdir(m.path / "d") == []
        (m.path / "d").rmdir()
    assert m.settle() == expected
    m.crash()
    assert sorted(os.listdir(m.path)) == sorted(expected), "the service lists the folder, and will for a while"
    box.advance(700)
    assert sorted(os.listdir(m.path)) == sorted(expected), "now a listing agrees"
    box.put("d/new", b"of others")
    wait_until(lambda: read_tree(m.path) == {**expected, "d/new": b"of others"}, "what others made shows")


@pytest.mark.parametrize("how", ["stored", "listed", "late"])
def test_a_renamed_folder_stays_gone_while_a_file_removed_from_it_is_deleted(
    box: Sandbox, mount: MountFactory, api: str, how: str
) -> None:
    """The pending delete of that file is part of the folder's."""
    m = mount(ttl=0, write_back=0)
    (m.path / "u").mkdir()
    (m.path / "u/b").write_bytes(b"b")
    wait_until(lambda: box.files() and not m.pending(), "it is stored")
    if how != "stored":
        m.flush()
        assert os.listdir(m.path / "u") == ["b"]
    if how == "late":
        box.settings.delete_lag = 600
    (m.path / "u/d").mkdir()
    (m.path / "u/b").unlink()
    os.rename(m.path / "u", m.path / "b")
    seen: set[str] = set()

    def is_over() -> bool:
        seen.update(os.listdir(m.path))
        return not m.pending()

    wait_until(is_over, "the deletes are done")
    for _ in range(3):
        seen.update(os.listdir(m.path))
    assert seen == {"b"}
    assert os.listdir(m.path / "b") == ["d"]
    assert box.files() == {}


@pytest.mark.parametrize("theirs", ["d/new", "d/s/new", "d/a", "d/s/t/new"])
def test_what_others_have_just_stored_in_a_folder_is_not_removed_with_it(
    box: Sandbox, mount: MountFactory, api: str, theirs: str
) -> None:
    """The folder is deleted as one only if a listing asked for after its removal shows nothing of theirs."""
    box.populate({"d/a": b"a", "d/s/b": b"b", "kept": b"kept"})
    m = mount()
    assert len(read_tree(m.path)) == 3
    (m.path / "d/a").unlink()
    run("rm", "-r", m.path / "d/s")
    box.advance(10)
    box.put(theirs, b"theirs")
    (m.path / "d").rmdir()  # by the listing at hand it is empty
    m.flush()
    assert box.files() == {theirs: b"theirs", "kept": b"kept"}
    if theirs in ("d/new", "d/a"):
        wait_until(lambda: read_tree(m.path) == box.files(), "it shows")


@pytest.mark.parametrize("theirs", ["d/new", "d/s/new"])
def test_what_others_have_just_stored_in_a_folder_is_not_removed_by_a_rename(
    box: Sandbox, mount: MountFactory, theirs: str
) -> None:
    box.populate({"d/a": b"a", "d/s/b": b"b"})
    m = mount(write_back=3600)
    assert len(read_tree(m.path)) == 2
    os.rename(m.path / "d", m.path / "e")
    box.put(theirs, b"theirs")
    m.flush()
    assert box.files() == {theirs: b"theirs", "e/a": b"a", "e/s/b": b"b"}


@pytest.mark.parametrize("api", ["v1"])
def test_a_404_to_a_delete_of_what_is_still_listed_is_not_believed(
    box: Sandbox, mount: MountFactory, tmp_path: Path
) -> None:
    """Else the file would stay on the service, hidden here for ever."""
    box.populate({"f": b"f", "kept": b"kept"})
    clock = Ahead(tmp_path / "ahead")
    m = mount(program=clock.program)
    assert len(read_tree(m.path)) == 2
    box.faults.add("delete", "status", status=404, times=1)
    (m.path / "f").unlink()
    m.flush()
    assert box.paths() == ["f", "kept"]
    clock.move(LATE_LOOKS[0] + 1)
    wait_until(lambda: box.paths() == ["kept"], "it is deleted after all")
    assert m.settle() == {"kept": b"kept"}


def swap(m: Mounted) -> None:
    """Each file takes the name of the folder that the other was in."""
    for folder in "de":
        os.rename(m.path / folder / "a", m.path / f"{folder}.tmp")
        (m.path / folder).rmdir()
    os.rename(m.path / "d.tmp", m.path / "e")
    os.rename(m.path / "e.tmp", m.path / "d")


def into_itself(m: Mounted) -> None:
    """A file goes into a folder that takes its name."""
    os.rename(m.path / "f", m.path / "f.tmp")
    (m.path / "f/s").mkdir(parents=True)
    os.rename(m.path / "f.tmp", m.path / "f/s/f")


def over_its_folder(m: Mounted) -> None:
    """A file takes the name of the folder that it was in."""
    os.rename(m.path / "d/a", m.path / "d.tmp")
    (m.path / "d").rmdir()
    os.rename(m.path / "d.tmp", m.path / "d")


def write_over_folder(m: Mounted) -> None:
    run("rm", "-r", m.path / "d")
    (m.path / "d").write_bytes(b"x")


def write_over_moved_folder(m: Mounted) -> None:
    os.rename(m.path / "d", m.path / "g")
    (m.path / "d").write_bytes(b"x")


def write_below_file(m: Mounted) -> None:
    (m.path / "f").unlink()
    (m.path / "f").mkdir()
    (m.path / "f/x").write_bytes(b"x")


KINDS: dict[Callable[[Mounted], None], dict[str, bytes]] = {
    swap: {"d": b"e/a", "e": b"d/a", "f": b"f"},
    into_itself: {"d/a": b"d/a", "e/a": b"e/a", "f/s/f": b"f"},
    over_its_folder: {"d": b"d/a", "e/a": b"e/a", "f": b"f"},
    write_over_folder: {"d": b"x", "e/a": b"e/a", "f": b"f"},
    write_over_moved_folder: {"d": b"x", "g/a": b"d/a", "e/a": b"e/a", "f": b"f"},
    write_below_file: {"d/a": b"d/a", "e/a": b"e/a", "f/x": b"x"},
}


@pytest.mark.parametrize("crash", [False, True], ids=["", "crash"])
@pytest.mark.parametrize("change", KINDS, ids=lambda change: change.__name__)
def test_a_file_that_takes_a_folders_name_comes_after_its_deletes(
    box: Sandbox, mount: MountFactory, change: Callable[[Mounted], None], crash: bool
) -> None:
    """And the other way round: a service may refuse what would make a name a file and a folder."""
    box.settings.one_kind = True
    box.populate({name: name.encode() for name in ("d/a", "e/a", "f")})
    m = mount(write_back=0)
    change(m)
    if crash:
        m.crash()
    done = m.umount()
    assert done.returncode == 0, done.stderr
    assert box.files() == KINDS[change]
    m.start()
    assert read_tree(m.path) == KINDS[change]
    refused = [call for call in box.calls.entries("upload-url") if call.status >= 400]
    assert refused == []
