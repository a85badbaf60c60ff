"""Removed names, with what others do and what the service says, in one process on a clock moved by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from cloudsimfs.errors import TryAgain
from cloudsimfs.sandbox import Sandbox
from cloudsimfs.vfs.evidence import LATE_DELETES
from cloudsimfs.writeback.deletes import LATE_LOOKS
from harness import put_by_others, wait_until
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


def test_a_removed_folder_listed_under_another_id_is_still_removed_after_a_crash(
    box: Sandbox, tmp_path: Path, api: Literal["v1", "v2"]
) -> None:
    """The other id proves nothing while the delete waits, and the next mount does what this one has not done."""
    clock = Ticking()
    box.populate({"d/f": b"f", "d/s/g": b"g", "kept": b"kept"})
    world = World(box, tmp_path / "cache", api, clock)
    assert (names(world), names(world, "d"), names(world, "d/s")) == (["d", "kept"], ["f", "s"], ["g"])
    remove(world, "d/s", "g")
    remove(world, "d", "f")
    files = {path: data for path, data in box.files().items() if path != "d/f"}
    box.remove("d")
    box.populate({**files, "d/new": b"of others"})  # under another id, with g under another id as well
    world.tree.dcache.invalidate("")
    assert names(world) == ["kept"]
    world.close()
    world = World(box, tmp_path / "cache", api, clock)
    assert names(world) == ["kept"]
    world.clock.advance(HELD)
    world.rest()
    world.clock.advance(LATE_DELETES + TTL)
    assert (names(world), names(world, "d")) == (["d", "kept"], ["new", "s"])
    assert box.files() == {"d/s/g": b"g", "d/new": b"of others", "kept": b"kept"}, "those were stored anew"
    world.close()


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


def wrongly_answered(box: Sandbox, world: World, kind: str, **answer: object) -> None:
    """Remove a file or a folder while deletes are answered so, without being carried out."""
    box.populate({"f": b"f", "d/x": b"x"})
    assert (names(world), names(world, "d")) == (["d", "f"], ["x"])
    box.faults.add("delete", "status", **answer)
    box.calls.reset()
    if kind == "file":
        world.files.unlink("f")
    else:
        remove(world, "d", "x")
    world.clock.advance(HELD)
    world.rest()
    assert box.calls.counts()["delete"] >= 1
    assert names(world) == (["d"] if kind == "file" else ["f"])
    assert box.paths() == ["d/x", "f"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_404_to_a_delete_is_believed_once_a_listing_agrees(box: Sandbox, world: World, kind: str) -> None:
    wrongly_answered(box, world, kind, status=404)
    world.files.writeback.drain(timeout=60)  # it is no failure, and nobody waits for it
    box.faults.clear()
    world.clock.advance(LATE_LOOKS[0] + 1)
    world.rest()
    assert box.paths() == (["d/x"] if kind == "file" else ["f"])


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_delete_that_is_never_done_is_given_up(box: Sandbox, world: World, kind: str) -> None:
    wrongly_answered(box, world, kind, status=404)
    for pause in LATE_LOOKS:
        world.clock.advance(pause + 1)
        world.rest()
    assert names(world) == ["d", "f"]
    assert list(world.files.writeback.deletes.given_up()) == (["f"] if kind == "file" else ["d"])
    assert not world.files.writeback.pending()
    assert not world.files.journal.tombstones()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_is_still_listed_a_minute_after_its_delete_is_shown_and_told(
    box: Sandbox, world: World, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    wrongly_answered(box, world, kind, status=200, body="true")
    world.clock.advance(LATE_DELETES + TTL)
    assert names(world) == (["d"] if kind == "file" else ["f"]), "it is deleted once more first"
    world.clock.advance(HELD)
    world.rest()
    assert not world.files.writeback.deletes.given_up()
    for _ in range(2):
        world.clock.advance(LATE_DELETES + TTL)
        assert names(world) == ["d", "f"]
        assert (names(world, "d"), world.read("f")) == (["x"], b"f")
    removed = "f" if kind == "file" else "d"
    assert list(world.files.writeback.deletes.given_up()) == [removed]
    assert len([line for line in caplog.messages if line.startswith(f"/{removed} ") and "shown again" in line]) == 1
    box.faults.clear()
    if kind == "file":
        world.files.unlink("f")
    else:
        remove(world, "d", "x")
    assert not world.files.writeback.deletes.given_up(), "it is asked for again"


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_delete_that_was_acknowledged_and_not_done_is_repeated(box: Sandbox, world: World, kind: str) -> None:
    wrongly_answered(box, world, kind, status=200, body="true")
    box.faults.clear()
    world.clock.advance(LATE_DELETES + TTL)
    left = ["d"] if kind == "file" else ["f"]
    assert names(world) == left
    world.clock.advance(HELD)
    world.rest()
    assert box.paths() == (["d/x"] if kind == "file" else ["f"])
    world.clock.advance(LATE_DELETES + TTL)
    assert names(world) == left
    assert not world.files.writeback.deletes.given_up()
    assert not world.files.journal.tombstones()


def test_what_others_store_over_an_upload_before_it_is_listed_stays(box: Sandbox, world: World) -> None:
    """It was removed here without its id: whatever has the name would be deleted."""
    names(world)
    world.write("f", b"mine")
    world.files.writeback.drain()
    world.files.unlink("f")
    box.put("f", b"what others have stored")
    world.clock.advance(HELD)
    world.rest()
    world.clock.advance(TTL)
    assert names(world) == ["f"], "it is hidden no longer than until a listing shows it"
    assert not world.files.writeback.pending()
    assert box.files() == {"f": b"what others have stored"}


@pytest.mark.parametrize("how", ["removed", "made again", "moved", "moved and made again"])
@pytest.mark.parametrize("remount", [False, True])
def test_what_others_store_over_an_upload_whose_folder_was_removed_stays(
    box: Sandbox, tmp_path: Path, api: Literal["v1", "v2"], how: str, remount: bool
) -> None:
    """The folder's delete, and those of its files, know what was uploaded from here: theirs is none of that."""
    clock = Ticking()
    world = World(box, tmp_path / "cache", api, clock, write_back=0.0)
    try:
        box.populate({"d/g": b"g", "kept": b"kept"})
        assert (names(world), names(world, "d")) == (["d", "kept"], ["g"])
        world.write("d/f", b"mine")
        world.files.writeback.drain(timeout=60)
        if how.startswith("moved"):
            world.files.rename("d", "e")
        else:
            remove(world, "d", "f", "g")
        if how.endswith("made again"):
            world.files.mkdir("d", 0o755)
        put_by_others(box, "d/f", b"what others have stored")
    finally:
        if remount:
            world.close()
    if remount:
        world = World(box, tmp_path / "cache", api, clock, write_back=0.0)
    try:
        for _ in range(2 * len(LATE_LOOKS)):
            clock.advance(LATE_LOOKS[-1] + HELD)
            world.rest()
        clock.advance(TTL + LATE_DELETES)
        assert "d" in names(world)
        assert names(world, "d") == ["f"]
        moved = {"e/f": b"mine", "e/g": b"g"} if how.startswith("moved") else {}
        assert box.files() == {"d/f": b"what others have stored", "kept": b"kept", **moved}
    finally:
        world.close()


