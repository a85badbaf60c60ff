"""A day's work on a free account: it fits the calls of one hour (docs/architecture.md, "Costs", row 16)."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import MountFactory, wait_until
from moving import Ahead
from runs_harness import LONG, WORDS

LIMIT = 100  # API calls an hour
MIB = 1 << 20
FILES = LONG | {f"case/mesh/{number}": b"m" * 500 for number in range(60 - len(LONG))}


def read_some(file: Path, blocks: Iterable[int]) -> None:
    with open(file, "rb", buffering=0) as stream:
        for _ in blocks:
            assert stream.read(MIB) == bytes(MIB)


@pytest.mark.parametrize("api", ["v1"])
def test_a_working_day_fits_an_hours_calls(box: Sandbox, mount: MountFactory, tmp_path: Path) -> None:
    box.settings.hourly_limit = LIMIT
    box.populate({f"study/{folder}/{number}.dat": b"x" for folder in range(20) for number in range(50)})
    box.put_sparse("archive/result.bin", 1024 * MIB)
    clock = Ahead(tmp_path / "ahead")
    m = mount(write_back=2, program=clock.program)
    control, run = m.path / ".simulations", m.path / ".simulations/latest/case"

    for folder in range(20):  # at a person's pace
        assert sum(entry.stat().st_size for entry in os.scandir(m.path / f"study/{folder}")) == 50
        clock.move(2.0)

    for name, data in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    shutil.copytree(tmp_path / "case", m.path / "case")
    (control / "launch").write_text(WORDS)

    with subprocess.Popen(["tail", "-f", run / "log"], stdout=subprocess.PIPE) as follower:
        for _ in range(60):  # half an hour
            assert (run / "status").read_text() in ("PENDING\n", "RUNNING\n")
            clock.move(30.0)
            time.sleep(0.05)  # the run and `tail` go on meanwhile; nothing depends on how far they come
        follower.terminate()
    (run / "sync").write_text("1")
    wait_until(lambda: any((m.path / "case/results").glob("*.vtk")), "the results arrive")

    read_some(m.path / "archive/result.bin", range(200))
    for number in range(5):
        (m.path / f"study/0/{number}.dat").write_bytes(b"edited")
    m.flush()

    (run / "stop").write_text("soft")

    def has_stopped() -> bool:
        clock.move(1.0)
        return (run / "status").read_text() == "STOPPED\n"

    wait_until(has_stopped, "the run has stopped")
    shutil.rmtree(m.path / "case")
    m.flush()
    assert not [path for path in box.paths() if path.startswith("case/")]
    assert box.calls.api_count() <= LIMIT, box.calls.counts()
