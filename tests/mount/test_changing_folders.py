"""Folders of several pages (v2) that others change while they are listed: no name is taken for absent.

In each, `a` is removed once page 1 has been read, and `f2` moves from page 2 to page 1, which is not read again.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from errno import EAGAIN, EEXIST, ENOENT
from pathlib import Path
from typing import Any

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import Mounted, MountFactory, conflict_copies, cost, errno_of, put_by_others, run

FILES = {f"d/f{number}": b"%d\n" % number for number in range(9)}
PULLED = "d/f2"
QUIET_CALLS = 6  # three pages up to the one that meets the last page, the last page, and two of them again


@pytest.fixture
def api() -> str:
    return "v2"


@pytest.fixture
def box(box: Sandbox) -> Sandbox:
    box.settings.page_size = 3
    box.populate({"d/a": b"", **FILES})
    return box


def change_once(box: Sandbox) -> None:
    def remove(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        box.remove("d/a")
        return entries

    box.faults.add("list", "odd", variation=remove, path="d", times=1)


def never_rest(box: Sandbox) -> Callable[[], None]:
    """`a` goes after page 1 and is back, as another file, after page 2, in each pass. Returns what ends that."""
    read_again = [False]

    def change(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        names = [entry["basename"] for entry in entries]
        if names == ["f3", "f4", "f5"]:
            box.put("d/a", b"")
            read_again[0] = True
        elif "a" in names and read_again[0]:
            read_again[0] = False
        elif "a" in names:
            box.remove("d/a")
        return entries

    fault = box.faults.add("list", "odd", variation=change, path="d")

    def rest() -> None:
        box.faults.remove(fault)
        if "d/a" not in box.paths():
            box.put("d/a", b"")

    return rest


def listed_anew(m: Mounted) -> list[str]:
    (m.path / ".cloudsimfs/refresh").write_text("d")
    return sorted(os.listdir(m.path / "d"))


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_a_delete_between_two_pages_hides_no_name(box: Sandbox, m: Mounted) -> None:
    os.listdir(m.path)
    quiet = cost(box, lambda: os.listdir(m.path / "d"))
    assert quiet == {"list": QUIET_CALLS}
    change_once(box)
    assert listed_anew(m) == sorted(path.removeprefix("d/") for path in FILES)
    append(m.path / PULLED, b"more\n")
    stored = m.settle()
    assert stored == {**FILES, PULLED: b"2\nmore\n"}


def test_two_pages_that_overlap_cost_two_calls(box: Sandbox, m: Mounted) -> None:
    box.settings.page_size = 6
    os.listdir(m.path)
    assert cost(box, lambda: os.listdir(m.path / "d")) == {"list": 2}
    assert cost(box, lambda: errno_of(lambda: os.stat(m.path / "d/none"))) == {}


def test_several_pages_cost_one_call_where_v1_may_be_asked(box: Sandbox, mount: MountFactory) -> None:
    m = mount(api="auto")
    os.listdir(m.path)
    never_rest(box)
    calls = cost(box, lambda: os.listdir(m.path / "d"))
    assert calls == {"list": 1}, "v1's listing, which has no pages"
    assert set(os.listdir(m.path / "d")) >= {path.removeprefix("d/") for path in FILES}


def test_a_name_that_a_listing_missed_is_there(box: Sandbox, m: Mounted) -> None:
    os.listdir(m.path)
    rest = never_rest(box)
    shown = os.listdir(m.path / "d")
    assert "f2" not in shown, "or this tests nothing"
    calls = cost(box, lambda: append(m.path / PULLED, b"more\n"))
    assert (calls["view"], calls["list"]) == (1, 0)
    assert errno_of(lambda: os.open(m.path / PULLED, os.O_CREAT | os.O_EXCL)) == EEXIST
    assert errno_of(lambda: os.mkdir(m.path / PULLED)) == EEXIST
    assert (m.path / PULLED).read_bytes() == b"2\nmore\n"
    rest()
    stored = m.settle()
    assert stored == {"d/a": b"", **FILES, PULLED: b"2\nmore\n"}
    assert conflict_copies(stored) == {}


def test_a_name_that_is_not_there_is_asked_for_once(box: Sandbox, m: Mounted) -> None:
    os.listdir(m.path)
    never_rest(box)
    os.listdir(m.path / "d")
    calls = cost(box, lambda: [errno_of(lambda: os.stat(m.path / "d/none")) for _ in range(3)])
    assert calls == {"view": 3}, "twice for the name, as v2 gives no reason; once for the folder, to see it answers"
    assert errno_of(lambda: os.stat(m.path / "d/none")) == ENOENT
    (m.path / "d/none").write_bytes(b"new")
    m.flush()
    assert box.files()["d/none"] == b"new"


def test_a_name_that_cannot_be_asked_for_is_not_absent(box: Sandbox, m: Mounted) -> None:
    m.expects_trouble = True
    os.listdir(m.path)
    never_rest(box)
    os.listdir(m.path / "d")
    box.faults.add("view", "status", status=403, body='{"errors": ["A technical problem has occurred"]}')
    assert errno_of(lambda: os.stat(m.path / PULLED)) not in (0, ENOENT)
    assert errno_of(lambda: os.open(m.path / PULLED, os.O_CREAT | os.O_WRONLY, 0o644)) not in (0, ENOENT)
    assert box.files()[PULLED] == FILES[PULLED]


def test_known_names_stay_when_a_listing_misses_them(box: Sandbox, m: Mounted) -> None:
    assert "f2" in os.listdir(m.path / "d")
    never_rest(box)
    assert "f2" in listed_anew(m)


def test_rm_r_deletes_no_file_that_it_did_not_list(box: Sandbox, m: Mounted) -> None:
    os.listdir(m.path)
    rest = never_rest(box)
    assert "f2" not in os.listdir(m.path / "d"), "or this tests nothing"
    done = subprocess.run(["rm", "-r", str(m.path / "d")], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    rest()
    m.flush()
    assert box.files() == {"d/a": b"", PULLED: FILES[PULLED]}
    assert listed_anew(m) == ["a", "f2"]
    run("rm", "-r", m.path / "d")
    m.flush()
    assert box.files() == {}


def test_a_folder_whose_names_cannot_all_be_listed_is_not_renamed(box: Sandbox, m: Mounted) -> None:
    os.listdir(m.path)
    rest = never_rest(box)
    assert "f2" not in os.listdir(m.path / "d"), "or this tests nothing"
    assert errno_of(lambda: os.rename(m.path / "d", m.path / "e")) == EAGAIN
    rest()
    os.rename(m.path / "d", m.path / "e")
    assert m.settle()["e/f2"] == FILES[PULLED]


def test_a_listing_that_missed_a_name_is_not_kept_for_the_next_mount(box: Sandbox, m: Mounted) -> None:
    os.listdir(m.path)
    rest = never_rest(box)
    assert "f2" not in os.listdir(m.path / "d"), "or this tests nothing"
    rest()
    m.remount()
    assert "f2" in os.listdir(m.path / "d")


def test_what_was_removed_stays_hidden_when_a_listing_misses_it(box: Sandbox, m: Mounted) -> None:
    """The delete is done, and listings lag: one that misses the name does not end the tombstone."""
    os.listdir(m.path)
    rest = never_rest(box)
    assert "f2" not in os.listdir(m.path / "d"), "or this tests nothing"
    box.settings.delete_lag = 3600.0
    (m.path / PULLED).unlink()
    m.flush()
    assert PULLED not in box.paths()
    assert "f2" not in listed_anew(m)
    rest()
    assert "f2" not in listed_anew(m)


def test_a_version_of_others_that_a_listing_missed_is_not_overwritten(box: Sandbox, mount: MountFactory) -> None:
    m = mount(write_back=3600)
    os.listdir(m.path / "d")
    assert (m.path / PULLED).read_bytes() == FILES[PULLED]
    append(m.path / PULLED, b"ours\n")
    put_by_others(box, PULLED, b"theirs, longer\n")
    never_rest(box)
    assert "f2" in listed_anew(m), "as it was listed before"
    m.flush()
    stored = box.files()
    assert stored[PULLED] == b"theirs, longer\n"
    assert list(conflict_copies(stored).values()) == [b"2\nours\n"]


def test_a_known_name_stays_when_it_cannot_be_asked_for(box: Sandbox, mount: MountFactory) -> None:
    m = mount(ttl=1)
    os.listdir(m.path / "d")
    never_rest(box)
    box.faults.add("view", "status", status=403, body='{"errors": ["A technical problem has occurred"]}')
    assert "f2" in listed_anew(m)
    assert (m.path / PULLED).read_bytes() == FILES[PULLED]
