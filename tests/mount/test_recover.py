"""`cloudsimfs recover`: what was being written when the daemon died is listed, saved, uploaded or removed."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import Mounted, MountFactory, cloudsimfs

STORED, CLOSED = os.urandom(3_000_000), os.urandom(200_000)
EDITED = STORED[:1_000_000] + b"edited" * 1000 + STORED[1_006_000:]


@pytest.fixture(params=["v2"])
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def crashed(box: Sandbox, mount: MountFactory) -> Mounted:
    """Dead while three files were open: a new one, one of the service's, and one with a closed state."""
    box.populate({"stored": STORED, "case/other": b"other"})
    m = mount(write_back=3600)
    (m.path / "closed").write_bytes(CLOSED)
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        new = stack.enter_context(open(m.path / "case/new", "wb", buffering=0))
        stored = stack.enter_context(open(m.path / "stored", "r+b", buffering=0))
        closed = stack.enter_context(open(m.path / "closed", "ab", buffering=0))
        new.write(b"new")
        os.pwrite(stored.fileno(), b"edited" * 1000, 1_000_000)
        closed.write(b"more")
        m.kill()
    return m


DRAFTS = {"case/new": b"new", "stored": EDITED, "closed": CLOSED + b"more"}


def recover(m: Mounted, *options: str | Path) -> str:
    done = cloudsimfs("recover", m.path, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def listed(m: Mounted) -> dict[str, dict[str, Any]]:
    return {found["path"]: found for found in json.loads(recover(m, "--json"))}


def test_drafts_are_listed_until_they_are_dealt_with(box: Sandbox, crashed: Mounted) -> None:
    versions = box.record_versions()
    m = crashed
    m.start()
    assert {path: found["size"] for path, found in listed(m).items()} == {
        path: len(data) for path, data in DRAFTS.items()
    }
    assert "/closed: was open for writing" in (m.path / ".cloudsimfs/status").read_text()
    assert (m.path / "closed").read_bytes() == CLOSED
    m.remount()
    assert versions == [("closed", CLOSED)]
    text = recover(m)
    assert text.count("\n") == 3
    assert "/closed  (its name has the last closed state)" in text


def test_uploading_drafts(box: Sandbox, crashed: Mounted) -> None:
    m = crashed
    m.start()
    recover(m, "--upload", "case/new", "--upload", listed(m)["stored"]["id"])
    assert m.settle() == {"case/other": b"other", "case/new": b"new", "stored": EDITED, "closed": CLOSED}
    recover(m, "--all")
    assert (m.path / "closed").read_bytes() == DRAFTS["closed"]
    m.crash()
    assert m.settle()["closed"] == DRAFTS["closed"]
    assert listed(m) == {}


def test_discarding_drafts(box: Sandbox, crashed: Mounted) -> None:
    m = crashed
    m.start()
    refused = cloudsimfs("recover", m.path, "--discard", "*")
    assert refused.returncode != 0
    assert "--yes" in refused.stderr
    recover(m, "--discard", "*", "--yes")
    assert listed(m) == {}
    stored = {"case/other": b"other", "stored": STORED, "closed": CLOSED}
    assert m.settle() == stored
    m.crash()
    assert m.settle() == stored
    unknown = cloudsimfs("recover", m.path, "--upload", "case/new")
    assert unknown.returncode != 0
    assert "case/new" in unknown.stderr


def test_saving_drafts_from_a_mount(crashed: Mounted, tmp_path: Path) -> None:
    crashed.start()
    recover(crashed, "--save", tmp_path / "out")
    assert {path: (tmp_path / "out" / path).read_bytes() for path in DRAFTS} == DRAFTS
    recover(crashed, "--save", tmp_path / "out")
    assert len(list((tmp_path / "out").rglob("new*"))) == 2, "nothing is overwritten"
    assert len(listed(crashed)) == 3


def test_saving_drafts_without_a_mount(crashed: Mounted, tmp_path: Path) -> None:
    """What the daemon left behind, before any mount has looked at it."""
    crashed.umount("--lazy")
    found = cloudsimfs("recover", "--cache-dir", crashed.cache, "--json")
    assert {draft["path"] for draft in json.loads(found.stdout)} == DRAFTS.keys(), found.stderr
    done = cloudsimfs("recover", "--cache-dir", crashed.cache, "--save", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out/closed").read_bytes() == DRAFTS["closed"]
    partial = (tmp_path / "out/stored.partial").read_bytes()
    assert partial[1_000_000:1_006_000] == b"edited" * 1000
    assert len(partial) == len(EDITED)
    assert "could not be fetched" in done.stderr
    refused = cloudsimfs("recover", "--cache-dir", crashed.cache, "--all")
    assert "mount the storage first" in refused.stderr


def test_two_crashes_leave_two_drafts(box: Sandbox, crashed: Mounted) -> None:
    m = crashed
    m.start()
    with contextlib.suppress(OSError), open(m.path / "closed", "r+b", buffering=0) as file:
        file.write(b"again")
        m.kill()
    m.start()
    drafts = [found for found in json.loads(recover(m, "--json")) if found["path"] == "closed"]
    assert [found["size"] for found in drafts] == [len(CLOSED) + 4, len(CLOSED)]
    recover(m, "--upload", drafts[1]["id"])
    m.flush()
    assert box.files()["closed"] == b"again" + CLOSED[5:]
