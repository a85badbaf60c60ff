"""What other users have mounted is a trap until shown otherwise: it is not asked, not believed and not unmounted."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cloudsimfs.cli import checks, main, mounts
from cloudsimfs.errors import MountError
from cloudsimfs.host import mountpoint
from harness import Mounted
from systemd_harness import need_root

BACKING = "0123456789abcdef01234567"
STRANGER = 65534
DETACH = 2  # umount2(2): MNT_DETACH
libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def api() -> str:
    return "v1"


# -- dead mounts -------------------------------------------------------------------------------------------------


@pytest.fixture
def dead(mount_base: Path, tmp_path: Path) -> Iterator[Callable[[str, int], Path]]:
    """Makes a dead mount of a type and a user. Only root can make one in another's name."""
    need_root()
    made: list[Path] = []

    def make(kind: str, user: int) -> Path:
        place = mount_base / f"{tmp_path.name}-{len(made)}"
        place.mkdir()
        fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={fd},rootmode=40000,user_id={user},group_id={user},allow_other".encode()
        status = libc.mount(b"none", bytes(place), kind.encode(), 0, options)
        os.close(fd)
        assert status == 0, os.strerror(ctypes.get_errno())
        made.append(place)
        return place

    try:
        yield make
    finally:
        for place in made:
            libc.umount2(bytes(place), DETACH)


@pytest.mark.parametrize(("kind", "user"), [("fuse.sshfs", 0), (mountpoint.FS_TYPE, STRANGER)])
def test_a_dead_mount_of_others_stays(dead: Callable[[str, int], Path], kind: str, user: int) -> None:
    place = dead(kind, user)
    assert mountpoint.state(place) == "dead"
    with pytest.raises(MountError, match=f"^{place}: a dead mount that is not yours"):
        mountpoint.check(place)
    with pytest.raises(MountError):
        mountpoint.clear(place)
    assert not [found for found in checks.check_mounts() if str(place) in found.text]
    assert mountpoint.mount_type(place) == kind


def test_a_dead_mount_stays_until_another_can_be_made(m: Mounted) -> None:
    m.kill()
    key = m.key_file.read_text()
    m.key_file.write_text("a-wrong-key-0123456789\n")
    assert "does not accept the API key" in m.try_start().stderr
    assert mountpoint.state(m.path) == "dead"  # what a program writes there now is not written below the mount
    m.key_file.write_text(key)
    m.start()
    assert mountpoint.state(m.path) == "ok"


# -- mounts that answer ------------------------------------------------------------------------------------------


@pytest.fixture
def as_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: STRANGER)


@pytest.mark.usefixtures("as_stranger")
def test_commands_do_not_ask_the_mount_of_another_user(m: Mounted) -> None:
    for words in (["status"], ["flush"], ["recover"], ["refresh"], ["runs", "--mount"], ["umount"]):
        done = CliRunner().invoke(main, [*words, str(m.path)])
        assert done.exit_code == 1, words
        assert done.output.startswith(f"Error: {m.path}: mounted by another user ("), words
    assert m.path not in mountpoint.our_mounts()
    assert m.is_mounted()


def test_a_mount_of_ours_that_anothers_process_serves_is_not_believed(
    m: Mounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mounts.read_status(m.path)["pid"]
    monkeypatch.setattr(os, "getuid", lambda: STRANGER)
    with pytest.raises(MountError, match="of another user serves it"):
        mounts.read_status(m.path)


# -- what a mount names to `recover` ------------------------------------------------------------------------------


Recover = Callable[..., Result]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    directory = tmp_path / "cache/service-12345678"
    (directory / "data").mkdir(parents=True)
    (directory / "data" / BACKING).write_bytes(b"text")
    return directory


@pytest.fixture
def recover(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recover:
    """Runs `recover --save` on a folder that is taken for a mount; its one draft has these fields."""
    top = tmp_path / "top"
    (top / ".cloudsimfs").mkdir(parents=True)
    monkeypatch.setattr(mountpoint, "owner", lambda place: os.getuid() if place == top else None)
    status = {"pid": os.getpid(), "cache": {"directory": str(cache)}}
    (top / ".cloudsimfs/status.json").write_text(json.dumps(status))

    def run(**changes: Any) -> Result:
        draft = {
            "id": BACKING[:8],
            "path": "case/f",
            "size": 4,
            "since_ns": 0,
            "missing": 0,
            "file": str(cache / "data" / BACKING),
            "shown": True,
        }
        (top / ".cloudsimfs/recover.json").write_text(json.dumps([draft | changes]))
        return CliRunner().invoke(main, ["recover", str(top), "--save", str(tmp_path / "saved")])

    return run


def test_what_is_sound_is_saved_each_time_anew(recover: Recover, tmp_path: Path) -> None:
    for _ in range(3):
        assert recover().exit_code == 0
    names = sorted(os.listdir(tmp_path / "saved/case"))
    assert names == ["f", f"f.{BACKING[:8]}", f"f.{BACKING[:8]}-2"]
    assert {(tmp_path / "saved/case" / name).read_bytes() for name in names} == {b"text"}


@pytest.mark.parametrize("path", ["/{home}/.ssh/keys", "../home/.ssh/keys", "case/../../home/.ssh/keys", "", "a//b"])
def test_no_path_leads_out_of_the_directory(recover: Recover, tmp_path: Path, path: str) -> None:
    (tmp_path / "home/.ssh").mkdir(parents=True)
    done = recover(path=path.replace("/{home}", str(tmp_path / "home")))
    assert done.exit_code == 1
    assert "which cannot be" in done.output
    assert os.listdir(tmp_path / "home/.ssh") == []
    assert not (tmp_path / "saved").exists()


def test_no_file_outside_the_cache_is_read(recover: Recover, cache: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hers")
    outside = [secret, cache / "data/../journal.db", cache / "journal.db", tmp_path / BACKING]
    for file in outside:
        assert "which cannot be" in recover(file=str(file)).output, file
    (cache / "data" / BACKING).unlink()
    (cache / "data" / BACKING).symlink_to(secret)
    assert recover().exit_code == 1
    assert not (tmp_path / "saved/case/f").exists()


def test_nothing_is_written_through_a_link(recover: Recover, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved/case").symlink_to(home)
    assert "cannot be copied to" in recover().output
    (tmp_path / "saved/case").unlink()
    (tmp_path / "saved/case").mkdir()
    (tmp_path / "saved/case/f").symlink_to(home / "keys")
    assert recover().output == f"{tmp_path}/saved/case/f.{BACKING[:8]}\n"
    assert os.listdir(home) == []
