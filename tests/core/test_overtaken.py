"""An upload replaces nothing but what the file is based on: what others have stored stays, and ours goes beside it.

Each test lets others replace a file at another moment of an upload's life. A failed or interrupted upload costs one
listing of the folder, an ordinary one nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from cloudsimfs.errors import NotDirectory, NotFound, TryAgain
from cloudsimfs.sandbox import Sandbox
from harness import conflict_copies, put_by_others, wait_until
from world import Ticking, World

MINE, THEIRS = b"mine", b"what others have stored"
BEFORE = b"as it was, and not fetched yet"
LISTINGS = ("list", "list-all", "view")


@pytest.fixture
def worlds(box: Sandbox, api: Literal["v1", "v2"], tmp_path: Path) -> Iterator[Callable[[], World]]:
    """Makes a world of one cache directory; the one before it ends, as a mount that is killed."""
    clock, made = Ticking(), list[World]()

    def make() -> World:
        for before in made:
            before.close()
        made[:] = [World(box, tmp_path, api, clock, write_back=0)]
        return made[0]

    yield make
    for world in made:
        world.close()


@pytest.fixture
def world(worlds: Callable[[], World]) -> World:
    return worlds()


def see(world: World, folder: str = "") -> None:
    """As `cloudsimfs refresh` and `ls` do."""
    world.tree.dcache.invalidate(folder)
    world.tree.readdir(folder)


def drain(world: World) -> None:
    """Until nothing waits any more."""

    def nothing_waits() -> bool:
        with contextlib.suppress(TryAgain):
            world.files.writeback.drain()
        world.client._uploads._clock.advance(10)  # type: ignore[attr-defined]  # the store may be tried again
        return not world.files.writeback.pending()

    wait_until(nothing_waits, "nothing waits")


def check_both_are_kept(world: World, path: str = "f", ours: bytes = MINE) -> None:
    drain(world)
    stored = world.box.files()
    assert stored[path] == THEIRS
    assert list(conflict_copies(stored).values()) == [ours]


def listings(box: Sandbox) -> int:
    """How many were asked for; in v2, each asks for the last page, too."""
    return sum(call.operation in LISTINGS and "/desc/" not in call.path for call in box.calls.entries())


# -- while an upload is under way --------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [None, b"as it was"])
def test_others_replace_a_file_while_its_link_is_asked_for(box: Sandbox, world: World, before: bytes | None) -> None:
    """The attempt has begun before, and asks for a link all the time."""
    if before is not None:
        box.put("f", before)
    world.tree.readdir("")
    fault = box.faults.add("upload-url", "hang")
    world.write("f", MINE)
    wait_until(lambda: fault.fired, "a link is asked for")
    put_by_others(box, "f", THEIRS)
    see(world)
    box.faults.clear()
    check_both_are_kept(world)


def test_others_replace_a_file_while_its_bytes_are_on_their_way(box: Sandbox, world: World) -> None:
    """More than the sockets between can hold: the last block is not sent yet."""
    mine = bytes(24 << 20)
    world.tree.readdir("")
    fault = box.faults.add("object-put", "hang")
    world.write("f", mine)
    wait_until(lambda: fault.fired, "the transfer has begun")
    put_by_others(box, "f", THEIRS)
    see(world)
    box.faults.clear()
    check_both_are_kept(world, ours=mine)


# -- while a delete is under way ----------------------------------------------------------------------------------


@pytest.mark.parametrize("uploaded", [False, True])
def test_others_store_a_name_again_while_its_delete_is_under_way(box: Sandbox, world: World, uploaded: bool) -> None:
    """A new file of that name here is based on what was removed, not on theirs."""
    box.populate({"f": b"as it was", "other": b"other"})
    world.tree.readdir("")
    if uploaded:
        world.write("f", b"as it is")
        drain(world)
        see(world)
    fault = box.faults.add("delete", "hang")
    world.files.unlink("f")
    world.clock.advance(10)  # a delete is held back for less

    def is_under_way() -> bool:
        with world.files.writeback.queue.lock:
            world.files.writeback.queue.lock.notify_all()  # the clock was moved
        return bool(fault.fired)

    wait_until(is_under_way, "the delete is under way")
    box.remove("f")  # so that theirs has another id
    put_by_others(box, "f", THEIRS)
    see(world)
    world.write("f", MINE)
    box.faults.clear()
    check_both_are_kept(world)


# -- just after an upload -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [None, b"as it was"])
@pytest.mark.parametrize("again", [False, True])
def test_others_replace_a_file_just_after_it_was_stored(
    worlds: Callable[[], World], box: Sandbox, before: bytes | None, again: bool
) -> None:
    """In the same second, by the service's clock. That no upload of ours had this size proves it."""
    world = worlds()
    if before is not None:
        box.put("f", before)
        box.advance(5)
    world.tree.readdir("")
    world.write("f", MINE)
    drain(world)
    box.put("f", THEIRS)
    if again:
        world = worlds()
    see(world)
    check_both_are_kept(world)
    assert world.read("f") == THEIRS
    assert world.size("f") == len(THEIRS)


