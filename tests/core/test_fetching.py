"""Fetching without a mount: connections that die or crawl, in a time a test can wait for."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cloudsimfs.datacache.cache import DataCache
from cloudsimfs.datacache.content import UPLOAD_BLOCK, Content
from cloudsimfs.errors import Cancelled, CloudsimfsError, NoSpace, ServiceError, Stale
from cloudsimfs.host import disk
from cloudsimfs.prefetch import fetcher
from cloudsimfs.prefetch.source import Source
from cloudsimfs.sandbox import Sandbox
from cloudsimfs.service import Retry, Timeouts, connect
from harness import patient, wait_until

DATA = random.Random(8).randbytes(6_000_000)


@pytest.fixture
def content(box: Sandbox, tmp_path: Path) -> Iterator[Content]:
    """The content of `f`, open."""
    box.put("f", DATA)
    timeouts, retry = Timeouts(data=0.5), Retry(attempts=2, base=0.01)
    client = connect(base_url=box.url, key=box.key, api="v1", timeouts=timeouts, retry=retry)
    cache = DataCache(tmp_path / "cache", limit=1 << 30, client=client)
    [entry] = client.list_directory(0, "").entries
    content = cache.for_entry(entry)
    content.acquire()
    yield content
    content.release()
    cache.close()
    client.close()
    for thread in threading.enumerate():
        if thread.name == "fetch":
            thread.join(timeout=patient(20))


def test_a_connection_that_hangs_is_given_up_and_tried_again(box: Sandbox, content: Content) -> None:
    fault = box.faults.add("object-get", "hang", times=1)
    assert content.read(1_000_000, 5000) == DATA[1_000_000:1_005_000]
    assert fault.fired == 1


def test_after_a_long_wait_for_nothing_the_next_reader_does_not_wait(
    box: Sandbox, content: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel sends the readers of one page one after another."""
    box.faults.add("object-get", "hang")
    monkeypatch.setattr(fetcher, "LONG_WAIT", 0.1)
    monkeypatch.setattr(fetcher, "SOON", 1000.0)
    with pytest.raises(ServiceError):
        content.read(0, 5000)
    with pytest.raises(ServiceError) as failure:
        content.read(0, 5000, lambda: True)
    assert not isinstance(failure.value, Cancelled), "it has waited"
    monkeypatch.setattr(fetcher, "SOON", 0.0)
    box.faults.clear()
    assert content.read(0, 5000) == DATA[:5000]


def test_an_object_that_is_not_found_once_is_asked_for_by_another_link(box: Sandbox, content: Content) -> None:
    """What is gone costs no further calls, however often it is read."""
    box.faults.add("object-get", "status", status=404, times=1)
    assert content.read(0, 5000) == DATA[:5000]
    assert box.calls.counts()["download-url"] == 2
    box.faults.add("object-get", "status", status=404)
    for _ in range(3):
        with pytest.raises(Stale):
            content.read(5_000_000, 5000)
    assert box.calls.counts()["download-url"] == 2


