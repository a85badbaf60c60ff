"""A key that is replaced while files wait: what waits is listed, saved, and adopted under the new key."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import subprocess
from pathlib import Path

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import (
    CRASHING,
    Mounted,
    MountFactory,
    Tree,
    cloudsimfs,
    conflict_copies,
    errno_of,
    put_by_others,
    wait_until,
    write_key,
)
from nursery import OURS
from runs_harness import SHORT, WORDS

STORED = {"edited": os.urandom(3_000_000), "gone": b"gone", "case/moved": b"moved" * 100, "kept": b"kept"}
EDITED = STORED["edited"][:1_000_000] + b"new" * 1000 + STORED["edited"][1_003_000:]
WANTED = {
    "edited": EDITED,
    "case/there": STORED["case/moved"],
    "kept": STORED["kept"],
    "new": b"new",
    "case/deep/new": b"deep",
}
CHANGED = {path: WANTED[path] for path in ("edited", "case/there", "new", "case/deep/new")}


@pytest.fixture(params=["v2"])
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def write_all(m: Mounted) -> None:
    """From STORED to WANTED, nothing of it uploaded or deleted: the key is refused meanwhile."""
    for directory, _, _ in os.walk(m.path):
        os.listdir(directory)
    m.box.keys.clear()
    (m.path / "new").write_bytes(b"new")
    (m.path / "case/deep").mkdir()
    (m.path / "case/deep/new").write_bytes(b"deep")
    with open(m.path / "edited", "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"new" * 1000, 1_000_000)
    os.rename(m.path / "case/moved", m.path / "case/there")
    (m.path / "gone").unlink()


@pytest.fixture
def stranded(box: Sandbox, mount: MountFactory) -> Mounted:
    """Unmounted with a changed tree that waits for its upload."""
    box.populate(STORED)
    m = mount(write_back=3600)
    write_all(m)
    assert m.umount("--no-wait").returncode == 0
    box.keys.add(m.key)
    m.option(write_back=0.2)
    return m


def rotate(box: Sandbox, m: Mounted) -> None:
    """The account has another key, which the next mount uses; the old one is refused."""
    box.keys.discard(m.key)
    use_key(box, m)


def use_key(box: Sandbox, m: Mounted) -> None:
    """The next mount uses a new key of the account; the old one stays good."""
    m.key = secrets.token_hex(16)
    box.keys.add(m.key)
    m.key_file = write_key(m.path.parent, m.key)
    m.option(key_file=m.key_file)


def old_place(m: Mounted) -> Path:
    return next(found.parent for found in m.cache.glob("*/journal.db"))


def account(m: Mounted) -> tuple[str | Path, ...]:
    return ("--url", m.box.url, "--key-file", m.key_file, "--cache-dir", m.cache)


def adopt(m: Mounted, *options: str | Path, crash_at: str | None = None) -> subprocess.CompletedProcess[str]:
    program = OURS if crash_at is None else [str(CRASHING), crash_at, "cloudsimfs"]
    return cloudsimfs("recover", "--adopt", *account(m), *options, program=program)


def adopted(m: Mounted) -> str:
    done = adopt(m, "--yes")
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_all_arrived(box: Sandbox, m: Mounted, wanted: Tree = WANTED) -> None:
    m.flush()
    wait_until(lambda: "gone" not in box.files() and "case/moved" not in box.files(), "deletes are made")
    assert m.settle() == wanted


# -- all of it -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["v1", "v2"])
def test_what_waits_is_adopted(box: Sandbox, stranded: Mounted) -> None:
    m, versions = stranded, box.record_versions()
    old = old_place(m)
    rotate(box, m)
    said = adopted(m)
    assert "adopted 4 files and 2 deletes of" in said
    m.start()
    check_all_arrived(box, m)
    assert sorted(versions) == sorted(CHANGED.items())
    assert list((old / "data").glob("*.local")) == []
    assert m.umount().returncode == 0
    assert "nothing waits under another key" in adopt(m, "--yes").stderr


def test_what_a_mount_says_and_lists(box: Sandbox, stranded: Mounted, tmp_path: Path) -> None:
    """The mount of the new key names the remedy; `recover` shows the files, mounted or not, and saves them."""
    m = stranded
    old = old_place(m)
    rotate(box, m)
    done = m.try_start()
    assert f"note: 4 files and 2 deletes wait under another key, in {old}" in done.stderr
    assert "`cloudsimfs recover --adopt`" in done.stderr
    listed = cloudsimfs("recover", m.path, "--json")
    assert {found["path"]: found["size"] for found in json.loads(listed.stdout)} == {
        path: len(data) for path, data in CHANGED.items()
    }
    refused = adopt(m, "--yes")
    assert refused.returncode == 1
    assert "in use; unmount it first" in refused.stderr
    assert m.umount().returncode == 0
    shown = cloudsimfs("recover", *account(m)).stdout
    assert shown.count(f"closed, and not uploaded: waits in {old}") == 4
    saved = cloudsimfs("recover", *account(m), "--save", tmp_path / "out")
    assert saved.returncode == 0, saved.stderr
    for path in ("new", "case/deep/new"):
        assert (tmp_path / "out" / path).read_bytes() == WANTED[path]
    assert (tmp_path / "out/edited.partial").read_bytes()[1_000_000:1_003_000] == b"new" * 1000


def test_a_draft_and_an_unresolved_launch_go_with_it(box: Sandbox, mount: MountFactory) -> None:
    box.populate(SHORT)
    m = mount(write_back=3600)
    (m.path / "appended").write_bytes(b"closed")
    box.faults.add("launch", "drop_reply")
    box.faults.add("simulations", "status", status=503, after=1)
    assert errno_of(lambda: (m.path / ".simulations/launch").write_text(WORDS)) == errno.EAGAIN
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        stack.enter_context(open(m.path / "appended", "ab", buffering=0)).write(b" and more")
        stack.enter_context(open(m.path / "draft", "wb", buffering=0)).write(b"half")
        m.kill()
    m.umount("--lazy")
    started = len(box.runs())
    box.faults.clear()
    rotate(box, m)
    assert "adopted 1 file, 2 drafts and 1 launch of" in adopted(m)
    m.option(run_ttl=0)
    m.start()
    assert errno_of(lambda: (m.path / ".simulations/launch").write_text(WORDS)) != 0
    assert len(box.runs()) == started
    drafts = json.loads(cloudsimfs("recover", m.path, "--json").stdout)
    assert {found["path"]: found["size"] for found in drafts} == {"appended": 15, "draft": 4}
    assert (m.path / "appended").read_bytes() == b"closed"


def test_login_says_what_waits(box: Sandbox, stranded: Mounted, tmp_path: Path) -> None:
    m = stranded
    rotate(box, m)
    env = {name: str(tmp_path) for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME")}
    env["CLOUDSIMFS_CACHE_DIR"] = str(m.cache)
    license_file = write_key(tmp_path, m.key)
    done = cloudsimfs("login", "--url", box.url, "--license", license_file, env=env)
    assert done.returncode == 0, done.stderr
    assert "note: 4 files and 2 deletes wait under another key" in done.stderr
    assert "`cloudsimfs recover --adopt`" in done.stderr
    done = cloudsimfs("recover", "--adopt", "--yes", env=env)
    assert done.returncode == 0, done.stderr
    assert "nothing to recover" in cloudsimfs("recover", "--url", "http://127.0.0.1:1", env=env).stderr


def test_a_launch_with_a_key_of_its_own_is_spoken_of(box: Sandbox, mount: MountFactory) -> None:
    """Nothing waits, and still the same launch would start another run under the new key."""
    box.populate(SHORT)
    m = mount()
    (m.path / ".simulations/launch").write_text(f"{WORDS} key=once")
    assert m.umount().returncode == 0
    rotate(box, m)
    done = m.try_start()
    assert "note: 1 launch made with key=... is recorded under another key" in done.stderr
    assert "`cloudsimfs recover --adopt`" in done.stderr
    m.umount()
    adopted(m)
    assert m.try_start().stderr == ""
    (m.path / ".simulations/launch").write_text(f"{WORDS} key=once")
    assert len(box.runs()) == 1


def test_a_journal_that_cannot_be_read_is_not_nothing(box: Sandbox, stranded: Mounted) -> None:
    """It is said, and the files can be handed over without it; what it had of deletes and launches is lost."""
    m = stranded
    rotate(box, m)
    journal = old_place(m) / "journal.db"
    for file in journal.parent.glob("journal.db*"):
        file.unlink()
    journal.write_bytes(b"no journal at all" * 100)
    waiting = {"new", "case/deep/new", "edited"}
    assert found(*account(m)) == waiting
    done = m.try_start()
    assert done.returncode == 0
    assert f"{journal.parent}, does not fit the files beside it (it is damaged" in done.stderr
    m.umount()
    done = adopt(m, "--yes")
    assert done.returncode == 0, done.stderr
    assert m.try_start().returncode == 0
    assert found(m.path) == waiting, "they are listed under the new key now"


def found(*options: str | Path) -> set[str]:
    """The paths that `recover` lists."""
    return {draft["path"] for draft in json.loads(cloudsimfs("recover", *options, "--json").stdout)}


# -- what is refused -----------------------------------------------------------------------------------------------


def test_only_the_user_knows_whose_key_it_was(box: Sandbox, stranded: Mounted) -> None:
    m = stranded
    old = old_place(m)
    use_key(box, m)
    done = adopt(m)
    assert done.returncode == 1
    assert "confirm with --yes" in done.stderr
    write_under(m, "second")
    use_key(box, m)
    done = adopt(m, "--yes")
    assert done.returncode == 1
    assert "name one with --from" in done.stderr
    assert adopt(m, "--yes", "--from", "nowhere").returncode == 2
    assert cloudsimfs("recover", *account(m), "--from", old).returncode == 2
    assert cloudsimfs("recover", *account(m), "--adopt", "--save", "x").returncode == 2
    done = adopt(m, "--yes", "--from", old.name)
    assert done.returncode == 0, done.stderr
    m.start()
    check_all_arrived(box, m)
    assert "second" not in box.files()


def write_under(m: Mounted, name: str, data: bytes = b"second") -> None:
    m.option(write_back=3600)
    m.start()
    os.listdir(m.path)
    (m.path / name).parent.mkdir(exist_ok=True)
    (m.path / name).write_bytes(data)
    assert m.umount("--no-wait").returncode == 0
    m.option(write_back=0.2)


def test_not_while_the_old_key_is_mounted(box: Sandbox, stranded: Mounted, mount: MountFactory) -> None:
    m = stranded
    other = mount(start=False, cache_dir=m.cache, write_back=3600).start()
    use_key(box, m)
    assert "nothing waits under another key" in adopt(m, "--yes").stderr
    done = adopt(m, "--yes", "--from", old_place(m))
    assert done.returncode == 1
    assert "in use" in done.stderr
    other.flush()
    assert box.files() == WANTED


# -- what others, and the new key, have written meanwhile ------------------------------------------------------------


@pytest.mark.parametrize("known", [False, True])
def test_what_others_have_stored_meanwhile_is_a_conflict(box: Sandbox, mount: MountFactory, known: bool) -> None:
    """Also if uploads were tried and refused, and whether or not the new key's mounts have listed it."""
    box.populate({"case/f": b"as it was", "g": b"as it was"})
    m = mount(write_back=0)
    assert (m.path / "case/f").read_bytes() == (m.path / "g").read_bytes()
    os.listdir(m.path / "case")
    box.keys.clear()
    (m.path / "case/f").write_bytes(b"ours")
    (m.path / "g").write_bytes(b"ours")
    (m.path / "case/made").write_bytes(b"ours")
    wait_until(lambda: all(job["error"] for job in m.pending()) and len(m.pending()) == 3, "the key is refused")
    assert m.umount("--no-wait").returncode == 0
    for path in ("case/f", "g", "case/made"):
        put_by_others(box, path, b"theirs")
    rotate(box, m)
    if known:
        m.start()
        os.listdir(m.path / "case")
        assert m.umount().returncode == 0
    adopted(m)
    m.start()
    stored = m.settle()
    assert {stored[path] for path in ("case/f", "g", "case/made")} == {b"theirs"}
    copies = conflict_copies(stored)
    assert sorted(path.partition(".conflict-")[0] for path in copies) == ["case/f", "case/made", "g"]
    assert set(copies.values()) == {b"ours"}