def test_quick_saves_of_ours_are_no_conflict(box: Sandbox, world: World) -> None:
    """Listings may show any of them as the last one, with the same time."""
    world.tree.readdir("")
    for size in range(1, 5):
        world.write("f", bytes(size))
        drain(world)
    box.put("f", bytes(2))
    see(world)
    drain(world)
    assert not conflict_copies(box.files())
    world.write("f", MINE)
    drain(world)
    assert box.files() == {"f": MINE}


# -- after an upload that failed ---------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["upload-url", "object-put"])
@pytest.mark.parametrize("before", [None, b"as it was"])
def test_others_replace_a_file_while_uploads_fail(
    box: Sandbox, world: World, before: bytes | None, operation: str
) -> None:
    """Nobody has looked since: the folder is listed again, once for all of its files."""
    names = [f"d/{number}" for number in range(20)]
    box.populate({name: before for name in [*names, "d/other"] if before is not None} | {"d/other": b"other"})
    world.tree.readdir("d")
    fault = box.faults.add(operation, "status", status=503)
    for name in names:
        world.write(name, MINE)
    wait_until(lambda: fault.fired, "an upload fails")
    world.rest()
    put_by_others(box, names[0], THEIRS)
    box.faults.clear()
    box.calls.reset()
    check_both_are_kept(world, names[0])
    assert listings(box) <= 3, "one more for those that were not tried before the store had taken another"
    assert all(box.files()[name] == MINE for name in names[1:])


def test_others_put_a_file_into_a_folder_that_was_made_here(box: Sandbox, world: World) -> None:
    """No listing of it is known."""
    fault = box.faults.add("upload-url", "status", status=503)
    world.tree.readdir("")
    world.files.mkdir("d", 0o755)
    world.write("d/f", MINE)
    wait_until(lambda: fault.fired, "an upload fails")
    world.rest()
    put_by_others(box, "d/f", THEIRS)
    box.faults.clear()
    check_both_are_kept(world, "d/f")


def test_an_upload_without_an_answer_is_no_conflict(box: Sandbox, worlds: Callable[[], World]) -> None:
    """Its answer was lost, and the daemon dies: what is listed then is ours, and not that of others."""
    world = worlds()
    box.put("f", b"as it was")
    world.tree.readdir("")
    box.advance(10)
    fault = box.faults.add("object-put", "drop_reply")
    world.write("f", MINE)
    wait_until(lambda: fault.fired, "it is stored, and nobody says so")
    world.rest()
    world = worlds()
    world.write("f", MINE + MINE)
    see(world)
    box.faults.clear()
    drain(world)
    assert box.files() == {"f": MINE + MINE}


# -- after an upload that nothing was seen of since ----------------------------------------------------------------


def write_again(world: World) -> None:
    world.write("f", MINE)


def rename_over(world: World) -> None:
    """As many editors save."""
    world.write("other", MINE)
    world.files.rename("other", "f")


def remove_and_write(world: World) -> None:
    world.files.unlink("f")
    world.write("f", MINE)


@pytest.mark.parametrize("save", [write_again, rename_over, remove_and_write])
@pytest.mark.parametrize("remount", [False, True])
def test_a_file_stored_here_is_saved_again_while_uploads_fail(
    box: Sandbox, worlds: Callable[[], World], save: Callable[[World], None], remount: bool
) -> None:
    """No listing has shown the first version: what others store is later than that, and of another size."""
    world = worlds()
    world.tree.readdir("")
    world.write("f", b"the first version")
    world.files.writeback.drain()
    box.faults.add("object-put", "status", status=503)
    box.faults.add("upload-url", "status", status=503)
    save(world)
    world.rest()
    put_by_others(box, "f", THEIRS)
    if remount:
        world = worlds()
    box.faults.clear()
    check_both_are_kept(world)


