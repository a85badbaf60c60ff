"""What was read stays on disk: across remounts and kills, within its limit, and never as other bytes than it was."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from pathlib import Path

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import Mounted, MountFactory, cloudsimfs, errno_of, wait_until

CLOCK_REALTIME_COARSE = 5  # linux/time.h

pytestmark = pytest.mark.parametrize("api", ["v1"])  # the bytes do not come over the API

MIB = 1 << 20
DATA = random.Random(6).randbytes(12 * MIB + 777)


def transfers(box: Sandbox) -> int:
    """Downloads and their links since the log was reset."""
    counts = box.calls.counts()
    return counts["object-get"] + counts["download-url"]


def data_dir(m: Mounted) -> Path:
    [found] = m.cache.glob("*/data")
    return found


def on_disk(m: Mounted) -> int:
    return sum(file.stat().st_blocks * 512 for file in data_dir(m).iterdir())


# -- across mounts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["remount", "crash"])
def test_what_was_read_is_not_fetched_again(box: Sandbox, mount: MountFactory, end: str) -> None:
    files = {"large": DATA, "small": b"small", "empty": b"", "d/deep": DATA[:100_000]}
    box.populate(files)
    m = mount(ttl=3600)
    for _ in range(2):
        for name, data in files.items():
            assert (m.path / name).read_bytes() == data
        m.remount() if end == "remount" else m.crash()
        box.calls.reset()
    for name, data in files.items():
        assert (m.path / name).read_bytes() == data
    assert transfers(box) == 0


def test_parts_are_kept_as_parts(box: Sandbox, mount: MountFactory) -> None:
    box.put("f", DATA)
    m = mount(ttl=3600)
    parts = [(3 * MIB, 5000), (9 * MIB + 123, 70_000), (len(DATA) - 100, 100)]

    def read() -> None:
        with open(m.path / "f", "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            for offset, length in parts:
                assert os.pread(file.fileno(), length, offset) == DATA[offset : offset + length]

    read()
    m.crash()
    box.calls.reset()
    read()
    assert transfers(box) == 0
    assert (m.path / "f").read_bytes() == DATA
    assert sum(call.bytes for call in box.calls.entries("object-get")) < len(DATA), "the parts are not fetched again"


def test_a_kill_while_fetching(box: Sandbox, mount: MountFactory) -> None:
    box.put("f", DATA)
    m = mount(ttl=3600)
    box.settings.bandwidth = 1e6
    for _ in range(3):
        with contextlib.suppress(OSError), open(m.path / "f", "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            for _ in range(20):
                file.read(100_000)
        m.crash()
    box.settings.bandwidth = 0
    assert (m.path / "f").read_bytes() == DATA


def test_a_new_version_is_not_mixed_with_the_one_kept(box: Sandbox, mount: MountFactory) -> None:
    box.put("f", DATA)
    m = mount(ttl=3600)
    assert (m.path / "f").read_bytes() == DATA
    assert m.umount().returncode == 0
    box.advance(10)
    box.put("f", DATA[::-1])
    m.option(ttl=0)
    m.start()
    (m.path / ".cloudsimfs/refresh").write_text("f")
    assert (m.path / "f").read_bytes() == DATA[::-1]


def test_what_was_uploaded_is_kept(box: Sandbox, mount: MountFactory) -> None:
    m = mount(ttl=0)
    (m.path / "f").write_bytes(DATA)
    m.flush()
    wait_until(lambda: os.listdir(m.path) and not rows(m), "a listing confirms the upload")
    m.remount()
    box.calls.reset()
    assert (m.path / "f").read_bytes() == DATA
    assert transfers(box) == 0


def rows(m: Mounted) -> int:
    """Files that the journal holds."""
    import sqlite3

    [journal] = m.cache.glob("*/journal.db")
    with contextlib.closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as db:
        return int(db.execute("SELECT count(*) FROM file").fetchone()[0])


def test_damaged_logs_cost_a_fetch(box: Sandbox, mount: MountFactory) -> None:
    box.populate({f"{number}": DATA[number * 1000 : 200_000 + number] for number in range(4)})
    m = mount(ttl=3600)
    for number in range(4):
        (m.path / f"{number}").read_bytes()
    assert m.umount().returncode == 0
    logs = [file for file in data_dir(m).iterdir() if "." in file.name and file.suffix != ".stamp"]
    assert len(logs) == 4
    logs[0].write_bytes(b"")
    logs[1].unlink()
    (data_dir(m) / logs[2].name.partition(".")[0]).unlink()
    os.truncate(data_dir(m) / logs[3].name.partition(".")[0], 10)
    m.start()
    for number in range(4):
        assert (m.path / f"{number}").read_bytes() == DATA[number * 1000 : 200_000 + number]


# -- local truth beside it -----------------------------------------------------------------------------------


def test_a_half_written_file_keeps_what_was_written_over_a_kill(box: Sandbox, mount: MountFactory) -> None:
    """What was written into a stored file, and where it was cut, is known though it was never closed."""
    box.put("f", DATA)
    m = mount(ttl=3600)
    expected = bytearray(DATA)
    with contextlib.suppress(OSError), open(m.path / "f", "r+b", buffering=0) as file:
        for offset in (5 * MIB, 7 * MIB + 11, 100):
            os.pwrite(file.fileno(), b"written" * 1000, offset)
            expected[offset : offset + 7000] = b"written" * 1000
        os.ftruncate(file.fileno(), 8 * MIB)
        os.ftruncate(file.fileno(), 9 * MIB)
        expected[8 * MIB :] = bytes(MIB)
        m.kill()
    m.start()
    assert (m.path / "f").read_bytes() == expected
    m.remount("--no-wait")
    assert (m.path / "f").read_bytes() == expected
    assert box.files()["f"] == DATA


@pytest.mark.parametrize("end", ["remount", "crash"])
def test_a_cached_version_that_was_changed_is_not_found_again(box: Sandbox, mount: MountFactory, end: str) -> None:
    box.put("f", DATA)
    m = mount(ttl=3600, write_back=3600)
    assert (m.path / "f").read_bytes() == DATA
    with open(m.path / "f", "r+b") as file:
        file.write(b"changed")
    os.rename(m.path / "f", m.path / "g")
    expected = b"changed" + DATA[7:]
    m.remount("--no-wait") if end == "remount" else m.crash()
    assert (m.path / "g").read_bytes() == expected
    (m.path / "g").unlink()
    m.option(write_back=0)
    m.remount()
    m.flush()
    box.advance(10)
    box.put("f", DATA)
    (m.path / ".cloudsimfs/refresh").write_text("f")
    wait_until(lambda: (m.path / "f").read_bytes() == DATA, "the other client's file shows")


# -- the limit -----------------------------------------------------------------------------------------------


def test_a_small_cache_reads_everything_right(box: Sandbox, mount: MountFactory) -> None:
    files = {f"{number}": DATA[number : number + 1_500_000] for number in range(12)} | {"large": DATA}
    box.populate(files)
    m = mount(ttl=3600, cache_size="6M")
    dice = random.Random(9)
    for _ in range(2):
        for name in dice.sample(sorted(files), len(files)):
            assert (m.path / name).read_bytes() == files[name]
            assert on_disk(m) <= 7 * MIB
    with open(m.path / "large", "rb", buffering=0) as file:
        for _ in range(100):
            offset = dice.randrange(len(DATA))
            assert os.pread(file.fileno(), 100_000, offset) == DATA[offset : offset + 100_000]
        for name in sorted(files):
            assert (m.path / name).read_bytes() == files[name]
    m.crash()
    for name, data in files.items():
        assert (m.path / name).read_bytes() == data
    assert on_disk(m) <= 7 * MIB


def wait_for_tick() -> None:
    """Until a file touched now is later than those touched before: that clock ticks some milliseconds apart."""
    before = time.clock_gettime_ns(CLOCK_REALTIME_COARSE)
    wait_until(lambda: time.clock_gettime_ns(CLOCK_REALTIME_COARSE) > before, "the clock of file times ticks")


def test_the_least_recently_used_goes_first(box: Sandbox, mount: MountFactory) -> None:
    box.populate({f"{number}": DATA[: 2 * MIB + number] for number in range(5)})
    m = mount(ttl=3600, cache_size="10M")
    for number in (0, 1, 2, 3, 0):
        (m.path / f"{number}").read_bytes()
        wait_for_tick()
    m.remount()
    for number in (4, 4):
        (m.path / f"{number}").read_bytes()
    box.calls.reset()
    for number in (0, 3, 4):
        (m.path / f"{number}").read_bytes()
    assert transfers(box) == 0
    (m.path / "1").read_bytes()
    assert transfers(box) > 0


def test_what_waits_for_its_upload_is_never_evicted(box: Sandbox, mount: MountFactory) -> None:
    """With all of the cache taken, files can still be read, without being kept."""
    box.put("f", DATA)
    m = mount(ttl=3600, cache_size="6M", write_back=3600)
    (m.path / "mine").write_bytes(DATA[: 6 * MIB - 4096])
    assert (m.path / "f").read_bytes() == DATA
    assert (m.path / "mine").read_bytes() == DATA[: 6 * MIB - 4096]
    m.crash()
    assert (m.path / "f").read_bytes() == DATA
    assert m.settle()["mine"] == DATA[: 6 * MIB - 4096]


# -- the commands --------------------------------------------------------------------------------------------


def test_show_and_clear(box: Sandbox, mount: MountFactory) -> None:
    box.put("f", DATA)
    m = mount(write_back=3600)
    (m.path / "f").read_bytes()
    (m.path / "mine").write_bytes(b"mine")
    place = ["--cache-dir", str(m.cache)]
    shown = json.loads(cloudsimfs("cache", "show", "--json", *place).stdout)
    [(directory, found)] = shown.items()
    assert directory == str(data_dir(m).parent)
    assert found["files"] == 2
    assert found["bytes"] >= len(DATA)
    refused = cloudsimfs("cache", "clear", *place)
    assert refused.returncode == 1
    assert "in use by another mount" in refused.stderr
    assert m.umount("--no-wait").returncode == 0
    cleared = cloudsimfs("cache", "clear", "--url", box.url, *place)
    assert (cleared.returncode, "12.0 MiB freed" in cleared.stdout) == (0, True), cleared
    assert "0.0 MiB in 1 file\n" in cloudsimfs("cache", "show", *place).stdout
    m.start()
    assert (m.path / "mine").read_bytes() == b"mine"
    assert (m.path / "f").read_bytes() == DATA
    assert m.settle() == {"f": DATA, "mine": b"mine"}


def test_without_any_cache(tmp_path: Path, api: str) -> None:
    for command in ("show", "clear"):
        done = cloudsimfs("cache", command, "--cache-dir", tmp_path / "absent")
        assert (done.returncode, done.stdout) == (0, "")
    assert errno_of(lambda: os.stat(tmp_path / "absent")) != 0
