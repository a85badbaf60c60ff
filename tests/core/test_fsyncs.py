"""What is on the disk when: after fsync(2), within seconds after close(2), at the unmount."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cloudsimfs.clock import SystemClock
from cloudsimfs.config import Config
from cloudsimfs.datacache import rangelog
from cloudsimfs.errors import CloudsimfsError
from cloudsimfs.runs.book import LaunchBook
from cloudsimfs.sandbox import Sandbox
from cloudsimfs.service import Credentials, LaunchRequest, connect
from cloudsimfs.writeback import fsyncer
from harness import wait_until
from syncing import Synced, wrap
from world import NEVER, started
from world import close as stop_files

BACKING = 24  # letters of the name of a backing file
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
    with mounted(box, tmp_path, monkeypatch, boot="first", period=period) as made:
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
    wait_until(lambda: not files.journal.unproved(), "a round that began after the close is over")
    files.fsyncer.stop()
    done = [each.what for each in synced]
    assert done[-3:] == ALL
    assert len(done) <= 2 * len(ALL), "one round may have begun before the row was committed"


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
    synced.clear()
    files.writeback.drain()
    assert box.files() == {"f": b"Stored"}
    assert [each.what for each in synced] == ALL
    assert files.journal.unproved() == {}


def backing_files(directory: Path) -> set[str]:
    return {file.name for file in (directory / "data").iterdir() if len(file.name) == BACKING}


def failing(_: int) -> None:
    raise OSError(errno.EIO, "the disk is broken")


# -- a power loss --------------------------------------------------------------------------------------------------


@contextmanager
def mounted(
    box: Sandbox, directory: Path, monkeypatch: pytest.MonkeyPatch, *, boot: str, period: float = 3600.0
) -> Iterator[Any]:
    """A storage side, in this start of the machine, that uploads when it is drained and fsyncs when it is told."""
    monkeypatch.setattr(fsyncer, "PERIOD", period)
    monkeypatch.setattr(rangelog, "boot_id", lambda: boot)
    client = connect(base_url=box.url, key=box.key, api="v2")
    config = Config(box.url, Credentials(None, box.key), directory, api="v2", write_back=NEVER)
    files = started(config, client, SystemClock())
    try:
        yield files
    finally:
        stop_files(files, client)


def die(files: Any) -> None:
    """Have nothing fsynced at the unmount."""
    files.fsyncer.sync = lambda: None


def lose_bytes(directory: Path) -> None:
    """What a disk may have that got to the names, sizes and rows, and not to the bytes."""
    for name in backing_files(directory):
        size = (directory / "data" / name).stat().st_size
        os.truncate(directory / "data" / name, 0)
        os.truncate(directory / "data" / name, size)


@pytest.mark.parametrize("stored", [None, b"older"])
def test_a_row_that_overtook_its_bytes_is_not_uploaded_after_a_reboot(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: bytes | None
) -> None:
    if stored is not None:
        box.put("f", stored)
    with mounted(box, tmp_path, monkeypatch, boot="first") as files:
        fh = files.handles.open("f", os.O_WRONLY | os.O_TRUNC) if stored else write(files, "f", b"")
        files.handles.write(fh, b"bytes", 0)
        close(files, fh)
        die(files)
    lose_bytes(tmp_path)
    with mounted(box, tmp_path, monkeypatch, boot="second") as files:
        files.writeback.drain()
        assert box.files() == ({} if stored is None else {"f": stored})
        assert [(draft.path, draft.size, draft.shown) for draft in files.recovery.drafts()] == [("f", 5, False)]
    with mounted(box, tmp_path, monkeypatch, boot="second") as files:
        assert len(files.recovery.drafts()) == 1, "it stays until the user has decided"
        files.recovery.command(f"upload {files.recovery.drafts()[0].id}", bound=5.0)
        files.writeback.drain()
        assert box.files() == {"f": bytes(5)}, "the user wanted it"


def test_what_was_fsynced_is_uploaded_after_a_reboot(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mounted(box, tmp_path, monkeypatch, boot="first") as files:
        close(files, write(files, "synced", b"1"))
        files.fsyncer.sync()
        close(files, write(files, "later", b"22"))
        fh = write(files, "one", b"333")
        files.handles.fsync(fh)
        close(files, fh)
        die(files)
    with mounted(box, tmp_path, monkeypatch, boot="second") as files:
        files.writeback.drain()
        assert box.files() == {"synced": b"1", "one": b"333"}
        assert [draft.path for draft in files.recovery.drafts()] == ["later"]


def test_what_a_dead_daemon_closed_is_uploaded_and_fsynced_by_the_next(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows may be fsynced with others, long before anybody has fsynced its bytes."""
    with mounted(box, tmp_path, monkeypatch, boot="first") as files:
        close(files, write(files, "f", b"bytes"))
        die(files)
    with mounted(box, tmp_path, monkeypatch, boot="first") as files:
        fh = write(files, "g", b"other")
        files.handles.fsync(fh)
        close(files, fh)
        assert set(files.journal.unproved()) == {files.tree.lookup("f").content.backing.name}
        files.fsyncer.sync()
        assert files.journal.unproved() == {}
    with mounted(box, tmp_path, monkeypatch, boot="second") as files:
        files.writeback.drain()
        assert box.files() == {"f": b"bytes", "g": b"other"}


def test_a_row_committed_during_a_round_is_proved_by_the_next(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mounted(box, tmp_path, monkeypatch, boot="first") as files:
        close(files, write(files, "f", b"1"))
        real = files.datacache.sync

        def late() -> None:
            real()
            fh = files.handles.open("f", os.O_WRONLY | os.O_APPEND)
            files.handles.write(fh, b"2", 1)
            close(files, fh)

        with monkeypatch.context() as patch:
            patch.setattr(files.datacache, "sync", late)
            files.fsyncer.sync()
        assert len(files.journal.unproved()) == 1
        files.fsyncer.sync()
        assert files.journal.unproved() == {}


def test_an_upload_does_not_arrive_before_its_bytes_and_its_row_are_on_the_disk(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mounted(box, tmp_path, monkeypatch, boot="first") as files:
        close(files, write(files, "f", b"bytes"))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", failing)
            with pytest.raises(CloudsimfsError):
                files.writeback.drain(timeout=20.0)
            assert box.files() == {}
        files.writeback.drain()
        assert box.files() == {"f": b"bytes"}
        assert files.journal.unproved() == {}
