"""What programs expect of open, write and rename beyond the ordinary, and what it may fetch."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import Mounted, MountFactory, errno_of, run, wait_until

MIB = 1 << 20
BIG = os.urandom(24 * MIB)


def fetched(box: Sandbox) -> int:
    return sum(call.bytes for call in box.calls.entries("object-get"))


# -- open ----------------------------------------------------------------------------------------------------


def test_an_exclusive_create_has_one_winner(box: Sandbox, mount: MountFactory) -> None:
    box.put("stored", b"stored")
    m = mount()
    won: list[int] = []

    def create() -> None:
        if errno_of(lambda: os.close(os.open(m.path / "lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY))) == 0:
            won.append(1)

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [1]
    exclusive = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    assert errno_of(lambda: os.open(m.path / "stored", exclusive)) == errno.EEXIST
    (m.path / "stored").unlink()
    os.close(os.open(m.path / "stored", exclusive))
    assert m.settle() == {"lock": b"", "stored": b""}


def test_truncating_at_open_fetches_nothing(box: Sandbox, mount: MountFactory) -> None:
    box.put("f", BIG)
    m = mount()
    with open(m.path / "f", "wb", buffering=0) as file:
        assert os.fstat(file.fileno()).st_size == 0
        file.write(b"new")
    assert m.settle() == {"f": b"new"}
    assert fetched(box) == 0


@pytest.mark.parametrize("api", ["v2"])
def test_a_descriptor_of_a_truncated_file_goes_on_at_its_offset(m: Mounted) -> None:
    """The bytes between are zeros, as a log shows that is truncated under its writer; O_APPEND starts anew."""
    with open(m.path / "log", "wb", buffering=0) as plain, open(m.path / "log", "ab", buffering=0) as appending:
        plain.write(b"0123456789")
        os.truncate(m.path / "log", 0)
        appending.write(b"ab")
        plain.write(b"XY")
    assert m.settle() == {"log": b"ab" + bytes(8) + b"XY"}


# -- partial changes of what is stored -------------------------------------------------------------------------


@pytest.mark.parametrize("write_back", [3600])
def test_a_partial_overwrite_fetches_only_when_it_must(
    box: Sandbox, mount: MountFactory, api: str, write_back: float
) -> None:
    """Not at the write, hardly for a read near it, and then what is left for the upload."""
    box.put("f", BIG)
    m = mount(write_back=write_back)
    expected = bytearray(BIG)
    expected[12 * MIB : 12 * MIB + 6] = b"middle"
    expected[-3:] = b"end"
    with open(m.path / "f", "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"middle", 12 * MIB)
        os.pwrite(file.fileno(), b"end", len(BIG) - 3)
        os.pwrite(file.fileno(), b"beyond", len(BIG) + 1000)
        assert fetched(box) <= MIB
        assert os.pread(file.fileno(), 106, 12 * MIB - 50) == expected[12 * MIB - 50 : 12 * MIB + 56]
        assert os.pread(file.fileno(), 10, len(BIG) - 3) == b"end" + bytes(7)
    assert fetched(box) <= 3 * MIB
    expected += bytes(1000) + b"beyond"
    assert m.settle() == {"f": bytes(expected)}
    assert fetched(box) <= len(BIG) + 3 * MIB


@pytest.mark.parametrize("api", ["v1"])
def test_cutting_a_stored_file_short_fetches_what_is_left(box: Sandbox, mount: MountFactory) -> None:
    box.put("f", BIG)
    m = mount(write_back=3600)
    os.truncate(m.path / "f", 100_000)
    os.truncate(m.path / "f", 200_000)
    assert m.settle() == {"f": BIG[:100_000] + bytes(100_000)}
    assert fetched(box) <= MIB


# -- several handles -------------------------------------------------------------------------------------------


def test_every_handle_sees_every_write(box: Sandbox, mount: MountFactory) -> None:
    """Of files that are stored and files that are not, also while uploads run."""
    box.put("stored", bytes(100_000))
    m = mount(write_back=0)
    for name in ("stored", "fresh"):
        with open(m.path / name, "ab+", buffering=0) as writer, open(m.path / name, "rb", buffering=0) as reader:
            for number in range(20):
                offset = os.fstat(writer.fileno()).st_size
                writer.write(b"line %2d\n" % number)
                assert os.fstat(reader.fileno()).st_size == offset + 8
                assert os.pread(reader.fileno(), 100, offset) == b"line %2d\n" % number
                with open(m.path / name, "r+b", buffering=0) as other:
                    other.write(b"%2d" % number)
                assert os.pread(reader.fileno(), 2, 0) == b"%2d" % number
    assert all(data.endswith(b"line 19\n") and data.startswith(b"19") for data in m.settle().values())


def test_renaming_over_an_open_file(box: Sandbox, mount: MountFactory) -> None:
    """Who has the old one open keeps it, to read and to write; the name has the new one."""
    box.populate({"a": b"stored a", "b": b"stored b"})
    m = mount()
    (m.path / "fresh").write_bytes(b"fresh")
    with open(m.path / "b", "r+b", buffering=0) as old:
        os.rename(m.path / "a", m.path / "b")
        os.rename(m.path / "fresh", m.path / "b")
        assert os.pread(old.fileno(), 100, 0) == b"stored b"
        os.pwrite(old.fileno(), b"nobody", 0)
        assert (m.path / "b").read_bytes() == b"fresh"
    assert m.settle() == {"b": b"fresh"}


# -- between files, and to the disk ------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["v2"])
def test_copy_file_range_and_sendfile(box: Sandbox, mount: MountFactory, tmp_path: Path) -> None:
    box.put("f", BIG)
    m = mount()
    (tmp_path / "local").write_bytes(BIG[:MIB])
    with open(m.path / "f", "rb") as source, open(m.path / "copy", "wb") as target:
        left, offset = 2 * MIB, 5 * MIB
        while left:
            copied = os.copy_file_range(source.fileno(), target.fileno(), left, offset)
            left, offset = left - copied, offset + copied
    with open(tmp_path / "local", "rb") as source, open(m.path / "sent", "wb") as target:
        sent = 0
        while sent < MIB:  # sendfile(2): a signal ends it early
            sent += os.sendfile(target.fileno(), source.fileno(), sent, MIB - sent)
    assert m.settle() == {"f": BIG, "copy": BIG[5 * MIB : 7 * MIB], "sent": BIG[:MIB]}


@pytest.mark.parametrize("api", ["v2"])
def test_sync_of_a_file_and_of_the_whole_mount(mount: MountFactory) -> None:
    m = mount(write_back=3600)
    (m.path / "f").write_bytes(b"f")
    run("sync", m.path / "f")
    run("sync", "--data", m.path / "f")
    run("sync", "-f", m.path / "f")
    m.crash()
    assert m.settle() == {"f": b"f"}


def test_a_folder_goes_once_its_removed_files_are_closed(m: Mounted) -> None:
    """libfuse keeps them in the folder till then (README, "Limits"); the folder is not lost, nor the bytes."""
    (m.path / "d").mkdir()
    (m.path / "d/f").write_bytes(b"bytes")
    with open(m.path / "d/f", "rb") as file:
        (m.path / "d/f").unlink()
        assert errno_of(lambda: (m.path / "d").rmdir()) == errno.ENOTEMPTY
        assert file.read() == b"bytes"
        assert errno_of(lambda: (m.path / "d/f").stat()) == errno.ENOENT
    wait_until(lambda: errno_of(lambda: (m.path / "d").rmdir()) in (0, errno.ENOENT), "the folder goes")
    assert not (m.path / "d").exists()


@pytest.mark.parametrize("api", ["v1"])
def test_what_is_unlinked_while_open_costs_no_upload(box: Sandbox, m: Mounted) -> None:
    """Temporary files as programs make them: written, unlinked, read back."""
    with open(m.path / "tmp", "w+b", buffering=0) as file:
        file.write(b"0123456789")
        (m.path / "tmp").unlink()
        os.ftruncate(file.fileno(), 5)
        os.posix_fallocate(file.fileno(), 0, 8)
        os.fsync(file.fileno())
        assert os.pread(file.fileno(), 100, 0) == b"01234\0\0\0"
    assert m.settle() == {}
    assert box.calls.counts()["upload-url"] == 0