def test_what_the_new_key_has_written_keeps_its_name(box: Sandbox, stranded: Mounted) -> None:
    """A file, a file where the old key has a folder, and a folder where it has a file."""
    m = stranded
    rotate(box, m)
    m.option(write_back=3600)
    m.start()
    (m.path / "edited").write_bytes(b"by the new key")
    (m.path / "gone").write_bytes(b"wanted again")
    (m.path / "case/deep").write_bytes(b"a file")
    (m.path / "new").mkdir()
    (m.path / "new/inside").write_bytes(b"inside")
    assert m.umount("--no-wait").returncode == 0
    m.option(write_back=0.2)
    said = adopted(m)
    assert "/edited was written with this key, too: what is adopted becomes /edited.conflict-" in said
    m.start()
    m.flush()
    wait_until(lambda: "case/moved" not in box.files(), "the rename is complete")
    stored = m.settle()
    plain = {path: data for path, data in stored.items() if ".conflict-" not in path}
    assert plain == {
        "edited": b"by the new key",
        "gone": b"wanted again",
        "case/deep": b"a file",
        "new/inside": b"inside",
        "case/there": WANTED["case/there"],
        "kept": b"kept",
    }
    copies = {path.partition(".conflict-")[0]: (path, data) for path, data in conflict_copies(stored).items()}
    assert {name: data for name, (_, data) in copies.items()} == {
        "edited": EDITED,
        "new": b"new",
        "case/deep": b"deep",
    }
    assert copies["case/deep"][0].endswith("/new")


