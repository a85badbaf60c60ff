"""The journal is lost, damaged, or of another time: the bytes of closed files stay, and `recover` lists them.

Cases in which the daemon is killed, the journal is changed behind its back, and the drive is mounted again.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloudsimfs.datacache.notes import ATTRIBUTE
from cloudsimfs.journal.schema import SCHEMA_VERSION
from cloudsimfs.sandbox import Sandbox
from harness import Mounted, MountFactory, cloudsimfs, read_tree, wait_until

STORED = {"stored/whole": os.urandom(200_000), "stored/changed": os.urandom(200_000), "stored/moved": b"moved" * 9}
OVERWRITTEN = STORED["stored/changed"][:1000] + b"changed here" + STORED["stored/changed"][1012:]

Damage = Callable[[Path], object]


@pytest.fixture(params=["v2"])
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def directory_of(m: Mounted) -> Path:
    (found,) = m.cache.glob("*/data")
    return found.parent


def remove(directory: Path, *suffixes: str) -> None:
    for suffix in suffixes:
        (directory / f"journal.db{suffix}").unlink(missing_ok=True)


def missing(directory: Path) -> None:
    remove(directory, "", "-wal", "-shm")


def missing_but_for_its_log(directory: Path) -> None:
    remove(directory, "")


def empty(directory: Path) -> None:
    missing(directory)
    (directory / "journal.db").touch(0o600)


def without_its_log(directory: Path) -> None:
    remove(directory, "-wal", "-shm")


def halved(directory: Path) -> None:
    with contextlib.closing(sqlite3.connect(directory / "journal.db")) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    remove(directory, "-wal", "-shm")
    journal = directory / "journal.db"
    os.truncate(journal, journal.stat().st_size // 2)


def garbage(directory: Path) -> None:
    missing(directory)
    (directory / "journal.db").write_bytes(os.urandom(50_000))


def of_another_program(directory: Path) -> None:
    missing(directory)
    with contextlib.closing(sqlite3.connect(directory / "journal.db")) as db:
        db.execute("CREATE TABLE t (x)")


def a_folder(directory: Path) -> None:
    missing(directory)
    (directory / "journal.db").mkdir()


DAMAGES = (
    missing,
    missing_but_for_its_log,
    empty,
    without_its_log,
    halved,
    garbage,
    of_another_program,
    a_folder,
)


def work(m: Mounted) -> dict[str, bytes]:
    """Close 30 files in all ways there are. Returns those that only this machine has."""
    closed = {f"case/{number}/file": os.urandom(3000 * number) for number in range(22)}
    for path, data in closed.items():
        (m.path / path).parent.mkdir(parents=True, exist_ok=True)
        (m.path / path).write_bytes(data)
    (m.path / "empty").touch()
    (m.path / "ü 'quoted\"").write_bytes(b"a name")
    with open(m.path / "twice", "wb") as file:
        file.write(b"overwritten" * 1000)
    with open(m.path / "twice", "r+b") as file:
        file.write(b"again")
    with open(m.path / "appended", "wb") as file:
        file.write(b"first")
    with open(m.path / "appended", "ab") as file:
        file.write(b"second")
    (m.path / "old name").write_bytes(b"renamed")
    os.rename(m.path / "old name", m.path / "new name")
    (m.path / "folder").mkdir()
    (m.path / "folder/inside").write_bytes(b"in a renamed folder")
    os.rename(m.path / "folder", m.path / "renamed folder")
    (m.path / "over").write_bytes(b"replaced")
    (m.path / "under").write_bytes(b"takes its place")
    os.rename(m.path / "under", m.path / "over")
    (m.path / "stored/whole").read_bytes()
    with open(m.path / "stored/changed", "r+b") as file:
        file.seek(1000)
        file.write(b"changed here")
    (m.path / "removed").write_bytes(b"removed")
    (m.path / "removed").unlink()
    return closed | {
        "empty": b"",
        "ü 'quoted\"": b"a name",
        "twice": (b"again" + b"overwritten" * 1000)[:5] + (b"overwritten" * 1000)[5:],
        "appended": b"firstsecond",
        "new name": b"renamed",
        "renamed folder/inside": b"in a renamed folder",
        "over": b"takes its place",
        "stored/changed": OVERWRITTEN,
    }


def recover(*options: str | Path) -> str:
    done = cloudsimfs("recover", *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def listed(*options: str | Path) -> dict[str, dict[str, Any]]:
    found = json.loads(recover(*options, "--json"))
    assert len({draft["path"] for draft in found}) == len(found), "each once"
    return {draft["path"]: draft for draft in found}


def saved(directory: Path, *options: str | Path) -> dict[str, bytes]:
    recover(*options, "--save", directory)
    return read_tree(directory)


def lost(box: Sandbox, mount: MountFactory, damage: Damage, **options: Any) -> tuple[Mounted, dict[str, bytes]]:
    """A drive whose daemon was killed, and whose journal was then damaged; and what was closed and is not stored."""
    box.populate(STORED)
    m = mount(write_back=3600, **options)
    closed = work(m)
    assert len(closed) == 30
    m.kill()
    damage(directory_of(m))
    return m, closed


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_was_closed_is_listed_and_saved(
    box: Sandbox, mount: MountFactory, tmp_path: Path, damage: Damage
) -> None:
    versions = box.record_versions()
    m, closed = lost(box, mount, damage)
    place = ("--cache-dir", m.cache)
    before = listed(*place)
    assert set(before) == set(closed), "listed before anything is mounted"
    assert all(draft["found"] and draft["closed"] for draft in before.values())
    without_mount = saved(tmp_path / "without", *place)
    assert {path: without_mount.get(path) for path in closed if path != "stored/changed"} == {
        path: data for path, data in closed.items() if path != "stored/changed"
    }
    m.start()
    assert set(listed(m.path)) == set(closed)
    assert saved(tmp_path / "with", m.path) == closed
    m.flush()
    assert versions == [], "nothing goes up by itself"
    m.crash()
    m.remount()
    assert set(listed(m.path)) == set(closed), "they stay until they are dealt with"


@pytest.mark.parametrize("damage", [missing, without_its_log])
def test_what_was_closed_can_be_put_back(box: Sandbox, mount: MountFactory, damage: Damage) -> None:
    m, closed = lost(box, mount, damage)
    m.option(write_back=0.1)
    m.start()
    recover(m.path, "--all")
    assert m.settle() == STORED | closed
    assert listed(m.path) == {}
    m.remount()
    assert listed(m.path) == {}
    assert read_tree(m.path) == STORED | closed


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_loss_is_reported(box: Sandbox, mount: MountFactory, damage: Damage) -> None:
    m, closed = lost(box, mount, damage)
    doctor = cloudsimfs("doctor", "--offline", "--cache-dir", m.cache)
    assert "recover" in doctor.stdout, "before the next mount, too"
    m.start()
    assert "does not fit" in m.log()
    status = (m.path / ".cloudsimfs/status").read_text()
    assert "/case/1/file: " in status
    asides = sorted(directory_of(m).glob("journal.db.set-aside-*"))
    mains = [file for file in asides if not file.name.endswith(("-wal", "-shm"))]
    assert bool(mains) == (damage not in (missing, missing_but_for_its_log))
    assert bool(asides) == (damage is not missing)
    doctor = cloudsimfs("doctor", "--offline", "--cache-dir", m.cache)
    for aside in mains:
        assert aside.name in status
        assert aside.name in doctor.stdout
        assert str(aside) in m.status()["set_aside"]
    assert f"{len(closed)} files" in doctor.stdout


def test_the_loss_is_forgotten_once_it_is_dealt_with(box: Sandbox, mount: MountFactory) -> None:
    m, _ = lost(box, mount, garbage)
    m.option(write_back=0.1)
    m.start()
    recover(m.path, "--all")
    m.flush()
    for aside in directory_of(m).glob("journal.db.set-aside-*"):
        aside.unlink()
    assert "set aside" not in (m.path / ".cloudsimfs/status").read_text()
    assert "recover" not in cloudsimfs("doctor", "--offline", "--cache-dir", m.cache).stdout


def test_what_was_being_written_is_kept_beside_what_was_closed(
    box: Sandbox, mount: MountFactory, tmp_path: Path
) -> None:
    """A closed state that was appended to is one file of its own, the whole another."""
    box.populate(STORED)
    m = mount(write_back=3600)
    (m.path / "appended").write_bytes(b"closed")
    (m.path / "overwritten").write_bytes(b"closed" * 1000)
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        new = stack.enter_context(open(m.path / "new", "wb", buffering=0))
        appended = stack.enter_context(open(m.path / "appended", "ab", buffering=0))
        overwritten = stack.enter_context(open(m.path / "overwritten", "r+b", buffering=0))
        unlinked = stack.enter_context(open(m.path / "unlinked", "wb", buffering=0))
        for file in (new, appended, overwritten, unlinked):
            file.write(b"half")
        (m.path / "unlinked").unlink()
        m.kill()
    missing(directory_of(m))
    expected = sorted(
        [
            ("appended", b"closed"),
            ("appended", b"closedhalf"),
            ("new", b"half"),
            ("overwritten", b"closed" * 1000),
            ("overwritten", b"half" + (b"closed" * 1000)[4:]),
        ]
    )

    def contents(directory: Path) -> list[tuple[str, bytes]]:
        return sorted((path.partition(".")[0], data) for path, data in read_tree(directory).items())

    recover("--cache-dir", m.cache, "--save", tmp_path / "without")
    assert contents(tmp_path / "without") == expected
    m.start()
    recover(m.path, "--save", tmp_path / "with")
    assert contents(tmp_path / "with") == expected
    found = json.loads(recover(m.path, "--json"))
    assert {(draft["path"], draft["size"]) for draft in found if draft["closed"]} == {
        ("appended", 6),
        ("overwritten", 6000),
    }


def test_the_cache_of_what_is_stored_is_no_find(box: Sandbox, mount: MountFactory) -> None:
    """Read, or stored from here: the service has it, and the cache is good without the journal."""
    box.populate(STORED)
    m = mount(write_back=0.1, ttl=0)
    for path in STORED:
        (m.path / path).read_bytes()
    (m.path / "new").write_bytes(b"new")
    with open(m.path / "stored/changed", "ab") as file:
        file.write(b"!")
    m.settle()
    wait_until(lambda: read_tree(m.path) and not rows(m), "all is confirmed")
    m.kill()
    missing(directory_of(m))
    m.start()
    assert listed(m.path) == {}
    box.calls.reset()
    assert read_tree(m.path) == STORED | {"new": b"new", "stored/changed": STORED["stored/changed"] + b"!"}
    assert "object-get" not in box.calls.counts(), "the cache was kept"


def rows(m: Mounted) -> list[object]:
    with contextlib.closing(sqlite3.connect(directory_of(m) / "journal.db")) as db:
        return db.execute("SELECT path FROM file UNION SELECT path FROM draft").fetchall()


# -- a journal of another time, or another place ------------------------------------------------------------------


def copy_of(directory: Path, to: Path) -> None:
    to.mkdir()
    for file in directory.glob("journal.db*"):
        shutil.copy(file, to)


def put_back(directory: Path, source: Path) -> None:
    missing(directory)
    for file in source.glob("journal.db*"):
        shutil.copy(file, directory)


@pytest.mark.parametrize("rebooted", [False, True])
def test_a_journal_of_another_time_is_set_aside(
    box: Sandbox, mount: MountFactory, tmp_path: Path, rebooted: bool
) -> None:
    """Else it would delete what was stored since, or upload what is out of date."""
    box.populate({"kept": b"of others"})
    m = mount(write_back=3600)
    (m.path / "kept").unlink()
    (m.path / "early").write_bytes(b"early")
    m.kill()
    copy_of(directory_of(m), tmp_path / "copy")
    m.option(write_back=0.1)
    m.start()
    (m.path / "kept").write_bytes(b"stored since")
    m.settle()
    with open(m.path / "late", "wb") as file:
        file.write(b"late")
        os.fsync(file.fileno())
    m.option(write_back=3600)
    m.remount("--no-wait")
    (m.path / "early").write_bytes(b"later")
    with open(m.path / "last", "wb") as file:
        file.write(b"last")
        os.fsync(file.fileno())
    m.kill()
    put_back(directory_of(m), tmp_path / "copy")
    if rebooted:
        forget_the_boot(directory_of(m))
    before = box.files()
    m.start()
    m.flush()
    assert box.files() == before
    assert {"early", "last"} <= set(listed(m.path))
    assert "does not fit" in m.log()


def forget_the_boot(directory: Path) -> None:
    stamp = directory / "data/journal.stamp"
    stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "boot": "another"}))


def test_a_power_loss_that_costs_the_last_rows_is_no_misfit(box: Sandbox, mount: MountFactory) -> None:
    """What was not fsynced may be missing: the journal is still the one of these files."""
    m = mount(write_back=3600)
    (m.path / "f").write_bytes(b"closed")
    m.remount("--no-wait")
    m.kill()
    without_its_log(directory_of(m))
    forget_the_boot(directory_of(m))
    m.start()
    assert "does not fit" not in m.log()
    assert (m.path / "f").read_bytes() == b"closed"
    assert listed(m.path) == {}


def test_the_journal_of_another_directory_is_set_aside(box: Sandbox, mount: MountFactory) -> None:
    box.settings.caches_listings = False  # what is stored between the two mounts is seen by the second
    box.populate({"theirs": b"theirs"})
    other = mount(write_back=3600)
    (other.path / "other").write_bytes(b"other")
    (other.path / "theirs").unlink()
    other.kill()
    m, closed = lost(box, mount, lambda directory: put_back(directory, directory_of(other)))
    m.start()
    m.flush()
    assert set(listed(m.path)) == set(closed)
    assert box.files()["theirs"] == b"theirs"


# -- a journal that cannot be used, and is not lost ----------------------------------------------------------------


def newer(directory: Path) -> None:
    with contextlib.closing(sqlite3.connect(directory / "journal.db")) as db:
        db.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")


def test_a_journal_of_a_newer_version_is_refused(box: Sandbox, mount: MountFactory) -> None:
    m, closed = lost(box, mount, newer)
    done = m.try_start()
    assert done.returncode == 1
    assert "written by another version of cloudsimfs (schema 3)" in done.stderr
    assert "--cache-dir" in done.stderr
    assert not list(directory_of(m).glob("journal.db.set-aside-*"))
    with contextlib.closing(sqlite3.connect(directory_of(m) / "journal.db")) as db:
        db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    m.option(write_back=0.1)
    m.start()
    assert m.settle() == STORED | closed, "nothing was changed"


def test_a_directory_of_before_there_were_notes(box: Sandbox, mount: MountFactory) -> None:
    """Its rows are read, and its files are noted from now on."""
    m, closed = lost(box, mount, forget_the_notes)
    m.start()
    assert listed(m.path) == {}
    m.kill()
    missing(directory_of(m))
    m.start()
    assert set(listed(m.path)) == set(closed)


def forget_the_notes(directory: Path) -> None:
    """What was noted, and the files that wait to be removed: a version without notes removed them at once."""
    with contextlib.closing(sqlite3.connect(directory / "journal.db")) as db:
        db.execute("DROP TABLE identity")
        named = {name for (name,) in db.execute("SELECT backing FROM file UNION SELECT backing FROM draft")}
    for file in (directory / "data").iterdir():
        if file.suffix in (".note", ".stamp"):
            file.unlink()
        elif ATTRIBUTE in os.listxattr(file):
            os.removexattr(file, ATTRIBUTE)
            if file.name not in named:
                file.unlink()


def test_without_notes_the_bytes_stay(box: Sandbox, mount: MountFactory, tmp_path: Path) -> None:
    """A directory of before there were notes, whose journal is lost: nobody knows the names."""

    def damage(directory: Path) -> None:
        forget_the_notes(directory)
        missing(directory)

    m, closed = lost(box, mount, damage)
    m.start()
    found = set(saved(tmp_path / "saved", m.path).values())
    assert {data for path, data in closed.items() if data and path != "stored/changed"} <= found


def test_clearing_the_cache_keeps_what_the_journal_does_not_know(box: Sandbox, mount: MountFactory) -> None:
    m, closed = lost(box, mount, missing)
    m.clean_up()
    done = cloudsimfs("cache", "clear", "--cache-dir", m.cache)
    assert done.returncode == 0, done.stderr
    m.start()
    assert set(listed(m.path)) == set(closed)


# -- a journal that is whole: nothing is found ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "point",
    [
        "log-begun",
        "note-written:1",
        "note-written:5",
        "bytes-given-up:1",
        "bytes-given-up:2",
        "copied",
        "made-local:1",
        "made-local:2",
        "6-stored",
        "7-confirmed",
        "bytes-dropped",
    ],
)
def test_a_kill_between_row_and_note_leaves_nothing_to_recover(box: Sandbox, mount: MountFactory, point: str) -> None:
    """Whatever is in the data directory then is known: a row's, a cache, or of no use."""
    box.populate(STORED)
    m = mount(start=False, write_back=0.1, ttl=0)
    assert m.try_start(crash_at=point).returncode == 0
    with contextlib.suppress(OSError):
        churn(m)
        wait_until(lambda: not m.pids or (read_tree(m.path) and False), "the point is reached")
    m.wait_for_death()
    m.start()
    assert [path for path, draft in listed(m.path).items() if draft["found"]] == []