@pytest.mark.parametrize("api", ["v2"])
def test_what_others_store_over_an_upload_shows_once_the_folder_is_dealt_with(box: Sandbox, world: World) -> None:
    """It is certainly theirs, so it need not be told from what a late listing shows."""
    box.populate({"d/g": b"g", "kept": b"kept"})
    assert (names(world), names(world, "d")) == (["d", "kept"], ["g"])
    world.write("d/f", b"mine")
    world.files.writeback.drain(timeout=60)
    remove(world, "d", "f", "g")
    put_by_others(box, "d/f", b"what others have stored")
    world.clock.advance(HELD)
    world.rest()
    for folder in ("", "d"):
        world.tree.dcache.invalidate(folder)
    assert (names(world), names(world, "d")) == (["d", "kept"], ["f"])
    assert box.paths() == ["d/f", "kept"]


def test_what_others_store_again_under_a_removed_name_is_no_failed_delete(box: Sandbox, world: World) -> None:
    box.populate({"f": b"f", "d/x": b"x", "kept": b"kept"})
    assert (names(world), names(world, "d")) == (["d", "f", "kept"], ["x"])
    world.files.unlink("f")
    remove(world, "d", "x")
    world.clock.advance(HELD)
    world.rest()
    box.advance(HELD)
    box.populate({"f": b"f", "d/x": b"x"})
    world.clock.advance(LATE_DELETES + TTL)
    assert names(world) == ["d", "f", "kept"]
    assert not world.files.writeback.deletes.given_up()


