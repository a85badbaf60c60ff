"""Scripts that run in namespaces of their own, with the real systemd if they want it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import COMMAND_BOUND, need, patient

PROGRAM = "/lib/systemd/systemd"
NOT_ALLOWED = 77  # the status of a script that may not do here what the test needs

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
