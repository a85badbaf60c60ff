"""Removed folders, with what others do to them in between, in one process on a clock moved by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from cloudsimfs.sandbox import Sandbox
from world import TTL, Ticking, World

HELD = 3.0  # seconds; longer than a delete is held back


@pytest.fixture
def world(box: Sandbox, tmp_path: Path, api: Literal["v1", "v2"]) -> Iterator[World]:
    made = World(box, tmp_path / "cache", api, Ticking())
    yield made
    made.close()


def names(world: World, directory: str = "") -> list[str]:
    return sorted(name for name, _ in world.tree.readdir(directory))


def remove(world: World, folder: str, *files: str) -> None:
    for name in files:
        world.files.unlink(f"{folder}/{name}")
    world.files.rmdir(folder)


def test_a_folder_listed_under_another_id_stays_hidden_until_its_delete_is_done(box: Sandbox, world: World) -> None:
    box.populate({"d/f": b"f", "kept": b"kept"})
    assert (names(world), names(world, "d")) == (["d", "kept"], ["f"])
    remove(world, "d", "f")
    box.remove("d")
    box.populate({"d/new": b"of others"})
    world.tree.dcache.invalidate("")
    assert names(world) == ["kept"]
    world.clock.advance(HELD)
    world.rest()
    world.clock.advance(TTL + 1)
    assert (names(world), names(world, "d")) == (["d", "kept"], ["new"])
    assert box.paths() == ["d/new", "kept"]


def test_a_look_that_is_too_old_is_made_again(box: Sandbox, world: World) -> None:
    """The delete of a renamed folder waits for its uploads, however long; what was listed before them is no proof."""
    box.populate({"d/s/f": b"f", "g/s/f": b"g"})
    for folder in ("", "d", "d/s", "g", "g/s"):
        names(world, folder)
    assert world.read("d/s/f") == b"f"
    world.files.rename("d", "e")  # its upload is not due in this test, before it is drained
    remove(world, "g/s", "f")
    world.files.rmdir("g")
    world.clock.advance(HELD)
    world.rest()
    assert box.paths() == ["d/s/f"], "the delete of `g` has listed everything"
    box.populate({"d/s/new": b"of others"})
    world.clock.advance(4.0)
    world.files.writeback.drain(timeout=60)
    assert box.paths() == ["d/s/new", "e/s/f"]
