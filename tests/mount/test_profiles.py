"""A mount by its profile, its options, its log, and what it tells the service manager and mount(8)."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import ROOT, Mounted, client_environment, cloudsimfs, mounts_below, patient, run, wait_until


@pytest.fixture
def api() -> str:
    return "v2"  # nothing here depends on it


@pytest.fixture
def profile(prepared: Mounted, box: Sandbox) -> dict[str, str]:
    """The environment of a user whose profile `work` says all there is to say about `prepared`."""
    place = prepared.path.parent / "config/cloudsimfs"
    place.mkdir(parents=True)
    (place / "config.toml").write_text(
        f'[profiles.work]\nurl = "{box.url}"\nkey-file = "{prepared.key_file}"\nmountpoint = "{prepared.path}"\n'
        f'cache-dir = "{prepared.cache}"\nwrite-back = 0.2\noptions = "noexec"\n'
    )
    return {"XDG_CONFIG_HOME": str(place.parent)}


def options_of(place: Path) -> list[str]:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        fields = line.split()
        if fields[1] == str(place):
            return [fields[0], *fields[3].split(",")]
    return []


def test_a_profile_says_it_all(prepared: Mounted, profile: dict[str, str]) -> None:
    done = cloudsimfs("mount", "--profile", "work", env=profile)
    assert done.returncode == 0, done.stderr
    assert "noexec" in options_of(prepared.path)
    (prepared.path / "f").write_bytes(b"f")
    log = next(prepared.cache.glob("*/mount.log"))
    for file in [prepared.cache, *prepared.cache.rglob("*")]:
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file
    done = cloudsimfs("umount", "--profile", "work", env=profile)
    assert done.returncode == 0, done.stderr
    assert not prepared.is_mounted()
    assert prepared.box.files() == {"f": b"f"}
    assert "stored /f (1 bytes)" in log.read_text()


def test_a_dead_daemon_is_said_with_the_remedy(prepared: Mounted, profile: dict[str, str]) -> None:
    cloudsimfs("mount", prepared.path, "--profile", "work", env=profile)
    prepared.kill()
    done = cloudsimfs("status", prepared.path)
    assert done.returncode == 1
    assert f"its daemon died: `cloudsimfs mount {prepared.path}` mounts it again" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_options_after_o_are_weaker_than_those_under_their_names(prepared: Mounted, profile: dict[str, str]) -> None:
    words = ("-o", "ro,ttl=soon,nodev,_netdev,x-gvfs-name=Cloud", "--ttl", "5", "--profile", "work")
    done = cloudsimfs("mount", *words, env=profile)
    assert done.returncode == 0, done.stderr
    assert {"ro", "nodev", "noexec"} <= set(options_of(prepared.path))
    done = cloudsimfs("umount", prepared.path)  # nothing can be written to ask for a flush
    assert done.returncode == 0, done.stderr
    assert not prepared.is_mounted()


def test_the_helper_of_mount_8(prepared: Mounted, profile: dict[str, str]) -> None:
    """Called as mount(8) does it; cloudsimfs install-service --system puts it into /sbin."""

    def helper(name: str, *words: str) -> subprocess.CompletedProcess[str]:
        program = f"from cloudsimfs.cli.mounthelper import {name}; {name}()"
        command = [sys.executable, "-c", program, *words]
        env = {**client_environment(), **profile}
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=patient(60), check=False)

    place = str(prepared.path)
    done = helper("mount", "work", place, "-o", "rw,nodev,_netdev,user,fsname=drive")
    assert done.returncode == 0, done.stderr
    assert {"drive", "nodev", "rw"} <= set(options_of(prepared.path))
    (prepared.path / "f").write_bytes(b"f")
    assert helper("umount", place).returncode == 0
    assert not prepared.is_mounted()
    assert prepared.box.files() == {"f": b"f"}
    assert helper("mount", "-f", "work", place).returncode == 0
    assert not prepared.is_mounted()
    for words in ([place], ["work", place, "-o", "bogus"], ["work", place, "-z"], ["other", place]):
        done = helper("mount", *words)
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "no such user" in helper("mount", "work", place, "-o", "setuid=nobody-of-that-name").stderr


def test_mount_fuse_3_finds_its_way(prepared: Mounted, profile: dict[str, str], tmp_path: Path) -> None:
    """`mount.fuse3 SOURCE DIRECTORY -t fuse.cloudsimfs` calls a program `cloudsimfs` on the PATH."""
    program = "/usr/sbin/mount.fuse3"
    if not os.path.exists(program):
        pytest.skip("mount.fuse3 is missing: install the package fuse3")
    (tmp_path / "cloudsimfs").write_text(f'#!/bin/sh\nexec {sys.executable} -m cloudsimfs "$@"\n')
    (tmp_path / "cloudsimfs").chmod(0o755)
    env = {**client_environment(), **profile, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    run(program, "work", prepared.path, "-t", "fuse.cloudsimfs", "-o", "ro,_netdev", env=env)
    assert {"work", "ro"} <= set(options_of(prepared.path))


# -- in the foreground, as a service manager has it ------------------------------------------------------------


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of a service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(30)
        yield listening


def foreground(prepared: Mounted, *words: str, env: dict[str, str], stderr: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "cloudsimfs", "mount", str(prepared.path), "--url", prepared.box.url]
    command += ["--key-file", str(prepared.key_file), "--cache-dir", str(prepared.cache), "-f", *words]
    return subprocess.Popen(command, env={**client_environment(), **env}, stderr=stderr, stdout=subprocess.DEVNULL)


def test_ready_is_said_once_the_drive_is_there(prepared: Mounted, manager: socket.socket, tmp_path: Path) -> None:
    """With the log on stderr in the form of the journal, since that is where stderr leads."""
    log = tmp_path / "journal"
    with open(log, "wb") as stream:
        found = os.fstat(stream.fileno())
        env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        with foreground(prepared, env=env, stderr=stream.fileno()) as process:
            assert manager.recv(1000).startswith(b"READY=1\nSTATUS=")
            assert prepared.is_mounted()
            process.send_signal(signal.SIGUSR1)
            wait_until(lambda: "pending   0 operations" in log.read_text(), "the state is in the log")
            process.terminate()
            assert process.wait(patient(30)) == 0
    lines = log.read_text().splitlines()
    assert len(lines) > 5
    assert [line for line in lines if not re.match("<[3467]>", line)] == []
    assert not mounts_below(prepared.path)


def test_a_log_of_json_lines(prepared: Mounted, box: Sandbox) -> None:
    prepared.option(log_format="json")
    prepared.start()
    box.faults.add("upload-url", "status", times=1, status=500)
    (prepared.path / "f").write_bytes(b"f")
    prepared.settle()
    prepared.umount()
    lines = [json.loads(line) for line in prepared.log().splitlines()]
    assert all(set(line) >= {"time", "level", "logger", "thread", "message"} for line in lines)
    assert "stored /f (1 bytes)" in [line["message"] for line in lines if line["level"] == "INFO"]


def test_a_rotated_log_stays_private(tmp_path: Path) -> None:
    program = (
        "import logging, os, sys; from pathlib import Path; from cloudsimfs.host import logs; logs.LOG_SIZE = 200\n"
        "os.umask(0); logs.set_up_logging(Path(sys.argv[1]), 'INFO')\n"
        "for number in range(50): logging.getLogger('x').info('line %d', number)"
    )
    run(sys.executable, "-c", program, tmp_path / "log/mount.log", env={"PYTHONPATH": str(ROOT)})
    found = sorted((tmp_path / "log").iterdir())
    assert [file.name for file in found] == ["mount.log", "mount.log.1", "mount.log.2", "mount.log.3"]
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in found)
