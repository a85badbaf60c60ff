"""When a closed file goes up: after the delay, in which it may be written again for no call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudsimfs.sandbox import Sandbox
from cloudsimfs.writeback import uploads
from world import Ticking, World

DELAY = 40.0  # seconds; less than the TTL


@pytest.fixture
def world(box: Sandbox, tmp_path: Path) -> Iterator[World]:
    made = World(box, tmp_path, "v1", Ticking(), write_back=DELAY)
    yield made
    made.close()


def test_a_file_written_again_within_the_delay_is_uploaded_once(box: Sandbox, world: World) -> None:
    for number in range(5):
        world.write("f", b"%d" % number)
        world.clock.advance(DELAY - 1)
        world.rest()
    assert box.files() == {}
    world.clock.advance(1)
    world.rest()
    assert box.files() == {"f": b"4"}
    assert box.calls.counts()["upload-url"] == 1


def test_a_large_new_file_goes_up_sooner(box: Sandbox, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its upload takes long, and it is seldom written again; written again it waits like any other."""
    monkeypatch.setattr(uploads, "LARGE", 1000)
    world.write("large", bytes(1000))
    world.write("small", bytes(999))
    world.clock.advance(DELAY / 4)
    world.rest()
    assert box.paths() == ["large"]
    world.write("large", bytes(2000))
    world.clock.advance(DELAY / 4)
    world.rest()
    assert box.files() == {"large": bytes(1000)}
    world.clock.advance(DELAY * 3 / 4)
    world.rest()
    assert box.files() == {"large": bytes(2000), "small": bytes(999)}
