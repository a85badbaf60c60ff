"""An hour without the service: all that was done meanwhile is there at once, and on the service soon after."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from cloudsimfs.sandbox import Sandbox
from cloudsimfs.writeback.queue import LAST_RETRY
from harness import wait_until
from world import TTL, Ticking, World

HOUR = 3600.0  # seconds
STORED = {f"case/{number}": b"%d" % number * 100 for number in range(6)}


@pytest.fixture
def world(box: Sandbox, api: Literal["v1", "v2"], tmp_path: Path) -> Iterator[World]:
    box.populate(STORED)
    box.advance(10)
    made = World(box, tmp_path, api, Ticking(), write_back=2)
    try:
        made.tree.readdir("case")
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("api", ["v1"])
def test_an_hour_without_the_service(box: Sandbox, world: World) -> None:
    assert world.read("case/0") == STORED["case/0"]
    box.faults.add("*", "reset")
    expected = dict(STORED)
    for number in range(6):
        name, data = f"case/new-{number}", os.urandom(1000)
        world.write(name, data)
        expected[name] = data
        for _ in range(5):
            pass_time(world, 60)
    world.write("case/1", b"rewritten")
    world.files.unlink("case/2")
    world.files.rename("case/0", "case/moved")
    expected |= {"case/1": b"rewritten", "case/moved": expected.pop("case/0")}
    del expected["case/2"]
    for _ in range(30):
        pass_time(world, 60)
    shown = {f"case/{name}" for name, _ in world.tree.readdir("case")}
    assert shown == set(expected)
    assert all(world.read(path) == expected[path] for path in expected if path.startswith(("case/new", "case/m")))
    assert box.files() == STORED
    tried = box.calls.counts()["upload-url"]
    assert tried <= 8 * 2 * (HOUR / LAST_RETRY * 2 + 10), "the pauses grow"
    box.faults.clear()
    for _ in range(int(LAST_RETRY / 10) + 1):
        pass_time(world, 10)
    wait_until(lambda: not world.files.writeback.pending(), "nothing is pending")
    assert box.files() == expected


def pass_time(world: World, seconds: float) -> None:
    assert seconds <= TTL
    world.clock.advance(seconds)
    world.box.advance(seconds)
    world.rest()
