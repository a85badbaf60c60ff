"""The daemon dies just after each step of the crash order (journal.py): nothing is lost or half-made."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import UNEXPECTED, Mounted, MountFactory, Tree, read_tree, stored_versions, wait_until

OLD, NEW = os.urandom(300_000), os.urandom(400_000)


def die_at(m: Mounted, point: str, work: Callable[[], object]) -> None:
    """Mount, work, have everything stored and listed, until the daemon has killed itself at `point`."""
    done = m.try_start(crash_at=point)
    if done.returncode:  # what the journal replays has brought it there before the mount was ready
        assert "the daemon died" in done.stderr, done.stderr
        assert not UNEXPECTED.search(m.log())
    else:
        with contextlib.suppress(OSError):
            work()
            m.flush()
            m.box.advance(10)
            wait_until(lambda: not m.pids or read_tree(m.path) is None, f"{point} is reached")
    m.wait_for_death()


# -- one file through all the steps ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "puts"),
    [("2-committed", 1), ("3-closed", 1), ("4-synced", 1), ("5-uploaded", 2), ("6-stored", 1), ("7-confirmed", 1)],
)
def test_a_rewrite_survives_a_kill_after(box: Sandbox, mount: MountFactory, point: str, puts: int) -> None:
    """Readable at once, in the end on the service, and but for a lost answer (5) uploaded once."""
    box.put("f", OLD)
    versions = box.record_versions()
    m = mount(start=False, ttl=0, write_back=0.3)
    die_at(m, point, lambda: rewrite(m.path / "f"))
    m.start()
    assert read_tree(m.path) == {"f": NEW}
    assert m.settle() == {"f": NEW}
    assert stored_versions(versions, "f") == [NEW] * puts


def rewrite(file: Path) -> None:
    with open(file, "r+b", buffering=0) as stream:
        stream.write(NEW[:300_000])
        stream.seek(300_000)
        stream.write(NEW[300_000:])
        os.fsync(stream.fileno())


def test_a_kill_between_two_writes_uploads_nothing(box: Sandbox, mount: MountFactory) -> None:
    """Step 1 alone promises nothing: the service keeps what it had, and what was written is kept here."""
    box.put("f", OLD)
    versions = box.record_versions()
    m = mount(start=False)
    die_at(m, "1-written:1", lambda: rewrite(m.path / "f"))
    m.start()
    m.flush()
    assert versions == []
    assert box.files() == {"f": OLD}
    assert "f" in (m.path / ".cloudsimfs/status").read_text()


@pytest.mark.parametrize("api", ["v2"])
def test_a_file_survives_a_kill_after_its_eviction(box: Sandbox, mount: MountFactory) -> None:
    """Step 8: what was stored, listed and evicted is fetched anew."""
    m = mount(start=False, ttl=0, cache_size="1M")
    closed: Tree = {}

    def fill() -> None:
        for number in range(6):
            data = os.urandom(300_000)
            (m.path / f"{number}").write_bytes(data)
            closed[f"{number}"] = data
            m.flush()
            box.advance(10)
            read_tree(m.path)

    die_at(m, "8-evicted", fill)
    m.start()
    assert len(closed) >= 3
    assert {name: (m.path / name).read_bytes() for name in closed} == closed
    m.flush()
    assert box.files() == closed


@pytest.mark.parametrize("api", ["v2"])
def test_a_removed_file_does_not_come_back_when_its_name_is_made_anew(box: Sandbox, mount: MountFactory) -> None:
    """Its tombstone goes in the step that writes the new file's row."""
    box.put("f", OLD)
    m = mount(start=False)

    def remove_and_create() -> None:
        (m.path / "f").unlink()
        (m.path / "f").write_bytes(NEW)

    die_at(m, "tombstone-dropped", remove_and_create)
    m.start()
    assert m.settle() == {}


def test_what_a_rename_replaces_is_whole_until_the_rename_holds(box: Sandbox, mount: MountFactory) -> None:
    """Its bytes go after the commit: one of the two is always there, though neither is on the service."""
    m = mount(start=False, write_back=3600)

    def save() -> None:
        (m.path / "f").write_bytes(OLD)
        (m.path / "f~").write_bytes(NEW)
        os.rename(m.path / "f~", m.path / "f")

    die_at(m, "bytes-dropped", save)
    m.start()
    assert m.settle() == {"f": NEW}


def test_a_removed_file_does_not_come_back_under_its_former_name(box: Sandbox, mount: MountFactory) -> None:
    box.put("old", OLD)
    m = mount(start=False, write_back=3600)

    def rename_and_remove() -> None:
        os.rename(m.path / "old", m.path / "new")
        (m.path / "new").unlink()

    die_at(m, "bytes-dropped", rename_and_remove)
    m.start()
    assert m.settle() == {}


