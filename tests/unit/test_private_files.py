"""Files for the user alone: replaced in one step, locked between processes."""

import os
import stat
from contextlib import closing
from pathlib import Path

import pytest

from cloudsimfs.datacache.directory import make_directory
from cloudsimfs.datacache.state import ContentState
from cloudsimfs.errors import ConfigError, MountError
from cloudsimfs.host import trust
from cloudsimfs.host.disk import copy_file
from cloudsimfs.host.files import is_locked, lock_file, make_private, open_private, open_regular, replace_file
from cloudsimfs.host.trust import seclude
from cloudsimfs.journal.journal import Journal
from cloudsimfs.journal.rows import DraftRow, Kept
from cloudsimfs.vfs.drafts import find_drafts


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_made_is_the_users_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_private(tmp_path / "a/b")
        os.close(open_private(tmp_path / "a/b/opened", os.O_RDWR))
        replace_file(tmp_path / "a/b/replaced", b"text")
    finally:
        os.umask(before)
    assert [mode(tmp_path / name) for name in ("a", "a/b", "a/b/opened", "a/b/replaced")] == [
        *(0o700, 0o700, 0o600, 0o600)
    ]


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"old")
    with open(file, "rb") as reader:
        replace_file(file, b"new", durable=True)
        assert (reader.read(), file.read_bytes()) == (b"old", b"new")

    def fail(_fd: int) -> None:
        raise OSError("no")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no"):
        replace_file(file, b"newer", durable=True)
    assert (file.read_bytes(), os.listdir(tmp_path)) == (b"new", ["file"])


def test_a_lock_file_has_one_holder(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    assert not is_locked(file)
    held = lock_file(file)
    assert is_locked(file)
    with pytest.raises(BlockingIOError):
        lock_file(file)
    os.close(held)
    assert not is_locked(file)
    os.close(lock_file(file, wait=True))


# -- directories that are the user's alone ---------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Path:
    directory = tmp_path / "above/account"
    directory.mkdir(parents=True, mode=0o700)
    (tmp_path / "above").chmod(0o755)
    return directory


def test_a_directory_of_ones_own_is_made_private(place: Path) -> None:
    place.chmod(0o755)
    seclude(place)
    assert mode(place) == 0o700
    (place.parent.parent / "link").symlink_to(place.parent)
    seclude(place.parent.parent / "link/account")


@pytest.mark.parametrize(("bits", "is_safe"), [(0o777, False), (0o757, False), (0o1777, True), (0o755, True)])
def test_others_may_not_write_above(place: Path, bits: int, is_safe: bool) -> None:
    place.parent.chmod(bits)
    if is_safe:
        seclude(place)
    else:
        with pytest.raises(PermissionError, match=f"{place.parent}: others can write to it; run: chmod go-w"):
            seclude(place)


@pytest.mark.parametrize("group_of_others", [True, False])
def test_a_group_may_write_above_if_nobody_else_is_in_it(
    place: Path, monkeypatch: pytest.MonkeyPatch, group_of_others: bool
) -> None:
    place.parent.chmod(0o775)
    monkeypatch.setattr(trust, "_is_ours_alone", lambda _: not group_of_others)
    if group_of_others:
        with pytest.raises(PermissionError, match="others can write to it"):
            seclude(place)
    else:
        seclude(place)


def test_a_link_is_not_the_directory(place: Path) -> None:
    (place.parent / "link").symlink_to(place)
    with pytest.raises(PermissionError, match="is a link"):
        seclude(place.parent / "link")


@pytest.mark.parametrize("whose", ["account", "above"])
def test_the_directory_of_another_user_is_not_taken(place: Path, whose: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    os.chown(place if whose == "account" else place.parent, 4711, 4711)
    with pytest.raises(PermissionError, match="belongs to another user"):
        seclude(place)


def test_the_cache_directory_is_checked(place: Path) -> None:
    (place / "data").symlink_to(place.parent)
    with pytest.raises(ConfigError, match=r"the cache directory is no safe place: .*data: is a link"):
        make_directory(place)


def test_no_private_file_is_opened_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"hers")
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    for open_it in (lambda path: open_private(path, os.O_RDWR), lock_file, is_locked, open_regular):
        with pytest.raises(OSError, match="symbolic links"):
            open_it(tmp_path / "link")
    with pytest.raises(FileExistsError):
        copy_file(tmp_path / "victim", tmp_path / "link", 4)


def test_a_journal_names_files_of_its_own_directory_only(place: Path) -> None:
    with closing(Journal(place / "journal.db")) as journal:
        held = ContentState("../../../victim", 4, None, None, 0, ())
        journal.save_draft(DraftRow(2, "f", 0, False, None, 0, Kept.DRAFT, held), closed=True)
    with pytest.raises(MountError, match="cannot be of a mount: nothing is done"):
        find_drafts(place)
