"""What others change: seen after the TTL, at once after `cloudsimfs refresh PATH`, whatever the kernel has cached."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import Mounted, MountFactory, cloudsimfs, wait_until

TREE = {"d/x": b"x", "d/e/y": b"yy", "d/gone": b"", "other/z": b"z"}


def refresh(path: Path) -> None:
    done = cloudsimfs("refresh", path)
    assert done.returncode == 0, done.stderr


def look(m: Mounted) -> None:
    """Have the kernel cache names and attributes of everything in TREE."""
    for path in TREE:
        assert (m.path / path).stat().st_size == len(TREE[path])


def change(box: Sandbox) -> None:
    """What another client does."""
    box.advance(10)
    box.put("d/x", b"grown" * 100)
    box.put("d/new", b"new")
    box.put("d/e/deeper/new", b"new")
    box.remove("d/gone")


def check_changed(m: Mounted) -> None:
    assert (m.path / "d/x").stat().st_size == 500
    assert sorted(os.listdir(m.path / "d")) == ["e", "new", "x"]
    assert (m.path / "d/new").stat().st_size == 3
    assert (m.path / "d/e/deeper/new").read_bytes() == b"new"
    assert not (m.path / "d/gone").exists()
    assert (m.path / "d/x").read_bytes() == b"grown" * 100


def test_changes_show_after_the_ttl(box: Sandbox, mount: MountFactory) -> None:
    box.settings.caches_listings = False  # it is about the mount's own TTL
    box.populate(TREE)
    m = mount(ttl=1)
    look(m)
    change(box)
    wait_until(lambda: (m.path / "d/x").stat().st_size == 500, "the file grows")
    wait_until(lambda: (m.path / "d/e/deeper/new").stat(), "the new folder comes")
    wait_until(lambda: not (m.path / "d/gone").exists(), "the removed file goes")
    check_changed(m)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("what", ["d", "", "d/x"])
def test_changes_show_at_once_after_refresh(box: Sandbox, mount: MountFactory, what: str, cached: bool) -> None:
    """Nothing was to be seen before: the kernel and the listings have long timeouts. v2 caches listings, too."""
    box.settings.caches_listings = cached
    box.populate(TREE)
    m = mount(ttl=3600)
    look(m)
    os.listdir(m.path / "d")
    (m.path / "d/x").read_bytes()
    change(box)
    look(m)
    refresh(m.path / what)
    assert (m.path / "d/x").stat().st_size == 500
    if what != "d/x":
        check_changed(m)


@pytest.mark.parametrize("api", ["v1"])
def test_a_listing_takes_back_what_the_kernel_has_cached(box: Sandbox, mount: MountFactory) -> None:
    """Whoever lists a folder anew updates what others will be told, here after a refresh of one file."""
    box.populate(TREE)
    m = mount(ttl=3600)
    look(m)
    with open(m.path / "d/x", "rb") as file:
        assert file.read() == b"x"
    change(box)
    refresh(m.path / "d/new")
    os.listdir(m.path / "d")
    wait_until(lambda: (m.path / "d/x").stat().st_size == 500, "the kernel's attributes are taken back")
    wait_until(lambda: not (m.path / "d/gone").exists(), "the kernel's name is taken back")
    assert (m.path / "d/x").read_bytes() == b"grown" * 100


@pytest.mark.parametrize("api", ["v1"])
def test_a_file_becomes_a_folder_and_back(box: Sandbox, mount: MountFactory) -> None:
    """Another client replaces one by the other. The kernel keeps a name's type for its share of the TTL."""
    box.populate(TREE)
    m = mount(ttl=1)
    look(m)
    box.advance(10)
    box.remove("d/x")
    box.put("d/x/inside", b"inside")
    box.remove("d/e")
    box.put("d/e", b"a file now")
    wait_until(lambda: (m.path / "d/x/inside").read_bytes() == b"inside", "the folder shows")
    wait_until(lambda: (m.path / "d/e").read_bytes() == b"a file now", "the file shows")
    assert sorted(os.listdir(m.path / "d")) == ["e", "gone", "x"]


def test_refresh_of_a_path_outside_says_so(m: Mounted, tmp_path: Path) -> None:
    done = cloudsimfs("refresh", tmp_path)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
