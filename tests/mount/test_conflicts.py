"""A file changed here and by others: both are kept. Our own uploads, listed late or not at all, are no conflict."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import (
    Mounted,
    MountFactory,
    cloudsimfs,
    conflict_copies,
    errno_of,
    put_by_others,
    read_tree,
    wait_until,
)


def write_meanwhile(m: Mounted, data: bytes) -> None:
    """Change `f`, which is already known here, and close it."""
    with open(m.path / "f", "r+b") as file:
        file.truncate(0)
        file.write(data)


def listed_anew(m: Mounted) -> None:
    (m.path / ".cloudsimfs/refresh").write_text("f")
    os.listdir(m.path)


def check_both_are_kept(box: Sandbox, m: Mounted, ours: bytes, theirs: bytes) -> None:
    stored = m.settle()
    copies = conflict_copies(stored)
    assert list(copies.values()) == [ours]
    assert stored == {"f": theirs, **copies}
    name = next(iter(copies))
    assert m.status()["conflicts"] == [{"path": "f", "ours": name}]
    assert (
        f"conflict  /f was changed on the service too; yours is /{name}"
        in (m.path / ".cloudsimfs/status").read_text()
    )
    assert "WARNING" in next(line for line in m.log().splitlines() if "was changed on the service too" in line)


def test_a_remote_change_under_a_dirty_file(box: Sandbox, mount: MountFactory) -> None:
    box.put("f", b"as it was")
    m = mount(ttl=1, write_back=3600)
    assert (m.path / "f").read_bytes() == b"as it was"
    write_meanwhile(m, b"ours")
    put_by_others(box, "f", b"theirs, longer")
    listed_anew(m)
    assert (m.path / "f").read_bytes() == b"ours"
    check_both_are_kept(box, m, b"ours", b"theirs, longer")
    with open(m.path / "f", "ab") as file:
        file.write(b" and more")
    assert m.settle()["f"] == b"theirs, longer and more"


def test_a_remote_change_while_it_was_not_mounted(box: Sandbox, mount: MountFactory) -> None:
    """The listing is fresh when the file is uploaded: the check costs nothing more."""
    box.put("f", b"as it was")
    m = mount(write_back=3600)
    write_meanwhile(m, b"ours")
    assert m.umount("--no-wait").returncode == 0
    put_by_others(box, "f", b"theirs")
    m.option(ttl=0)
    m.start()
    check_both_are_kept(box, m, b"ours", b"theirs")


@pytest.mark.parametrize("api", ["v2"])
def test_both_make_the_same_file(box: Sandbox, mount: MountFactory) -> None:
    m = mount(ttl=1, write_back=3600)
    (m.path / "f").write_bytes(b"ours")
    put_by_others(box, "f", b"theirs")
    listed_anew(m)
    check_both_are_kept(box, m, b"ours", b"theirs")


def test_a_remote_change_while_no_link_is_given(box: Sandbox, mount: MountFactory) -> None:
    """Attempts are under way all the time: those that began before the change must not go on."""
    names = [f"{number}" for number in range(16)]
    m = mount(ttl=1, write_back=0)
    fault = box.faults.add("upload-url", "status", status=500)
    for name in names:
        (m.path / name).write_bytes(b"ours")
    wait_until(lambda: fault.fired >= len(names), "links are asked for")
    for name in names:
        put_by_others(box, name, b"theirs")
    listed_anew(m)
    box.faults.clear()
    stored = m.settle()
    copies = conflict_copies(stored)
    assert stored == {**dict.fromkeys(names, b"theirs"), **copies}
    assert list(copies.values()) == [b"ours"] * len(names)


@pytest.mark.parametrize("api", ["v2"])
def test_a_conflict_survives_a_kill(box: Sandbox, mount: MountFactory) -> None:
    box.put("f", b"as it was")
    m = mount(ttl=1, write_back=2)  # after the others, also on a busy machine
    box.faults.add("object-put", "status", status=503)
    write_meanwhile(m, b"ours")
    put_by_others(box, "f", b"theirs")
    listed_anew(m)
    wait_until(lambda: any(".conflict-" in job["path"] for job in m.pending()), "the conflict is seen")
    m.crash()
    box.faults.clear()
    stored = m.settle()
    assert stored["f"] == b"theirs"
    assert list(conflict_copies(stored).values()) == [b"ours"]


def test_a_remote_delete_under_a_dirty_file(box: Sandbox, mount: MountFactory) -> None:
    box.populate({"f": b"as it was", "other": b"other"})
    m = mount(ttl=1, write_back=3600)
    write_meanwhile(m, b"ours")
    box.remove("f")
    listed_anew(m)
    assert m.settle() == {"f": b"ours", "other": b"other"}


@pytest.mark.parametrize(("api", "settings"), [("v1", {"listing_lag": 3.0}), ("v1", {}), ("v2", {})])
def test_our_own_uploads_are_no_conflict(box: Sandbox, mount: MountFactory, settings: dict[str, float]) -> None:
    """Saved again and again, by several means, listed late; the service's clock goes on."""
    for name, value in settings.items():
        setattr(box.settings, name, value)
    box.put("f", b"as it was")
    m = mount(ttl=0, write_back=0)
    for number in range(12):
        data = b"%d" % number * (number % 3 + 1)
        if number % 3 == 0:
            (m.path / "new").write_bytes(data)
            os.rename(m.path / "new", m.path / "f")
        elif number % 3 == 1:
            (m.path / "f").write_bytes(data)
        else:
            (m.path / "f").unlink()
            (m.path / "f").write_bytes(data)
        if number % 2:
            m.flush()
        box.advance(4)
        os.listdir(m.path)
        if number % 5 == 4:
            m.crash()
    assert m.settle() == {"f": data}


