"""What the store says of an upload is held against what was sent, and what it lists against what was stored."""

from __future__ import annotations

import os

import pytest
from conftest import MountFactory
from harness import wait_until

from cloudsimfs.sandbox import Sandbox


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