def churn(m: Mounted) -> None:
    """Closed, changed in place, appended to, renamed and removed, in each state that a file may be in."""
    (m.path / "stored/whole").read_bytes()
    for path in ("stored/whole", "new"):
        with open(m.path / path, "ab") as file:
            file.write(b"appended")
        with open(m.path / path, "r+b") as file:
            file.write(b"in place")
    (m.path / "stored/changed").read_bytes()
    os.rename(m.path / "stored/changed", m.path / "renamed")
    (m.path / "removed").write_bytes(b"removed")
    (m.path / "removed").unlink()


def test_a_directory_that_cannot_be_written_is_refused(box: Sandbox, mount: MountFactory, tmp_path: Path) -> None:
    """As on a disk that has become read-only: a folder in the place of the lock file stands for it."""
    m, closed = lost(box, mount, lambda _: None)
    place = directory_of(m)
    os.rename(place, tmp_path / "there")
    (place / "lock").mkdir(parents=True, mode=0o700)
    done = m.try_start()
    assert done.returncode == 1
    assert "Traceback" not in done.stderr + m.log()
    assert str(place) in done.stderr
    shutil.rmtree(place)
    os.rename(tmp_path / "there", place)
    m.option(write_back=0.1)
    m.start()
    assert m.settle() == STORED | closed
