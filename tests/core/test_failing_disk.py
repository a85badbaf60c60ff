"""The disk below fails at one step, in one process: what was closed still arrives, what was refused is undone."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudsimfs.clock import SystemClock
from cloudsimfs.datacache.content import Content
from cloudsimfs.errors import CloudsimfsError, FsError, NoSpace, TryAgain
from cloudsimfs.sandbox import Sandbox
from cloudsimfs.vfs.names import is_local_name
from harness import patient, wait_until
from world import storage_side


@pytest.fixture
def files(box: Sandbox, tmp_path: Path) -> Iterator[Any]:
    """The storage side of a mount without a kernel above it."""
    with storage_side(box, tmp_path / "cache", "v1", SystemClock()) as made:
        yield made
    wait_until(lambda: all(thread.name != "fetch" for thread in threading.enumerate()), "the fetchers end")


def write_file(files: Any, path: str, data: bytes) -> None:
    fh = files.handles.create(path, 0o644, os.O_WRONLY)
    files.handles.write(fh, data, 0)
    files.handles.flush(fh)
    files.handles.release(fh)


def fail_once(
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    when: Any = lambda *_: True,
    error: Exception = NoSpace("disk full"),  # noqa: B008  # never changed
) -> None:
    """The next call of a method that `when` picks fails."""
    method, left = getattr(owner, name), [1]

    def failing(*arguments: Any, **named: Any) -> Any:
        if left and when(*arguments):
            left.clear()
            raise error
        return method(*arguments, **named)

    monkeypatch.setattr(owner, name, failing)


def nothing_waits(files: Any) -> bool:
    return not files.writeback.pending()


def unwritable(files: Any, *, yes: bool) -> None:
    """Every commit of the journal fails from now on, or none."""
    files.journal._db._connection.execute(f"PRAGMA query_only={int(yes)}")


@pytest.mark.parametrize("step", ["journal", "backing file"])
def test_an_upload_survives_a_full_disk_at_its_start(
    box: Sandbox, files: Any, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    if step == "journal":
        fail_once(monkeypatch, files.journal, "mark_uploaded")
    else:
        workers = "writeback"
        fail_once(monkeypatch, Content, "acquire", lambda _: threading.current_thread().name.startswith(workers))
    write_file(files, "f", b"bytes")
    wait_until(lambda: nothing_waits(files), "nothing is pending any more")
    files.writeback.drain(timeout=patient(30))  # says that all is stored
    assert box.files() == {"f": b"bytes"}


def test_a_renames_delete_survives_a_full_disk_at_the_end_of_the_upload(
    box: Sandbox, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudsimfs.writeback.deletes.DELETE_DELAY", 0.2)
    box.put("a", b"bytes")
    fail_once(monkeypatch, files.journal, "save_file", lambda row: row.state == "stored")
    files.rename("a", "b")
    wait_until(lambda: box.files() == {"b": b"bytes"}, "the old name goes")
    assert box.calls.counts()["upload-url"] == 1, "it is stored once"


@pytest.mark.parametrize("error", [NoSpace("disk full"), OverflowError("a bug")])
def test_a_file_can_be_stored_after_its_close_failed(
    box: Sandbox, files: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """release(2) cannot commit either; once it works again, the file is written anew and closed well."""
    fh = files.handles.create("f", 0o644, os.O_WRONLY)
    files.handles.write(fh, b"first", 0)
    for step in (files.handles.flush, files.handles.release):
        with monkeypatch.context() as failing:
            fail_once(failing, files.journal, "save_file", lambda row: row.state == "closed", error)
            try:
                step(fh)
            except (NoSpace, OverflowError):
                pass
    fh = files.handles.open("f", os.O_WRONLY | os.O_TRUNC)
    files.handles.write(fh, b"second", 0)
    files.handles.flush(fh)
    files.handles.release(fh)
    files.writeback.drain(timeout=patient(30))
    assert box.files() == {"f": b"second"}


def test_a_close_that_failed_holds_a_barrier_up(box: Sandbox, files: Any) -> None:
    """A run must not start over a file of which only the user's program was told that it was not kept."""
    fh = files.handles.create("f", 0o644, os.O_WRONLY)
    files.handles.write(fh, b"first", 0)
    unwritable(files, yes=True)
    with pytest.raises(FsError):
        files.handles.flush(fh)
    files.handles.release(fh)
    unwritable(files, yes=False)
    with pytest.raises(TryAgain, match="write it again"):
        files.writeback.drain(timeout=patient(30))
    files.writeback.drain("elsewhere", timeout=patient(30))
    fh = files.handles.open("f", os.O_WRONLY | os.O_TRUNC)
    files.handles.write(fh, b"second", 0)
    files.handles.flush(fh)
    files.handles.release(fh)
    files.writeback.drain(timeout=patient(30))
    assert box.files() == {"f": b"second"}


