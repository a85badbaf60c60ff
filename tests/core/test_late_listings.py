"""What was stored stays here until a listing has shown it: uploads that arrive late, or that no listing shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from cloudsimfs.sandbox import Sandbox
from cloudsimfs.vfs.evidence import LATE_UPLOADS
from harness import put_by_others, wait_until
from world import Ticking, World, parents

FIRST = b"the first version"


@pytest.fixture
def world(box: Sandbox, api: Literal["v1", "v2"], tmp_path: Path) -> Iterator[World]:
    made = World(box, tmp_path, api, Ticking(), write_back=0)
    yield made
    made.close()


def look(world: World, seconds: float) -> None:
    """List the root that much later."""
    world.clock.advance(seconds)
    world.box.advance(seconds)
    world.tree.dcache.listing("", since=world.clock.monotonic())  # also on a busy machine
    world.tree.readdir("")
    world.rest()


@pytest.mark.parametrize("second", [b"the second, longer version", b"the other version"])
@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("seconds", [0, 10])
def test_an_upload_without_an_answer_that_arrives_after_the_next(
    box: Sandbox, world: World, second: bytes, seen: bool, seconds: float
) -> None:
    """It is as long as the next, or not; that one is listed before, or not; the first comes at once, or later."""
    fault = box.faults.add("object-put", "late")
    world.tree.readdir("")
    world.write("f", FIRST)
    wait_until(lambda: fault.fired >= 2, "it was sent, and nobody has answered")
    world.rest()
    fault.times = fault.fired
    world.write("f", second)
    world.files.writeback.drain()
    assert box.files() == {"f": second}
    if seen:
        look(world, 1)
    box.advance(seconds)
    box.faults.clear()
    wait_until(lambda: box.files() == {"f": FIRST}, "the first arrives")
    look(world, 1)
    assert world.read("f") == second
    for _ in range(2):
        look(world, LATE_UPLOADS + 1)
        assert world.read("f") == second
    assert box.files() == {"f": second}
    assert not world.files.journal.files(), "it is settled"


@pytest.mark.parametrize("second", [b"the second, longer version", b"the other version"])
@pytest.mark.parametrize("status", [0, 500])
@pytest.mark.parametrize("seen", ["never", "after the first", "after both"])
def test_a_try_without_an_answer_that_arrives_long_after_its_repetition(
    box: Sandbox, world: World, second: bytes, status: int, seen: str
) -> None:
    """The same bytes were sent again, and stored. The first try is late enough to come over the next version."""
    fault = box.faults.add("object-put", "late", times=1, status=status)
    world.tree.readdir("")
    world.write("f", FIRST)
    wait_until(lambda: fault.fired and box.files() == {"f": FIRST}, "it was sent twice, and is stored")
    world.rest()
    if seen == "after the first":
        look(world, 1)
    box.advance(10)
    world.write("f", second)
    world.files.writeback.drain()
    assert box.files() == {"f": second}
    if seen == "after both":
        look(world, 1)
    box.advance(10)
    box.faults.clear()
    wait_until(lambda: box.files() == {"f": FIRST}, "the first try arrives")
    look(world, 1)
    assert world.read("f") == second
    for _ in range(2):
        look(world, LATE_UPLOADS + 1)
        assert world.read("f") == second
    assert box.files() == {"f": second}
    assert not world.files.journal.files(), "it is settled"


def test_what_others_store_after_an_upload_in_doubt_is_shown(box: Sandbox, world: World) -> None:
    """It is newer than what was stored, and no try had its size."""
    fault = box.faults.add("object-put", "late", times=1)
    world.tree.readdir("")
    world.write("f", FIRST)
    wait_until(lambda: fault.fired and box.files() == {"f": FIRST}, "it was sent twice, and is stored")
    world.rest()
    put_by_others(box, "f", b"of others")
    look(world, 1)
    assert world.read("f") == b"of others"
    assert not world.files.journal.files(), "it is settled"


def test_a_stored_file_that_no_listing_shows(box: Sandbox, world: World) -> None:
    """The service has lost it: it is uploaded once more, and stays here in any case."""
    world.tree.readdir("")
    world.write("f", FIRST)
    world.files.writeback.drain()
    box.remove("f")
    look(world, LATE_UPLOADS + 1)
    assert box.files() == {"f": FIRST}
    box.remove("f")
    box.calls.reset()
    for _ in range(3):
        look(world, LATE_UPLOADS + 1)
        assert world.read("f") == FIRST
    assert box.calls.counts()["upload-url"] == 0
    assert [row.path for row in world.files.journal.files()] == ["f"]


@pytest.mark.parametrize("made", ["here", "by others", "above here"])
def test_a_stored_file_whose_folder_no_listing_shows(box: Sandbox, world: World, made: str) -> None:
    """As above. No folder is listed, so only the listing of the folder above can tell."""
    folder = "d/s" if made == "above here" else "d"
    if made == "by others":
        box.populate({"d/other": b"of others"})
        look(world, 1)
        world.tree.readdir("d")
    world.tree.readdir("")
    if made != "by others":
        for path in (*reversed(parents(folder)), folder):
            world.files.mkdir(path, 0o755)
    world.write(f"{folder}/f", FIRST)
    world.files.writeback.drain()
    for path in list(box.paths()):
        box.remove(path)
    look(world, 60)
    world.tree.readdir(folder)
    world.rest()
    assert box.paths() == [], "it may be listed late"
    look(world, LATE_UPLOADS + 1)
    world.tree.readdir(folder)
    world.rest()
    assert box.files() == {f"{folder}/f": FIRST}
    look(world, 60)
    world.tree.readdir(folder)
    assert world.read(f"{folder}/f") == FIRST
    for _ in range(2):
        look(world, 60)
        world.tree.readdir(folder)
        world.rest()
    assert not world.files.journal.files(), "it is settled"


@pytest.mark.parametrize("before", [None, b"as it was", b"as it was before ."])
def test_an_upload_that_a_portal_has_swallowed(box: Sandbox, world: World, before: bytes | None) -> None:
    """The store has proved that it sends no ETags. So a portal's yes is believed at first, but never for good."""
    if before is not None:
        box.put("f", before)
        box.advance(10)
    box.faults.add("object-put", "odd", variation="no-etag")
    world.tree.readdir("")
    world.write("proof", FIRST)
    world.files.writeback.drain()
    portal = box.faults.add("object-put", "status", status=200)
    world.write("f", FIRST)
    world.files.writeback.drain()
    assert box.files().get("f") == before
    box.faults.remove(portal)
    for _ in range(2):
        look(world, LATE_UPLOADS + 1)
        assert world.read("f") == FIRST
    assert box.files() == {"f": FIRST, "proof": FIRST}
    assert not world.files.journal.files(), "it is settled"
