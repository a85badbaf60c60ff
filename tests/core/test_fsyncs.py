"""What is on the disk when: after fsync(2), within seconds after close(2), at the unmount."""

from __future__ import annotations

import errno
import os
import sqlite3
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
from cloudsimfs.vfs.adoption import adopt
from cloudsimfs.writeback import fsyncer
from harness import wait_until
from syncing import Synced, wrap
from world import NEVER, started, storage_side
from world import close as stop_files

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
    synced.clear()
    files.writeback.drain()
    assert box.files() == {"f": b"Stored"}
    assert [each.what for each in synced] == ALL
    assert synced[0].path.read_bytes() == b"Stored"


def backing_files(directory: Path) -> set[str]:
    return {file.name for file in (directory / "data").iterdir() if "." not in file.name}


def failing(_: int) -> None:
    raise OSError(errno.EIO, "the disk is broken")


# -- a power loss ------------------------------------------------------------------------------------------------


@contextmanager
def mounted(box: Sandbox, directory: Path, monkeypatch: pytest.MonkeyPatch, *, boot: str) -> Iterator[Any]:
    """A storage side, in this start of the machine. It uploads and fsyncs when it is told, and dies in the end."""
    monkeypatch.setattr(fsyncer, "PERIOD", 3600.0)
    monkeypatch.setattr(rangelog, "boot_id", lambda: boot)
    client = connect(base_url=box.url, key=box.key, api="v2")
    config = Config(box.url, Credentials(None, box.key), directory, api="v2", write_back=NEVER)
    files = started(config, client, SystemClock())
    try:
        yield files
    finally:
        files.fsyncer._write = lambda: None  # type: ignore[method-assign]  # it dies: nothing is fsynced at the unmount
        stop_files(files, client)


def lose_bytes(directory: Path, since: int = 0) -> None:
    """What a disk may have that got to the names, sizes and rows, but only to the first `since` bytes of files."""
    for name in backing_files(directory):
        size = (directory / "data" / name).stat().st_size
        os.truncate(directory / "data" / name, min(since, size))
        os.truncate(directory / "data" / name, size)


def save(files: Any, path: str, data: bytes) -> None:
    """Write a file anew, and close it."""
    try:
        files.tree.lookup(path)
    except CloudsimfsError:
        close(files, write(files, path, data))
    else:
        fh = files.handles.open(path, os.O_WRONLY | os.O_TRUNC)
        files.handles.write(fh, data, 0)
        close(files, fh)


def append(files: Any, path: str, data: bytes) -> None:
    fh = files.handles.open(path, os.O_WRONLY | os.O_APPEND)
    files.handles.write(fh, data, files.tree.lookup(path).size)
    close(files, fh)


def read(files: Any, path: str) -> bytes:
    fh = files.handles.open(path, os.O_RDONLY)
    try:
        buffer = bytearray(100)
        return bytes(buffer[: files.handles.read(fh, memoryview(buffer), 0)])
    finally:
        files.handles.release(fh)


def kept(files: Any) -> list[tuple[str, int, bool]]:
    return sorted((draft.path, draft.size, draft.shown) for draft in files.recovery.drafts())


@pytest.mark.parametrize("stored", [None, b"older"])
def test_a_row_that_overtook_its_bytes_is_not_believed_after_a_power_loss(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: bytes | None
) -> None:
    before = {} if stored is None else {"f": stored}
    box.populate(before)
    with mounted(box, tmp_path, monkeypatch, boot="first") as files:
        save(files, "f", b"bytes")
    lose_bytes(tmp_path)
    with mounted(box, tmp_path, monkeypatch, boot="second") as files:
        files.writeback.drain()
        assert box.files() == before
        assert [read(files, path) for path in before] == list(before.values())
        assert kept(files) == [("f", 5, False)]
    with mounted(box, tmp_path, monkeypatch, boot="third") as files:
        assert kept(files) == [("f", 5, False)], "it stays until the user has decided"
        files.recovery.command(f"upload {files.recovery.drafts()[0].id}", bound=5.0)
        files.writeback.drain()
        assert box.files() == {"f": bytes(5)}, "the user wanted it"