def test_an_unlink_that_failed_deletes_nothing(box: Sandbox, files: Any) -> None:
    box.put("f", b"bytes")
    unwritable(files, yes=True)
    with pytest.raises(CloudsimfsError):
        files.unlink("f")
    unwritable(files, yes=False)
    assert files.tree.getattr("f").size == 5, "it is there as before"
    assert nothing_waits(files)
    files.unlink("f")
    files.writeback.drain(timeout=patient(30))
    assert box.files() == {}


def test_an_unlink_that_failed_leaves_the_upload_of_the_file(box: Sandbox, files: Any) -> None:
    fault = box.faults.add("object-put", "hang")
    write_file(files, "f", b"bytes")
    assert box.calls.wait(lambda calls: any(call.operation == "object-put" for call in calls))
    unwritable(files, yes=True)
    with pytest.raises(CloudsimfsError):
        files.unlink("f")
    unwritable(files, yes=False)
    box.faults.remove(fault)
    files.writeback.drain(timeout=patient(20))
    assert box.files() == {"f": b"bytes"}


def test_a_file_that_could_not_be_made_is_not_there(files: Any) -> None:
    unwritable(files, yes=True)
    with pytest.raises(CloudsimfsError):
        files.handles.create("f", 0o644, os.O_WRONLY)
    unwritable(files, yes=False)
    assert files.tree.readdir("") == []
    write_file(files, "f", b"bytes")
    files.writeback.drain(timeout=patient(30))


def test_what_a_failed_write_has_left_beyond_the_end_is_not_uploaded(box: Sandbox, files: Any) -> None:
    fh = files.handles.create("f", 0o644, os.O_WRONLY)
    files.handles.write(fh, b"accepted", 0)
    content = files.handles.get(fh).inode.content
    os.pwrite(content._file.fd, b"left", content.size)
    reader = files.handles.open("f", os.O_RDONLY)  # nothing trims the file while it is open
    files.handles.flush(fh)
    files.handles.release(fh)
    files.writeback.drain(timeout=patient(30))
    files.handles.release(reader)
    assert box.files() == {"f": b"accepted"}


