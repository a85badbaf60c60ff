"""Attributes: stable inode numbers, times and modes that are kept, blocks, and what `df` says."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import MountFactory, mode_of, run, wait_until

TREE = {"d/x": b"x" * 1000, "d/e/y": b"", "file": b"f" * 513}
OLD = 1_234_567_890_123_456_789  # nanoseconds; a time a disk can hold to the last digit


def numbers(top: Path) -> dict[str, int]:
    """The inode number of everything below `top`, and that readdir says the same as stat."""
    found: dict[str, int] = {}
    for directory, folders, _ in os.walk(top):
        folders[:] = [name for name in folders if name not in (".simulations", ".cloudsimfs")]
        for entry in os.scandir(directory):
            if entry.name not in (".simulations", ".cloudsimfs"):
                found[os.path.relpath(entry.path, top)] = os.stat(entry.path).st_ino
                assert entry.inode() == os.stat(entry.path).st_ino
    return found


def test_inode_numbers_are_stable_and_never_shared(box: Sandbox, mount: MountFactory) -> None:
    """Across the TTL, an upload, its confirmation, and a remount."""
    box.populate(TREE)
    m = mount(ttl=0.2)
    (m.path / "made").mkdir()
    (m.path / "made/new").write_bytes(b"new")
    os.rename(m.path / "file", m.path / "renamed")
    before = numbers(m.path)
    assert len(set(before.values())) == len(before)
    m.flush()
    box.put("other", b"its listing confirms the rest")
    box.advance(10)
    wait_until(lambda: (m.path / "other").exists(), "a new listing is there")
    assert {path: number for path, number in numbers(m.path).items() if path != "other"} == before
    m.remount()
    assert {path: number for path, number in numbers(m.path).items() if path != "other"} == before


def test_times_and_modes_set_here_are_kept(box: Sandbox, mount: MountFactory) -> None:
    """Of stored files, of folders and of new files; also when the upload is confirmed, and in the next mount."""
    box.settings.caches_listings = False  # what others store is to show soon, without a refresh
    box.populate(TREE)
    m = mount(ttl=0.2)
    (m.path / "new").write_bytes(b"new")
    (m.path / "folder").mkdir()
    names = ("d/x", "d", "d/e/y", "new", "folder")
    for name in names:
        os.utime(m.path / name, ns=(OLD + 1, OLD))
        os.chmod(m.path / name, 0o750)

    def check() -> None:
        for name in names:
            found = (m.path / name).stat()
            assert (found.st_mtime_ns, found.st_atime_ns) == (OLD, OLD + 1), name
            assert mode_of(m.path / name) == 0o750, name

    check()
    m.flush()
    box.put("other", b"")
    wait_until(lambda: (m.path / "other").exists(), "a new listing is there")
    check()
    m.remount()
    check()
    os.chown(m.path / "d/x", os.getuid(), -1)
    box.advance(10)
    box.put("d/x", b"somebody else's")
    wait_until(lambda: (m.path / "d/x").stat().st_size == 15, "the new version shows")
    assert (m.path / "d/x").stat().st_mtime_ns != OLD, "a file that others replaced has its own time"
    assert mode_of(m.path / "d/x") == 0o750


@pytest.mark.parametrize("api", ["v1"])
def test_what_the_service_says_becomes_attributes(box: Sandbox, mount: MountFactory) -> None:
    box.populate(TREE)
    m = mount()
    file, folder = (m.path / "d/x").stat(), (m.path / "d").stat()
    assert time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(file.st_mtime)) == box.entry("d/x")["timeCreated"]
    assert (file.st_size, file.st_blocks, file.st_nlink) == (1000, 2, 1)
    assert (m.path / "file").stat().st_blocks == 2
    assert (m.path / "d/e/y").stat().st_blocks == 0
    assert stat.S_ISREG(file.st_mode)
    assert stat.S_ISDIR(folder.st_mode)
    assert (file.st_uid, folder.st_uid) == (os.getuid(), os.getuid())
    assert folder.st_size == folder.st_blocks == 0
    assert int(run("du", "-s", "-B", "512", m.path / "d").split()[0]) == 2


@pytest.mark.parametrize("api", ["v1"])
def test_df(box: Sandbox, mount: MountFactory) -> None:
    """Used is what is known to be stored; free is what can be written; a file manager can show both."""
    box.put_sparse("d/large", 3 << 30)
    m = mount()
    run("find", m.path / "d")
    found = os.statvfs(m.path)
    used = (found.f_blocks - found.f_bfree) * found.f_frsize
    assert abs(used - (3 << 30)) <= 2 * found.f_frsize
    assert 0 < found.f_bavail <= found.f_bfree < found.f_blocks
    assert found.f_namemax == 255
    assert run("df", "--output=used", "-B", "1G", m.path).split()[1] == "3"