@pytest.mark.parametrize("save", [rename_over, remove_and_write])
def test_a_file_is_saved_again_over_a_change_that_others_have_stored_since(
    box: Sandbox, world: World, save: Callable[[World], None]
) -> None:
    """Their version was listed before the save, but the name has shown ours all the time."""
    box.put("f", b"as it was")
    world.tree.readdir("")
    fault = box.faults.add("upload-url", "status", status=503)
    world.write("f", b"the first version")
    wait_until(lambda: fault.fired, "an upload fails")
    world.rest()
    put_by_others(box, "f", THEIRS)
    see(world)
    save(world)
    box.faults.clear()
    check_both_are_kept(world)


def test_others_replace_a_file_while_nothing_is_mounted(box: Sandbox, worlds: Callable[[], World]) -> None:
    """The listing on the disk is from before."""
    box.populate({"d/f": b"as it was", "d/g": b"as it was"})
    world = worlds()
    world.tree.readdir("d")
    box.faults.add("*", "reset")
    for name in ("d/f", "d/g"):
        world.write(name, MINE)
    world.rest()
    put_by_others(box, "d/f", THEIRS)
    box.faults.clear()
    box.calls.reset()
    check_both_are_kept(worlds(), "d/f")
    assert box.files()["d/g"] == MINE
    assert listings(box) == 1


# -- when the bytes that were not changed here are gone -----------------------------------------------------------


def append(world: World) -> str:
    fh = world.files.handles.open("d/f", os.O_WRONLY)
    world.files.handles.write(fh, MINE, len(BEFORE))
    world.files.handles.flush(fh)
    world.files.handles.release(fh)
    return "d/f"


def rename(world: World) -> str:
    world.files.rename("d/f", "g")
    return "g"


def rename_folder(world: World) -> str:
    world.files.rename("d", "e")
    return "e/f"


def replace(box: Sandbox) -> None:
    put_by_others(box, "d/f", THEIRS)


def remove(box: Sandbox) -> None:
    box.remove("d/f")


def remove_folder(box: Sandbox) -> None:
    box.remove("d")


def make_a_file_of_the_folder(box: Sandbox) -> None:
    box.remove("d")
    put_by_others(box, "d", THEIRS)


@pytest.mark.parametrize("change", [append, rename, rename_folder])
@pytest.mark.parametrize("others", [replace, remove, remove_folder, make_a_file_of_the_folder])
@pytest.mark.parametrize("seen", [False, True])
def test_a_file_whose_unchanged_bytes_are_gone(
    box: Sandbox,
    world: World,
    change: Callable[[World], str],
    others: Callable[[Sandbox], None],
    seen: bool,
) -> None:
    """Nobody can store it any more. It ends: what is here is a draft, `flush` says so, and theirs stays.

    If theirs is seen before the upload, ours is a conflict copy that cannot be stored either.
    """
    box.populate({"d/f": BEFORE, "kept": b"kept"})
    world.tree.readdir("")
    world.tree.readdir("d")
    fault = box.faults.add("object-get", "status", status=503)
    name = change(world)
    wait_until(lambda: fault.fired, "the rest is asked for")
    others(box)
    if seen:
        with contextlib.suppress(NotFound, NotDirectory):
            see(world, "d")
    theirs = box.files()
    box.faults.clear()

    def has_ended() -> bool:
        world.clock.advance(10)
        world.rest()
        return not world.files.writeback.pending()

    wait_until(has_ended, "it is given up", timeout=10)
    assert box.files() == theirs
    (draft,) = world.files.journal.drafts()
    assert draft.path.partition(".conflict-")[0] == name
    assert draft.bytes.size == len(BEFORE) + (len(MINE) if change is append else 0)
    (reason,) = world.files.writeback.refusals.all()
    assert draft.path in reason
    with pytest.raises(TryAgain, match=re.escape(draft.path)):
        world.files.writeback.drain()
    assert not world.files.journal.files()


# -- without trouble -----------------------------------------------------------------------------------------------


