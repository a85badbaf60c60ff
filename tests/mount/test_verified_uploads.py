"""What the store says of an upload is held against what was sent, and what it lists against what was stored."""

from __future__ import annotations

import errno
import os

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import MountFactory, errno_of, wait_until


@pytest.mark.parametrize("size", [1, 3_000_000])
def test_a_body_that_was_damaged_on_its_way_is_sent_again(box: Sandbox, mount: MountFactory, size: int) -> None:
    data = os.urandom(size)
    m = mount()
    fault = box.faults.add("object-put", "corrupt", times=2)
    (m.path / "f").write_bytes(data)
    assert m.settle() == {"f": data}
    assert fault.fired == 2


@pytest.mark.parametrize("api", ["v2"])
def test_a_path_that_damages_everything_is_reported(box: Sandbox, mount: MountFactory) -> None:
    m = mount()
    box.faults.add("object-put", "corrupt")
    (m.path / "f").write_bytes(b"data")
    wait_until(lambda: any("other bytes than were sent" in job["error"] for job in m.pending()), "the reason shows")
    assert (m.path / "f").read_bytes() == b"data"
    box.faults.clear()
    assert m.settle() == {"f": b"data"}


@pytest.mark.parametrize("api", ["v1"])
def test_what_no_listing_shows_yet_is_not_evicted(box: Sandbox, mount: MountFactory) -> None:
    """The local copy is all that can be relied on; nothing is asked to find out."""
    box.settings.listing_lag = 10_000.0
    box.put("large", os.urandom(3_000_000))
    m = mount(cache_size="5M", ttl=0)
    ours = {f"{number}": os.urandom(500_000) for number in range(4)}
    for name, data in ours.items():
        (m.path / name).write_bytes(data)
    m.flush()
    m.crash()
    for _ in range(2):
        assert len((m.path / "large").read_bytes()) == 3_000_000
    box.calls.reset()
    assert {name: (m.path / name).read_bytes() for name in ours} == ours
    assert box.calls.counts()["object-get"] == 0
    box.advance(20_000)
    os.listdir(m.path)
    assert m.settle() == {**ours, "large": box.files()["large"]}


@pytest.mark.parametrize("api", ["v2"])
def test_a_listing_with_another_size_retires_nothing(box: Sandbox, mount: MountFactory) -> None:
    """It may be an older state, listed late: what was written here is shown, and kept."""
    m = mount(ttl=0)
    (m.path / "f").write_bytes(b"as it was written")
    m.flush()
    fault = box.faults.add("list", "odd", variation=lambda entries: [{**entry, "size": 3} for entry in entries])
    for _ in range(3):
        os.listdir(m.path)
    assert fault.fired
    assert (m.path / "f").read_bytes() == b"as it was written"
    assert box.calls.counts()["object-get"] == 0
    m.crash()
    assert (m.path / "f").read_bytes() == b"as it was written"


# -- a success without an ETag ---------------------------------------------------------------------------------------


def test_what_a_portal_swallows_is_not_taken_for_stored(box: Sandbox, mount: MountFactory) -> None:
    """It says yes to everything; the service has the old file, and its listings are the only proof."""
    box.put("f", b"olds")
    m = mount()
    portal = box.faults.add("object-put", "status", status=200)
    (m.path / "f").write_bytes(b"news")
    (m.path / "folder").mkdir()
    (m.path / "folder/g").write_bytes(b"new")
    wait_until(lambda: all("without an ETag" in job["error"] for job in m.pending()) and m.pending(), "it is said")
    assert errno_of(lambda: (m.path / ".cloudsimfs/flush").write_text("1")) == errno.EAGAIN
    assert box.calls.counts()["upload-url"] == 2, "the links are kept"
    assert box.files() == {"f": b"olds"}
    m.crash()
    box.faults.remove(portal)
    assert m.settle() == {"f": b"news", "folder/g": b"new"}


def test_a_store_without_etags_has_to_prove_that_once(box: Sandbox, mount: MountFactory) -> None:
    box.faults.add("object-put", "odd", variation="no-etag")
    m = mount()
    (m.path / "f").write_bytes(b"first")
    m.flush()
    first = box.calls.counts()
    assert first["list"] + first["list-all"] <= 4, first
    for number in range(10):
        (m.path / f"{number}").write_bytes(b"bytes")
    m.flush()
    then = box.calls.counts()
    assert [then[name] for name in ("list", "list-all")] == [first[name] for name in ("list", "list-all")]
    assert then["upload-url"] == 11
    assert len(m.settle()) == 11


@pytest.mark.parametrize("api", ["v1"])
def test_the_proof_may_be_late(box: Sandbox, mount: MountFactory) -> None:
    box.faults.add("object-put", "odd", variation="no-etag")
    box.settings.listing_lag = 100.0
    m = mount()
    (m.path / "f").write_bytes(b"first")
    wait_until(lambda: any(job["error"] for job in m.pending()), "it is not listed yet")
    box.advance(200.0)
    wait_until(lambda: not m.pending(), "it is listed")
    assert box.calls.counts()["object-put"] < 4, "looked for before it is sent again"
    assert m.settle() == {"f": b"first"}
