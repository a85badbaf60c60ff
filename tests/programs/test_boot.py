"""The real mount(8) and the real systemd, each in a mount namespace of its own: nothing of the machine is changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cloudsimfs.sandbox import Sandbox
from harness import ROOT, need, patient
from systemd_harness import NOT_ALLOWED, anybodys_python, home, programs, run, systemd

__all__ = ["home", "programs", "systemd"]  # fixtures


XDG = 'export XDG_CONFIG_HOME="$HOME/.config" XDG_CACHE_HOME="$HOME/.cache" XDG_STATE_HOME="$HOME/.state"\n'
"""For mount(8), which passes no HOME on: what it calls looks into that of the account, here root's own."""


# Lets everybody mount, as Debian does; the machine's own device may be root's alone.
OPEN_DEVICE = f"""
        [ "$(stat -c %t:%T:%a /dev/fuse)" = a:e5:666 ] || {{
            mknod layers/fuse c 10 229 && chmod 666 layers/fuse || {{
                echo "a device node cannot be made here, and /dev/fuse is root's alone" >&2
                exit {NOT_ALLOWED}
            }}
            mount --bind layers/fuse /dev/fuse
        }}
"""


def test_mount_8_and_fstab(box: Sandbox, home: dict[str, str], programs: Path) -> None:
    """With the helpers in /sbin, where scripts/install-service puts them (here: in a layer over it)."""
    script = """
        mkdir layers; mount -t tmpfs none layers; mkdir layers/upper layers/work layers/etc layers/etcwork
        mount -t overlay none -o lowerdir=/usr/sbin,upperdir=layers/upper,workdir=layers/work /usr/sbin
        mount -t overlay none -o lowerdir=/etc,upperdir=layers/etc,workdir=layers/etcwork /etc
        CLOUDSIMFS=$(command -v cloudsimfs) "$ROOT/scripts/install-service" --system
        mount -t fuse.cloudsimfs work drive -o noexec,_netdev
        echo one > drive/one
        umount drive                                        # uploads first
        echo "work $PWD/drive fuse.cloudsimfs user,noauto,ro 0 0" > /etc/fstab
        mount drive
        cat drive/one
        grep " $PWD/drive " /proc/self/mounts
        if mount drive; then echo "mounted twice"; fi
        umount drive
        ! mount -t fuse.cloudsimfs work drive -o bogus
    """
    said = run(XDG + script, home, programs)
    assert box.files() == {"one": b"one\n"}
    assert "one" in said.splitlines()
    assert f"work {home['HOME']}/drive fuse.cloudsimfs ro," in said
    assert "twice" not in said


def test_a_mount_at_boot_for_a_user(box: Sandbox, home: dict[str, str], programs: Path) -> None:
    """setuid=: root mounts, the user's profile and key are taken, and the user's the mount is."""
    for program in programs.iterdir():
        program.write_text(program.read_text().replace(sys.executable, anybodys_python(), 1))
    script = f"""
        chmod 711 {" ".join(str(place) for place in Path(home["HOME"]).parents if str(place).startswith("/tmp/"))}
        chown -R nobody .
        mkdir layers; mount -t tmpfs none layers; mkdir layers/etc layers/etcwork; chmod 755 layers/etc
        mount -t overlay none -o lowerdir=/etc,upperdir=layers/etc,workdir=layers/etcwork /etc
        sed -i "s|^nobody:.*|nobody:x:65534:65534:nobody:$HOME:/bin/sh|" /etc/passwd
        {OPEN_DEVICE}
        HOME=/root mount.fuse.cloudsimfs work "$PWD/drive" -o setuid=nobody,nodev
        grep " $PWD/drive " /proc/self/mounts
        setpriv --reuid 65534 --regid 65534 --clear-groups sh -c 'echo mine > drive/f; stat -c %U drive/f'
        setpriv --reuid 65534 --regid 65534 --clear-groups sh -c 'HOME=$PWD umount.fuse.cloudsimfs $PWD/drive'
    """
    said = run(script, home, programs)
    assert "user_id=65534" in said
    assert "nobody" in said.splitlines()
    assert box.files() == {"f": b"mine\n"}


def test_the_user_service(box: Sandbox, home: dict[str, str], programs: Path, systemd: str) -> None:
    script = """
        show() { systemctl --user show -p ActiveState -p Result --value cloudsimfs@work | tr '\\n' ' '; echo; }
        "$ROOT/scripts/install-service" work
        show
        echo one > drive/one                                # there when the service is active
        kill -9 $(systemctl --user show -p MainPID --value cloudsimfs@work)
        until ! cat drive/one >/dev/null 2>&1; do sleep 0.1; done
        systemctl --user reset-failed cloudsimfs@work; systemctl --user restart cloudsimfs@work
        cat drive/one
        echo two > drive/two
        "$ROOT/scripts/install-service" --remove work       # uploads first
        show
        grep -c " $PWD/drive " /proc/self/mounts || true
    """
    said = run(systemd + script, home, programs).splitlines()
    assert said[0].split() == ["success", "active"] or said[0].split() == ["active", "success"]
    assert said[1] == "one"
    assert "inactive" in said[2]
    assert "success" in said[2]
    assert said[3] == "0"
    assert box.files() == {"one": b"one\n", "two": b"two\n"}


def test_the_unit_is_valid(programs: Path, tmp_path: Path) -> None:
    need("systemd-analyze")
    unit = tmp_path / "cloudsimfs@work.service"
    unit.write_text((ROOT / "systemd/cloudsimfs@.service").read_text())
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "SYSTEMD_LOG_LEVEL": "warning"}
    command = ["systemd-analyze", "--user", "--man=no", "verify", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=patient(30))
    assert done.returncode == 0, done.stderr
    assert str(unit.name) not in done.stderr
