"""Failures of the disk below, the clock and long outages, in one process: found by review, one test each."""

from __future__ import annotations

import errno
import os
import socket
import sqlite3
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import wait_until

from cloudsimfs import changes, workqueue
from cloudsimfs.clock import ManualClock, SystemClock
from cloudsimfs.config import Config
from cloudsimfs.errors import BudgetSpent, CloudsimfsError, LaunchUnresolved, NoSpace, ServerFault
from cloudsimfs.journal import Journal
from cloudsimfs.mount import _Files
from cloudsimfs.rename import rename
from cloudsimfs.replay import replay
from cloudsimfs.runs import Runs
from cloudsimfs.sandbox import Sandbox
from cloudsimfs.service import Credentials, LaunchRequest, Simulation, connect
from cloudsimfs.service.budget import Budget, Urgency
from cloudsimfs.workqueue import Job, WorkQueue

WORDS = "cpu=2 ram=standard script=heat2d-1.0 folder=case"


@pytest.fixture
def files(box: Sandbox, tmp_path: Path) -> Iterator[Any]:
    """The storage side of a mount without a kernel above it."""
    stop = threading.Event()
    client = connect(base_url=box.url, key=box.key, api="v1", stop=stop)
    config = Config(box.url, Credentials(None, box.key), tmp_path / "cache", api="v1", write_back=0.0)
    made = _Files(config, client, SystemClock(), on_change=lambda directory, names: None)
    replay(made.tree)
    made.writeback.start()
    yield made
    stop.set()
    made.writeback.stop()
    made.journal.close()
    made.datacache.close()
    made.dcache.close()
    client.close()


def write_file(files: Any, path: str, data: bytes) -> None:
    fh = files.handles.create(path, 0o644, os.O_WRONLY)
    files.handles.write(fh, data, 0)
    files.handles.flush(fh)
    files.handles.release(fh)


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, when: Any = lambda *_: True) -> None:
    """The next call of a method that `when` picks finds the disk full."""
    method, left = getattr(owner, name), [1]

    def failing(*arguments: Any, **named: Any) -> Any:
        if left and when(*arguments):
            left.clear()
            raise NoSpace("the journal cannot be written: disk full")
        return method(*arguments, **named)

    monkeypatch.setattr(owner, name, failing)


def quiet(files: Any) -> bool:
    return not files.writeback.pending()


