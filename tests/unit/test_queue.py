"""The queue of jobs by itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from cloudsimfs.clock import ManualClock, SystemClock
from cloudsimfs.errors import ServerFault
from cloudsimfs.writeback import queue as work_queue
from cloudsimfs.writeback.queue import Job, WorkQueue
from harness import patient, wait_until


@pytest.fixture
def queue() -> Iterator[WorkQueue]:
    made = WorkQueue(clock=SystemClock(), workers=1, name="test")
    yield made
    made.stop(timeout=5)


def test_a_job_that_fails_for_days_does_not_end_the_workers(
    queue: WorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_queue, "LAST_RETRY", 0.0)
    monkeypatch.setattr(work_queue.log, "warning", lambda *_: None)
    failures, done = 1100, threading.Event()

    def fails(job: Job) -> None:
        if job.attempts < failures:
            raise ServerFault("no")

    queue.start({"fails": fails, "ends": lambda job: done.set()})
    queue.put(Job("fails", "a"), delay=0.0)
    wait_until(lambda: not queue.pending(), "it ends well at last")
    queue.put(Job("ends", "b"), delay=0.0)
    assert done.wait(patient(5)), "no worker is left"


def test_an_end_waits_once_for_all_that_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stuck = ManualClock(), threading.Event()
    queue = WorkQueue(clock=clock, workers=8, name="test")

    def hang(_: Job) -> None:
        stuck.wait()

    queue.start({"hangs": hang})
    for number in range(8):
        queue.put(Job("hangs", f"{number}"), delay=0.0)
    wait_until(lambda: all(job.running for job in queue.pending()), "all are stuck")
    started = clock.monotonic()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "join", lambda _, timeout: clock.advance(timeout))
        queue.stop(timeout=5)
    stuck.set()
    assert clock.monotonic() - started == 5


# -- who waits for whom ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "whole_folder", "second", "second_whole", "waits"),
    [
        ("d/f", False, "d/f", False, True),
        ("d/f", False, "d/g", False, False),
        ("d", True, "d/e/f", False, True),
        ("d", False, "d/f", False, True),
        ("d/e/f", False, "d", True, True),
        ("d/e/f", False, "d", False, False),
        ("de/f", False, "d", True, False),
    ],
)
def test_jobs_of_one_path_come_one_after_the_other(
    first: str, whole_folder: bool, second: str, second_whole: bool, waits: bool
) -> None:
    """And nothing runs below a folder that a job has as a whole."""
    queue = WorkQueue(clock=SystemClock(), workers=2, name="test")
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def hold(_: Job) -> None:
        begun.set()
        assert go_on.wait(patient(20))

    queue.start({"upload": hold, "delete": lambda _: ended.set()})

    try:
        queue.put(Job("upload", first, whole_folder=whole_folder), delay=0.0)
        assert begun.wait(patient(20))
        queue.put(Job("delete", second, whole_folder=second_whole), delay=0.0)
        assert ended.wait(0.1 if waits else patient(20)) != waits
    finally:
        go_on.set()
    assert ended.wait(patient(20)), "it runs in the end"
    queue.stop(timeout=5)
