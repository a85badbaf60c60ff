"""What others store under a name after it was removed here stays, as far as listings tell of it in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from cloudsimfs.sandbox import Sandbox
from cloudsimfs.writeback.deletes import DELETE_DELAY
from world import TTL, Ticking, World

OURS, THEIRS = b"what was removed here", b"what others have stored since"
HOUR = 3600.0  # seconds


@pytest.fixture
def world(box: Sandbox, api: Literal["v1", "v2"], tmp_path: Path) -> Iterator[World]:
    box.populate({"c/x": OURS, "c/y": OURS, "d/z": OURS})
    made = World(box, tmp_path, api, Ticking(), write_back=0)
    try:
        made.tree.readdir("d")
        for name, _ in made.tree.readdir("c"):
            assert made.read(f"c/{name}") == OURS
        yield made
    finally:
        made.close()


def remove(world: World) -> None:
    world.files.unlink("c/x")


def move(world: World) -> None:
    world.files.rename("c/x", "d/x")


def remove_folder(world: World) -> None:
    for name in ("x", "y"):
        world.files.unlink(f"c/{name}")
    world.files.rmdir("c")


def move_folder(world: World) -> None:
    world.files.rename("c", "e")


def pass_time(world: World, seconds: float) -> None:
    world.clock.advance(seconds)
    world.box.advance(seconds)
    world.rest()


def others_put(world: World, path: str) -> None:
    world.box.advance(10)
    world.box.put(path, THEIRS)


@pytest.mark.parametrize("leave", [remove, move, remove_folder, move_folder])
def test_what_others_store_while_the_service_cannot_be_asked(
    box: Sandbox, world: World, leave: Callable[[World], None]
) -> None:
    """An hour later it is not what was removed: it shows, and is not deleted."""
    box.faults.add("*", "reset")
    leave(world)
    pass_time(world, HOUR)
    others_put(world, "c/x")
    box.faults.clear()
    world.files.writeback.drain()
    pass_time(world, TTL)
    assert box.files()["c/x"] == THEIRS
    assert world.size("c/x") == len(THEIRS)
    assert ("c/y" in box.files()) == (leave in (remove, move))


@pytest.mark.parametrize("leave", [remove, move])
def test_what_others_store_while_a_delete_is_held_back(
    box: Sandbox, world: World, leave: Callable[[World], None]
) -> None:
    """The listing at hand is believed; it costs no call."""
    leave(world)
    others_put(world, "c/x")
    world.tree.refresh("c/x")
    world.tree.readdir("c")
    box.calls.reset()
    pass_time(world, DELETE_DELAY)
    assert box.files()["c/x"] == THEIRS
    assert box.calls.counts()["delete"] == 0
    assert box.calls.counts()["list"] == 0
