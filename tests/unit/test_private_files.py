"""Files for the user alone: replaced in one step, locked between processes."""

import os
import stat
from pathlib import Path

import pytest

from cloudsimfs.host.files import is_locked, lock_file, make_private, open_private, replace_file


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_made_is_the_users_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_private(tmp_path / "a/b")
        os.close(open_private(tmp_path / "a/b/opened", os.O_RDWR))
        replace_file(tmp_path / "a/b/replaced", b"text")
    finally:
        os.umask(before)
    assert [mode(tmp_path / name) for name in ("a", "a/b", "a/b/opened", "a/b/replaced")] == [
        *(0o700, 0o700, 0o600, 0o600)
    ]


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"old")
    with open(file, "rb") as reader:
        replace_file(file, b"new", durable=True)
        assert (reader.read(), file.read_bytes()) == (b"old", b"new")

    def fail(_fd: int) -> None:
        raise OSError("no")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no"):
        replace_file(file, b"newer", durable=True)
    assert (file.read_bytes(), os.listdir(tmp_path)) == (b"new", ["file"])


def test_a_lock_file_has_one_holder(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    assert not is_locked(file)
    held = lock_file(file)
    assert is_locked(file)
    with pytest.raises(BlockingIOError):
        lock_file(file)
    os.close(held)
    assert not is_locked(file)
    os.close(lock_file(file, wait=True))