def test_a_bug_while_fetching_is_an_error(content: Content, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a read that is tried again for ever."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Source, "open", broken)
    with pytest.raises(ServiceError, match="a bug"):
        content.read(0, 5000)


def test_a_dead_connection_is_an_error_at_last(box: Sandbox, content: Content) -> None:
    fault = box.faults.add("object-get", "hang")
    with pytest.raises(ServiceError) as failure:
        content.read(0, 5000)
    assert failure.value.errno == errno.EIO
    box.faults.remove(fault)
    assert content.read(0, 5000) == DATA[:5000]


def test_a_connection_that_stops_in_the_middle_goes_on_from_there(box: Sandbox, content: Content) -> None:
    box.faults.add("object-get", "truncate", times=3)
    content.complete()
    assert content.read(0, len(DATA)) == DATA
    assert sum(call.bytes for call in box.calls.entries("object-get")) <= len(DATA) + 1_000_000


def test_a_read_waits_no_longer_than_nothing_comes(
    box: Sandbox, content: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "READ_STALL", 0.3)
    box.faults.add("object-get", "slow", rate=400_000.0)  # never a pause long enough for a timeout
    with pytest.raises(ServiceError) as failure:
        content.read(1_000_000, 200_000)
    assert failure.value.errno == errno.EIO
    box.faults.clear()


def test_an_interrupted_reader_waits_no_longer(box: Sandbox, content: Content) -> None:
    fault = box.faults.add("object-get", "slow", rate=400_000.0)
    with pytest.raises(Cancelled):
        content.read(1_000_000, 200_000, lambda: True)
    box.faults.remove(fault)


def test_readers_share_what_is_under_way(box: Sandbox, content: Content) -> None:
    box.settings.latency = 0.05
    found: list[bytes | CloudsimfsError] = []

    def read() -> None:
        found.append(content.read(2_000_000, 100_000))

    readers = [threading.Thread(target=read) for _ in range(20)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert found == [DATA[2_000_000:2_100_000]] * 20
    assert box.calls.counts() == {"list": 1, "download-url": 1, "object-get": 1}


def test_what_was_written_meanwhile_is_not_fetched_over(box: Sandbox, content: Content) -> None:
    box.settings.bandwidth = 20e6
    reader = threading.Thread(target=content.complete)
    reader.start()
    assert box.calls.wait(lambda calls: any(call.bytes for call in calls if call.operation == "object-get"))
    content.write(b"mine" * 1000, 3_000_000)
    content.truncate(5_000_000)
    reader.join()
    expected = DATA[:3_000_000] + b"mine" * 1000 + DATA[3_004_000:5_000_000]
    assert content.read(0, len(DATA)) == expected


def test_an_upload_reads_nothing_once_the_file_is_changed(content: Content) -> None:
    """The change is made known before the first byte of it is written."""
    content.complete()
    wanted = iter([True, True, False])
    blocks = content.blocks(lambda: next(wanted))
    assert next(blocks) + next(blocks) == DATA[: 2 * UPLOAD_BLOCK]
    content.write(b"mine", 3_000_000)
    with pytest.raises(Cancelled):
        next(blocks)


@contextmanager
def held_fills(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Fetched bytes are written only when the second event is set; the first tells that some are about to be."""
    reached, go_on, write = threading.Event(), threading.Event(), disk.write_all

    def held(fd: int, data: memoryview, offset: int) -> None:
        if threading.current_thread().name == "fetch":
            reached.set()
            assert go_on.wait(patient(10))
        write(fd, data, offset)

    monkeypatch.setattr("cloudsimfs.datacache.sparsefile.write_all", held)
    try:
        yield reached, go_on
    finally:
        go_on.set()


def test_a_write_waits_for_the_fill_below_it(content: Content, monkeypatch: pytest.MonkeyPatch) -> None:
    with held_fills(monkeypatch) as (reached, go_on):
        reader = threading.Thread(target=content.read, args=(0, 65536))
        reader.start()
        assert reached.wait(patient(10))
        writer = threading.Thread(target=content.write, args=(b"mine", 1000))
        writer.start()
        content.write(b"mine", len(DATA) - 4)  # elsewhere nothing waits
        writer.join(0.1)
        assert writer.is_alive()
        go_on.set()
        for thread in (reader, writer):
            thread.join()
    assert content.read(0, 2000) == DATA[:1000] + b"mine" + DATA[1004:2000]


def test_a_fill_keeps_the_descriptor_of_a_closed_file(content: Content, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its number could be another file's by the time the bytes are written."""

    def is_open() -> bool:
        return any(os.readlink(each.path) == str(content.backing) for each in os.scandir("/proc/self/fd"))

    with held_fills(monkeypatch) as (reached, go_on):
        with pytest.raises(Cancelled):
            content.read(0, 65536, lambda: True)
        assert reached.wait(patient(10))
        content.release()
        assert is_open()
        go_on.set()
        wait_until(lambda: not is_open(), "the descriptor is closed")
    content.acquire()
    assert content.read(0, 65536) == DATA[:65536]


def test_the_cache_counts_what_is_on_its_way(box: Sandbox, tmp_path: Path) -> None:
    """The limit is one: bytes about to be kept are not on the disk yet, and taken all the same."""
    client = connect(base_url=box.url, key=box.key, api="v1")
    cache = DataCache(tmp_path / "cache", limit=1 << 20, client=client)
    with cache.reserve(600_000), pytest.raises(NoSpace), cache.reserve(600_000):
        pass
    with cache.reserve(600_000):  # nothing was kept
        pass
    cache.close()
    client.close()