@pytest.mark.parametrize("api", ["v2"])
def test_an_upload_whose_answer_was_lost_is_no_conflict(box: Sandbox, mount: MountFactory) -> None:
    box.put("f", b"as it was")
    m = mount(ttl=0, write_back=0)
    write_meanwhile(m, b"the first")
    m.flush()
    box.advance(10)
    fault = box.faults.add("object-put", "drop_reply")
    write_meanwhile(m, b"stored, but nobody said so")
    wait_until(lambda: box.files()["f"] == b"stored, but nobody said so", "it is stored")
    wait_until(lambda: fault.fired >= 2, "it is tried again")
    write_meanwhile(m, b"ours")
    os.listdir(m.path)
    box.faults.clear()
    assert m.settle() == {"f": b"ours"}


@pytest.mark.parametrize("api", ["v2"])
def test_saves_cost_no_listing(box: Sandbox, mount: MountFactory) -> None:
    box.put("f", b"as it was")
    m = mount(write_back=0)
    os.listdir(m.path)
    box.calls.reset()
    for number in range(5):
        write_meanwhile(m, b"%d" % number)
        m.flush()
    assert box.calls.counts().keys() == {"upload-url", "object-put", "delete-cache"}


def test_names_of_conflict_copies_are_short_enough(box: Sandbox, mount: MountFactory, tmp_path: Path) -> None:
    name = "ü" * 127
    box.put(name, b"as it was")
    m = mount(ttl=1, write_back=3600)
    (m.path / name).write_bytes(b"ours")
    put_by_others(box, name, b"theirs")
    listed_anew(m)
    stored = m.settle()
    assert stored[name] == b"theirs"
    assert list(conflict_copies(stored).values()) == [b"ours"]


@pytest.mark.parametrize("api", ["v1"])
def test_a_change_whose_rest_others_have_replaced_is_kept_here(box: Sandbox, mount: MountFactory) -> None:
    """A few bytes are changed; before the rest is fetched, it is gone: such a file can never be stored."""
    theirs = os.urandom(5_000_000)
    box.put("f", os.urandom(6_000_000))
    m = mount(write_back=0.5)
    m.expects_trouble = True  # it is logged as an error
    with open(m.path / "f", "r+b", buffering=0) as file:
        file.write(b"ours")
        put_by_others(box, "f", theirs)
    wait_until(lambda: not m.pending(), "the upload is given up")
    assert m.status()["recover"] == ["f"]
    assert errno_of(lambda: (m.path / ".cloudsimfs/flush").write_text("1")) == errno.EAGAIN
    assert "refused   /f: it was replaced on the service" in (m.path / ".cloudsimfs/status").read_text()
    wait_until(lambda: (m.path / "f").read_bytes() == theirs, "theirs is shown")
    m.crash()
    assert m.status()["recover"] == ["f"]
    assert errno_of(lambda: (m.path / ".cloudsimfs/flush").write_text("1")) == errno.EAGAIN
    assert "refused   /f: it was replaced on the service" in (m.path / ".cloudsimfs/status").read_text()
    assert read_tree(m.path) == box.files() == {"f": theirs}
    saved = m.cache.parent / "saved"
    cloudsimfs("recover", m.path, "--save", saved)
    assert (saved / "f.partial").read_bytes().startswith(b"ours")
    with open(m.path / "f", "r+b", buffering=0) as file:
        file.write(b"again")
    assert m.settle() == {"f": b"again" + theirs[5:]}


@pytest.mark.parametrize("deal", ["write", "remove", "--discard"])
def test_a_refused_change_is_in_the_way_of_flush_until_it_is_dealt_with(
    box: Sandbox, mount: MountFactory, deal: str
) -> None:
    box.put("f", os.urandom(6_000_000))
    m = mount(write_back=0.2)
    m.expects_trouble = True
    with open(m.path / "f", "r+b", buffering=0) as file:
        file.write(b"ours")
        put_by_others(box, "f", b"theirs")
    wait_until(lambda: not m.pending(), "the upload is given up")
    assert errno_of(lambda: (m.path / ".cloudsimfs/flush").write_text("1")) == errno.EAGAIN
    if deal == "write":
        (m.path / "f").write_bytes(b"again")
    elif deal == "remove":
        (m.path / "f").unlink()
    else:
        assert cloudsimfs("recover", m.path, deal, "f", "--yes").returncode == 0
    m.flush()
    assert not any(line.startswith("refused") for line in (m.path / ".cloudsimfs/status").read_text().splitlines())


