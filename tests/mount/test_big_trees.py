"""Big trees and odd names: very many entries, also in one folder, depth, every name the service can hold."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import Mounted, MountFactory, longer, run

MEBIBYTE = 1 << 20
ENTRIES = longer(20_000, 100_000)
WIDE = ENTRIES // 5


def resident(m: Mounted) -> int:
    """The daemon's resident memory, in bytes."""
    [pid] = m.pids
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) * 1024


@pytest.mark.parametrize("api", ["v1"])
def test_very_many_entries(box: Sandbox, mount: MountFactory) -> None:
    """`find | wc -l` and `du -s` are right, and the daemon stays small (docs/architecture.md, "Costs", row 14)."""
    sizes = (0, 1, 512, 513, 1500)
    files = {
        f"case/{number // 1000:03}/{number % 1000 // 100}/{number}": bytes(sizes[number % len(sizes)])
        for number in range(ENTRIES - 1101)
    }
    folders = {path.rpartition("/")[0] for path in files}
    folders |= {path.rpartition("/")[0] for path in folders} - {""}
    box.populate(files)
    m = mount(ttl=3600)
    box.calls.reset()
    found = run("sh", "-c", 'find "$0" | wc -l', m.path / "case")
    assert int(found) == len(files) + len(folders | {"case"})
    assert box.calls.api_count() <= 2
    blocks = sum(-(-len(data) // 512) for data in files.values())
    assert int(run("du", "-s", "-B", "512", m.path / "case").split()[0]) == blocks
    assert resident(m) <= 45 * MEBIBYTE + 700 * ENTRIES, f"{resident(m) / MEBIBYTE:.0f} MiB"
    assert box.calls.api_count() <= 2


# -- one large folder -----------------------------------------------------------------------------------------------


class Dirent(ctypes.Structure):
    _fields_ = (
        ("d_ino", ctypes.c_uint64),
        ("d_off", ctypes.c_int64),
        ("d_reclen", ctypes.c_ushort),
        ("d_type", ctypes.c_ubyte),
        ("d_name", ctypes.c_char * 256),
    )


class Directory:
    """An open directory, with seekdir(3) and telldir(3), which Python does not offer. Calls release the lock."""

    def __init__(self, path: Path) -> None:
        libc = self._libc = ctypes.CDLL(None, use_errno=True)
        libc.opendir.restype = ctypes.c_void_p
        libc.readdir.restype = ctypes.POINTER(Dirent)
        libc.telldir.restype = ctypes.c_long
        self._stream = ctypes.c_void_p(libc.opendir(os.fsencode(path)))
        assert self._stream, os.strerror(ctypes.get_errno())

    def __enter__(self) -> Directory:
        return self

    def __exit__(self, *_: object) -> None:
        self._libc.closedir(self._stream)

    def __iter__(self) -> Iterator[str]:
        while (name := self.next()) is not None:
            yield name

    def next(self) -> str | None:
        entry = self._libc.readdir(self._stream)
        return os.fsdecode(entry.contents.d_name) if entry else None

    def tell(self) -> int:
        return int(self._libc.telldir(self._stream))

    def seek(self, position: int) -> None:
        self._libc.seekdir(self._stream, ctypes.c_long(position))

    def rewind(self) -> None:
        self._libc.rewinddir(self._stream)


def test_a_folder_of_very_many_files(box: Sandbox, mount: MountFactory, api: str) -> None:
    """None missing, none twice, from any place that telldir named, also while files come and go."""
    names = {f"file-{number:06}" for number in range(WIDE)}
    box.settings.page_size = 1000  # fewer calls: here the kernel's side is looked at
    box.populate({f"wide/{name}": b"" for name in names})
    m = mount()
    listed = os.listdir(m.path / "wide")
    assert len(listed) == WIDE
    assert set(listed) == names
    with Directory(m.path / "wide") as directory:
        places: dict[int, int] = {}  # how many names come before a place
        order: list[str] = []
        for name in directory:
            order.append(name)
            if len(order) % (WIDE // 7) == 1:
                places[directory.tell()] = len(order)
        assert len(order) == WIDE + 2
        assert {*order} == names | {".", ".."}
        for place, before in sorted(places.items(), reverse=True):
            directory.seek(place)
            following = order[before : before + 50]
            assert [directory.next() for _ in following] == following
        directory.rewind()
        seen = [directory.next() for _ in range(WIDE // 2)]
        (m.path / "wide/added").write_bytes(b"")
        (m.path / "wide" / order[-1]).unlink()
        seen += list(directory)
        assert len(set(seen)) == len(seen), "none comes twice"
        assert set(seen) >= names - {order[-1]}, "none that stayed is missing"
        directory.rewind()
        assert {*directory} == (names - {order[-1]}) | {".", "..", "added"}
    if api == "v1":
        assert box.calls.entries("list-all") == []


# -- depth and names ------------------------------------------------------------------------------------------------

ODD_NAMES = [
    "x" * 255,
    "\N{SNOWMAN}" * 85,  # 255 bytes
    "\N{GRINNING FACE}.txt",
    "e\N{COMBINING ACUTE ACCENT} and \N{LATIN SMALL LETTER E WITH ACUTE}",
    "\N{RIGHT-TO-LEFT OVERRIDE}txt.exe",
    "new\nline",
    "tab\tbell\x07escape\x1b[31m",
    "\x01\x7f",
    "'quote\" `back` $dollar",
    "back\\slash",
    " leading and trailing ",
    "-rf",
    "*?[a-z]{b}",
    "%2F%00?#&",
    "...",
    "\u0085\u2028",
    "CON",
    "lowercase",
    "LowerCase",
]


def test_names_of_every_kind(box: Sandbox, mount: MountFactory) -> None:
    """From the service to the mount, and from the mount to the service; as files and as folders."""
    stored = {f"{name}/{name}": b"%d" % number for number, name in enumerate(ODD_NAMES)}
    box.populate(stored)
    m = mount()
    assert sorted(set(os.listdir(m.path)) - {".simulations", ".cloudsimfs"}) == sorted(ODD_NAMES)
    for path, data in stored.items():
        assert os.listdir((m.path / path).parent) == [(m.path / path).name]
        assert (m.path / path).read_bytes() == data
    (m.path / "made").mkdir()
    for name in ODD_NAMES:
        (m.path / "made" / name).write_bytes(name.encode())
    assert sorted(os.listdir(m.path / "made")) == sorted(ODD_NAMES)
    m.flush()
    expected = stored | {f"made/{name}": name.encode() for name in ODD_NAMES}
    assert box.files() == expected
    m.remount()
    assert sorted(os.listdir(m.path / "made")) == sorted(ODD_NAMES)
    assert (m.path / "made" / ODD_NAMES[5]).read_bytes() == ODD_NAMES[5].encode()


@pytest.mark.parametrize("api", ["v1"])
def test_fifty_folders_deep(box: Sandbox, mount: MountFactory) -> None:
    """Reached step by step and at one stroke."""
    deep = "/".join(f"level-{number}" for number in range(50))
    box.populate({f"{deep}/file": b"deep"})
    m = mount()
    assert (m.path / deep / "file").read_bytes() == b"deep"
    assert len(run("find", m.path / "level-0", "-type", "d").splitlines()) == 50
    assert not (m.path / deep / "none").exists()
    (m.path / deep / "more/and/more").mkdir(parents=True)
    (m.path / deep / "more/and/more/file").write_bytes(b"deeper")
    m.flush()
    assert box.files()[f"{deep}/more/and/more/file"] == b"deeper"


@pytest.mark.parametrize("api", ["v1"])
def test_names_that_are_refused_do_not_show(box: Sandbox, mount: MountFactory) -> None:
    """Of the service's answers only what may be a name becomes one (docs/architecture.md, invariant 10d)."""
    box.populate({"d/good": b"good"})
    bad = [".", "..", "a/b", "nul\0", "x" * 256]

    def spoil(value: object) -> object:
        if isinstance(value, list) and value and isinstance(value[0], dict):
            model = value[0]
            return [*value, *({**model, "id": 900 + n, "basename": b, "name": f"d/{b}"} for n, b in enumerate(bad))]
        return value

    box.faults.add("list*", "odd", variation=spoil, path="d")
    m = mount()
    assert os.listdir(m.path / "d") == ["good"]
    assert (m.path / "d/good").read_bytes() == b"good"
