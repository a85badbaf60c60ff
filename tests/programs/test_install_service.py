"""`cloudsimfs install-service`: what it installs and takes away, with the real systemd, and what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from cloudsimfs.cli import installing
from cloudsimfs.errors import MountError
from cloudsimfs.sandbox import Sandbox
from harness import COMMAND_BOUND, ROOT, Mounted, client_environment, cloudsimfs, need, patient, run, write_key
from systemd_harness import in_namespace, manager

HELPERS = """
export HOME="$PWD"
unit=.config/systemd/user/cloudsimfs@.service
has_unit() { if [ -e $unit ]; then echo unit; else echo no unit; fi; }
"""


@pytest.fixture
def bin_(tmp_path: Path) -> Path:
    """A directory with the programs of this checkout, whose name systemd's syntax does not like."""
    place = tmp_path / "100% bin"
    place.mkdir()
    start = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {sysconfig.get_path('purelib')!r}]"
    (place / "cloudsimfs").write_text(f"#!{sys.executable}\n{start}; from cloudsimfs.cli import main; main()\n")
    for name in installing.HELPERS:
        (place / name).write_text("#!/bin/sh\n")
    for program in place.iterdir():
        program.chmod(0o755)
    return place


@pytest.fixture
def api() -> str:
    return "v2"  # nothing here depends on it


def profiles(home: Path, text: str) -> dict[str, str]:
    """The environment of a user with this config.toml."""
    place = home / ".config/cloudsimfs"
    place.mkdir(parents=True)
    (place / "config.toml").write_text(text)
    kept = {name: value for name, value in client_environment().items() if not name.startswith(("XDG_", "PYTHON"))}
    return {**kept, "HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config")}


def test_the_last_service_takes_the_unit_file_with_it(box: Sandbox, bin_: Path, tmp_path: Path) -> None:
    key = write_key(tmp_path, box.key)
    tables = [
        f'[profiles.{name}]\nurl = "{box.url}"\nkey-file = "{key}"\nmountpoint = "~/{name}"\ncache-dir = "~/c-{name}"'
        for name in ("one", "two")
    ]
    env = profiles(tmp_path, "\n".join(tables))
    env["PATH"] = f"{bin_}:{env['PATH']}"
    script = """
        cloudsimfs install-service one
        cloudsimfs install-service two; echo status $?
        echo mine > one/f
        cloudsimfs install-service --remove one; has_unit
        cloudsimfs install-service --remove two; has_unit
        systemctl --user list-unit-files --no-legend 'cloudsimfs@*'
        cloudsimfs install-service --remove two; echo status $?
        cloudsimfs install-service --remove tow; echo status $?
    """
    again = "now and whenever you log in (before that: loginctl enable-linger)"
    with manager() as begin:
        done = in_namespace(f"exec 2>&1; {HELPERS} {begin} {script}", home=tmp_path, env=env)
    assert done.stdout.replace(f"{tmp_path}/", "").splitlines() == [
        f"one is mounted on one, {again}",
        f"two is mounted on two, {again}",
        "status 0",
        "cloudsimfs@one.service is stopped and disabled",
        "unit",
        "cloudsimfs@two.service is stopped and disabled",
        ".config/systemd/user/cloudsimfs@.service is removed: no other profile has a service",
        "no unit",
        "cloudsimfs@two.service is not installed",
        "status 0",
        "Error: profile tow: not in .config/cloudsimfs/config.toml; did you mean two?",
        "status 2",
    ]
    assert box.files() == {"f": b"mine\n"}


