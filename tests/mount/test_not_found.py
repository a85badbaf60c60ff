"""404s to the listing of a folder that is there: it is not gone, nor empty, and what is stored in it stays."""

from __future__ import annotations

import os
from collections.abc import Callable
from errno import ENOENT
from pathlib import Path

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import Mounted, MountFactory, cost, errno_of

FILES = {"top": b"top\n", "d/f": b"f\n", "d/e/g": b"g\n", "other/h": b"h\n"}
FOLDERS = ["", "d", "d/e"]
FILE_IN = {"": "top", "d": "d/f", "d/e": "d/e/g"}


@pytest.fixture(autouse=True)
def stored(box: Sandbox) -> None:
    box.populate(FILES)


def refuse(box: Sandbox, folder: str, times: int | None) -> None:
    """v1 answers with the same; v2 falls back to it."""
    box.faults.add("list", "status", status=404, body='{"message": "not found"}', path=folder, times=times)


def refresh(m: Mounted, path: str) -> None:
    (m.path / ".cloudsimfs/refresh").write_text(path or "/")


def append(path: Path, data: bytes) -> int:
    """The errno of `echo >>`."""

    def write() -> None:
        with path.open("ab") as file:
            file.write(data)

    return errno_of(write)


def nothing_is_lost(box: Sandbox, m: Mounted, name: str, failed: int) -> None:
    box.faults.clear()
    m.flush()
    assert box.files() == (FILES if failed else {**FILES, name: FILES[name] + b"more\n"})


@pytest.mark.parametrize("times", [1, 3, None])
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_known_folder_is_shown_as_it_was(box: Sandbox, m: Mounted, folder: str, times: int | None) -> None:
    shown = {path: sorted(os.listdir(m.path / path)) for path in FOLDERS}
    refuse(box, folder, times)
    refresh(m, folder)
    assert {path: sorted(os.listdir(m.path / path)) for path in FOLDERS} == shown
    name = FILE_IN[folder]
    failed = append(m.path / name, b"more\n")
    assert failed == 0
    nothing_is_lost(box, m, name, failed)


@pytest.mark.parametrize("times", [1, 2, 3, 5, None])
@pytest.mark.parametrize("folder", ["d", "d/e"])
def test_a_folder_that_was_never_listed_is_not_gone(box: Sandbox, m: Mounted, folder: str, times: int | None) -> None:
    refuse(box, folder, times)
    name = FILE_IN[folder]
    failed = append(m.path / name, b"more\n")
    assert failed != ENOENT
    assert errno_of(lambda: os.listdir(m.path / folder)) != ENOENT
    if times == 1:
        assert not failed, "one such answer is asked again"
    nothing_is_lost(box, m, name, failed)


@pytest.mark.parametrize("times", [1, 3, None])
@pytest.mark.parametrize("refused", [["d"], ["d/e"], ["d", "d/e"]])
def test_a_folder_that_only_a_pending_file_implies_is_not_empty(
    box: Sandbox, mount: MountFactory, refused: list[str], times: int | None
) -> None:
    m = mount(write_back=3600)
    (m.path / "d/e/new").write_bytes(b"new")
    assert m.umount("--no-wait").returncode == 0
    for kept in m.cache.rglob("listings.db*"):
        kept.unlink()
    for folder in refused:
        refuse(box, folder, times)
    m.start()
    failed = append(m.path / "d/e/g", b"more\n")
    assert failed != ENOENT
    assert (m.path / "d/e/new").read_bytes() == b"new"
    box.faults.clear()
    m.flush()
    appended = FILES["d/e/g"] + (b"" if failed else b"more\n")
    assert box.files() == {**FILES, "d/e/new": b"new", "d/e/g": appended}


@pytest.mark.parametrize("change", [lambda path: path.write_bytes(b""), lambda path: path.mkdir(), os.rmdir])
def test_nothing_is_made_or_removed_in_a_folder_that_cannot_be_listed(
    box: Sandbox, m: Mounted, change: Callable[[Path], object]
) -> None:
    refuse(box, "d/e", None)
    name = "d/e" if change is os.rmdir else "d/e/g"
    assert errno_of(lambda: change(m.path / name)) not in (0, ENOENT)
    nothing_is_lost(box, m, "d/e/g", 1)


def test_a_folder_that_is_gone_is_gone(box: Sandbox, mount: MountFactory, api: str) -> None:
    m = mount(ttl=3600)
    for path in ("", "d", "d/e", "other"):
        os.listdir(m.path / path)
    box.remove("d")
    refresh(m, "d")
    calls = cost(box, lambda: errno_of(lambda: os.listdir(m.path / "d")))
    assert errno_of(lambda: os.listdir(m.path / "d")) == ENOENT
    assert sorted(os.listdir(m.path)) == ["other", "top"]
    assert sum(calls.values()) <= (2 if api == "v1" else 4), calls


def test_a_folder_made_here_that_cannot_be_listed_is_not_empty(box: Sandbox, m: Mounted) -> None:
    """It was stored, and others have put a file into it."""
    os.listdir(m.path)
    (m.path / "made").mkdir()
    (m.path / "made/ours").write_bytes(b"ours")
    m.flush()
    box.put("made/theirs", b"theirs\n")
    refuse(box, "made", None)
    refresh(m, "made")
    failed = append(m.path / "made/theirs", b"more\n")
    assert failed != ENOENT
    box.faults.clear()
    m.flush()
    assert box.files() == {**FILES, "made/ours": b"ours", "made/theirs": b"theirs\n" + b"more\n" * (not failed)}
