"""Browsing is free: what walking, looking and idling cost in calls (docs/architecture.md, "Costs")."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import Mounted, MountFactory, cost, need, read_tree, run, wait_until, write_tree

FOLDERS, FILES, PAGE = 100, 100, 50  # 100 folders of 100 files; v2 lists 50 entries a page
TREE = {f"case/{folder:03}/{number:03}": b"x" * (number % 3) for folder in range(FOLDERS) for number in range(FILES)}
SMALL = {f"case/{folder}/{number}": b"%d" % number for folder in range(5) for number in range(20)}
NONE: dict[str, int] = {}


def find(place: Path) -> int:
    """How many files `find` sees that are not empty."""
    return len(run("find", place, "-type", "f", "-size", "+0").splitlines())


def pages(entries: int) -> int:
    """The v2 calls of one folder: its pages from both ends, and most of them twice."""
    return 2 * max(1, entries // PAGE)


def walk_limit(api: str) -> int:
    """What a cold walk of TREE below `case` may cost (rows 1 and 2)."""
    return 2 if api == "v1" else pages(FOLDERS) + FOLDERS * pages(FILES) + 2


def test_a_cold_walk_and_the_same_walk_warm(box: Sandbox, mount: MountFactory, api: str) -> None:
    """Rows 1, 2 and 3."""
    box.populate(TREE)
    expected = sum(bool(data) for data in TREE.values())
    m = mount(ttl=3600)
    cold = cost(box, lambda: check_equal(find(m.path / "case"), expected))
    assert sum(cold.values()) <= walk_limit(api), cold
    assert cost(box, lambda: check_equal(find(m.path / "case"), expected)) == NONE
    assert cost(box, lambda: run("du", "-s", m.path / "case")) == NONE
    m.remount()
    assert cost(box, lambda: check_equal(find(m.path / "case"), expected)) == NONE


def check_equal(found: int, expected: int) -> None:
    assert found == expected


@pytest.mark.parametrize("api", ["v1"])
def test_a_walk_from_the_top_is_one_call(box: Sandbox, mount: MountFactory) -> None:
    """The mount's own check has listed the root; the rest comes at once."""
    box.populate(SMALL | {"other/x": b"x"})
    m = mount()
    walked = cost(box, lambda: run("find", m.path, "-name", ".simulations", "-prune", "-o", "-type", "f"))
    assert walked == {"list-all": 1}


@pytest.mark.parametrize("api", ["v1"])
def test_warm_stats_and_misses_cost_nothing(box: Sandbox, mount: MountFactory) -> None:
    """Row 13."""
    box.populate(TREE)
    m = mount(ttl=3600)  # so many looks take their time on a busy machine
    assert find(m.path / "case") > 0
    names = list(TREE)

    def look() -> None:
        for _ in range(2):
            for name in names:
                assert os.stat(m.path / name).st_size == len(TREE[name])

    def miss() -> None:
        for number in range(5000):
            assert not os.path.exists(m.path / f"case/{number % FOLDERS:03}/none-{number}")

    assert cost(box, look) == NONE
    assert cost(box, miss) == NONE


def test_browsing_again_costs_nothing(box: Sandbox, mount: MountFactory) -> None:
    """A second look of any kind: `ls`, `df`, completion, names that are not there."""
    need("bash")
    box.populate(SMALL)
    m = mount()
    for folder in range(5):
        os.listdir(m.path / f"case/{folder}")

    def missing() -> None:
        for number in range(1000):
            assert not (m.path / f"case/{number % 5}/none-{number}").exists()

    def complete() -> None:
        found = run("bash", "-c", 'compgen -f "$1/case/3/"', "bash", m.path)
        assert len(found.splitlines()) == 20

    assert cost(box, lambda: run("ls", "-lR", m.path / "case")) == NONE
    assert cost(box, lambda: run("df", m.path / "case/1")) == NONE
    assert cost(box, complete) == NONE
    assert cost(box, missing) == NONE
    assert cost(box, lambda: run("ls", "-la", m.path)) == NONE


