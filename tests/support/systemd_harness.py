"""Scripts and commands in mount namespaces of their own, with the real systemd if they want it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import COMMAND_BOUND, ROOT, Mounted, client_environment, need, patient, write_key

PROGRAM = "/lib/systemd/systemd"
NOT_ALLOWED = 77  # the status of a script that may not do here what the test needs
PATHS = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {sysconfig.get_path('purelib')!r}]"

# Makes the user's manager, as if the machine was booted by systemd. Its end is orderly, so that it leaves no cgroups.
MANAGER = f"""
    mount -t tmpfs none /run/systemd; mkdir /run/systemd/system
    export XDG_RUNTIME_DIR=/run/systemd/own  # short, since a socket's path has 107 bytes at most
    mkdir -m 700 $XDG_RUNTIME_DIR
    script -qec "{PROGRAM} --user --log-target=console" manager.log >/dev/null 2>&1 &
    trap 'systemctl --user exit; wait' EXIT
    until systemctl --user is-system-running >/dev/null 2>&1; do sleep 0.1; done
"""


def need_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may make a mount namespace")
    need("unshare")


@contextmanager
def manager() -> Iterator[str]:
    """The beginning of a script, or the test is skipped. One test at a time: managers share cgroups, and
    each ends what it finds in those of its units.
    """
    need_root()
    need("script")
    if not os.access(PROGRAM, os.X_OK) or shutil.which("systemctl") is None:
        pytest.skip("systemd is missing: install the package systemd")
    with open(PROGRAM, "rb") as program:
        fcntl.flock(program, fcntl.LOCK_EX)
        yield MANAGER


def in_namespace(script: str, *, home: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a shell script in the directory `home`. Its mounts and daemons are gone when it ends."""
    command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "--propagation", "private"]
    done = subprocess.run(
        [*command, "sh", "-uc", script],
        env={**env, "PATH": f"{env['PATH']}:/usr/sbin:/sbin"},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=patient(COMMAND_BOUND),
        check=False,
    )
    if done.returncode == NOT_ALLOWED:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    return done


def anybodys_python() -> str:
    """An interpreter that also other users can run with this checkout, or the test is skipped."""
    need("setpriv")
    modules = "cloudsimfs.cli.mounthelper, cloudsimfs.fuse.binding, encodings.utf_8_sig"
    check = f"import os; os.setuid(65534); {PATHS}; import {modules}"
    for python in (sys.executable, "/usr/bin/python3"):
        done = subprocess.run([python, "-c", check], cwd="/", capture_output=True, check=False, timeout=patient(30))
        if done.returncode == 0:
            return python
    pytest.skip("another user can run neither this interpreter nor /usr/bin/python3 with this checkout")


def run(script: str, home: dict[str, str], programs: Path) -> str:
    """What the script printed, to its end."""
    env = {**home, "PATH": f"{programs}:{home['PATH']}", "ROOT": str(ROOT)}
    done = in_namespace(f"set -e; {script}", home=Path(home["HOME"]), env=env)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def command(*arguments: str | Path, among: list[Mounted], cwd: Path | str = "/") -> subprocess.CompletedProcess[str]:
    """Run `cloudsimfs` where no other mounts are seen than those `among` which it is to choose."""
    need_root()
    kept = "\n".join(str(mounted.path) for mounted in among)
    find_others = """awk '$3 == "fuse.cloudsimfs" {print $2}' /proc/self/mounts | grep -vxF -- "$0\""""
    hide = f'for top in $({find_others}); do umount -l "$top"; done; cd "$1" && shift && exec "$@"'
    alone = ["unshare", "--mount", "--propagation", "private", "sh", "-c", hide, kept, cwd]
    return subprocess.run(
        [*alone, sys.executable, "-m", "cloudsimfs", *map(str, arguments)],
        capture_output=True,
        env=client_environment(),
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=patient(60),
        check=False,
    )


# -- fixtures -------------------------------------------------------------------------------------------------


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory with what the wheel installs, of this checkout."""
    need_root()
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    entries = {
        "cloudsimfs": "cloudsimfs.cli:main",
        "mount.fuse.cloudsimfs": "cloudsimfs.cli.mounthelper:mount",
        "umount.fuse.cloudsimfs": "cloudsimfs.cli.mounthelper:umount",
    }
    for name, entry in entries.items():
        module, _, function = entry.partition(":")
        program = f"{PATHS}; from {module} import {function} as run; run()"
        (bin_ / name).write_text(f"#!{sys.executable}\n{program}\n")
        (bin_ / name).chmod(0o755)
    return bin_


@pytest.fixture
def home(box: Sandbox, tmp_path: Path) -> dict[str, str]:
    """The environment of a user whose profile `work` is an account at `box`."""
    (tmp_path / "drive").mkdir()
    place = tmp_path / ".config/cloudsimfs"
    place.mkdir(parents=True)
    key = write_key(tmp_path, box.key)
    (place / "config.toml").write_text(
        f'[profiles.work]\nurl = "{box.url}"\nkey-file = "{key}"\nmountpoint = "~/drive"\nwrite-back = 0.2\n'
    )
    kept = {name: value for name, value in client_environment().items() if not name.startswith(("XDG_", "PYTHON"))}
    return {**kept, "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")}


@pytest.fixture
def systemd(programs: Path) -> Iterator[str]:
    with manager() as begin:
        yield begin