# -- what it refuses, each in one line -------------------------------------------------------------------------


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A user with a profile that has a mount point and one that has none; her systemd is not to be had."""
    found = profiles(tmp_path, '[profiles.work]\nmountpoint = "~/drive"\n[profiles.bare]\nttl = 5\n')
    return {**found, "XDG_RUNTIME_DIR": str(tmp_path), "DBUS_SESSION_BUS_ADDRESS": f"unix:path={tmp_path}/none"}


def refused(*words: str, env: dict[str, str], status: int) -> str:
    done = cloudsimfs("install-service", *words, env=env)
    assert done.returncode == status
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


def test_wrong_use(env: dict[str, str], tmp_path: Path) -> None:
    assert refused(env=env, status=2).startswith("Error: name the profile;")
    assert refused("--remove", env=env, status=2).startswith("Error: name the profile;")
    assert "--system is for all profiles" in refused("work", "--system", env=env, status=2)
    assert "profile wrok: not in" in refused("wrok", env=env, status=2)
    assert "letters, digits, - and _ only" in refused("--remove", "../x", env=env, status=2)
    line = refused("bare", env={**env, "CLOUDSIMFS_MOUNTPOINT": "/mnt"}, status=2)  # the service will not know that
    assert line == (
        'Error: profile bare: it names no mount point; put mountpoint = "~/cloud" below [profiles.bare] in '
        f"{tmp_path}/.config/cloudsimfs/config.toml"
    )
    assert not (tmp_path / ".config/systemd").exists()


def test_without_systemd(env: dict[str, str], tmp_path: Path) -> None:
    nowhere = {**env, "PATH": str(tmp_path)}
    for words in (["work"], ["work", "--remove"]):
        line = refused(*words, env=nowhere, status=1)
        assert line.startswith("Error: systemctl is missing, this machine does not run systemd; a line of /etc/fstab")
        assert not (tmp_path / "drive").exists()


def test_without_a_session(env: dict[str, str], tmp_path: Path) -> None:
    need("systemctl")
    for words in (["work"], ["work", "--remove"]):
        line = refused(*words, env=env, status=1)
        assert line.startswith("Error: your systemd does not answer (Failed to connect to bus")
        assert line.endswith("; log in as yourself, not through su or sudo")


@pytest.fixture
def systemctl(env: dict[str, str], tmp_path: Path) -> Path:
    """A systemctl that does nothing, and its restart fails; the file it writes its words to."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    text = """#!/bin/sh
    echo "$*" >> "$HOME/asked"
    case $* in *restart*) echo "Job failed." >&2; exit 1 ;; esac
    """
    (bin_ / "systemctl").write_text(text)
    (bin_ / "systemctl").chmod(0o755)
    env["PATH"] = f"{bin_}:{os.environ['PATH']}"
    return tmp_path / "asked"


def test_a_service_that_does_not_start(env: dict[str, str], systemctl: Path, bin_: Path) -> None:
    command = [str(bin_ / "cloudsimfs"), "install-service", "work"]
    for _ in range(2):
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, check=False, timeout=patient(COMMAND_BOUND)
        )
        assert done.returncode == 1
        unit = "cloudsimfs@work.service"
        assert done.stderr == (
            f"Error: systemctl --user restart {unit}: Job failed; see: systemctl --user status {unit}\n"
        )
    asked = [f"--user {words}" for words in ("daemon-reload", f"enable {unit}", f"restart {unit}")]
    assert systemctl.read_text().splitlines() == asked * 2


def test_a_drive_mounted_by_hand_is_named(m: Mounted, env: dict[str, str], systemctl: Path, tmp_path: Path) -> None:
    file = tmp_path / ".config/cloudsimfs/config.toml"
    file.write_text(f'[profiles.work]\nmountpoint = "{m.path}"\n')
    line = refused("work", env=env, status=1)
    assert line == f"Error: {m.path}: mounted, and not by the service; do: cloudsimfs umount {m.path}"
    assert "enable" not in systemctl.read_text()


# -- mount(8) --------------------------------------------------------------------------------------------------


def test_only_root_may_tell_mount_8(bin_: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(installing, "SBIN", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    link = tmp_path / "cloudsimfs"
    link.symlink_to(bin_ / "cloudsimfs")
    monkeypatch.setattr(sys, "argv", [str(link)])
    with pytest.raises(MountError) as caught:
        installing._system(remove=False)
    assert str(caught.value) == (
        f"only root may write to {tmp_path}; do: sudo '{bin_}/cloudsimfs' install-service --system"
    )


def test_the_helpers_come_and_go(bin_: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of the installed program, though a link was called; as often as one likes."""
    sbin = tmp_path / "sbin"
    sbin.mkdir()
    monkeypatch.setattr(installing, "SBIN", sbin)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    link = tmp_path / "cloudsimfs"
    link.symlink_to(bin_ / "cloudsimfs")
    monkeypatch.setattr(sys, "argv", [str(link)])
    for _ in range(2):
        installing._system(remove=False)
        assert {each.name: each.readlink() for each in sbin.iterdir()} == {
            name: bin_ / name for name in installing.HELPERS
        }
    for _ in range(2):
        installing._system(remove=True)
        assert list(sbin.iterdir()) == []
    (bin_ / "mount.fuse.cloudsimfs").unlink()
    with pytest.raises(MountError, match="not there; install the package anew"):
        installing._system(remove=False)


def test_the_checkouts_script_is_the_command(env: dict[str, str], bin_: Path) -> None:
    script = str(ROOT / "scripts/install-service")
    assert "as the systemd user service" in run(script, "--help", env={**env, "CLOUDSIMFS": f"{bin_}/cloudsimfs"})
    on_path = {**env, "PATH": f"{bin_}:{os.environ['PATH']}"}
    assert "as the systemd user service" in run(script, "--help", env=on_path)
