"""`scripts/setup` in a checkout of its own: what it did not make stays, what stood stays until there is a new one.

And nobody becomes root unasked.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import COMMAND_BOUND, ROOT, need, patient

Setup = Callable[..., subprocess.CompletedProcess[str]]
BASE_PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Of the script only: there is no package, and so the installation fails."""
    place = tmp_path / "checkout"
    (place / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts/setup", place / "scripts")
    (place / "pyproject.toml").write_text("[project]\n")
    return place


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """All programs but fusermount3; `id` shows a user, and `sudo` says in a file that it was called."""
    place = tmp_path / "bin"
    place.mkdir()
    for directory in ("/usr/local/bin", "/usr/bin", "/bin"):
        for program in Path(directory).iterdir():
            if program.name not in ("fusermount3", "apt-get", "sudo", "id") and not (place / program.name).exists():
                (place / program.name).symlink_to(program)
    for name, text in {"sudo": f"echo $* >>{tmp_path}/sudo.log", "apt-get": "exit 1", "id": "echo 1000"}.items():
        (place / name).write_text(f"#!/bin/sh\n{text}\n")
        (place / name).chmod(0o755)
    return place


@pytest.fixture
def setup(checkout: Path, programs: Path, tmp_path: Path) -> Setup:
    if shutil.which("fusermount3", path="/usr/sbin:/sbin") is not None:
        pytest.skip("/sbin has fusermount3, and scripts/setup looks there")
    env = {"HOME": str(tmp_path), "PATH": str(programs), "PYTHON": BASE_PYTHON, "PIP_NO_INDEX": "1", "TERM": "dumb"}

    def run(*words: str, before: tuple[str, ...] = (), stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*before, *([] if before else [str(checkout / "scripts/setup"), *words])],
            env=env,
            cwd=checkout,
            input=stdin or "",
            capture_output=True,
            text=True,
            timeout=patient(COMMAND_BOUND),
            check=False,
        )

    return run


@pytest.mark.parametrize("kind", ["environment", "link"])
def test_what_it_did_not_make_stays(setup: Setup, checkout: Path, tmp_path: Path, kind: str) -> None:
    mine = checkout / ".venv" if kind == "environment" else tmp_path / "mine"
    mine.mkdir()
    (mine / "work").write_text("of weeks")
    if kind == "link":
        (checkout / ".venv").symlink_to(mine)
    done = setup()
    assert done.returncode == 1
    assert f"{checkout}/.venv was not made by scripts/setup, which leaves it alone" in done.stderr
    assert (checkout / ".venv/work").read_text() == "of weeks"


def test_what_stood_stays_until_the_new_one_is_complete(setup: Setup, checkout: Path) -> None:
    """Its interpreter was replaced, and the package cannot be installed."""
    venv = checkout / ".venv"
    venv.mkdir()
    (venv / ".interpreter").write_text("/usr/bin/python3.2 3.2.0\n")
    (venv / "work").write_text("of weeks")
    for _ in range(2):
        done = setup()
        assert done.returncode != 0
        assert "pip could not install the package" in done.stderr
        assert (venv / "work").read_text() == "of weeks"
        assert sorted(each.name for each in venv.iterdir()) == [".interpreter", "work"]
        assert not (checkout / ".venv.before-setup").exists()


def test_one_that_was_killed_is_made_good(setup: Setup, checkout: Path) -> None:
    for name in (".venv.before-setup", ".venv"):
        (checkout / name).mkdir()
        (checkout / name / ".interpreter").touch()
    (checkout / ".venv.before-setup/work").write_text("of weeks")
    assert setup().returncode != 0
    assert (checkout / ".venv/work").read_text() == "of weeks"


def test_nobody_becomes_root_unasked(setup: Setup, checkout: Path, tmp_path: Path) -> None:
    need("script")
    (checkout / ".venv").mkdir()  # it ends there
    log = tmp_path / "sudo.log"
    assert "sudo apt-get update && sudo apt-get install -y" in setup().stderr
    assert not log.exists()
    terminal = ("script", "-qec", f"{checkout}/scripts/setup", "/dev/null")
    shown = setup(before=terminal, stdin="n\n").stdout
    assert "missing: fuse3" in shown
    assert "Install with sudo apt-get? [y/N]" in shown
    assert not log.exists()
    setup(before=terminal, stdin="y\n")
    assert "apt-get" in log.read_text()
    log.unlink()
    setup("--yes")
    assert "install -y --no-install-recommends fuse3" in log.read_text()
