"""The walks that happen all the time are short: a cached read takes no lock of the namespace, a close few commits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cloudsimfs.inode import NOBODY, Inode
from cloudsimfs.journal.journal import Journal
from cloudsimfs.journal.rows import FileRow
from cloudsimfs.sandbox import Sandbox
from cloudsimfs.writeback.uploads import Writeback
from harness import patient
from world import Ticking, World


@pytest.fixture
def world(box: Sandbox, tmp_path: Path) -> Iterator[World]:
    box.put("f", b"what is cached")
    made = World(box, tmp_path, "v1", Ticking())
    yield made
    made.close()


def test_a_cached_read_does_not_wait_for_the_namespace(world: World) -> None:
    assert world.read("f") == b"what is cached"
    handles = world.files.handles
    fh = handles.open("f", os.O_RDONLY)
    buffer = bytearray(6)
    with ThreadPoolExecutor(1) as pool, world.tree.lock:
        reading = pool.submit(handles.read, fh, memoryview(buffer), 5)
        assert reading.result(timeout=patient(20)) == 6
    assert buffer == b"is cac"
    handles.release(fh)


@pytest.mark.parametrize(
    ("after_flush", "states"),
    [
        (b"", ["closed"]),
        (b"a mapped page, written back late", ["closed", "closed"]),
    ],
)
def test_a_close_commits_once_in_flush_and_once_in_release(
    world: World, monkeypatch: pytest.MonkeyPatch, after_flush: bytes, states: list[str]
) -> None:
    """The second one has nothing to do, unless the kernel has written a mapped page since."""
    commits: list[Inode] = []
    rows: list[FileRow] = []
    commit, save_file = Writeback.commit_locked, Journal.save_file

    def counted(self: Writeback, inode: Inode, by: int = NOBODY) -> None:
        commits.append(inode)
        commit(self, inode, by)

    def recorded(self: Journal, row: FileRow, fsync: int | None = None) -> None:
        rows.append(row)
        save_file(self, row, fsync)

    monkeypatch.setattr(Writeback, "commit_locked", counted)
    monkeypatch.setattr(Journal, "save_file", recorded)
    handles = world.files.handles
    fh = handles.create("new", 0o644, os.O_WRONLY)
    handles.write(fh, b"written", 0)
    handles.flush(fh)
    if after_flush:
        handles.write(fh, after_flush, 0)
    handles.release(fh)
    assert len(commits) == 2
    assert [row.state for row in rows] == states
    assert rows[-1].bytes.size == len(after_flush or b"written")