def test_a_404_for_what_others_have_deleted_costs_one_look_for_all(box: Sandbox, world: World) -> None:
    """For all that are sent before it: those of a worker that comes late cost another one."""
    box.populate({f"f{number}": b"f" for number in range(5)})
    assert len(names(world)) == 5
    for number in range(5):
        world.files.unlink(f"f{number}")
        box.remove(f"f{number}")
    box.calls.reset()
    world.clock.advance(HELD)
    world.rest()
    counts = box.calls.counts()
    assert not world.files.writeback.pending()
    assert counts["delete"] >= 5
    assert counts["list"] + counts["list-all"] <= 3, counts


@pytest.mark.parametrize("trouble", ["failed", "unmounted"])
def test_others_replace_a_removed_file_before_its_delete_is_repeated(
    box: Sandbox, tmp_path: Path, api: Literal["v1", "v2"], trouble: str
) -> None:
    """Nobody has looked since: the folder is listed again, once for all of its files."""
    files = {f"d/{number}": b"as it was" for number in range(10)}
    box.populate({**files, "d/kept": b"kept"})
    clock = Ticking()
    world = World(box, tmp_path / "cache", api, clock)
    try:
        assert (names(world), len(names(world, "d"))) == (["d"], 11)
        for path in files:
            world.files.unlink(path)
        if trouble == "failed":
            box.faults.add("delete", "status", status=503)
            clock.advance(HELD)
            world.rest()
            box.faults.clear()
    finally:
        if trouble == "unmounted":
            world.close()
    put_by_others(box, "d/3", b"what others have stored")
    if trouble == "unmounted":
        world = World(box, tmp_path / "cache", api, clock)
    try:
        box.calls.reset()
        for _ in range(5):
            clock.advance(10.0)
            world.rest()
        assert not world.files.writeback.pending()
        assert box.files() == {"d/3": b"what others have stored", "d/kept": b"kept"}
        listings = [call for call in box.calls.entries() if call.operation in ("list", "list-all", "view")]
        assert sum("/desc/" not in call.path for call in listings) == 1
        clock.advance(TTL + 1)
        assert names(world, "d") == ["3", "kept"]
    finally:
        world.close()


def test_a_delete_that_comes_before_the_upload_of_what_was_moved_there_loses_nothing(
    box: Sandbox, world: World
) -> None:
    """A file takes the name of its folder. When the delete is sent, the journal has all of its bytes."""
    box.populate({"d/a": bytes(range(200))})
    assert (names(world), names(world, "d")) == (["d"], ["a"])
    box.faults.add("delete", "status", status=500)
    world.files.rename("d/a", "a")
    world.files.rmdir("d")
    world.files.rename("a", "d")
    with pytest.raises(TryAgain):
        world.files.writeback.drain(timeout=60)
    wait_until(lambda: box.calls.counts()["delete"], "the delete has been sent")
    assert box.calls.counts()["upload-url"] == 0
    (row,) = world.files.journal.files()
    assert (row.path, row.state, row.bytes.present) == ("d", "closed", ((0, 200),))
    box.faults.clear()
    for _ in range(5):
        world.clock.advance(10.0)
        world.rest()
    assert box.files() == {"d": bytes(range(200))}


def test_nothing_is_left_of_a_removed_folder_once_a_listing_agrees(box: Sandbox, world: World) -> None:
    """Also of files that were deleted one by one, since a file had taken the folder's name."""
    box.populate({"d/a": b"a", "d/s/b": b"b", "kept": b"kept"})
    assert (names(world), names(world, "d"), names(world, "d/s")) == (["d", "kept"], ["a", "s"], ["b"])
    remove(world, "d/s", "b")
    remove(world, "d", "a")
    world.write("d", b"x")
    world.files.unlink("d")
    for _ in range(3):
        world.clock.advance(TTL)
        world.rest()
        assert names(world) == ["kept"]
    assert box.paths() == ["kept"]
    assert world.files.journal.tombstones() == []
    assert world.tree.overlay.below("") == []


