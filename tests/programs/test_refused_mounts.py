"""A mount that the machine refuses to a user: every reason is told at once, each with its remedy, and that mends it.

Each test has a mount namespace of its own, with its own /dev/fuse and fuse.conf: the machine's stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import client_environment, need, write_key
from systemd_harness import PATHS, anybodys_python, in_namespace, need_root

USER = "nobody"

SETUP = """
mount -t tmpfs none /mnt; cd /mnt; chmod 755 .
cp -r "$PROFILES" home; export HOME=/mnt/home
mknod fuse c 10 229; chmod "$MODE" fuse; mount --bind fuse /dev/fuse
echo "$CONF" > fuse.conf; mount --bind fuse.conf /etc/fuse.conf
sed "s|^nobody:.*|nobody:x:$(id -u nobody):$(id -g nobody):nobody:$HOME:/bin/sh|" /etc/passwd > passwd
mount --bind passwd /etc/passwd
chown -R nobody home; cd home; mkdir -m "$DRIVE" drive
helper() { "$PYTHON" -c "$PATHS; from cloudsimfs.cli.mounthelper import mount; mount()" "$@"; }
at_boot() { HOME=/root helper work "$HOME/drive" "$@"; }
as_user() { setpriv --reuid nobody --regid "$(id -g nobody)" --clear-groups "$@"; }
cloudsimfs() { "$PYTHON" -c "$PATHS; from cloudsimfs.cli import main; main()" "$@"; }
as_user_cloudsimfs() { as_user "$PYTHON" -c "$PATHS; from cloudsimfs.cli import main; main()" "$@"; }
sudo() { "$@"; }
set +e
"""
"""Makes /dev/fuse, fuse.conf and the mount point as a test wants them. `at_boot` mounts as root does from fstab."""

UMOUNT = "as_user_cloudsimfs umount drive >/dev/null 2>&1; echo unmounted $?"

Refused = Callable[..., list[str]]


@pytest.fixture
def script(box: Sandbox, tmp_path: Path) -> Refused:
    """Runs a script on such a machine, in the user's home; the lines of both its outputs."""
    need_root()
    need("fusermount3")
    place = tmp_path / ".config/cloudsimfs"
    place.mkdir(parents=True)
    write_key(place, box.key).rename(place / "key")
    (place / "config.toml").write_text(f'[profiles.work]\nurl = "{box.url}"\nkey-file = "key"\nwrite-back = 0.2\n')
    kept = {name: value for name, value in client_environment().items() if not name.startswith(("XDG_", "PYTHON"))}
    env = {**kept, "PROFILES": str(tmp_path), "PYTHON": anybodys_python(), "PATHS": PATHS}

    def run(text: str, *, mode: str = "0666", conf: str = "", drive: str = "0755") -> list[str]:
        changed = {**env, "MODE": mode, "CONF": conf, "DRIVE": drive}
        return in_namespace(f"exec 2>&1; set -e; {SETUP}{text}", home=Path("/"), env=changed).stdout.splitlines()

    return run


def remedies(line: str) -> list[str]:
    """What the line says to type."""
    return re.findall(r"; do: (.+?)(?=\. [^ ]+: |$)", line)


AT_BOOT = f"at_boot -o setuid={USER},allow_other,_netdev; echo status $?\n"
"""As README's line in /etc/fstab has it."""

WRONG = (
    f"/dev/fuse: {USER} may not open it, nothing can be mounted; do: sudo chmod 0666 /dev/fuse. "
    "fuse.conf: allow-other is set, /etc/fuse.conf does not allow it; do: "
    "echo user_allow_other | sudo tee -a /etc/fuse.conf. "
    f"/mnt/home/drive: {USER} may not write to it, and a user mounts only where that is allowed; do: "
    f"sudo chown {USER} /mnt/home/drive"
)


def test_readmes_line_at_boot_names_all_that_is_missing(script: Refused, box: Sandbox) -> None:
    """On a root-owned directory, with Debian's fuse.conf, and a /dev/fuse that only root may open."""
    assert script(AT_BOOT, mode="0600") == [f"Error: {WRONG}", "status 1"]
    assert len(remedies(WRONG)) == 3
    use = f"grep -o allow_other /proc/self/mounts; as_user sh -c 'echo mine > drive/f'; {UMOUNT}"
    said = script("\n".join([*remedies(WRONG), AT_BOOT, use]), mode="0600")
    assert said[-3:] == ["status 0", "allow_other", "unmounted 0"]
    assert box.files() == {"f": b"mine\n"}


def test_the_users_own_mount_names_it_too(script: Refused) -> None:
    mount = "as_user_cloudsimfs mount drive --profile work --allow-other; echo status $?"
    assert script(mount, mode="0600") == [f"Error: {WRONG}", "status 1"]


def test_a_directory_like_tmp_is_for_its_owner(script: Refused) -> None:
    (line,) = script(f"at_boot -o setuid={USER}", drive="1777")
    assert line == (
        f"Error: /mnt/home/drive: it is sticky, as /tmp is, and not {USER}'s; do: "
        "mkdir /mnt/home/drive/cloud, and mount there"
    )
    mount = "as_user mkdir drive/cloud; as_user_cloudsimfs mount --profile work drive/cloud; echo status $?; "
    said = script(mount + UMOUNT.replace("drive", "drive/cloud"), drive="1777")
    assert said[-2:] == ["status 0", "unmounted 0"]


@pytest.mark.parametrize(("conf", "other"), [("user_allow_other", ",allow_other"), ("#user_allow_other", "")])
def test_what_is_allowed_is_mounted(script: Refused, conf: str, other: str) -> None:
    """Without allow_other fuse.conf does not matter; nor does whose the directory is, if anybody may write there."""
    said = script(f"at_boot -o setuid={USER}{other}; echo status $?; {UMOUNT}", conf=conf, drive="0777")
    assert said[0] == "status 0"
    assert said[-1] == "unmounted 0"


def device(said: list[str]) -> str:
    (found,) = (line for line in said if "/dev/fuse:" in line)
    return found


def test_doctor_names_the_remedy_of_the_device(script: Refused) -> None:
    doctor = "as_user_cloudsimfs doctor --offline --profile work"
    wrong = f"failure  /dev/fuse: {USER} may not open it, nothing can be mounted; do: sudo chmod 0666 /dev/fuse"
    assert device(script(doctor, mode="0600")) == wrong
    assert device(script(doctor)) == "ok       /dev/fuse: there, and you may use it"


def test_doctor_tells_root_that_others_may_not_mount(script: Refused) -> None:
    doctor = "cloudsimfs doctor --offline --profile work"
    told = "ok       /dev/fuse: there, and you may use it; other users may not; do: sudo chmod 0666 /dev/fuse"
    assert device(script(doctor, mode="0600")) == told
    assert device(script(doctor)) == "ok       /dev/fuse: there, and you may use it"