# -- killed in the middle --------------------------------------------------------------------------------------------

POINTS = [
    "handover-1-recorded",
    "handover-2-linked:1",
    "handover-2-linked:3",
    "handover-3-almost",
    "handover-3-adopted",
    "handover-4-emptied",
]


@pytest.mark.parametrize("point", POINTS)
def test_a_handover_that_is_killed_is_repeated(box: Sandbox, stranded: Mounted, point: str) -> None:
    m, versions = stranded, box.record_versions()
    rotate(box, m)
    assert adopt(m, "--yes", crash_at=point).returncode == -9
    adopted_again = adopt(m, "--yes")
    assert adopted_again.returncode == 0, adopted_again.stderr
    m.start()
    check_all_arrived(box, m)
    assert sorted(versions) == sorted(CHANGED.items())


@pytest.mark.parametrize("first", ["old", "new"])
@pytest.mark.parametrize("point", POINTS)
def test_both_keys_may_be_mounted_after_a_kill(box: Sandbox, stranded: Mounted, point: str, first: str) -> None:
    """In either order: whoever has it uploads it, once, and the rest is adopted by a repetition."""
    m, versions = stranded, box.record_versions()
    old_key = m.key_file
    use_key(box, m)
    new_key = m.key_file
    assert adopt(m, "--yes", crash_at=point).returncode == -9
    for key in (old_key, new_key) if first == "old" else (new_key, old_key):
        m.option(key_file=key)
        m.start()
        m.flush()
        os.listdir(m.path)
        m.flush()
        assert m.umount().returncode == 0
    assert adopt(m, "--yes").returncode == 0
    m.option(key_file=new_key, ttl=0)
    m.start()
    check_all_arrived(box, m)
    assert sorted(versions) == sorted(CHANGED.items())