@pytest.mark.parametrize("api", ["v2"])
def test_a_file_removed_right_after_its_upload_stays_removed(box: Sandbox, mount: MountFactory) -> None:
    """No listing had shown it, and only the dead daemon knew that the service had yet to be told."""
    box.settings.listing_lag = 30
    m = mount(start=False, write_back=0)

    def upload_and_remove() -> None:
        (m.path / "f").write_bytes(NEW)
        wait_until(lambda: box.files() and m.status()["pending"] == [], "the file is stored")
        (m.path / "f").unlink()

    die_at(m, "unlinked", upload_and_remove)
    m.start()
    m.flush()
    box.advance(60)
    m.flush()
    wait_until(lambda: box.files() == {}, "the file goes", timeout=40)
    assert read_tree(m.path) == {}


# -- work on several names, with a kill after each of several steps in turn --------------------------------------


@dataclass(frozen=True)
class Step:
    """One action and what a local disk holds after it."""

    act: Callable[[Path], object]
    then: Tree


@dataclass(frozen=True)
class Work:
    """What is stored before, what is done, and the points at which the daemon dies in turn."""

    stored: Tree
    steps: list[Step]
    points: list[str]


CASE = {f"case/sub{number % 2}/{number}": b"%d" % number * 1000 for number in range(6)}
MOVED = {path.replace("case", "moved"): data for path, data in CASE.items()}


def save_as_editors_do(top: Path) -> None:
    with open(top / "f.tmp~", "wb") as file:
        file.write(NEW)
        file.flush()
        os.fsync(file.fileno())
    os.rename(top / "f.tmp~", top / "f")


def removal(tree: Tree) -> list[Step]:
    """`rm -r` of all of a tree but `kept`, call by call."""
    left = dict(tree)
    steps = []
    for path in tree:
        if path != "kept":
            del left[path]
            steps.append(Step(partial(unlink, path), dict(left)))
    return steps + [Step(partial(rmdir, folder), dict(left)) for folder in ("case/sub0", "case/sub1", "case")]


def unlink(path: str, top: Path) -> None:
    (top / path).unlink()


def rmdir(path: str, top: Path) -> None:
    (top / path).rmdir()


WORKS = {
    "editor": Work(
        {"f": OLD},
        [Step(save_as_editors_do, {"f": NEW})],
        ["renamed", "6-stored", "7-confirmed"],  # after "5-uploaded" it is in doubt, and confirmed much later
    ),
    "rename": Work(
        {"a": OLD, "b": b"b"},
        [
            Step(lambda top: os.rename(top / "a", top / "c"), {"c": OLD, "b": b"b"}),
            Step(lambda top: os.rename(top / "c", top / "b"), {"b": OLD}),
        ],
        ["renamed:2", "5-uploaded", "6-stored", "deleted", "delete-kept", "tombstone-retired"],
    ),
    "rename-folder": Work(
        CASE,
        [
            Step(lambda top: (top / "case/fresh").write_bytes(b"fresh"), CASE | {"case/fresh": b"fresh"}),
            Step(lambda top: os.rename(top / "case", top / "moved"), MOVED | {"moved/fresh": b"fresh"}),
        ],
        ["renamed", "5-uploaded:2", "6-stored:3", "deleted", "delete-kept"],
    ),
    "delete": Work(
        CASE | {"kept": b"kept"},
        removal(CASE | {"kept": b"kept"}),
        ["folder-removed:3", "deleted", "delete-kept", "tombstone-retired"],
    ),
    "half-a-delete": Work(
        CASE | {"kept": b"kept"},
        removal(CASE | {"kept": b"kept"}),
        ["unlinked:4", "deleted:2", "delete-kept"],
    ),
    "upload-then-delete": Work(
        {},
        [
            Step(lambda top: (top / "a").write_bytes(OLD), {"a": OLD}),
            Step(lambda top: (top / ".cloudsimfs/flush").write_text("1"), {"a": OLD}),
            Step(lambda top: (top / "a").unlink(), {}),
            Step(lambda top: (top / "b").write_bytes(NEW), {"b": NEW}),
        ],
        ["3-closed:3", "deleted", "delete-kept"],
    ),
}


@pytest.mark.parametrize(("api", "name"), list(zip(itertools.cycle(["v1", "v2"]), WORKS, strict=False)))
def test_work_survives_a_kill_after_each_step(box: Sandbox, mount: MountFactory, name: str) -> None:
    """Killed in the middle of the work, then again and again while its outcome goes to the service."""
    work = WORKS[name]
    box.populate(work.stored)
    box.advance(10)
    versions = box.record_versions()
    m = mount(start=False, ttl=0, write_back=0.05)
    states = [work.stored, *(step.then for step in work.steps)]
    done = 0

    def act() -> None:
        nonlocal done
        for step in work.steps:
            step.act(m.path)
            done += 1

    die_at(m, work.points[0], act)
    allowed = states[done : done + 2]  # the last action's answer may have been lost
    for point in work.points[1:]:
        die_at(m, point, lambda: None)
    m.start()
    assert read_tree(m.path) in allowed
    assert m.settle() in allowed
    closed = {(path, data) for state in states for path, data in state.items()}
    assert set(versions) <= closed
