"""`scripts/setup`, where it has run already: README's lines as they are printed, and a machine that lacks fuse3."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import COMMAND_BOUND, ROOT, clean_up, need, patient

VENV = ROOT / ".venv"


@pytest.fixture
def clean(tmp_path: Path) -> dict[str, str]:
    """The environment of somebody new, for whom scripts/setup finds all done: nothing is installed here."""
    if Path(sys.prefix) != VENV or not os.access(VENV, os.W_OK):
        pytest.skip("needs the environment that scripts/setup made in this checkout, and the right to write to it")
    home = tmp_path / "home"
    home.mkdir()
    return {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "TERM": "dumb", "LC_ALL": "C.UTF-8"}


def shell(*command: str, env: dict[str, str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=env,
        cwd=ROOT,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=patient(COMMAND_BOUND),
        check=False,
    )


@pytest.fixture
def drive(clean: dict[str, str], mount_base: Path) -> Iterator[Path]:
    """README's ~/cloud; nothing is mounted there when the test has ended."""
    home = mount_base / "readme"
    home.mkdir()
    clean["HOME"] = str(home)
    yield home / "cloud"
    clean_up(home)


def test_readmes_lines_work_as_they_are_printed(clean: dict[str, str], drive: Path, box: Sandbox) -> None:
    need("bash")
    readme = (ROOT / "README.md").read_text()
    found = re.search(r"## Mount a real account\n\n((?:    .*\n)+)", readme)
    assert found is not None
    lines = found[1].replace("https://service.example", box.url)
    box.put("case/f", b"x")
    manual = f"\nman -w cloudsimfs\n{readme_link(readme)}" if shutil.which("man") else f"\n{readme_link(readme)}"
    # a login shell that stops at the first failure; the key is what login asks for
    done = shell("bash", "-l", "-ec", lines + manual, env=clean, stdin=f"{box.key}\n")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "case" in done.stdout.splitlines()
    if shutil.which("man"):
        assert Path(done.stdout.splitlines()[-1]).samefile(ROOT / "cloudsimfs/cloudsimfs.1")
    later = {**clean, "PATH": f"{clean['HOME']}/.local/bin:{clean['PATH']}"}
    done = shell("sh", "-c", "cloudsimfs --version", env=later)
    assert done.returncode == 0, done.stderr


def readme_link(readme: str) -> str:
    """The command that makes every shell find the program."""
    found = re.search(r"`(mkdir -p\s~/\.local/bin && ln -s [^`]*)`", readme)
    assert found is not None
    return " ".join(found[1].split())


# -- without fuse3 ---------------------------------------------------------------------------------------------


@pytest.fixture
def bare(clean: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """A machine with all programs but fusermount3, and without the means to install it."""
    if shutil.which("fusermount3", path="/usr/sbin:/sbin") is not None:
        pytest.skip("/sbin has fusermount3, and scripts/setup looks there")
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for place in clean["PATH"].split(":"):
        for program in Path(place).iterdir():
            if program.name not in ("fusermount3", "apt-get", "sudo") and not (bin_ / program.name).exists():
                (bin_ / program.name).symlink_to(program)
    return {**clean, "PATH": str(bin_)}


def test_setup_goes_on_without_fuse3(bare: dict[str, str], box: Sandbox) -> None:
    done = shell("scripts/setup", "--venv", env=bare)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{VENV}\n"
    assert "setup: warning: missing: fuse3. Install them (these are Debian's names)" in done.stderr
    assert "Until fuse3 is there nothing can be mounted; launch, runs, log and wait work without" in done.stderr
    done = shell(f"{VENV}/bin/cloudsimfs", "runs", "--url", box.url, env={**bare, "CLOUDSIMFS_API_KEY": box.key})
    assert done.returncode == 0, done.stderr


def test_the_tests_need_fuse3(bare: dict[str, str]) -> None:
    done = shell("scripts/setup", "--test", "--venv", env=bare)
    assert done.returncode == 1
    assert "missing: fuse3" in done.stderr
    assert "warning" not in done.stderr


def replace_programs(directory: Path, scripts: dict[str, str]) -> None:
    """Have the programs of these names run these scripts."""
    for name, text in scripts.items():
        program = directory / name
        program.unlink(missing_ok=True)
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)


@pytest.mark.parametrize("failing", ["update", "install"])
def test_setup_goes_on_if_fuse3_cannot_be_installed(bare: dict[str, str], tmp_path: Path, failing: str) -> None:
    """No network, no such package, no rights: apt-get says why."""
    replace_programs(
        tmp_path / "bin",
        {
            "apt-get": f'for word; do [ "$word" != {failing} ] || exit 100; done',
            "id": "echo 0",
            "ls": "exit 1",  # no package lists yet
        },
    )
    done = shell("scripts/setup", "--venv", env=bare)
    assert done.returncode == 0, done.stderr
    assert "setup: warning: " in done.stderr
    assert "could not install: fuse3" in done.stderr


def test_who_may_not_install_is_told_what_to_type(bare: dict[str, str], tmp_path: Path) -> None:
    replace_programs(tmp_path / "bin", {"apt-get": "exit 1", "id": "echo 1000"})
    done = shell("scripts/setup", "--venv", env=bare)
    assert done.returncode == 0, done.stderr
    assert "sudo apt-get update && sudo apt-get install -y fuse3" in done.stderr
