"""File managers and thumbnailers look into every file they show: that may cost a fifth of the hour's calls."""

from __future__ import annotations

import errno
import functools
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import harness
from cloudsimfs.sandbox import Sandbox
from harness import Mounted, MountFactory, errno_of, run

pytestmark = pytest.mark.parametrize("api", ["v2"])

LIMIT = 100
FILES = {f"case/constant/field{number:02}": b"FoamFile %02d" % number for number in range(60)}


def sniff(path: Path) -> bytes:
    """As GLib finds out what is in a file whose name does not tell: leaving no trace of having looked."""
    fd = os.open(path, os.O_RDONLY | os.O_NOATIME)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


@pytest.fixture
def folder(box: Sandbox, mount: MountFactory) -> Path:
    """A folder of many small files on an account of few calls."""
    box.settings.hourly_limit = LIMIT
    box.populate(FILES)
    return mount().path / "case/constant"


def spent(box: Sandbox, action: Callable[[], object]) -> int:
    before = box.calls.api_count()
    action()
    return box.calls.api_count() - before


def test_sniffing_stops_when_a_fifth_of_the_calls_is_used(box: Sandbox, folder: Path) -> None:
    refused = [path for path in sorted(folder.iterdir()) if errno_of(functools.partial(sniff, path)) == errno.EDQUOT]
    assert 40 <= len(refused) < 60
    assert box.calls.api_count() <= LIMIT // 5 + 1
    # who opens a file to read it gets it, and then it may be sniffed as well
    assert refused[0].read_bytes() == sniff(refused[0]) == FILES[f"case/constant/{refused[0].name}"]


def test_what_is_here_is_sniffed_for_nothing(box: Sandbox, folder: Path) -> None:
    run("sh", "-c", 'cat "$0"/* >/dev/null', folder)
    (folder / "new").write_bytes(b"written here")
    assert spent(box, lambda: [sniff(path) for path in folder.iterdir()]) <= 2  # the upload of the new one


def test_lowest_priority_gets_what_is_to_spare(box: Sandbox, folder: Path) -> None:
    """Thumbnailers and indexers run at nice 19."""
    niced = subprocess.run(["nice", "-n", "19", "sh", "-c", 'cat "$0"/*', folder], capture_output=True, check=False)
    assert 0 < niced.stdout.count(b"FoamFile") <= LIMIT // 5
    assert b"quota" in niced.stderr
    assert box.calls.api_count() <= LIMIT // 5 + 1
    assert run("nice", "-n", "10", "cat", sorted(folder.iterdir())[-1]) == "FoamFile 59"


def test_a_thumbnailer_gets_what_is_to_spare(box: Sandbox, folder: Path, tmp_path: Path) -> None:
    """GNOME's are programs of that name, run at the usual priority."""
    (tmp_path / "some-thumbnailer").symlink_to(harness.need("cat"))
    command = f'for file in "$0"/*; do {tmp_path}/some-thumbnailer "$file"; done'
    done = subprocess.run(["sh", "-c", command, folder], capture_output=True, check=False)
    assert 0 < done.stdout.count(b"FoamFile") <= LIMIT // 5
    assert b"quota" in done.stderr


@pytest.mark.parametrize("ending", ["", ".png"])  # a .png may be an animation, of a type of its own
def test_gio_shows_every_file_of_a_folder(box: Sandbox, mount: MountFactory, ending: str) -> None:
    harness.need("gio")
    box.settings.hourly_limit = LIMIT
    box.populate({name + ending: data for name, data in FILES.items()})
    attributes = "standard::content-type,standard::icon,standard::size"
    shown = run("gio", "list", "-a", attributes, mount().path / "case/constant")
    assert shown.count("\t11\t(regular)") == len(FILES)
    assert box.calls.api_count() <= LIMIT // 5 + 1


def test_unlimited_accounts_see_all(box: Sandbox, m: Mounted) -> None:
    box.populate(FILES)
    (m.path / ".cloudsimfs/refresh").write_text("/")
    assert [sniff(path) for path in sorted((m.path / "case/constant").iterdir())] == list(FILES.values())