@pytest.mark.parametrize(("size", "status"), [(3_000, 404), (6_000_000, 404), (3_000, 412), (3_000, 416)])
def test_a_passing_refusal_takes_no_change_back(box: Sandbox, mount: MountFactory, size: int, status: int) -> None:
    """The object cannot be fetched for a while, but its version is listed: the change waits, and flush says so."""
    data = os.urandom(size)
    box.put("f", data)
    m = mount(write_back=0.2)
    fault = box.faults.add("object-get", "status", status=status)
    with open(m.path / "f", "ab") as file:
        file.write(b"appended")
    wait_until(lambda: fault.fired >= 2, "it is tried again")
    assert errno_of(lambda: (m.path / ".cloudsimfs/flush").write_text("1")) == errno.EAGAIN
    assert [job["path"] for job in m.pending()] == ["f"]
    box.faults.clear()
    assert m.settle() == {"f": data + b"appended"}


def test_a_wrong_link_takes_no_change_back(box: Sandbox, mount: MountFactory) -> None:
    """It leads to another object, but the version is listed: another link is asked for."""
    box.populate({"f": b"as it was, ", "other": b"of another length"})
    m = mount(write_back=0.2)
    assert (m.path / "other").read_bytes() == b"of another length"
    fault = box.faults.add("download-url", "swapped")
    with open(m.path / "f", "ab") as file:
        file.write(b"appended")
    wait_until(lambda: fault.fired, "a link is asked for")
    box.faults.clear()
    assert m.settle() == {"f": b"as it was, appended", "other": b"of another length"}


@pytest.mark.parametrize("api", ["v2"])
def test_a_passing_404_loses_no_renamed_file(box: Sandbox, mount: MountFactory) -> None:
    """Its bytes are still under the old name, which is written anew: that waits until they are here."""
    data = os.urandom(6_000_000)
    box.put("f", data)
    m = mount(write_back=0.2)
    fault = box.faults.add("object-get", "status", status=404)
    os.rename(m.path / "f", m.path / "g")
    (m.path / "f").write_bytes(b"another")
    wait_until(lambda: fault.fired >= 4, "it is tried again")
    assert box.files() == {"f": data}
    box.faults.clear()
    assert m.settle() == {"f": b"another", "g": data}


def test_an_empty_file_is_ours_too(box: Sandbox, mount: MountFactory) -> None:
    """There are no bytes to send, and still it was uploaded: what is listed is no work of others."""
    m = mount(write_back=3600, ttl=3600)
    (m.path / "f").write_bytes(b"")
    m.flush()
    (m.path / "f").write_bytes(b"changed before it was listed")
    (m.path / ".cloudsimfs/refresh").write_text("f")
    assert os.listdir(m.path) == ["f"]
    assert m.settle() == {"f": b"changed before it was listed"}


@pytest.mark.parametrize("renamed", ["file", "changed", "folder", "over another"])
def test_a_renamed_file_that_others_replace_before_it_was_fetched(
    box: Sandbox, mount: MountFactory, renamed: str
) -> None:
    """Nobody has the bytes of the renamed version any more: the rename ends, theirs stays, and `status` says so."""
    box.populate({"d/f": b"as it was", "d/other": b"other", "e": b"e"})
    m = mount(write_back=3600)
    assert sorted(os.listdir(m.path / "d")) == ["f", "other"]
    old, new = {"folder": ("d", "new"), "over another": ("d/f", "e")}.get(renamed, ("d/f", "new"))
    os.rename(m.path / old, m.path / new)
    moved = "new/f" if renamed == "folder" else new
    if renamed == "changed":
        with open(m.path / moved, "r+b") as file:
            file.write(b"AS")
    put_by_others(box, "d/f", b"theirs, longer")
    with contextlib.suppress(OSError):
        (m.path / ".cloudsimfs/flush").write_text("1")
    wait_until(lambda: not m.pending(), "the rename ends")
    other = "new/other" if renamed == "folder" else "d/other"
    expected = {"d/f": b"theirs, longer", other: b"other", "e": b"e"}
    assert box.files() == expected
    wait_until(lambda: read_tree(m.path) == expected, "what the service has shows")
    status = (m.path / ".cloudsimfs/status").read_text()
    assert f"/{moved}: " in status, status
    assert [draft["path"] for draft in drafts(m)] == [moved]
    m.crash()
    assert read_tree(m.path) == expected


def drafts(m: Mounted) -> list[dict[str, Any]]:
    done = cloudsimfs("recover", m.path, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, list)
    return found
