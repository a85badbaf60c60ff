"""What a user is told to type can be typed: profiles, their tables, mount points, what doctor advises."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloudsimfs import config
from cloudsimfs.cli import checks
from cloudsimfs.errors import ConfigError, MountError
from cloudsimfs.host import mountpoint
from cloudsimfs.sandbox import Sandbox
from harness import Mounted, MountFactory, cloudsimfs, write_key


@pytest.fixture
def api() -> str:
    return "v2"  # nothing here depends on it


@pytest.fixture
def user(tmp_path: Path) -> dict[str, str]:
    """The environment of a user with a profile `work` that has an address and no key."""
    file = tmp_path / "config/cloudsimfs/config.toml"
    file.parent.mkdir(parents=True)
    file.write_text("[profiles.work]\nurl = 'https://a.example'\n[profiles.bare]\n")
    return {"XDG_CONFIG_HOME": str(tmp_path / "config"), "XDG_CACHE_HOME": str(tmp_path / "cache")}


# -- profiles ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "profile"),
    [
        (["mount", "x", "--profile", "work"], "work"),
        (["mount", "x", "-o", "profile=work"], "work"),
        (["mount", "x", "--profile", "bare"], "bare"),
        (["runs", "--profile", "work"], "work"),
        (["doctor", "--profile", "work", "--offline"], "work"),
        (["config", "show", "--profile", "work"], "work"),
    ],
)
def test_what_is_to_be_typed_names_the_profile_in_use(user: dict[str, str], words: list[str], profile: str) -> None:
    done = cloudsimfs(*words, env=user)
    told = (done.stdout + done.stderr).replace("(the key that `cloudsimfs login` stored)", "")
    assert f"cloudsimfs login --profile {profile}" in told
    assert told.count("cloudsimfs login") == told.count(f"cloudsimfs login --profile {profile}")


def test_the_profile_of_the_environment_counts_and_the_default_needs_no_name(user: dict[str, str]) -> None:
    done = cloudsimfs("mount", "x", env={**user, "CLOUDSIMFS_PROFILE": "work"})
    assert "`cloudsimfs login --profile work`" in done.stderr
    done = cloudsimfs("mount", "x", "--url", "https://a.example", env=user)
    assert "`cloudsimfs login`" in done.stderr


def test_a_refused_key_of_a_profile(user: dict[str, str], box: Sandbox, tmp_path: Path) -> None:
    wrong = write_key(tmp_path, "wrong-key-0123456789")
    done = cloudsimfs("doctor", "--profile", "work", "--url", box.url, "--key-file", wrong, env=user)
    assert "it does not accept the key" in done.stdout
    assert "do: cloudsimfs login --profile work\n" in done.stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[profile.lab]\nurl = 'https://a.example'", "[profile.lab]: no such table; did you mean [profiles.lab]?"),
        ("[profile]\nurl = 'https://a.example'", "[profile]: no such table; did you mean [profiles.default]?"),
        ("[lab]\nurl = 'https://a.example'", "[lab]: no such table; did you mean [profiles.lab]?"),
        ("profile = 'lab'", "profile: no such setting"),
    ],
)
def test_a_table_that_is_none_names_the_one_that_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "cloudsimfs/config.toml"
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        config.resolve({})
    assert str(caught.value).startswith(f"{file}: {said}")


def test_logout_of_a_profile_that_is_none(user: dict[str, str], tmp_path: Path) -> None:
    done = cloudsimfs("logout", "--profile", "wrok", env=user)
    assert done.returncode == 2
    assert "profile wrok: not in" in done.stderr
    assert "did you mean work?" in done.stderr
    assert done.stdout == ""
    done = cloudsimfs("logout", "--profile", "nope", env=user)
    assert done.returncode == 2
    assert "login" not in done.stderr  # who logs out does not want to make it
    for known in (["--profile", "work"], []):
        done = cloudsimfs("logout", *known, env=user)
        assert (done.returncode, done.stderr) == (0, "")
    key = tmp_path / "config/cloudsimfs/gone.key"  # its table was taken out of the file by hand
    key.write_text("a-key-0123456789\n")
    key.chmod(0o600)
    assert cloudsimfs("logout", "--profile", "gone", env=user).returncode == 0
    assert not key.exists()


# -- mount points ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("/", "/: the root of this machine's files; mount on an empty directory: mkdir"),
        ("/proc", "/proc: a proc is mounted there; mount on an empty directory: mkdir"),
        ("/etc", "/etc: not empty ("),
    ],
)
def test_what_is_no_place_for_a_mount_says_what_it_is(place: str, said: str) -> None:
    with pytest.raises(MountError) as caught:
        mountpoint.check(Path(place))
    assert str(caught.value).startswith(said)
    assert "umount" not in str(caught.value)


def test_what_is_mounted_already_names_its_end(m: Mounted) -> None:
    with pytest.raises(MountError, match=f"{m.path}: already mounted; `cloudsimfs umount {m.path}` unmounts it"):
        mountpoint.check(m.path)


# -- doctor ------------------------------------------------------------------------------------------------------


def test_doctor_leaves_other_users_mounts_alone(m: Mounted, monkeypatch: pytest.MonkeyPatch) -> None:
    def told() -> list[str]:
        return [each.text for each in checks.check_mounts() if str(m.path) in each.text]

    assert told() == [f"{m.path} answers"]
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 4711)
    m.kill()
    assert told() == []
    assert [each.text for each in checks.check_mounts()] == ["nothing of yours is mounted"]
    monkeypatch.undo()
    assert told() == [f"{m.path}: its daemon died"]


def test_doctor_does_not_tell_to_mount_what_is_mounted(mount: MountFactory) -> None:
    m = mount(write_back=3600)
    (m.path / "f").write_bytes(b"waits")
    settings = config.resolve({"cache-dir": str(m.cache)})
    place = m.status()["cache"]["directory"]
    found = checks.check_pending(settings)
    assert found.level == "ok"
    assert (
        found.text
        == f"1 file in {place}, which is mounted, is to be uploaded; `cloudsimfs status` shows the progress"
    )
    assert m.umount("--no-wait").returncode == 0
    found = checks.check_pending(settings)
    assert found.level == "warning"
    assert found.text == f"not on the service yet: 1 file in {place}"
    assert found.remedy == "mount that account; do not delete them"
