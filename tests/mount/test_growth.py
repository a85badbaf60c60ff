"""Files that grow: what is cached is not fetched again where the ETag proves that the new version begins with it."""

from __future__ import annotations

import os

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import MountFactory, moved, run, wait_until

LINES = b"".join(b"step %06d residual 1.0e-03\n" % number for number in range(20_000))  # some 540 kB


@pytest.fixture(autouse=True)
def listings_show_what_others_store(box: Sandbox) -> None:
    """How long v2 caches them is not the matter here."""
    box.settings.caches_listings = False


def test_only_what_was_added_to_a_log_is_fetched(box: Sandbox, mount: MountFactory) -> None:
    box.put("log", LINES)
    m = mount(ttl=0)
    assert (m.path / "log").read_bytes() == LINES
    before = moved(box)
    added = b"step 020000 residual 9.9e-04\n"
    box.advance(5)
    box.put("log", LINES + added)
    assert (m.path / "log").read_bytes() == LINES + added
    assert moved(box) - before <= 4096


def test_a_change_in_the_middle_is_seen(box: Sandbox, mount: MountFactory) -> None:
    """A longer version that differs somewhere in what is cached must never be read with the old bytes."""
    box.put("table", LINES)
    m = mount(ttl=0)
    assert (m.path / "table").read_bytes() == LINES
    edited = LINES[:200_000] + b"X" + LINES[200_001:] + b"one line more\n"
    box.advance(5)
    box.put("table", edited)
    assert (m.path / "table").read_bytes() == edited


def test_tail_follows_a_log_that_is_replaced(box: Sandbox, mount: MountFactory) -> None:
    box.put("log", LINES)
    m = mount(ttl=0)
    with open(m.path / "log", "rb") as file:
        file.seek(0, os.SEEK_END)
        box.advance(5)
        box.put("log", LINES + b"new line\n")
        found = b""

        def has_come() -> bool:
            nonlocal found
            run("stat", m.path / "log")
            found += file.read()
            return bool(found)

        wait_until(has_come, "the new line is read through the old descriptor")
    assert found == b"new line\n"
