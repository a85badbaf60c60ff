"""Files and folders through ordinary system calls on a real mount, checked against what the service holds."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import Mounted, MountFactory, errno_of, mode_of, patient, read_tree, wait_until, write_tree

NOREPLACE, EXCHANGE = 1, 2  # renameat2(2)
TREE = {"a.txt": b"alpha", "case/system/control": b"c" * 5000, "case/empty": b"", "case/big.bin": os.urandom(300_000)}


def renameat2(old: Path, new: Path, flags: int) -> int:
    """The errno of renameat2(2), 0 if it succeeds."""
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags)
    return ctypes.get_errno() if failed else 0


# -- reading -------------------------------------------------------------------------------------------------


def test_what_is_stored_can_be_listed_and_read(box: Sandbox, mount: MountFactory) -> None:
    box.populate(TREE)
    m = mount()
    assert sorted(set(os.listdir(m.path)) - {".simulations", ".cloudsimfs"}) == ["a.txt", "case"]
    assert sorted(os.listdir(m.path / "case")) == ["big.bin", "empty", "system"]
    assert read_tree(m.path) == TREE
    status = (m.path / "case/big.bin").stat()
    assert (status.st_size, status.st_nlink, status.st_uid) == (300_000, 1, os.getuid())
    assert (m.path / "case").is_dir()
    assert not (m.path / "absent").exists()
    assert errno_of(lambda: os.listdir(m.path / "a.txt")) == errno.ENOTDIR
    assert errno_of(lambda: (m.path / "absent/x").read_bytes()) == errno.ENOENT
    assert errno_of(lambda: (m.path / "case").read_bytes()) == errno.EISDIR


def test_any_part_of_a_file_can_be_read(box: Sandbox, mount: MountFactory) -> None:
    data = os.urandom(9_000_000)
    box.put("data", data)
    with open(mount().path / "data", "rb", buffering=0) as file:
        for offset, length in [(8_999_990, 100), (4_000_000, 70_000), (0, 1), (131_071, 2), (9_000_000, 1)]:
            assert os.pread(file.fileno(), length, offset) == data[offset : offset + length]
        assert os.pread(file.fileno(), 1, 99_000_000) == b""


def test_a_read_only_mount_refuses_writes(box: Sandbox, mount: MountFactory) -> None:
    box.put("a", b"1")
    m = mount(read_only=True)
    assert (m.path / "a").read_bytes() == b"1"
    assert errno_of(lambda: (m.path / "b").write_bytes(b"")) == errno.EROFS
    assert errno_of((m.path / "a").unlink) == errno.EROFS


# -- writing -------------------------------------------------------------------------------------------------


def test_a_new_file_is_stored_once(box: Sandbox, m: Mounted) -> None:
    (m.path / "new.txt").write_bytes(b"hello")
    assert m.settle() == {"new.txt": b"hello"}
    assert box.calls.counts()["object-put"] == 1


def test_an_empty_file_is_stored(m: Mounted) -> None:
    (m.path / "empty").touch()
    assert m.settle() == {"empty": b""}


@pytest.mark.parametrize("before", [b"", b"short", b"much longer than what comes after"])
def test_overwriting_replaces_all_of_it(box: Sandbox, mount: MountFactory, before: bytes) -> None:
    box.put("f", before)
    m = mount()
    (m.path / "f").write_bytes(b"what comes after")
    assert m.settle() == {"f": b"what comes after"}
    (m.path / "f").write_bytes(b"again")
    assert m.settle() == {"f": b"again"}


def test_a_write_in_the_middle_keeps_the_rest(box: Sandbox, mount: MountFactory) -> None:
    data = bytearray(os.urandom(6_000_000))
    box.put("f", bytes(data))
    m = mount()
    with open(m.path / "f", "r+b") as file:
        file.seek(5_000_000)
        file.write(b"X" * 10)
    data[5_000_000:5_000_010] = b"X" * 10
    assert (m.path / "f").read_bytes() == data
    assert m.settle() == {"f": bytes(data)}


def test_a_hole_reads_as_zeros(m: Mounted) -> None:
    with open(m.path / "f", "wb") as file:
        file.seek(100_000)
        file.write(b"end")
    assert m.settle() == {"f": bytes(100_000) + b"end"}


def test_appending(box: Sandbox, mount: MountFactory) -> None:
    box.put("log", b"one\n")
    m = mount()
    with open(m.path / "log", "ab") as file:
        file.write(b"two\n")
    assert m.settle() == {"log": b"one\ntwo\n"}


def test_two_descriptors_append_in_turn(box: Sandbox, mount: MountFactory) -> None:
    box.put("log", b"0\n")
    m = mount()
    with open(m.path / "log", "ab", buffering=0) as first, open(m.path / "log", "ab", buffering=0) as second:
        for number in range(5):
            first.write(b"a%d\n" % number)
            second.write(b"b%d\n" % number)
    expected = b"0\n" + b"".join(b"a%d\nb%d\n" % (number, number) for number in range(5))
    assert m.settle() == {"log": expected}


@pytest.mark.parametrize("size", [0, 3, 10, 5_000])
def test_truncating_up_and_down(box: Sandbox, mount: MountFactory, size: int) -> None:
    box.put("f", b"0123456789")
    m = mount()
    os.truncate(m.path / "f", size)
    expected = b"0123456789"[:size].ljust(size, b"\0")
    assert (m.path / "f").stat().st_size == size
    assert (m.path / "f").read_bytes() == expected
    assert m.settle() == {"f": expected}


def test_truncating_an_open_file_twice_leaves_zeros_between(m: Mounted) -> None:
    with open(m.path / "f", "w+b") as file:
        file.write(b"0123456789")
        file.flush()
        os.ftruncate(file.fileno(), 4)
        os.ftruncate(file.fileno(), 8)
        file.seek(0)
        assert file.read() == b"0123\0\0\0\0"
    assert m.settle() == {"f": b"0123\0\0\0\0"}


def test_an_unlinked_open_file_lives_until_it_is_closed(box: Sandbox, mount: MountFactory) -> None:
    box.put("f", b"stored")
    m = mount()
    with open(m.path / "f", "r+b", buffering=0) as file:
        (m.path / "f").unlink()
        assert not (m.path / "f").exists()
        assert os.pread(file.fileno(), 10, 0) == b"stored"
        os.ftruncate(file.fileno(), 3)
        assert os.fstat(file.fileno()).st_size == 3
        file.write(b"xyz!")
        assert os.pread(file.fileno(), 10, 0) == b"xyz!"
    assert [name for name in os.listdir(m.path) if name.startswith(".fuse")] == []
    assert m.settle() == {}


def test_a_name_can_be_made_anew_while_the_old_file_is_open(m: Mounted) -> None:
    with open(m.path / "f", "w+b", buffering=0) as old:
        old.write(b"old")
        (m.path / "f").unlink()
        (m.path / "f").write_bytes(b"new")
        assert os.pread(old.fileno(), 10, 0) == b"old"
        old.write(b" still")
    assert m.settle() == {"f": b"new"}


def test_a_closed_descriptor_of_several_is_not_the_end(m: Mounted) -> None:
    with open(m.path / "f", "wb", buffering=0) as file:
        file.write(b"one ")
        os.close(os.dup(file.fileno()))
        file.write(b"two")
    assert m.settle() == {"f": b"one two"}


@pytest.mark.parametrize("api", ["v2"])
def test_memory_maps_are_written(m: Mounted) -> None:
    script = (
        "import mmap, os, sys\n"
        "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)\n"
        "os.ftruncate(fd, 10000)\n"
        "memory = mmap.mmap(fd, 10000)\n"
        "os.close(fd)\n"
        "memory[0:5] = b'begin'; memory[9997:10000] = b'end'\n"
        "memory.flush(); memory.close()\n"
    )
    subprocess.run([sys.executable, "-c", script, str(m.path / "f")], check=True, timeout=patient(60))
    assert m.settle() == {"f": b"begin" + bytes(9992) + b"end"}


@pytest.mark.parametrize("api", ["v2"])
def test_fsync_and_fallocate_are_offered(m: Mounted) -> None:
    with open(m.path / "f", "wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, 1000)
        assert os.fstat(file.fileno()).st_size == 1000
        file.write(b"x")
        os.fsync(file.fileno())
        os.fdatasync(file.fileno())
    directory = os.open(m.path, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)
    assert m.settle() == {"f": b"x" + bytes(999)}


# -- names ---------------------------------------------------------------------------------------------------


def test_renaming_a_file(box: Sandbox, mount: MountFactory) -> None:
    box.populate({"old": b"stored", "d/x": b"x"})
    m = mount()
    os.rename(m.path / "old", m.path / "new")
    os.rename(m.path / "d/x", m.path / "y")
    (m.path / "fresh").write_bytes(b"fresh")
    os.rename(m.path / "fresh", m.path / "d/fresh")
    expected = {"new": b"stored", "y": b"x", "d/fresh": b"fresh"}
    assert read_tree(m.path) == expected
    assert m.settle() == expected


def test_renaming_over_an_existing_file(box: Sandbox, mount: MountFactory) -> None:
    box.populate({"a": b"from a", "b": b"from b"})
    m = mount()
    os.rename(m.path / "a", m.path / "b")
    assert m.settle() == {"b": b"from a"}
    (m.path / "c").write_bytes(b"from c")
    os.rename(m.path / "c", m.path / "b")
    assert m.settle() == {"b": b"from c"}


def test_renaming_there_and_back(box: Sandbox, mount: MountFactory) -> None:
    box.populate({"a": b"data"})
    m = mount()
    os.rename(m.path / "a", m.path / "b")
    os.rename(m.path / "b", m.path / "a")
    assert m.settle() == {"a": b"data"}
    os.rename(m.path / "a", m.path / "b")
    m.flush()
    os.rename(m.path / "b", m.path / "a")
    assert m.settle() == {"a": b"data"}


def test_swapping_two_names(box: Sandbox, mount: MountFactory) -> None:
    box.populate({"a": b"from a" * 1000, "b": b"from b"})
    m = mount()
    os.rename(m.path / "a", m.path / "t")
    os.rename(m.path / "b", m.path / "a")
    os.rename(m.path / "t", m.path / "b")
    assert m.settle() == {"a": b"from b", "b": b"from a" * 1000}


def test_renaming_an_open_file(m: Mounted) -> None:
    with open(m.path / "a", "wb", buffering=0) as file:
        file.write(b"one ")
        os.rename(m.path / "a", m.path / "b")
        file.write(b"two")
    assert m.settle() == {"b": b"one two"}


def test_renaming_a_folder_moves_what_is_stored(box: Sandbox, mount: MountFactory) -> None:
    box.populate({f"case/sub/{number}": b"%d" % number for number in range(20)} | {"other/x": b"x"})
    m = mount()
    (m.path / "case/fresh").write_bytes(b"not stored yet")
    os.rename(m.path / "case", m.path / "other/moved")
    expected = {f"other/moved/sub/{number}": b"%d" % number for number in range(20)}
    expected |= {"other/x": b"x", "other/moved/fresh": b"not stored yet"}
    assert read_tree(m.path) == expected
    assert m.settle() == expected


def test_renaming_a_folder_there_and_back(box: Sandbox, mount: MountFactory) -> None:
    files = {f"case/{number}": b"%d" % number for number in range(5)}
    box.populate(files)
    m = mount()
    os.rename(m.path / "case", m.path / "moved")
    os.rename(m.path / "moved", m.path / "case")
    assert read_tree(m.path) == files
    assert m.settle() == files


def test_renaming_a_folder_over_another(box: Sandbox, mount: MountFactory) -> None:
    box.populate({"a/x": b"x", "b/y": b"y"})
    m = mount()
    (m.path / "empty").mkdir()
    assert errno_of(lambda: os.rename(m.path / "a", m.path / "b")) == errno.ENOTEMPTY
    assert errno_of(lambda: os.rename(m.path / "a", m.path / "b/y")) == errno.ENOTDIR
    assert errno_of(lambda: os.rename(m.path / "b/y", m.path / "a")) == errno.EISDIR
    assert errno_of(lambda: os.rename(m.path / "a", m.path / "a/inside")) == errno.EINVAL
    os.rename(m.path / "a", m.path / "empty")
    assert m.settle() == {"empty/x": b"x", "b/y": b"y"}


def test_rename_flags(box: Sandbox, mount: MountFactory) -> None:
    box.populate({"a": b"from a", "b": b"from b"})
    m = mount()
    assert renameat2(m.path / "a", m.path / "b", NOREPLACE) == errno.EEXIST
    assert renameat2(m.path / "a", m.path / "b", EXCHANGE) == errno.EINVAL
    assert renameat2(m.path / "a", m.path / "c", NOREPLACE) == 0
    assert m.settle() == {"b": b"from b", "c": b"from a"}


def test_deleting(box: Sandbox, mount: MountFactory) -> None:
    box.populate({"a": b"1", "d/b": b"2", "d/c": b"3"})
    m = mount()
    (m.path / "fresh").write_bytes(b"never stored")
    for name in ("a", "d/b", "fresh"):
        (m.path / name).unlink()
    assert read_tree(m.path) == {"d/c": b"3"}
    assert errno_of((m.path / "a").unlink) == errno.ENOENT
    assert m.settle() == {"d/c": b"3"}
    (m.path / "a").write_bytes(b"anew")
    assert m.settle() == {"d/c": b"3", "a": b"anew"}


def test_folders(box: Sandbox, mount: MountFactory) -> None:
    box.populate({"d/x": b"x"})
    m = mount()
    (m.path / "new/inner").mkdir(parents=True)
    assert errno_of((m.path / "d").mkdir) == errno.EEXIST
    assert errno_of((m.path / "d").rmdir) == errno.ENOTEMPTY
    assert errno_of((m.path / "new").rmdir) == errno.ENOTEMPTY
    assert errno_of(lambda: os.unlink(m.path / "new")) == errno.EISDIR
    (m.path / "new/inner/f").write_bytes(b"f")
    assert m.settle() == {"d/x": b"x", "new/inner/f": b"f"}
    (m.path / "d/x").unlink()
    assert os.listdir(m.path / "d") == []
    m.flush()
    assert (m.path / "d").is_dir(), "an emptied folder stays until it is removed"
    (m.path / "d").rmdir()
    assert not (m.path / "d").exists()
    assert m.settle() == {"new/inner/f": b"f"}


def test_an_empty_folder_survives_a_remount(m: Mounted) -> None:
    (m.path / "empty/inner").mkdir(parents=True)
    m.remount()
    assert os.listdir(m.path / "empty") == ["inner"]
    (m.path / "empty/inner").rmdir()
    (m.path / "empty").rmdir()
    m.remount()
    assert not (m.path / "empty").exists()


NAMES = [
    "plain",
    "with space",
    "grüße-日本語",
    "a'b\"c$d",
    "-dash",
    "x" * 255,
    "é" * 127,
    "back\\slash",
    "new\nline",
    "%2F?#",
]


def test_names_of_every_kind(box: Sandbox, mount: MountFactory) -> None:
    m = mount()
    for name in NAMES:
        (m.path / name).write_bytes(name.encode())
    (m.path / "d ü").mkdir()
    (m.path / "d ü" / "f").write_bytes(b"f")
    expected = {name: name.encode() for name in NAMES} | {"d ü/f": b"f"}
    assert m.settle() == expected
    m.remount()
    assert read_tree(m.path) == expected


@pytest.mark.parametrize("api", ["v2"])
def test_names_that_cannot_be_stored(m: Mounted) -> None:
    assert errno_of(lambda: (m.path / ("x" * 256)).write_bytes(b"")) == errno.ENAMETOOLONG
    assert errno_of(lambda: (m.path / ("é" * 128)).mkdir()) == errno.ENAMETOOLONG
    invalid = os.fsencode(m.path) + b"/\xff\xfe"
    assert errno_of(lambda: os.close(os.open(invalid, os.O_CREAT | os.O_WRONLY))) == errno.EINVAL
    assert errno_of(lambda: os.mkdir(invalid)) == errno.EINVAL
    assert errno_of(lambda: (m.path / ".Trash-0").mkdir()) == errno.EPERM
    assert errno_of(lambda: (m.path / ".Trash").mkdir()) == errno.EPERM
    assert m.settle() == {}


@pytest.mark.parametrize("api", ["v2"])
def test_what_the_service_cannot_hold_is_refused(m: Mounted) -> None:
    (m.path / "f").write_bytes(b"f")
    assert errno_of(lambda: os.symlink("f", m.path / "s")) == errno.ENOTSUP
    assert errno_of(lambda: os.link(m.path / "f", m.path / "h")) == errno.ENOTSUP
    assert errno_of(lambda: os.mkfifo(m.path / "p")) == errno.ENOTSUP
    assert errno_of(lambda: os.setxattr(m.path / "f", "user.a", b"1")) == errno.ENOTSUP
    assert m.settle() == {"f": b"f"}


LOCAL_NAMES = [".f.swp", "4913", "f~", ".goutputstream-ABC", ".~lock.f#", "._f", ".DS_Store", "Thumbs.db"]


def test_local_names_stay_here(box: Sandbox, m: Mounted) -> None:
    for name in LOCAL_NAMES:
        (m.path / name).write_bytes(name.encode())
    (m.path / "real").write_bytes(b"real")
    m.flush()
    assert box.files() == {"real": b"real"}
    assert set(LOCAL_NAMES) <= set(os.listdir(m.path))
    assert (m.path / "f~").read_bytes() == b"f~"
    os.rename(m.path / "._f", m.path / "f")
    assert m.settle() == {"real": b"real", "f": b"._f"}
    os.rename(m.path / "real", m.path / "real~")
    m.flush()
    assert box.files() == {"f": b"._f"}
    assert (m.path / "real~").read_bytes() == b"real"


# -- attributes ----------------------------------------------------------------------------------------------


def test_attributes_are_kept_across_remounts(box: Sandbox, mount: MountFactory) -> None:
    box.populate({"stored": b"s", "d/x": b"x"})
    m = mount()
    (m.path / "fresh").write_bytes(b"f")
    for name, mode in (("stored", 0o755), ("fresh", 0o600), ("d", 0o700)):
        (m.path / name).chmod(mode)
        os.utime(m.path / name, ns=(1_000_000_000_000_000_001, 1_100_000_000_123_456_789))

    def seen() -> list[tuple[int, int]]:
        return [(mode_of(m.path / name), (m.path / name).stat().st_mtime_ns) for name in ("stored", "fresh", "d")]

    expected = [(mode, 1_100_000_000_123_456_789) for mode in (0o755, 0o600, 0o700)]
    assert seen() == expected
    m.settle()
    assert seen() == expected
    m.remount()
    assert seen() == expected
    m.crash()
    assert seen() == expected
    os.rename(m.path / "stored", m.path / "moved")
    assert (m.path / "moved").stat().st_mtime_ns == 1_100_000_000_123_456_789
    m.remount()
    assert mode_of(m.path / "moved") == 0o755


@pytest.mark.parametrize("api", ["v2"])
def test_umask_uid_and_gid_of_the_mount(box: Sandbox, mount: MountFactory) -> None:
    box.populate({"d/x": b"x"})
    m = mount(umask="027", uid=os.getuid(), gid=os.getgid())
    assert mode_of(m.path / "d") == 0o750
    assert mode_of(m.path / "d/x") == 0o640
    free = os.statvfs(m.path)
    assert free.f_bavail > 0
    assert free.f_namemax == 255


# -- what others do ------------------------------------------------------------------------------------------


def test_another_clients_changes_show(box: Sandbox, mount: MountFactory) -> None:
    box.settings.caches_listings = False  # nobody refreshes here
    box.populate({"d/old": b"old", "d/gone": b"gone"})
    m = mount(ttl=0.2)
    assert read_tree(m.path) == {"d/old": b"old", "d/gone": b"gone"}
    box.advance(10)
    box.put("d/old", b"newer")
    box.put("d/new", b"new")
    box.remove("d/gone")
    expected = {"d/old": b"newer", "d/new": b"new"}
    wait_until(lambda: read_tree(m.path) == expected, "the others' changes show")


def test_within_the_ttl_listings_are_believed(box: Sandbox, mount: MountFactory) -> None:
    box.populate({"d/x": b"x"})
    m = mount(ttl=3600)
    assert os.listdir(m.path / "d") == ["x"]
    box.put("d/y", b"y")
    assert os.listdir(m.path / "d") == ["x"]
    (m.path / ".cloudsimfs/refresh").write_text("d")
    assert sorted(os.listdir(m.path / "d")) == ["x", "y"]
    assert (m.path / "d/y").read_bytes() == b"y"


def test_what_we_did_stays_seen_while_listings_lag(box: Sandbox, mount: MountFactory) -> None:
    box.populate({"d/a": b"a", "d/b": b"b"})
    box.settings.listing_lag = box.settings.delete_lag = 1000.0
    m = mount(ttl=0, write_back=30)  # no upload before the rename, else its delete waits for a listing, too
    (m.path / "d/a").write_bytes(b"changed")
    (m.path / "d/c").write_bytes(b"c")
    (m.path / "d/b").unlink()
    os.rename(m.path / "d/c", m.path / "d/e")
    expected = {"d/a": b"changed", "d/e": b"c"}
    assert read_tree(m.path) == expected
    m.flush()
    assert box.files() == expected
    assert read_tree(m.path) == expected
    m.remount()
    assert read_tree(m.path) == expected
    box.advance(2000)
    (m.path / ".cloudsimfs/refresh").write_text("d")
    assert m.settle() == expected


@pytest.mark.parametrize("api", ["v1"])
def test_versions_are_never_mixed(box: Sandbox, mount: MountFactory) -> None:
    """An open file keeps its version, or says ESTALE; who opens it anew reads the new one only."""
    old, new = os.urandom(20_000_000), os.urandom(20_000_001)
    box.put("f", old)
    m = mount(ttl=0)
    with open(m.path / "f", "rb", buffering=0) as file:
        assert os.pread(file.fileno(), 1000, 0) == old[:1000]
        box.advance(10)
        box.put("f", new)
        wait_until(lambda: (m.path / "f").stat().st_size == len(new), "the new version shows")
        with open(m.path / "f", "rb", buffering=0) as later:
            for offset in (0, 10_000_000, 19_000_000):
                read = partial(os.pread, file.fileno(), 1000, offset)
                assert errno_of(read) == errno.ESTALE or read() == old[offset : offset + 1000]
                assert os.pread(later.fileno(), 1000, offset) == new[offset : offset + 1000]
    assert (m.path / "f").read_bytes() == new


# -- a case there and back -----------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["all", "data"])
def test_what_is_stored_can_be_read_without_the_cache(mount: MountFactory, lost: str) -> None:
    m = mount()
    write_tree(m.path, TREE)
    assert m.settle() == TREE
    assert m.umount().returncode == 0
    for directory in m.cache.rglob("data") if lost == "data" else [m.cache]:
        shutil.rmtree(directory)
    m.start()
    assert read_tree(m.path) == TREE
