"""No room for what is written: the program is told, nothing half-written is uploaded, and the mount goes on."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import Mounted, MountFactory, cloudsimfs, errno_of, stored_versions

MIB = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("a tmpfs of its own can be mounted by root only")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture(params=["cache-size", "disk"])
def full(request: pytest.FixtureRequest, mount: MountFactory) -> Iterator[Mounted]:
    """A mount in whose cache 6 MiB have found room, and 4 more will not."""
    if request.param == "disk":
        small_disk: Path = request.getfixturevalue("small_disk")
        mounted = mount(start=False, write_back=3600, cache_dir=small_disk / "cache")
        mounted.start()  # its limit is 80 % of the disk: others have to take some of the rest
        (small_disk / "ballast").write_bytes(bytes(5 * MIB // 4))
    else:
        mounted = mount(write_back=3600, cache_size="6600K")
    (mounted.path / "kept").write_bytes(bytes(3 * MIB))
    (mounted.path / "other").write_bytes(bytes(3 * MIB))
    yield mounted
    mounted.clean_up()


@pytest.fixture(params=["v2"])
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def fill(file: Path) -> int:
    """Write 4 MiB as `cp` does; the errno of write(2), then of close(2)."""
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    failed = errno_of(lambda: [os.write(fd, bytes(MIB // 4)) for _ in range(16)])
    closed = errno_of(lambda: os.close(fd))
    assert failed == closed, "close() says so as well"
    return failed


def test_a_write_without_room_fails_and_is_not_uploaded(box: Sandbox, full: Mounted) -> None:
    m, versions = full, box.record_versions()
    assert fill(m.path / "new") == errno.ENOSPC
    assert fill(m.path / "kept") in (0, errno.ENOSPC), "there may be room for it in place of its old bytes"
    refused = m.umount()
    assert refused.returncode != 0
    assert "/new: not all that was written found room" in refused.stderr
    assert "0 operations" not in refused.stderr
    assert {path for path, _ in versions} <= {"kept", "other"}
    assert all(len(data) >= 3 * MIB for _, data in versions)
    (m.path / "new").unlink()
    (m.path / "kept").unlink()
    (m.path / "after").write_bytes(bytes(MIB))
    assert m.settle() == {"other": bytes(3 * MIB), "after": bytes(MIB)}


def test_it_is_accepted_once_it_is_written_whole(box: Sandbox, full: Mounted) -> None:
    m, versions = full, box.record_versions()
    data = os.urandom(2 * MIB)
    with open(m.path / "new", "wb", buffering=0) as file:
        done = 0
        with contextlib.suppress(OSError):
            while done < len(data):
                done += file.write(data[done:])
        assert done < len(data)
        (m.path / "kept").unlink()
        while done < len(data):
            done += file.write(data[done:])
    assert m.settle() == {"other": bytes(3 * MIB), "new": data}
    assert stored_versions(versions, "new") == [data]


def test_a_program_may_give_up_what_found_no_room(box: Sandbox, full: Mounted) -> None:
    """As a database does: it cuts the file back to what it was, and goes on."""
    m = full
    with open(m.path / "other", "r+b", buffering=0) as file:
        file.seek(0, os.SEEK_END)
        assert errno_of(lambda: [file.write(bytes(MIB // 2)) for _ in range(16)]) == errno.ENOSPC
        file.truncate(3 * MIB)
    assert m.settle() == {"kept": bytes(3 * MIB), "other": bytes(3 * MIB)}


def test_what_found_no_room_can_be_recovered_as_it_is(box: Sandbox, full: Mounted) -> None:
    m = full
    assert fill(m.path / "new") == errno.ENOSPC
    size = (m.path / "new").stat().st_size
    told = (m.path / ".cloudsimfs/status").read_text()
    assert "refused   /new: not all that was written found room" in told
    assert "was open for writing" not in told
    assert cloudsimfs("recover", m.path, "--upload", "new").returncode == 0
    assert m.settle()["new"] == bytes(size)


def test_what_is_cached_goes_first_when_the_disk_is_full(box: Sandbox, mount: MountFactory, small_disk: Path) -> None:
    read, written = os.urandom(5 * MIB), os.urandom(5 * MIB)
    box.put("read", read)
    m = mount(cache_dir=small_disk / "cache", cache_size="20M")
    assert (m.path / "read").read_bytes() == read
    (m.path / "written").write_bytes(written)
    assert m.settle() == {"read": read, "written": written}
    m.clean_up()
