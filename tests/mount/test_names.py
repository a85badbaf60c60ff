"""A name of more than 255 bytes is ENAMETOOLONG for every call that takes one, and harms nothing."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import Mounted, cost, errno_of

pytestmark = pytest.mark.parametrize("api", ["v2"])

Call = Callable[[bytes, bytes], object]
CALLS: dict[str, Call] = {
    "stat": lambda name, _: os.stat(name),
    "lstat": lambda name, _: os.lstat(name),
    "access": lambda name, _: os.stat(name) if not os.access(name, os.F_OK) else None,
    "statvfs": lambda name, _: os.statvfs(name),
    "open to read": lambda name, _: os.open(name, os.O_RDONLY),
    "open to write": lambda name, _: os.open(name, os.O_WRONLY | os.O_TRUNC),
    "create": lambda name, _: os.open(name, os.O_WRONLY | os.O_CREAT),
    "create alone": lambda name, _: os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL),
    "mknod": lambda name, _: os.mknod(name),
    "mkdir": lambda name, _: os.mkdir(name),
    "list": lambda name, _: os.listdir(name),
    "truncate": lambda name, _: os.truncate(name, 0),
    "unlink": lambda name, _: os.unlink(name),
    "rmdir": lambda name, _: os.rmdir(name),
    "rename": lambda name, other: os.rename(name, other + b".new"),
    "rename to it": lambda name, other: os.rename(other, name),
    "chmod": lambda name, _: os.chmod(name, 0o600),
    "chown": lambda name, _: os.chown(name, os.getuid(), os.getgid()),
    "utime": lambda name, _: os.utime(name),
    "readlink": lambda name, _: os.readlink(name),
    "symlink": lambda name, _: os.symlink(b"target", name),
    "link": lambda name, other: os.link(other, name),
    "below it": lambda name, _: os.stat(name + b"/f"),
    "made below it": lambda name, _: os.mkdir(name + b"/f"),
}
LONG = [b"x" * 256, b"x" * 1024, b"x" * 1025, "é".encode() * 128, b"\xff" * 256]  # FUSE itself takes 1024


@pytest.mark.parametrize("folder", ["", "d", ".simulations", ".cloudsimfs"])
def test_every_call_says_that_the_name_is_too_long(box: Sandbox, m: Mounted, folder: str) -> None:
    (m.path / "d").mkdir()
    (m.path / "d/f").write_bytes(b"f")
    m.settle()
    os.listdir(m.path / "d")
    place, other = os.fsencode(m.path / folder), os.fsencode(m.path / "d/f")

    def call_all() -> None:
        for name in LONG:
            long = place + b"/" + name
            found = {what: errno_of(functools.partial(call, long, other)) for what, call in CALLS.items()}
            assert found == dict.fromkeys(CALLS, errno.ENAMETOOLONG), name[:4]

    assert not cost(box, call_all)
    assert m.settle() == {"d/f": b"f"}


def test_the_longest_name_is_for_every_call(m: Mounted) -> None:
    name = m.path / ("\N{SNOWMAN}" * 85)
    name.write_bytes(b"long")
    os.truncate(name, 2)
    name.rename(m.path / ("x" * 255))
    assert m.settle() == {"x" * 255: b"lo"}
    (m.path / ("x" * 255)).unlink()
    assert errno_of(lambda: (m.path / ("x" * 255)).stat()) == errno.ENOENT
    assert m.settle() == {}
