"""Reading through a real mount: the right bytes by every way of asking, on bad networks, and what that may cost."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import Mounted, MountFactory, errno_of, moved, patient, run, wait_until

pytestmark = pytest.mark.parametrize("api", ["v1"])  # the bytes do not come over the API

MIB = 1 << 20
DATA = random.Random(5).randbytes(24 * MIB + 12345)
HASH = hashlib.sha256(DATA).hexdigest()
MAPPED = """
import hashlib, mmap, sys
with open(sys.argv[1], "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
    print(hashlib.sha256(mapped).hexdigest())
"""


def traffic(box: Sandbox, action: Callable[[], object]) -> Counter[str]:
    """The requests an action makes, those for ranges too, by operation."""
    box.calls.reset()
    action()
    return box.calls.counts()


def resident_peak(m: Mounted) -> int:
    """Bytes the daemon had resident at most."""
    for line in Path(f"/proc/{m.pids[0]}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmHWM")


def bytes_read_by_daemon(m: Mounted) -> int:
    """What the daemon has read from files and sockets so far: pages the kernel has do not show there."""
    return int(Path(f"/proc/{m.pids[0]}/io").read_text().split()[1])


# -- the right bytes -----------------------------------------------------------------------------------------


def read_sequentially(file: Path) -> None:
    digest = hashlib.sha256()
    with open(file, "rb", buffering=0) as stream:
        while block := stream.read(300_000):
            digest.update(block)
    assert digest.hexdigest() == HASH


def read_randomly(file: Path) -> None:
    dice = random.Random(threading.get_ident())
    with open(file, "rb", buffering=0) as stream:
        for _ in range(60):
            offset, length = dice.randrange(len(DATA)), dice.choice([1, 4096, 100_000, 1_000_000])
            assert os.pread(stream.fileno(), length, offset) == DATA[offset : offset + length]


def read_mapped(file: Path) -> None:
    assert run(sys.executable, "-c", MAPPED, file).strip() == HASH


def read_directly(file: Path) -> None:
    digest, buffer = hashlib.sha256(), mmap.mmap(-1, MIB)
    fd = os.open(file, os.O_RDONLY | os.O_DIRECT)
    try:
        position = 0
        while count := os.preadv(fd, [buffer], position):
            digest.update(buffer[:count])
            position += count
    finally:
        os.close(fd)
        buffer.close()
    assert digest.hexdigest() == HASH


def read_by_eight(file: Path) -> None:
    failures: list[BaseException] = []

    def reader(read: Callable[[Path], None]) -> None:
        try:
            read(file)
        except BaseException as error:  # noqa: BLE001  it is raised below
            failures.append(error)

    readers = [threading.Thread(target=reader, args=(read,)) for read in (read_sequentially, read_randomly) * 4]
    for thread in readers:
        thread.start()
    for thread in readers:
        thread.join()
    if failures:
        raise failures[0]


WAYS = [read_sequentially, read_randomly, read_mapped, read_directly, read_by_eight]


@pytest.mark.parametrize("read", WAYS)
def test_every_way_of_reading(box: Sandbox, mount: MountFactory, read: Callable[[Path], None]) -> None:
    box.put("f", DATA)
    m = mount()
    found = traffic(box, lambda: read(m.path / "f"))
    assert found["download-url"] == 1
    assert moved(box) <= len(DATA) + MIB, "readers share what they fetch"
    read(m.path / "f")


FAULTS: list[tuple[str, dict[str, Any]]] = [
    ("reset", {"times": 5, "probability": 0.5}),
    ("truncate", {"times": 5, "probability": 0.5}),
    ("truncate", {"times": 3, "amount": 0}),
    ("slow", {"times": 3, "rate": 2e6}),
    ("status", {"times": 2, "status": 500}),
    ("status", {"times": 2, "status": 503, "retry_after": 0}),
    ("expired", {"times": 1}),
    ("expired", {"times": 1, "status": 400}),
    ("html", {"times": 2}),
    ("odd", {"variation": "ignore-range"}),
    ("odd", {"times": 3, "variation": "ignore-range"}),
    ("odd", {"times": 3, "variation": "shifted-range"}),
    ("odd", {"variation": "no-etag"}),
]


@pytest.mark.parametrize("read", [read_sequentially, read_randomly])
def test_a_bad_connection_costs_no_byte(box: Sandbox, mount: MountFactory, read: Callable[[Path], None]) -> None:
    for number in range(len(FAULTS)):
        box.put(f"f{number}", DATA)
    m = mount()
    for number, (kind, values) in enumerate(FAULTS):
        print(kind, values)  # for whom this fails
        fault = box.faults.add("object-get", kind, **values)
        read(m.path / f"f{number}")
        assert fault.fired
        box.faults.clear()
        read_sequentially(m.path / f"f{number}")


def test_a_broken_object_is_an_error_of_its_readers_alone(box: Sandbox, mount: MountFactory) -> None:
    broken: list[tuple[str, dict[str, Any]]] = [
        ("truncate", {"amount": 0}),
        ("status", {"status": 403}),
        ("html", {}),
        ("odd", {"variation": "shifted-range"}),
    ]
    for kind, _ in broken:
        box.put(kind, DATA)
    box.put("whole", DATA)
    m = mount()
    for kind, values in broken:
        box.faults.add("object-get", kind, path=kind, **values)
        assert errno_of((m.path / kind).read_bytes) == errno.EIO, kind
    read_sequentially(m.path / "whole")
    box.faults.clear()
    for kind, _ in broken:
        read_sequentially(m.path / kind)


def test_a_dead_connection_blocks_nobody_else_and_can_be_interrupted(box: Sandbox, mount: MountFactory) -> None:
    box.put("f", DATA)
    box.put("other", DATA)
    m = mount()
    box.faults.add("object-get", "hang", path="f")
    cached = (
        "import os, signal, sys; signal.signal(2, signal.SIG_DFL); os.read(os.open(sys.argv[1], os.O_RDONLY), 4096)"
    )
    direct = "import os, sys; os.preadv(os.open(sys.argv[1], os.O_DIRECT), [__import__('mmap').mmap(-1, 4096)], 0)"
    for script in (cached, direct):
        box.calls.reset()
        reader = subprocess.Popen([sys.executable, "-c", script, m.path / "f"], stderr=subprocess.DEVNULL)
        try:
            if script is cached:
                assert box.calls.wait(lambda calls: any(call.operation == "object-get" for call in calls))
            read_sequentially(m.path / "other")
            assert sorted(set(os.listdir(m.path)) - {".simulations", ".cloudsimfs"}) == ["f", "other"]
            assert reader.poll() is None
            reader.send_signal(signal.SIGINT)
            reader.wait(timeout=patient(40))
        finally:
            reader.kill()
            reader.wait()
    box.faults.clear()
    read_sequentially(m.path / "f")


def test_an_expired_link_is_renewed_once_for_all(box: Sandbox, mount: MountFactory) -> None:
    box.put("f", DATA)
    m = mount()
    with open(m.path / "f", "rb", buffering=0) as file:
        assert file.read(100) == DATA[:100]
        box.advance(box.settings.link_seconds + 1)
        found = traffic(box, lambda: read_by_eight(m.path / "f"))
    assert found["download-url"] == 1


def test_replaced_while_open_is_stale_beyond_what_is_cached(box: Sandbox, mount: MountFactory) -> None:
    box.put("f", DATA)
    m = mount(ttl=0)
    with open(m.path / "f", "rb", buffering=0) as file:
        assert os.pread(file.fileno(), 1000, 0) == DATA[:1000]
        box.advance(10)
        box.put("f", bytes(len(DATA)))
        assert errno_of(lambda: os.pread(file.fileno(), 1000, 20 * MIB)) == errno.ESTALE
        assert os.pread(file.fileno(), 1000, 0) == DATA[:1000]
        wait_until(lambda: (m.path / "f").read_bytes() == bytes(len(DATA)), "who opens it anew has the new one")
        assert os.pread(file.fileno(), 1000, 0) in (DATA[:1000], bytes(1000))


def test_replaced_within_a_second_is_never_mixed(box: Sandbox, mount: MountFactory) -> None:
    """Same size, same second: only the ETag tells the two apart."""
    box.put("f", DATA)
    m = mount(ttl=3600)
    with open(m.path / "f", "rb", buffering=0) as file:
        assert os.pread(file.fileno(), 1000, 0) == DATA[:1000]
        box.put("f", bytes(len(DATA)))
        assert errno_of(lambda: os.pread(file.fileno(), 1000, 20 * MIB)) == errno.ESTALE
    wait_until(lambda: (m.path / "f").read_bytes() == bytes(len(DATA)), "the new one is read")


@pytest.mark.parametrize("length", [3 * MIB - 7, len(DATA) + 200_000])
def test_a_cached_file_replaced_by_one_of_another_length_is_not_read_cut_or_padded(
    box: Sandbox, mount: MountFactory, length: int
) -> None:
    """The kernel has one size for all who have a file open, the new one's: beyond it, it asks nobody."""
    box.put("f", DATA)
    m = mount(ttl=3600)
    assert (m.path / "f").read_bytes() == DATA
    with open(m.path / "f", "rb", buffering=0) as file:
        found = file.read(1000)
        box.advance(10)
        box.put("f", bytes(length))
        (m.path / ".cloudsimfs/refresh").write_text("f")
        wait_until(lambda: (m.path / "f").stat().st_size == length, "the new one is listed")

        def read_on() -> None:
            nonlocal found
            while block := file.read(MIB):
                found += block

        assert errno_of(read_on) == errno.ESTALE
    assert found == DATA[: len(found)]


# -- the kernel's page cache ---------------------------------------------------------------------------------


def test_what_was_read_is_read_from_the_page_cache(box: Sandbox, mount: MountFactory) -> None:
    box.put("f", DATA)
    m = mount(ttl=3600)
    read_sequentially(m.path / "f")
    before = bytes_read_by_daemon(m)
    read_sequentially(m.path / "f")
    assert bytes_read_by_daemon(m) - before < MIB
    box.advance(10)
    box.put("f", DATA[::-1])
    (m.path / ".cloudsimfs/refresh").write_text("f")
    assert (m.path / "f").read_bytes() == DATA[::-1]


def test_the_page_cache_has_what_was_written(box: Sandbox, mount: MountFactory) -> None:
    box.put("f", DATA)
    m = mount()
    read_sequentially(m.path / "f")
    data = bytearray(DATA)
    for number in range(3):
        with open(m.path / "f", "r+b") as file:
            file.seek(number * 5000)
            file.write(b"written")
        data[number * 5000 : number * 5000 + 7] = b"written"
        assert (m.path / "f").read_bytes() == data
    m.flush()
    assert (m.path / "f").read_bytes() == data
    os.rename(m.path / "f", m.path / "g")
    (m.path / "f").write_bytes(b"another")
    assert (m.path / "f").read_bytes() == b"another"
    assert (m.path / "g").read_bytes() == data
    os.rename(m.path / "g", m.path / "f")
    assert (m.path / "f").read_bytes() == data


# -- what it costs -------------------------------------------------------------------------------------------


def test_a_sequential_read_costs_its_bytes_and_one_call(box: Sandbox, mount: MountFactory) -> None:
    box.put_sparse("f", 256 * MIB)
    m = mount()
    os.listdir(m.path)
    box.settings.latency = 0.02
    found = traffic(box, lambda: run("cat", m.path / "f"))
    assert found["download-url"] == 1
    wait_until(lambda: moved(box) == 256 * MIB, "the service has noted what it sent")
    assert found["object-get"] <= 130, "large parts"
    assert resident_peak(m) < 120 * MIB


def test_a_sequential_read_uses_several_connections(box: Sandbox, mount: MountFactory) -> None:
    """A reader that has begun is fetched for over eight connections and more, though none of them answers."""
    box.put_sparse("f", 256 * MIB)
    m = mount()
    with open(m.path / "f", "rb", buffering=0) as stream, ThreadPoolExecutor() as pool:
        assert stream.read(MIB) == bytes(MIB)
        box.faults.add("object-get", "hang")
        rest = pool.submit(stream.read, 64 * MIB)
        try:
            wait_until(lambda: sum(not get.status for get in box.calls.entries("object-get")) >= 8, "eight at once")
        finally:
            box.faults.clear()
        assert rest.result(timeout=patient(30)) == bytes(64 * MIB)


def test_the_tail_of_a_huge_file_costs_little(box: Sandbox, mount: MountFactory) -> None:
    box.put_sparse("f", 4096 * MIB)
    m = mount()
    os.listdir(m.path)
    found = traffic(box, lambda: run("tail", "-c", "65536", m.path / "f"))
    assert found["download-url"] == 1
    assert found.total() <= 5
    assert moved(box) <= MIB


def test_random_reads_cost_at_most_twice_their_bytes(box: Sandbox, mount: MountFactory) -> None:
    box.put_sparse("f", 4096 * MIB)
    m = mount()
    dice = random.Random(3)

    def read() -> None:
        with open(m.path / "f", "rb", buffering=0) as file:
            for _ in range(200):
                assert len(os.pread(file.fileno(), 65536, dice.randrange(4096 * MIB - 65536))) == 65536

    assert traffic(box, read)["download-url"] == 1
    assert moved(box) <= 2 * 200 * (65536 + 4096), "the kernel reads whole pages"
    assert resident_peak(m) < 120 * MIB


def test_a_small_file_comes_in_one_request(box: Sandbox, mount: MountFactory) -> None:
    box.put("f", DATA[: 4 * MIB])
    m = mount()

    def read() -> None:
        with open(m.path / "f", "rb", buffering=0) as file:
            for offset in (3 * MIB, 0, 2 * MIB, 4 * MIB - 5):
                assert os.pread(file.fileno(), 1000, offset) == DATA[offset : min(offset + 1000, 4 * MIB)]

    found = traffic(box, read)
    assert (found["object-get"], found["download-url"]) == (1, 1)
    wait_until(lambda: moved(box) == 4 * MIB, "the service has noted what it sent")


def test_who_stops_reading_stops_fetching(box: Sandbox, mount: MountFactory) -> None:
    box.put_sparse("f", 1024 * MIB)
    m = mount()
    box.settings.bandwidth = 20e6
    with open(m.path / "f", "rb", buffering=0) as file:
        for _ in range(16):
            assert len(file.read(MIB)) == MIB
    looks: list[int] = []

    def is_quiet() -> bool:
        looks.append(moved(box))
        return looks[-10:].count(looks[-1]) == 10  # so many looks saw no byte move

    wait_until(is_quiet, "the connections are dropped")
    assert moved(box) <= 34 * MIB, "at most as much ahead as was read"


@pytest.mark.parametrize("readers", [4])
def test_several_files_read_at_once(box: Sandbox, mount: MountFactory, readers: int) -> None:
    names = [f"{number}" for number in range(readers)]
    for name in names:
        box.put(name, DATA)
    m = mount()
    box.settings.latency = 0.02
    threads = [threading.Thread(target=read_sequentially, args=(m.path / name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert box.calls.counts()["download-url"] == readers
    wait_until(lambda: moved(box) == readers * len(DATA), "the service has noted what it sent")


def test_memmap_slices(box: Sandbox, mount: MountFactory) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    del numpy
    box.put("f", DATA)
    m = mount()
    script = "import numpy, sys; print(int(numpy.memmap(sys.argv[1], 'u1')[20_000_000:20_500_000].sum()))"
    expected = sum(DATA[20_000_000:20_500_000])
    assert int(run(sys.executable, "-c", script, m.path / "f")) == expected
    assert moved(box) <= MIB


def test_a_dataset_slice(box: Sandbox, mount: MountFactory, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("u", data=numpy.arange(8_000_000, dtype="f8"), chunks=(16_384,))
    box.put("f.h5", tmp_path / "f.h5")
    m = mount()
    script = "import h5py, sys; print(h5py.File(sys.argv[1])['u'][5_000_000:5_100_000].sum())"
    assert float(run(sys.executable, "-c", script, m.path / "f.h5")) == sum(range(5_000_000, 5_100_000))
    assert moved(box) <= 2 * 100_000 * 8 + MIB
