"""The daemon dies while a file that was unlinked is still open: nothing of the file is left.

libfuse unlinks an open file in two steps: it renames it to `.fuse_hidden*`, and unlinks that when it is closed.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import Mounted, MountFactory, read_tree, wait_until

OLD, NEW = b"old" * 50_000, b"new" * 60_000
KEPT = {"case/kept": b"kept"}


def stored(file: Path) -> IO[bytes]:
    opened = open(file, "rb", buffering=0)  # noqa: SIM115  the caller closes it
    assert opened.read(100_000)
    return opened


def half_written(file: Path) -> IO[bytes]:
    opened = open(file, "r+b", buffering=0)  # noqa: SIM115  the caller closes it
    opened.write(NEW)
    return opened


def waiting(file: Path) -> IO[bytes]:
    """Closed, and its upload has not begun, or not ended."""
    file.write_bytes(NEW)
    return open(file, "rb", buffering=0)


def rewritten(file: Path) -> IO[bytes]:
    """Closed, not uploaded, and being written anew."""
    file.write_bytes(NEW)
    return half_written(file)


HOLDERS: dict[str, Callable[[Path], IO[bytes]]] = {
    "uploading": waiting,
    "stored": stored,
    "half-written": half_written,
    "overwritten": waiting,
    "rewritten": rewritten,
    "new": waiting,
}


@pytest.mark.parametrize(
    ("api", "point", "power_loss"),
    [("v1", "renamed:6", False), ("v1", "renamed:6", True), ("v2", "unlinked:4", False)],
)
def test_nothing_is_left_of_it(box: Sandbox, mount: MountFactory, point: str, power_loss: bool) -> None:
    """Killed after the first step of each, or when some have come through both; with a power loss, the files'
    bytes had not reached the disk.
    """
    box.populate(KEPT | {f"case/{name}": OLD for name in HOLDERS if name != "new"})
    box.advance(10)
    m = mount(start=False, write_back=1.0)
    assert m.try_start(crash_at=point).returncode == 0
    box.faults.add("object-put", "hang")
    with contextlib.suppress(OSError), contextlib.ExitStack() as files:
        for name, hold in HOLDERS.items():
            files.enter_context(hold(m.path / "case" / name))
            if name == "uploading":
                assert box.calls.wait(lambda calls: any(call.operation == "object-put" for call in calls))
        for name in HOLDERS:
            (m.path / "case" / name).unlink()
    m.wait_for_death()
    for file in m.cache.glob("*/data/*") if power_loss else ():
        os.truncate(file, 0)
    box.faults.clear()
    m.start()
    assert read_tree(m.path) == KEPT
    assert os.listdir(m.path / "case") == ["kept"]
    versions = box.record_versions()
    m.flush()
    box.advance(2000)
    wait_until(lambda: box.files() == KEPT, "the stored files are deleted")
    m.remount()
    assert read_tree(m.path) == KEPT
    assert m.umount().returncode == 0
    assert versions == []
    assert rows(m) == []
    assert [file.stat().st_size for file in m.cache.glob("*/data/*") if "." not in file.name] == [len(b"kept")]


def rows(m: Mounted) -> list[object]:
    """What the journal still has."""
    (journal,) = m.cache.glob("*/journal.db")
    with contextlib.closing(sqlite3.connect(journal)) as db:
        return [row for table in ("file", "draft", "attr") for row in db.execute(f"SELECT path FROM {table}")]


def test_its_folder_stays(box: Sandbox, mount: MountFactory) -> None:
    """It was the last file in it, so the folder is empty here, as on any disk, though the service forgets it."""
    box.populate(KEPT | {"case/d/f": OLD})
    m = mount(write_back=0.1, ttl=0)
    with contextlib.suppress(OSError), stored(m.path / "case/d/f"):
        (m.path / "case/d/f").unlink()
        assert os.listdir(m.path / "case/d") == []
        m.kill()
    m.start()
    m.flush()
    wait_until(lambda: box.files() == KEPT, "the file is deleted")
    assert sorted(os.listdir(m.path / "case")) == ["d", "kept"]
