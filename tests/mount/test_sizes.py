"""Files whose listing does not tell their size: they are not empty (docs/service.md, "Storage entries")."""

from __future__ import annotations

import errno
import os

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import Mounted, MountFactory, errno_of


@pytest.fixture(params=["size-null", "size-missing"])
def unsized(box: Sandbox, mount: MountFactory, request: pytest.FixtureRequest) -> Mounted:
    box.populate({"log": b"precious\n", "d/deep": b"deep"})
    box.faults.add("list", "odd", variation=request.param)
    box.faults.add("list-all", "odd", variation=request.param)
    return mount()


def test_appending_keeps_what_was_there(box: Sandbox, unsized: Mounted) -> None:
    with open(unsized.path / "log", "ab", buffering=0) as file:
        file.write(b"more\n")
        file.write(b"and more\n")
    unsized.flush()
    assert box.files()["log"] == b"precious\nmore\nand more\n"
    assert (unsized.path / "log").read_bytes() == b"precious\nmore\nand more\n"


def test_what_is_read_is_all_and_costs_one_more_call_once(box: Sandbox, unsized: Mounted) -> None:
    os.stat(unsized.path / "log")
    box.calls.reset()
    for _ in range(3):
        assert (unsized.path / "log").read_bytes() == b"precious\n"
    assert os.stat(unsized.path / "log").st_size == 9
    assert box.calls.counts()["entry"] == 1
    assert box.calls.api_count() == 2


@pytest.mark.parametrize("api", ["v1"])
def test_where_nothing_tells_the_size_the_store_does(box: Sandbox, unsized: Mounted) -> None:
    box.faults.add("entry", "odd", variation="size-null")
    with open(unsized.path / "log", "r+b", buffering=0) as file:
        file.write(b"P")
    unsized.flush()
    assert box.files()["log"] == b"Precious\n"


def test_renaming_keeps_the_bytes(box: Sandbox, unsized: Mounted) -> None:
    (unsized.path / "log").rename(unsized.path / "log.old")
    (unsized.path / "d").rename(unsized.path / "e")
    unsized.flush()
    assert box.files() == {"log.old": b"precious\n", "e/deep": b"deep"}


@pytest.mark.parametrize("api", ["v1"])
def test_without_an_answer_it_is_not_written_to_but_may_be_replaced(box: Sandbox, unsized: Mounted) -> None:
    box.faults.add("entry", "status", status=400)
    assert errno_of(lambda: os.close(os.open(unsized.path / "log", os.O_WRONLY | os.O_APPEND))) != 0
    assert errno_of(lambda: os.truncate(unsized.path / "log", 3)) != 0
    (unsized.path / "log").write_bytes(b"new")
    unsized.flush()
    assert box.files()["log"] == b"new"


@pytest.mark.parametrize("api", ["v1"])
def test_it_is_absent_only_if_no_listing_shows_it(box: Sandbox, unsized: Mounted) -> None:
    """`>>` would replace what is stored."""
    box.faults.add("entry", "status", status=404)
    assert errno_of(lambda: os.open(unsized.path / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)) == errno.EIO
    assert (unsized.path / "log").exists()
    box.remove("log")
    assert errno_of(lambda: os.open(unsized.path / "log", os.O_RDONLY)) == errno.ENOENT
    unsized.flush()
    assert box.files() == {"d/deep": b"deep"}