def test_an_upload_survives_a_full_disk_at_its_start(
    box: Sandbox, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_once(monkeypatch, files.journal, "mark_uploaded")
    write_file(files, "f", b"bytes")
    wait_until(lambda: quiet(files), "nothing is pending any more")
    files.writeback.drain(timeout=10)  # says that all is stored
    assert box.files() == {"f": b"bytes"}


def test_a_renames_delete_survives_a_full_disk_at_the_end_of_the_upload(
    box: Sandbox, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.put("a", b"bytes")
    fail_once(monkeypatch, files.journal, "save_file", lambda row: row.state == "stored")
    rename(files.tree, "a", "b")
    wait_until(lambda: box.files().get("b") == b"bytes", "the new name is stored")
    wait_until(lambda: box.files() == {"b": b"bytes"}, "the old name goes", timeout=8)


def test_a_file_can_be_stored_after_its_close_found_the_disk_full(
    box: Sandbox, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """release(2) cannot commit either; once there is room, the file is written anew and closed well."""
    fh = files.handles.create("f", 0o644, os.O_WRONLY)
    files.handles.write(fh, b"first", 0)
    with monkeypatch.context() as full:
        fail_once(full, files.journal, "save_file", lambda row: row.state == "closed")
        with pytest.raises(NoSpace):
            files.handles.flush(fh)
    with monkeypatch.context() as full:
        fail_once(full, files.journal, "save_file", lambda row: row.state == "closed")
        try:
            files.handles.release(fh)
        except NoSpace:
            pass  # reaches nobody
    fh = files.handles.open("f", os.O_WRONLY | os.O_TRUNC)
    files.handles.write(fh, b"second", 0)
    files.handles.flush(fh)  # the close that succeeds
    files.handles.release(fh)
    files.writeback.drain(timeout=10)
    assert box.files() == {"f": b"second"}


def test_closed_bytes_are_somewhere_after_a_page_answered_their_upload(
    box: Sandbox, files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken for stored, the file is not listed; a quarter of an hour later it is taken for removed by others."""
    box.faults.add("object-put", "html", times=1)
    write_file(files, "f", b"bytes")
    wait_until(lambda: quiet(files), "nothing is pending any more")
    monotonic = SystemClock.monotonic
    monkeypatch.setattr(SystemClock, "monotonic", lambda self: monotonic(self) + 1000.0)
    files.tree.refresh("f")
    files.tree.listing("")
    held = [file.read_bytes() for file in (tmp_path / "cache").rglob("*") if file.is_file() and not file.suffix]
    assert b"bytes" in [*held, *box.files().values()]


def test_what_was_written_before_the_disk_was_full_is_stored(
    box: Sandbox, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that took a part and then found no room fails; what was closed is what was written before it."""
    fh = files.handles.create("f", 0o644, os.O_WRONLY)
    files.handles.write(fh, b"accepted", 0)
    reader = files.handles.open("f", os.O_RDONLY)
    pwrite = os.pwrite
    with monkeypatch.context() as full:
        parts = iter([lambda fd, data, at: pwrite(fd, data[:3], at)])

        def short(fd: int, data: bytes, at: int) -> int:
            part = next(parts, None)
            if part is None:
                raise OSError(errno.ENOSPC, "No space left on device")
            return part(fd, data, at)

        full.setattr(os, "pwrite", short)
        with pytest.raises(OSError, match="No space"):
            files.handles.write(fh, b"refused", 8)
    files.handles.flush(fh)
    files.handles.release(fh)
    wait_until(lambda: quiet(files), "nothing is pending any more")
    assert box.files() == {"f": b"accepted"}
    files.handles.release(reader)


def test_an_unlink_that_reported_a_failure_deletes_nothing(box: Sandbox, files: Any) -> None:
    box.put("f", b"bytes")
    files.journal._db.execute("PRAGMA query_only=1")  # every write of the journal fails
    with pytest.raises(CloudsimfsError):
        changes.unlink(files.tree, "f")
    files.journal._db.execute("PRAGMA query_only=0")
    wait_until(lambda: quiet(files), "nothing is pending any more")
    assert box.files() == {"f": b"bytes"}


def test_a_closed_journal_is_an_error_of_ours(tmp_path: Path) -> None:
    """What ends late at an unmount must not die of an AttributeError."""
    journal = Journal(tmp_path / "journal.db")
    journal.close()
    with pytest.raises((CloudsimfsError, sqlite3.Error)):
        journal.drop_folder("d")


def test_a_job_that_fails_for_days_does_not_end_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """One refused delete, tried again every five minutes, or at every `flush`."""
    monkeypatch.setattr(workqueue, "LAST_RETRY", 0.0)
    monkeypatch.setattr(workqueue.log, "warning", lambda *_: None)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    failures, done = 1100, threading.Event()

    def fails(job: Job) -> None:
        if job.attempts < failures:
            raise ServerFault("no")

    queue = WorkQueue(clock=SystemClock(), workers=1, name="test")
    queue.start()
    try:
        queue.put(Job("delete", "a", fails), delay=0.0)
        wait_until(lambda: not queue.pending() or not queue._threads[0].is_alive(), "it ends, well or not")
        queue.put(Job("upload", "b", lambda job: done.set()), delay=0.0)
        assert done.wait(5), "no worker is left"
    finally:
        queue.stop(timeout=5)


class _NoRuns:
    """A service whose every launch is lost on its way there."""

    def __init__(self) -> None:
        self.arrives = False
        self.answers = True
        self.runs: list[Simulation] = []

    def cpu_values(self) -> tuple[str, ...]:
        return ("2",)

    def ram_values(self) -> tuple[str, ...]:
        return ("standard",)

    def scripts(self) -> tuple[str, ...]:
        return ("heat2d-1.0",)

    def simulations(self) -> list[Simulation]:
        if not self.answers:
            self.answers = True
            raise ServerFault("no list just now")
        return self.runs

    def launch(self, request: LaunchRequest) -> int:
        if not self.arrives:
            raise LaunchUnresolved("connection reset")
        self.runs.append(Simulation(7, 20, request.script, int(request.cpu), request.ram, request.folder))
        return 7


class _Anything:
    def storage_path(self, text: str) -> str:
        return text

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def test_a_launch_that_never_arrived_does_not_block_its_folder_for_ever(tmp_path: Path) -> None:
    """A day later the list of runs is still without it: it started nothing."""
    clock, client = ManualClock(), _NoRuns()
    journal = Journal(tmp_path / "journal.db")
    runs = Runs(client, _Anything(), journal, ttl=15.0, clock=clock)  # type: ignore[arg-type]
    with pytest.raises(CloudsimfsError):
        runs.launch(WORDS)
    client.arrives = True
    clock.advance(24 * 3600.0)
    try:
        runs.launch(WORDS)  # may still have to say that the first is settled now
    except CloudsimfsError:
        pass
    assert runs.launch(WORDS) == 7
    journal.close()


def test_a_run_that_others_started_is_not_taken_for_a_lost_launch(tmp_path: Path) -> None:
    """The list taken before the POST is an old one, because the service did not answer: it proves nothing."""
    clock, client = ManualClock(), _NoRuns()
    journal = Journal(tmp_path / "journal.db")
    runs = Runs(client, _Anything(), journal, ttl=15.0, clock=clock)  # type: ignore[arg-type]
    runs.all()
    clock.advance(3600.0)
    client.runs = [Simulation(5, 30, "heat2d-1.0", 2, "standard", "case")]  # by the web page, meanwhile
    client.answers = False
    with pytest.raises(CloudsimfsError):
        runs.launch(WORDS)
    journal.close()


class _JumpingClock(ManualClock):
    """The wall clock is set back, as by NTP after a start with a wrong clock; `monotonic` goes on."""

    behind = 0.0

    def now(self) -> float:
        return super().now() - self.behind


def test_a_clock_set_back_does_not_stop_all_calls_for_days() -> None:
    clock = _JumpingClock()
    budget = Budget(clock, threading.Event())
    spent = {"x-ratelimit-hourly-limit": "100", "x-ratelimit-hourly-used": "100"}
    budget.settle(budget.acquire(Urgency.NORMAL), spent)
    clock.behind = 3 * 86400.0
    clock.advance(2 * 3600.0)
    try:
        budget.acquire(Urgency.NORMAL)
    except BudgetSpent as error:
        pytest.fail(f"two hours later: {error}")


def test_a_launch_lost_behind_a_proxy_is_unresolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy takes the whole POST, may well have passed it on, and resets the connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    received = bytearray()

    def proxy() -> None:
        connection, _ = listener.accept()
        while b"}}" not in received:
            received.extend(connection.recv(65536))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()  # RST

    thread = threading.Thread(target=proxy)
    thread.start()
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{listener.getsockname()[1]}")
    monkeypatch.delenv("no_proxy", raising=False)
    with connect(base_url="http://sim.example", key="k" * 16, api="v1") as client:
        try:
            client.launch(LaunchRequest("2", "standard", "heat2d-1.0", "case"))
        except CloudsimfsError as error:
            found = error
    thread.join()
    listener.close()
    assert received.startswith(b"POST http://sim.example/api/v1/simulation ")
    assert isinstance(found, LaunchUnresolved), (
        f"{found!r}: taken for never sent, so the row goes and it may go again"
    )


def test_a_launch_answered_by_v2s_catch_all_failure_is_unresolved(box: Sandbox) -> None:
    """v2 says this whatever went wrong (service-observed.md, "Envelopes"), so also after it has started the run."""
    body = '{"errors": ["A technical problem has occurred, try again later."]}'
    box.faults.add("launch", "status", status=403, body=body)
    with connect(base_url=box.url, key=box.key, api="v2") as client, pytest.raises(LaunchUnresolved):
        client.launch(LaunchRequest("2", "standard", "heat2d-1.0", "case"))
