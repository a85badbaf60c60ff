"""Files that still fetch from a path: whole before what is stored there is overwritten or deleted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from cloudsimfs.sandbox import Sandbox
from cloudsimfs.vfs.rename import rename
from harness import wait_until
from world import Ticking, World

DATA = os.urandom(900_000)


@pytest.fixture
def world(box: Sandbox, api: Literal["v1", "v2"], tmp_path: Path) -> Iterator[World]:
    box.put("f", DATA)
    made = World(box, tmp_path, api, Ticking(), write_back=1.0)
    yield made
    made.close()


def pass_time(world: World) -> None:
    for _ in range(10):
        world.clock.advance(1.0)
        world.rest()


def test_a_changed_file_is_whole_before_its_old_name_is_overwritten(box: Sandbox, world: World) -> None:
    handles = world.files.handles
    fh = handles.open("f", os.O_RDWR)
    handles.write(fh, b"mine", 0)
    rename(world.tree, "f", "g")  # open: it is not stored for now
    world.write("f", b"another")
    pass_time(world)
    wait_until(lambda: box.files() == {"f": b"another"}, "the old name is stored anew")
    buffer = bytearray(len(DATA))
    assert handles.read(fh, memoryview(buffer), 0) == len(DATA)
    assert buffer == b"mine" + DATA[4:]
    handles.flush(fh)
    handles.release(fh)


@pytest.mark.parametrize("mode", [os.O_RDONLY, os.O_RDWR])
def test_a_file_unlinked_while_open_is_whole_before_its_name_is_overwritten(
    box: Sandbox, world: World, mode: int
) -> None:
    fh = world.files.handles.open("f", mode)
    rename(world.tree, "f", ".fuse_hidden0001")  # what libfuse does
    world.write("f", b"another")
    pass_time(world)
    wait_until(lambda: box.files() == {"f": b"another"}, "the name is stored anew")
    buffer = bytearray(len(DATA))
    assert world.files.handles.read(fh, memoryview(buffer), 0) == len(DATA)
    assert buffer == DATA
    world.files.handles.release(fh)


def test_a_file_that_stays_here_is_whole_before_its_old_name_is_deleted(box: Sandbox, world: World) -> None:
    rename(world.tree, "f", ".f.swp")
    pass_time(world)
    wait_until(lambda: box.files() == {}, "the old name goes")
    assert world.read(".f.swp") == DATA


def test_a_file_unlinked_while_open_is_not_fetched_to_be_deleted(box: Sandbox, world: World) -> None:
    fh = world.files.handles.open("f", os.O_RDONLY)
    rename(world.tree, "f", ".fuse_hidden0001")
    world.files.unlink(".fuse_hidden0001")  # as libfuse does when it is closed
    world.files.handles.release(fh)
    pass_time(world)
    wait_until(lambda: box.files() == {}, "it goes")
    assert box.calls.entries("object-get") == []
