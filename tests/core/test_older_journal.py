"""A journal that was put back from an earlier copy of the same session: what was closed since is in the files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

from cloudsimfs.datacache import notes
from cloudsimfs.sandbox import Sandbox
from cloudsimfs.vfs.drafts import find_drafts
from world import Ticking, World

pytestmark = pytest.mark.parametrize("api", ["v2"])


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@contextmanager
def mounted(box: Sandbox, cache: Path, api: Literal["v1", "v2"]) -> Iterator[World]:
    world = World(box, cache, api, Ticking())
    try:
        yield world
    finally:
        world.close()


def parts(cache: Path) -> list[Path]:
    """The journal, and the stamp that says how far it has come: nothing was fsynced since the copy was made."""
    return [*cache.glob("journal.db*"), cache / "data" / "journal.stamp"]


def keep_copies(cache: Path, copies: Path) -> None:
    copies.mkdir()
    for part in parts(cache):
        shutil.copy2(part, copies)


def put_back(cache: Path, copies: Path) -> None:
    for part in parts(cache):
        part.unlink()
    for copy in copies.iterdir():
        shutil.copy2(copy, cache / "data" if copy.name == "journal.stamp" else cache)


def append(world: World, path: str, data: bytes) -> None:
    fh = world.files.handles.open(path, 1)
    world.files.handles.write(fh, data, world.size(path) or 0)
    world.files.handles.flush(fh)
    world.files.handles.release(fh)


def kept(world: World) -> dict[str, list[bytes]]:
    """What `recover` lists, by path."""
    listed: dict[str, list[bytes]] = {}
    for draft in world.files.recovery.drafts():
        listed.setdefault(draft.path, []).append(Path(draft.file).read_bytes()[: draft.size])
    return {path: sorted(files) for path, files in listed.items()}


@pytest.mark.parametrize("first", ["closed", "stored", "listed"])
def test_what_was_appended_and_closed_since_is_kept(
    box: Sandbox, cache: Path, tmp_path: Path, api: Literal["v1", "v2"], first: str, caplog: pytest.LogCaptureFixture
) -> None:
    with mounted(box, cache, api) as world:
        world.tree.readdir("")
        world.write("f", b"one")
        world.write("other", b"other")
        if first != "closed":
            world.files.writeback.drain(timeout=60)
        keep_copies(cache, tmp_path / "copies")
        if first == "listed":  # the next change is the first one of another inode
            world.tree.dcache.invalidate("")
            world.tree.readdir("")
            assert not world.files.journal.files()
        append(world, "f", b", two")
        append(world, "f", b", three")
    put_back(cache, tmp_path / "copies")
    assert b"one, two, three" in [Path(draft.file).read_bytes()[: draft.size] for draft in find_drafts(cache)]
    with mounted(box, cache, api) as world:
        assert world.read("f") == b"one"
        assert kept(world) == {"f": [b"one, two, three"]}
        assert any("/f: the journal is older" in line for line in caplog.messages)
        world.files.writeback.drain(timeout=60)
        (draft,) = world.files.recovery.drafts()
        world.files.recovery.command(f"upload {draft.id}", bound=60)
        world.files.writeback.drain(timeout=60)
    assert box.files() == {"f": b"one, two, three", "other": b"other"}
    with mounted(box, cache, api) as world:
        assert kept(world) == {}


def test_it_is_kept_on_a_full_disk_too(
    box: Sandbox, cache: Path, tmp_path: Path, api: Literal["v1", "v2"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it takes the place of the older state."""
    with mounted(box, cache, api) as world:
        world.write("f", b"one")
        keep_copies(cache, tmp_path / "copies")
        append(world, "f", b", two")
    put_back(cache, tmp_path / "copies")

    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(notes, "copy_file", no_room)
        with mounted(box, cache, api) as world:
            assert kept(world) == {"f": [b"one, two"]}
            assert world.size("f") is None


def test_what_was_being_written_then_is_kept_beside_it(
    box: Sandbox, cache: Path, tmp_path: Path, api: Literal["v1", "v2"]
) -> None:
    with mounted(box, cache, api) as world:
        world.write("f", b"one")
        keep_copies(cache, tmp_path / "copies")
        append(world, "f", b", two")
        fh = world.files.handles.open("f", 1)
        world.files.handles.write(fh, b", three", 8)
    put_back(cache, tmp_path / "copies")
    with mounted(box, cache, api) as world:
        assert world.read("f") == b"one"
        assert kept(world) == {"f": [b"one, two", b"one, two, three"]}


def test_a_journal_of_now_costs_no_draft(box: Sandbox, cache: Path, api: Literal["v1", "v2"]) -> None:
    for number in range(3):
        with mounted(box, cache, api) as world:
            assert kept(world) == {}
            world.write(f"f{number}", b"one")
            append(world, "f0", b", two")
            if number == 1:
                world.files.writeback.drain(timeout=60)
