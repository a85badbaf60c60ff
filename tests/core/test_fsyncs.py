"""What is on the disk when: after fsync(2), within seconds after close(2), at the unmount."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cloudsimfs.clock import SystemClock
from cloudsimfs.runs.book import LaunchBook
from cloudsimfs.sandbox import Sandbox
from cloudsimfs.service import LaunchRequest
from cloudsimfs.writeback import fsyncer
from harness import wait_until
from syncing import Synced, wrap
from world import storage_side

ALL = ["bytes", "names", "rows"]  # in this order: a row on the disk must not speak of bytes that are not


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Synced]:
    found: list[Synced] = []
    wrap(found.append, monkeypatch.setattr)
    return found


@pytest.fixture
def period() -> float:
    """Seconds between rounds of fsync in the background."""
    return 3600.0


@pytest.fixture
def files(
    synced: list[Synced], box: Sandbox, tmp_path: Path, period: float, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """A mount's storage side."""
    monkeypatch.setattr(fsyncer, "PERIOD", period)
    with storage_side(box, tmp_path, "v2", SystemClock()) as made:
        synced.clear()
        yield made


def write(files: Any, path: str, data: bytes) -> int:
    """An open handle that has written."""
    fh = files.handles.create(path, 0o644, os.O_RDWR)
    files.handles.write(fh, data, 0)
    assert isinstance(fh, int)
    return fh


def close(files: Any, fh: int) -> None:
    files.handles.flush(fh)
    files.handles.release(fh)


def test_fsync_has_bytes_names_and_rows_written(files: Any, synced: list[Synced]) -> None:
    fh = write(files, "f", b"bytes")
    assert synced == []
    files.handles.fsync(fh)
    assert [each.what for each in synced] == ALL
    assert synced[0].path.read_bytes() == b"bytes"
    close(files, fh)


@pytest.mark.parametrize("period", [0.05])
def test_what_is_closed_is_written_by_the_next_round(files: Any, synced: list[Synced]) -> None:
    close(files, write(files, "f", b"bytes"))
    wait_until(lambda: [each.what for each in synced] == ALL, "the round is over")
    files.fsyncer.stop()
    assert [each.what for each in synced] == ALL, "nothing was closed since"


def test_what_is_closed_is_written_at_the_unmount(files: Any, synced: list[Synced]) -> None:
    close(files, write(files, "f", b"bytes"))
    assert synced == []
    files.fsyncer.stop()
    assert [each.what for each in synced] == ALL


def test_a_round_that_failed_is_made_up_for(
    files: Any, synced: list[Synced], monkeypatch: pytest.MonkeyPatch
) -> None:
    close(files, write(files, "f", b"bytes"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(OSError, match="the disk is broken"):
            files.fsyncer.sync()
    assert synced == []
    files.fsyncer.sync()
    assert [each.what for each in synced] == ALL


def test_a_launch_is_on_the_disk_before_it_is_sent(synced: list[Synced], tmp_path: Path) -> None:
    with closing(LaunchBook(tmp_path / "state")) as book:
        book.intend(LaunchRequest("2", "standard", "heat2d-1.0", "case", None, None), None, [])
    assert [each.path.name for each in synced] == [tmp_path.name, "launches.db"]


def test_what_a_new_state_replaces_stays_until_its_row_is_on_the_disk(
    files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power loss leaves the old row without its bytes, and the new bytes without a row."""
    close(files, write(files, "f.tmp~", b"old"))
    (old,) = backing_files(tmp_path)
    close(files, write(files, "g.tmp~", b"new"))
    files.rename("g.tmp~", "f.tmp~")
    with monkeypatch.context() as patch:
        patch.setattr(files.journal, "sync", lambda: failing(0))
        with pytest.raises(OSError, match="the disk is broken"):
            files.fsyncer.sync()
    assert old in backing_files(tmp_path)
    files.fsyncer.sync()
    assert len(backing_files(tmp_path)) == 1
    assert old not in backing_files(tmp_path)


def test_what_was_fetched_for_an_upload_is_on_the_disk_before_its_row(
    files: Any, box: Sandbox, synced: list[Synced]
) -> None:
    """The row says that it is present, and it is in no fsync of the close."""
    box.put("f", b"stored")
    fh = files.handles.open("f", os.O_WRONLY)
    files.handles.write(fh, b"S", 0)
    close(files, fh)
    files.fsyncer.sync()
    files.writeback.drain()
    assert box.files() == {"f": b"Stored"}
    synced.clear()
    files.fsyncer.sync()
    assert [each.what for each in synced] == ALL


def backing_files(directory: Path) -> set[str]:
    return {file.name for file in (directory / "data").iterdir() if "." not in file.name}


def failing(_: int) -> None:
    raise OSError(errno.EIO, "the disk is broken")