def settled(world: World, seconds: float) -> None:
    world.clock.advance(seconds)
    world.box.advance(seconds)
    world.rest()


def test_a_file_deleted_with_its_folder_before_it_was_listed_does_not_come_back(box: Sandbox, world: World) -> None:
    """The folder's name is used again while listings still show what was in it."""
    box.settings.delete_lag = 30
    box.put("d/seen", b"seen")
    assert (names(world), names(world, "d")) == (["d"], ["seen"])
    world.write("d/f", b"f")
    world.files.writeback.drain(timeout=60)
    remove(world, "d", "f", "seen")
    settled(world, HELD)
    assert box.paths() == []
    world.files.mkdir("d", 0o755)
    for _ in range(3):
        world.tree.dcache.invalidate("")
        world.tree.dcache.invalidate("d")
        assert (names(world), names(world, "d")) == (["d"], [])


@pytest.mark.parametrize("api", ["v1"])
def test_files_below_the_name_of_a_removed_file_show_while_that_is_still_listed(box: Sandbox, world: World) -> None:
    """Their folder cannot be listed by every listing then: no listing ends what was made there."""
    box.settings.delete_lag = 30
    box.put("d", b"a file")
    assert names(world) == ["d"]
    world.files.unlink("d")
    world.files.mkdir("d", 0o755)
    world.files.mkdir("d/s", 0o755)
    world.write("d/s/f", b"f")
    world.files.writeback.drain(timeout=60)
    settled(world, HELD)
    assert box.paths() == ["d/s/f"]
    world.tree.dcache._fetch_everything()  # as for a walk: it lists `d` as a file and as a folder
    for _ in range(3):
        assert (names(world), names(world, "d"), names(world, "d/s")) == (["d"], ["s"], ["f"])
        for folder in ("", "d", "d/s"):
            world.tree.dcache.invalidate(folder)
    settled(world, TTL)
    assert (names(world), names(world, "d"), names(world, "d/s")) == (["d"], ["s"], ["f"])
    assert world.read("d/s/f") == b"f"


def test_an_empty_folder_inside_a_removed_one_does_not_come_back(box: Sandbox, world: World) -> None:
    """Its own delete is part of the outer folder's; nothing else tells of it once that name is used again."""
    box.settings.delete_lag = 30
    box.populate({"d/s/f": b"f", "d/g": b"g"})
    assert (names(world), names(world, "d"), names(world, "d/s")) == (["d"], ["g", "s"], ["f"])
    remove(world, "d/s", "f")
    settled(world, HELD)
    world.files.mkdir("d/s", 0o755)
    world.files.rmdir("d/s")
    remove(world, "d", "g")
    world.files.mkdir("d", 0o755)
    for _ in range(3):
        world.tree.dcache.invalidate("")
        world.tree.dcache.invalidate("d")
        assert (names(world), names(world, "d")) == (["d"], [])


@pytest.mark.parametrize("again", ["here", "by others"])
def test_a_folder_that_is_gone_and_made_again_has_none_of_its_old_names(
    box: Sandbox, world: World, again: str
) -> None:
    """Its files were deleted one by one, and nobody has listed it since."""
    box.populate({"d/s/f": b"f", "d/g": b"g", "kept": b"kept"})
    assert (names(world), names(world, "d"), names(world, "d/s")) == (["d", "kept"], ["g", "s"], ["f"])
    world.files.unlink("d/s/f")
    world.files.unlink("d/g")
    world.clock.advance(HELD)
    world.rest()
    assert box.paths() == ["kept"]
    world.files.rmdir("d/s")
    world.files.rmdir("d")
    world.tree.dcache.invalidate("")
    assert names(world) == ["kept"]
    if again == "here":
        world.files.mkdir("d", 0o755)
        world.write("d/new", b"new")
        world.files.writeback.drain()
    else:
        box.populate({"d/new": b"new"})
    for _ in range(2):
        world.tree.dcache.invalidate("")
        assert (names(world), names(world, "d")) == (["d", "kept"], ["new"])
        world.rest()