def test_after_a_failed_fsync_the_bytes_are_written_anew(files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel drops what it could not write, and says yes the next time."""
    fh = files.handles.create("f", 0o644, os.O_WRONLY)
    files.handles.write(fh, b"bytes", 0)
    fail_once(monkeypatch, os, "fsync", error=OSError(errno.EIO, "Input/output error"))
    with pytest.raises(OSError, match="Input/output error"):
        files.handles.fsync(fh)
    pwrite, written = os.pwrite, []

    def recorded(fd: int, data: bytes, at: int) -> int:
        written.append((data, at))
        return pwrite(fd, data, at)

    monkeypatch.setattr(os, "pwrite", recorded)
    files.handles.fsync(fh)
    files.handles.fsync(fh)
    assert written == [(b"bytes", 0)]
    files.handles.release(fh)


@pytest.mark.parametrize("is_open", [False, True])
def test_a_rename_that_failed_deletes_nothing(box: Sandbox, files: Any, is_open: bool) -> None:
    box.put("f", b"bytes")
    reader = files.handles.open("f", os.O_RDONLY) if is_open else None
    unwritable(files, yes=True)
    with pytest.raises(CloudsimfsError):
        files.rename("f", "g")
    unwritable(files, yes=False)
    assert files.tree.getattr("f").size == 5
    files.writeback.drain(timeout=patient(30))
    assert box.files()["f"] == b"bytes"
    if reader is not None:
        files.handles.release(reader)


# -- a step that the journal could not take --------------------------------------------------------------------------


def shown(files: Any) -> dict[str, tuple[Any, ...]]:
    """All names, with what is known of them, and the files' bytes."""
    found: dict[str, tuple[Any, ...]] = {}
    folders = [""]
    for folder in folders:
        for name, attr in files.tree.readdir(folder, hidden=True):
            path = f"{folder}/{name}".strip("/")
            found[path] = (attr.ino, attr.mode, attr.size, None if attr.is_dir else read_file(files, path))
            folders += [path] if attr.is_dir else []
    return found


def read_file(files: Any, path: str) -> bytes:
    fh = files.handles.open(path, os.O_RDONLY)
    buffer = bytearray(1000)
    count = files.handles.read(fh, memoryview(buffer), 0)
    files.handles.release(fh)
    return bytes(buffer[:count])


def pending(files: Any) -> list[tuple[str, str, bool]]:
    return sorted((job.kind, job.path, job.held) for job in files.writeback.pending())


STORED = {"stored": b"stored", "other": b"other", "folder/a": b"a", "folder/below/b": b"bb", "removed": b"removed"}
RENAMES = {
    "a stored file": ("stored", "new"),
    "over a stored file": ("stored", "other"),
    "over an upload": ("stored", "upload"),
    "an upload": ("upload", "new"),
    "an upload over a stored file": ("upload", "other"),
    "an upload over another": ("upload", "another"),
    "over what was removed": ("upload", "removed"),
    "what waits for another's delete": ("renamed", "new"),
    "over what waits for another's delete": ("upload", "renamed"),
    "to a name that stays here": ("upload", "upload~"),
    "an unlink": ("other", ".fuse_hidden0001"),
    "a folder": ("folder", "new"),
    "a folder over an empty one": ("folder", "empty"),
}


@pytest.mark.parametrize("names", RENAMES.values(), ids=list(RENAMES))
@pytest.mark.parametrize("is_open", [False, True])
def test_a_rename_that_failed_has_changed_nothing(
    box: Sandbox, files: Any, names: tuple[str, str], is_open: bool
) -> None:
    box.populate(STORED | {"first": b"first"})
    files.writeback._delay = 3600.0
    write_file(files, "upload", b"upload")
    write_file(files, "another", b"another")
    files.mkdir("empty", 0o755)
    files.unlink("removed")
    files.rename("first", "renamed")
    reader = files.handles.open(names[0], os.O_RDONLY) if is_open and "folder" not in names[0] else None
    before, waiting = shown(files), pending(files)
    unwritable(files, yes=True)
    for _ in range(2):
        with pytest.raises(CloudsimfsError):
            files.rename(*names)
    unwritable(files, yes=False)
    assert shown(files) == before
    assert pending(files) == waiting
    if reader is not None:
        files.handles.release(reader)
    files.rename(*names)
    after = shown(files)
    assert names[0] not in after
    if "fuse_hidden" in names[1]:
        files.unlink(names[1])  # as libfuse does when it is closed
    files.writeback.drain(timeout=patient(20))
    kept = {path: node[3] for path, node in after.items() if node[3] is not None and not is_local_name(path)}
    wait_until(lambda: box.files() == kept, "the service has what is shown", timeout=10)
