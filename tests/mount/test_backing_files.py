"""Backing files that others, or a power loss, have removed or cut: zeros never take the place of their bytes."""

from __future__ import annotations

import errno
import os

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import MountFactory, backing_files, cloudsimfs, errno_of, wait_until

pytestmark = pytest.mark.parametrize("api", ["v1"])


@pytest.mark.parametrize("left", [0, 10])
def test_a_closed_file_cut_by_a_power_loss_is_not_uploaded(box: Sandbox, mount: MountFactory, left: int) -> None:
    """The row is on the disk and the bytes are not all, as after a power loss within seconds of the close."""
    box.put("f", b"the version before")
    m = mount(write_back=3600)
    (m.path / "f").write_bytes(b"the next version, closed")
    m.kill()
    (backing,) = (file for file in backing_files(m) if file.read_bytes().startswith(b"the next"))
    os.truncate(backing, left)
    m.start()
    m.flush()
    assert box.files()["f"] == (m.path / "f").read_bytes() == b"the version before"
    saved = m.cache.parent / "saved"
    cloudsimfs("recover", m.path, "--save", saved)
    kept = [file.read_bytes() for file in saved.rglob("*") if file.is_file()]
    assert kept == ([b"the next v"] if left else []), "what was left is kept"
    m.expects_trouble = True  # the log tells of the loss


def test_a_closed_file_removed_while_mounted_is_not_uploaded(box: Sandbox, mount: MountFactory) -> None:
    """Somebody cleans up ~/.cache while a closed file waits for its upload."""
    box.put("f", b"the version before")
    m = mount(write_back=3600)
    m.expects_trouble = True
    (m.path / "f").write_bytes(b"the next version, closed")
    wait_until(lambda: m.pending(), "the upload is queued")
    for backing in backing_files(m):
        backing.unlink()
    assert errno_of(lambda: (m.path / ".cloudsimfs/flush").write_text("1")) == errno.EAGAIN
    assert "removed or cut short" in (m.path / ".cloudsimfs/status").read_text()
    assert box.files()["f"] == b"the version before"


def test_a_cached_file_removed_while_mounted_is_fetched_anew(box: Sandbox, mount: MountFactory) -> None:
    data = os.urandom(300_000)
    box.put("f", data)
    m = mount()
    assert (m.path / "f").read_bytes() == data
    for backing in backing_files(m):
        backing.unlink()
    with open(m.path / "f", "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # not the kernel's pages
        assert file.read() == data
    assert box.calls.counts()["object-get"] == 2