@pytest.mark.parametrize("how", ["anew", "appended"])
@pytest.mark.parametrize("again", [1, 2])
def test_the_last_state_that_was_fsynced_is_back_and_uploaded(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, again: int
) -> None:
    """Whatever was closed since: the newer bytes may be zeros."""
    change = {"anew": save, "appended": append}[how]
    with mounted(box, tmp_path, monkeypatch, boot="first") as files:
        save(files, "f", b"fsynced")
        files.fsyncer.sync()
        for _ in range(again):
            change(files, "f", b"later")
    sizes = {"anew": 5, "appended": 7 + 5 * again}
    lose_bytes(tmp_path, 7)
    with mounted(box, tmp_path, monkeypatch, boot="second") as files:
        assert read(files, "f") == b"fsynced"
        files.writeback.drain()
        assert box.files() == {"f": b"fsynced"}
        assert kept(files) == [("f", sizes[how], False)]
        assert files.journal.doubted() == {}


def test_a_state_that_was_fsynced_under_another_name_is_kept_under_it(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the new name it was never closed."""
    box.put("g", b"stored")
    with mounted(box, tmp_path, monkeypatch, boot="first") as files:
        save(files, "f", b"fsynced")
        files.fsyncer.sync()
        save(files, "f", b"bytes")
        files.rename("f", "g")
    with mounted(box, tmp_path, monkeypatch, boot="second") as files:
        files.writeback.drain()
        assert box.files() == {"g": b"stored"}
        assert kept(files) == [("f", 7, False), ("g", 5, False)]


def test_a_rename_leaves_no_doubt_about_what_was_fsynced(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mounted(box, tmp_path, monkeypatch, boot="first") as files:
        files.mkdir("folder", 0o755)
        save(files, "folder/f", b"1")
        save(files, "tmp~", b"22")
        files.fsyncer.sync()
        files.rename("folder", "moved")
        files.rename("tmp~", "g")
    with mounted(box, tmp_path, monkeypatch, boot="second") as files:
        files.writeback.drain()
        assert box.files() == {"moved/f": b"1", "g": b"22"}
        assert kept(files) == []


def test_what_was_fsynced_needs_no_proof(box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mounted(box, tmp_path, monkeypatch, boot="first") as files:
        save(files, "synced", b"1")
        files.fsyncer.sync()
        save(files, "one", b"22")
        fh = files.handles.open("one", os.O_RDONLY)
        files.handles.fsync(fh)
        files.handles.release(fh)
        save(files, "later", b"333")
    with mounted(box, tmp_path, monkeypatch, boot="second") as files:
        files.writeback.drain()
        assert box.files() == {"synced": b"1", "one": b"22"}
        assert kept(files) == [("later", 3, False)]


def test_the_death_of_the_daemon_alone_raises_no_doubt(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: list[Synced]
) -> None:
    """And what it had not fsynced, the next one does."""
    with mounted(box, tmp_path, monkeypatch, boot="first") as files:
        save(files, "f", b"old")
        files.fsyncer.sync()
        save(files, "f", b"bytes")
    with mounted(box, tmp_path, monkeypatch, boot="first") as files:
        assert read(files, "f") == b"bytes"
        assert kept(files) == []
        synced.clear()
        files.fsyncer.sync()
        assert [each.what for each in synced] == ALL
        assert synced[0].path.read_bytes() == b"bytes"
    with mounted(box, tmp_path, monkeypatch, boot="second") as files:
        assert read(files, "f") == b"bytes"
        files.writeback.drain()
        assert box.files() == {"f": b"bytes"}


def test_a_state_that_was_fsynced_outlives_a_daemon_and_then_the_machine(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mounted(box, tmp_path, monkeypatch, boot="first") as files:
        save(files, "f", b"fsynced")
        files.fsyncer.sync()
        save(files, "f", b"bytes")
    with mounted(box, tmp_path, monkeypatch, boot="first"):
        pass
    with mounted(box, tmp_path, monkeypatch, boot="second") as files:
        assert read(files, "f") == b"fsynced"


@pytest.mark.parametrize("moment", ["bytes", "names"])
def test_what_is_committed_during_a_round_is_proved_by_the_next(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    with mounted(box, tmp_path, monkeypatch, boot="first") as files:
        save(files, "f", b"1")
        owner, name = {"bytes": (fsyncer, "_fsync"), "names": (files.datacache, "sync")}[moment]
        real = getattr(owner, name)

        def late(*arguments: Any) -> None:
            real(*arguments)
            append(files, "f", b"2")

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, late)
            files.fsyncer.sync()
        assert len(files.journal.awaited_rounds()) == 1
        files.fsyncer.sync()
        assert files.journal.awaited_rounds() == {}


def test_a_renamed_file_in_doubt_leaves_the_old_name(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the only copy of what the service has."""
    box.put("a", b"stored")
    with mounted(box, tmp_path, monkeypatch, boot="first") as files:
        append(files, "a", b"+")
        files.rename("a", "b")
    lose_bytes(tmp_path)
    with mounted(box, tmp_path, monkeypatch, boot="second") as files:
        files.writeback.drain()
        assert read(files, "a") == b"stored"
        assert box.files() == {"a": b"stored"}
        assert [path for path, _, _ in kept(files)] == ["b"]


def test_a_draft_does_not_show_what_was_fetched_and_never_got_to_the_disk(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.put("f", b"stored")
    with mounted(box, tmp_path, monkeypatch, boot="first") as files:
        fh = files.handles.open("f", os.O_RDWR)
        files.handles.read(fh, memoryview(bytearray(6)), 0)
        files.handles.write(fh, b"+", 6)
    lose_bytes(tmp_path)
    with mounted(box, tmp_path, monkeypatch, boot="second") as files:
        assert read(files, "f") == b"stored"
        assert [(path, shown) for path, _, shown in kept(files)] == [("f", False)]


def test_a_draft_behind_a_state_in_doubt_is_kept_too(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mounted(box, tmp_path, monkeypatch, boot="first") as files:
        save(files, "f", b"closed")
        fh = files.handles.open("f", os.O_WRONLY)
        files.handles.write(fh, b"open!!!", 0)
    with mounted(box, tmp_path, monkeypatch, boot="second") as files:
        assert kept(files) == [("f", 6, False), ("f", 7, False)]


def test_another_key_does_not_take_over_what_is_in_doubt(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    with mounted(box, source, monkeypatch, boot="first") as files:
        save(files, "f", b"fsynced")
        files.fsyncer.sync()
        save(files, "f", b"bytes")
        save(files, "g", b"other")
    lose_bytes(source, 7)
    with mounted(box, target, monkeypatch, boot="second"):
        pass
    adopt(source, target)
    with mounted(box, target, monkeypatch, boot="second") as files:
        files.writeback.drain()
        assert set(box.files().values()) == {b"fsynced"}
        assert [path for path, _, _ in kept(files)] == ["f", "g"]


# -- the service does not hear of what a power loss may take back ----------------------------------------------------


def test_an_upload_does_not_arrive_before_its_bytes_and_its_row_are_on_the_disk(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mounted(box, tmp_path, monkeypatch, boot="first") as files:
        save(files, "f", b"bytes")
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", failing)
            with pytest.raises(CloudsimfsError):
                files.writeback.drain(timeout=20.0)
            assert box.files() == {}
        files.writeback.drain()
        assert box.files() == {"f": b"bytes"}
        assert files.journal.awaited_rounds() == {}


def test_a_delete_is_not_sent_before_its_tombstone_is_on_the_disk(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.put("f", b"stored")
    with mounted(box, tmp_path, monkeypatch, boot="first") as files:
        files.unlink("f")
        with monkeypatch.context() as patch:
            patch.setattr(files.journal, "sync", lambda: failing(0))
            with pytest.raises(CloudsimfsError):
                files.writeback.drain(timeout=20.0)
            assert box.files() == {"f": b"stored"}
        files.writeback.drain()
        assert box.files() == {}


def test_one_round_serves_all_uploads_that_wait(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: list[Synced]
) -> None:
    with mounted(box, tmp_path, monkeypatch, boot="first") as files:
        for number in range(40):
            save(files, f"{number}", b"%d" % number)
        synced.clear()
        files.writeback.drain()
        assert len(box.files()) == 40
        assert [each.what for each in synced].count("rows") == 1


def test_a_journal_of_the_last_release_is_believed(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not say what was fsynced."""
    with mounted(box, tmp_path, monkeypatch, boot="first") as files:
        save(files, "f", b"bytes")
    with closing(sqlite3.connect(tmp_path / "journal.db")) as journal:
        journal.executescript("DROP TRIGGER unproved_dropped; DROP TABLE unproved")
    with mounted(box, tmp_path, monkeypatch, boot="second") as files:
        assert read(files, "f") == b"bytes"
