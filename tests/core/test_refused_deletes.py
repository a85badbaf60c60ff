"""Deletes that the service refuses, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from cloudsimfs.clock import SystemClock
from cloudsimfs.errors import TryAgain
from cloudsimfs.inode import Inode, LocalAttr
from cloudsimfs.sandbox import Sandbox
from cloudsimfs.vfs.filesystem import FileSystem
from cloudsimfs.writeback import deletes
from harness import patient, wait_until
from world import storage_side


class MovingClock(SystemClock):
    """The machine's clock, which a test can move forward."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


@pytest.fixture
def clock() -> MovingClock:
    return MovingClock()


@pytest.fixture
def files(
    box: Sandbox, tmp_path: Path, clock: MovingClock, api: Literal["v1", "v2"], monkeypatch: pytest.MonkeyPatch
) -> Iterator[FileSystem]:
    """The storage side of a mount without a kernel above it."""
    monkeypatch.setattr(deletes, "DELETE_DELAY", 0.2)
    with storage_side(box, tmp_path / "cache", api, clock) as made:
        yield made


def names(files: FileSystem) -> list[str]:
    return sorted(name for name, _ in files.tree.readdir(""))


def test_refused_deletes_do_not_cost_the_hours_calls(box: Sandbox, files: FileSystem, clock: MovingClock) -> None:
    box.populate({f"f{number}": b"" for number in range(10)} | {"kept": b""})
    box.faults.add("delete", "status", status=400)
    names(files)
    box.calls.reset()
    for number in range(10):
        files.unlink(f"f{number}")
    wait_until(lambda: all(job.error for job in files.writeback.pending()), "all have been tried")
    counts = box.calls.counts()
    assert counts["delete"] == 10
    assert counts["list"] + counts["list-all"] < 10, "one look answers for several"
    assert all(job.due - clock.monotonic() > 50 for job in files.writeback.pending()), "again in minutes"
    assert names(files) == ["kept"]
    box.faults.clear()
    files.writeback.drain(timeout=patient(30))
    assert box.paths() == ["kept"]


def test_a_delete_that_stays_refused_is_given_up(box: Sandbox, files: FileSystem, clock: MovingClock) -> None:
    box.populate({"f": b"f", "d/x": b"x"})
    fault = box.faults.add("delete", "status", status=400, body="it is locked")
    names(files)
    files.tree.readdir("d")
    files.unlink("f")
    files.unlink("d/x")
    files.rmdir("d")
    for _ in range(2):
        with pytest.raises(TryAgain, match="it is locked"):
            files.writeback.drain(timeout=patient(30))
        wait_until(lambda: all(job.error for job in files.writeback.pending()), "all have been tried")
        assert names(files) == []
        clock.ahead += 400.0
    files.writeback.drain(timeout=patient(30))
    assert names(files) == ["d", "f"]
    assert [name for name, _ in files.tree.readdir("d")] == ["x"]
    assert sorted(files.writeback.deletes.given_up()) == ["d", "f"]
    assert list(files.journal.tombstones()) == []
    box.faults.remove(fault)
    files.unlink("f")
    files.writeback.drain(timeout=patient(30))
    assert (box.paths(), list(files.writeback.deletes.given_up())) == (["d/x"], ["d"])


def test_an_upload_that_is_refused_keeps_no_delete_from_being_sent_again(box: Sandbox, files: FileSystem) -> None:
    """`flush` sends the rest at once, and then says what was refused."""
    box.populate({"f": b"f", "kept": b"kept"})
    fault = box.faults.add("delete", "status", status=400)
    names(files)
    files.unlink("f")
    wait_until(lambda: all(job.error for job in files.writeback.pending()), "it has been tried")
    refused = Inode("refused", is_dir=False, entry=None, attr=LocalAttr())
    files.writeback.refusals.add(refused, "/refused: others have replaced it")
    box.faults.remove(fault)
    with pytest.raises(TryAgain, match="others have replaced it"):
        files.writeback.drain(timeout=patient(30))
    assert box.paths() == ["kept"]
    assert not files.writeback.pending()


@pytest.mark.parametrize("api", ["v2"])
def test_a_refused_delete_of_what_is_gone_is_done(box: Sandbox, files: FileSystem) -> None:
    """v2 refuses an unknown id like anything else."""
    box.populate({"f": b"f", "g": b"g"})
    names(files)
    files.unlink("f")
    box.remove("f")
    box.faults.add("delete", "status", status=403, body='{"errors": ["A technical problem has occurred."]}')
    files.writeback.drain(timeout=patient(30))
    wait_until(lambda: not files.writeback.pending(), "the job has ended too")
