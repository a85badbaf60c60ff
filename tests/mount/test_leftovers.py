"""A mistyped key or address leaves no directory behind; what was there before, and what holds something, stays."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudsimfs.errors import Crashed, MountError
from cloudsimfs.journal.journal import Journal
from cloudsimfs.sandbox import Sandbox
from cloudsimfs.vfs import accountdir
from harness import Mounted, cloudsimfs, patient, write_key

WRONG = "wrong-key-0123456789"


@pytest.fixture
def api() -> str:
    return "v2"  # nothing here depends on it


@pytest.fixture
def user(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who has a home, and nothing of ours in it."""
    return {f"XDG_{kind}_HOME": str(tmp_path / "home" / kind) for kind in ("CACHE", "CONFIG", "STATE")}


def left(tmp_path: Path) -> list[str]:
    top = tmp_path / "home"
    return sorted(str(each.relative_to(top)) for each in top.rglob("*")) + ([""] if top.exists() else [])


RUN_COMMANDS = [
    ["runs"],
    ["options"],
    ["launch", "case", "--cpu", "1", "--ram", "standard", "--script", "heat2d-1.0"],
    ["wait"],
    ["log", "7"],
    ["stop", "7"],
]


@pytest.mark.parametrize("words", [["mount"], ["mount", "-f"], ["login"], ["doctor"], *RUN_COMMANDS])
@pytest.mark.parametrize("mistake", ["key", "url"])
def test_a_mistake_leaves_nothing(
    box: Sandbox, prepared: Mounted, user: dict[str, str], tmp_path: Path, words: list[str], mistake: str
) -> None:
    url = box.url if mistake == "key" else "http://127.0.0.1:1"
    key = write_key(tmp_path, WRONG if mistake == "key" else box.key)
    place = [str(prepared.path)] if words[0] == "mount" else []
    given = ["--license" if words[0] == "login" else "--key-file", key]
    done = cloudsimfs(*words, *place, "--url", url, *map(str, given), env=user)
    assert done.returncode == 1, done.stderr
    assert left(tmp_path) == []
    assert not prepared.is_mounted()


@pytest.mark.parametrize("words", [["mount"], ["runs"]])
def test_a_directory_of_its_own_goes_too_and_what_is_beside_it_stays(
    box: Sandbox, prepared: Mounted, user: dict[str, str], tmp_path: Path, words: list[str]
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "mine").write_text("mine")
    place = [str(prepared.path)] if words == ["mount"] else []
    key = write_key(tmp_path, WRONG)
    done = cloudsimfs(*words, *place, "--url", box.url, "--key-file", key, "--cache-dir", cache, env=user)
    assert done.returncode == 1
    assert os.listdir(cache) == ["mine"]


def test_an_account_that_is_known_is_kept(
    box: Sandbox, prepared: Mounted, user: dict[str, str], tmp_path: Path
) -> None:
    account = ["--url", box.url, "--key-file", str(prepared.key_file), "--api", "v2"]
    words = [str(prepared.path), *account, "--write-back", "3600", "--ttl", "0"]
    assert cloudsimfs("mount", *words, env=user).returncode == 0
    (prepared.path / "f").write_bytes(b"f")
    assert prepared.umount("--no-wait").returncode == 0
    before = left(tmp_path)
    box.faults.add("*", "status", status=401)
    (tmp_path / "home/CACHE").rename(tmp_path / "home/kept")  # the log's directory is there, the cache's is not
    assert cloudsimfs("mount", *words, env=user).returncode == 1
    assert not (tmp_path / "home/CACHE").exists()
    assert (tmp_path / "home/STATE/cloudsimfs").is_dir()
    (tmp_path / "home/kept").rename(tmp_path / "home/CACHE")
    for command in (["mount", *words], ["runs", *account]):
        assert cloudsimfs(*command, env=user).returncode == 1
        assert left(tmp_path) == before
    box.faults.clear()
    assert cloudsimfs("mount", *words, env=user).returncode == 0
    assert (prepared.path / "f").read_bytes() == b"f"


def test_what_holds_something_or_is_in_use_is_not_removed(tmp_path: Path) -> None:
    def attempt(act: Callable[[], object], error: Exception) -> None:
        with accountdir.provisional(tmp_path / "new/account"):
            act()
            raise error

    def fail(act: Callable[[], object], error: Exception) -> None:
        with pytest.raises(type(error)):
            attempt(act, error)

    def keep_folder() -> None:
        journal = Journal(tmp_path / "new/account/journal.db")
        journal.save_folder("made-here")
        journal.close()

    def keep_bytes() -> None:
        (tmp_path / "new/account/data").mkdir()
        (tmp_path / "new/account/data/bytes").write_bytes(b"closed")

    others = contextlib.ExitStack()
    enter = accountdir.provisional(tmp_path / "new/account")
    kept = [keep_folder, keep_bytes, lambda: others.enter_context(enter)]
    for number, act in enumerate(kept):
        fail(act, MountError("no"))
        (tmp_path / "new").rename(tmp_path / f"kept-{number}")
        assert (tmp_path / f"kept-{number}/account").is_dir()
    others.close()
    fail(lambda: None, Crashed("its log says more"))
    assert (tmp_path / "new/account").is_dir()
    (tmp_path / "new").rename(tmp_path / "crashed")
    fail(lambda: None, MountError("no"))
    assert not (tmp_path / "new").exists()


def test_who_comes_while_it_is_removed_has_one_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what it keeps would be written into a directory that nobody finds again."""
    account, entered = tmp_path / "new/account", threading.Event()

    def launch() -> None:
        with accountdir.provisional(account):
            (account / "intent").write_text("launched")
            entered.set()

    def slow_removal(directory: Path, *, ignore_errors: bool) -> None:
        launching.start()
        assert not entered.wait(0.2)
        remove(directory, ignore_errors)

    launching, remove = threading.Thread(target=launch), shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", slow_removal)
    with pytest.raises(MountError), accountdir.provisional(account):
        raise MountError("no")
    launching.join(patient(20))
    assert (account / "intent").read_text() == "launched"