def test_remounting_within_the_ttl_lists_nothing(box: Sandbox, mount: MountFactory) -> None:
    box.populate(SMALL)
    m = mount()
    run("find", m.path / "case")

    def again() -> None:
        m.remount()
        assert len(run("find", m.path / "case", "-type", "f").splitlines()) == len(SMALL)
        assert not (m.path / "case/none").exists()

    assert cost(box, again) == NONE


@pytest.mark.parametrize("api", ["v1"])
def test_git_status(box: Sandbox, mount: MountFactory, tmp_path: Path) -> None:
    """The first run reads what it must; from then on nothing."""
    need("git")
    git = ("git", "-c", "user.name=u", "-c", "user.email=u@localhost")
    source = tmp_path / "source"
    write_tree(source, SMALL)
    run(*git, "init", "-q", source)
    run(*git, "add", "-A", cwd=source)
    run(*git, "commit", "-qm", "all", cwd=source)
    box.populate(read_tree(source))
    m = mount()
    # git has no business with a folder that the service cannot hold: the empty ones of a repository
    for name in ("refs/heads", "refs/tags", "objects/info"):
        (m.path / ".git" / name).mkdir(parents=True, exist_ok=True)

    def status() -> str:
        return run(*git, "status", "--porcelain", cwd=m.path, env={"GIT_OPTIONAL_LOCKS": "0"})

    changed = status()
    assert "case" not in changed, changed
    assert cost(box, status) == NONE
    (m.path / "case/1/1").write_bytes(b"changed")
    m.flush()
    assert cost(box, lambda: check_equal(status().count(" M case/1/1"), 1)) == NONE


def test_an_idle_mount_makes_no_calls(box: Sandbox, mount: MountFactory) -> None:
    """Row 15. Everything that could bring about a call later is there: listings that are out of date, a folder in
    which changes are expected, an open file and an open folder, finished uploads and deletes, a run read.

    That none comes in two seconds means none comes in an hour: listings are renewed by readers only, and no timer
    runs but those of pending uploads and deletes, which have ended here.
    """
    box.populate(SMALL)
    m = mount(ttl=0.1)
    read_tree(m.path / "case")
    (m.path / ".cloudsimfs/refresh").write_text("case/1")
    (m.path / "case/1/new").write_bytes(b"new")
    (m.path / "case/2/1").unlink()
    (m.path / "only-here").mkdir()
    (m.path / ".simulations/runs").read_bytes()
    with open(m.path / "case/3/1", "rb"), os.scandir(m.path / "case/3") as folder:
        next(folder)
        m.flush()
        wait_until(lambda: settled(box), "what follows an upload or a delete has been sent")
        box.calls.reset()
        assert not box.calls.wait(lambda calls: any(call.is_api for call in calls), timeout=2.0)


def settled(box: Sandbox) -> bool:
    """Whether every call that was begun has its answer, and none has come for a moment."""
    calls = len(box.calls.entries())
    return not box.calls.wait(lambda now: len(now) > calls, timeout=0.5)


@pytest.mark.parametrize("api", ["v1"])
def test_a_working_day_of_looking_fits_the_hour(box: Sandbox, m: Mounted) -> None:
    """Many programs at once over a tree that none of them has seen: everybody waits for the same few calls."""
    box.populate(SMALL | {f"other/{number}/x": b"x" for number in range(10)})
    (m.path / ".cloudsimfs/refresh").write_text("/")
    look = 'find "$0" -path "$0/.simulations" -prune -o -type f -path "*/case/*" -print | wc -l'
    script = f"for n in 1 2 3 4 5 6; do {look} & done; wait"
    found: list[str] = []
    walked = cost(box, lambda: found.append(run("sh", "-c", script, m.path)))
    assert [int(line) for line in found[0].splitlines()] == 6 * [len(SMALL)]
    assert sum(walked.values()) <= 4, walked