def test_a_look_costs_nothing_without_trouble(box: Sandbox, world: World) -> None:
    box.populate({"d/f": b"as it was"})
    world.tree.readdir("d")
    for number in range(3):
        world.files.mkdir(f"{number}", 0o755)
    box.calls.reset()
    for number in range(3):
        world.write("d/f", b"%d" % number)
        world.write(f"{number}/new", MINE)
        world.files.writeback.drain()
    assert listings(box) == 0


@pytest.mark.parametrize("folder", ["", "d/"])
def test_others_replace_a_file_and_its_folder_is_listed_as_empty_once(
    box: Sandbox, world: World, folder: str
) -> None:
    path, other = f"{folder}f", f"{folder}other"
    box.populate({path: b"as it was", other: b"other"})
    see(world)
    see(world, folder.strip("/"))
    refused = box.faults.add("object-put", "status", status=503)
    world.write(path, MINE)
    wait_until(lambda: refused.fired, "an upload fails")
    world.rest()
    put_by_others(box, path, THEIRS)
    empty = [box.faults.add(operation, "odd", variation=no_entry, times=1) for operation in ("list", "list-all")]
    box.faults.remove(refused)
    check_both_are_kept(world, path)
    assert any(fault.fired for fault in empty)
    assert world.size(other) == len(b"other")


def no_entry(answer: object) -> object:
    return {"response": []} if isinstance(answer, dict) else []


# -- after the mount has ended while something was under way ---------------------------------------------------------


def remake_while_uploads_fail(world: World, after: str) -> None:
    """Its first try fails once all of its bytes are sent: the service might have them, and has what was there."""
    fault = world.box.faults.add("object-put", "status", status=503)
    world.write("f", after.encode())
    wait_until(lambda: fault.fired, "an upload fails")
    world.rest()


@pytest.mark.parametrize("removed_first", [True, False], ids=["removed", "draft"])
def test_a_name_of_our_own_is_no_conflict_after_a_mount(
    box: Sandbox, worlds: Callable[[], World], removed_first: bool
) -> None:
    """It was stored, and removed; the mount ends before its delete. What is listed then was stored from here."""
    world = worlds()
    world.tree.readdir("")
    world.write("f", b"the first version")
    world.files.writeback.drain()
    box.advance(10)
    world.files.unlink("f")
    if not removed_first:
        world.files.handles.create("f", 0o644, os.O_WRONLY)  # and the mount ends while it is written
    world = worlds()
    remake_while_uploads_fail(world, "the second")
    box.faults.clear()
    drain(world)
    assert box.files() == {"f": b"the second"}


@pytest.mark.parametrize("removed_first", [True, False], ids=["removed", "draft"])
def test_others_replace_a_removed_name_between_two_mounts(
    box: Sandbox, worlds: Callable[[], World], removed_first: bool
) -> None:
    world = worlds()
    world.tree.readdir("")
    world.write("f", b"the first version")
    world.files.writeback.drain()
    world.files.unlink("f")
    if not removed_first:
        world.files.handles.create("f", 0o644, os.O_WRONLY)
    put_by_others(box, "f", THEIRS)
    world = worlds()
    remake_while_uploads_fail(world, MINE.decode())
    box.faults.clear()
    check_both_are_kept(world)


@pytest.mark.parametrize("folder_too", [False, True])
def test_a_name_is_made_again_after_its_delete_has_seen_an_old_listing(
    box: Sandbox, world: World, folder_too: bool
) -> None:
    """The delete has failed; the listing shows only later what was stored here last."""
    box.put("d/f", b"as it was")
    world.tree.readdir("")
    world.tree.readdir("d")
    box.advance(10)
    box.settings.listing_lag = 5.0
    world.write("d/f", b"the first version")
    world.files.writeback.drain()
    fault = box.faults.add("delete", "status", status=503)
    world.files.unlink("d/f")
    world.clock.advance(3)
    world.rest()
    assert fault.fired
    if folder_too:
        world.files.rmdir("d")
        world.files.mkdir("d", 0o755)
    box.advance(10)
    refused = box.faults.add("object-put", "status", status=503)
    world.write("d/f", b"the second")
    wait_until(lambda: refused.fired, "an upload fails")
    world.rest()
    see(world, "d")
    box.faults.clear()
    drain(world)
    assert box.files() == {"d/f": b"the second"}
