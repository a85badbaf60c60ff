"""Bad input to `cloudsimfs mount` and `umount`: one clear line, a status, nothing mounted, nothing left."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import Mounted, MountFactory, client_environment, cloudsimfs, patient, processes_below

pytestmark = pytest.mark.parametrize("api", ["auto"])


def assert_refused(done: subprocess.CompletedProcess[str], m: Mounted, *words: str) -> None:
    assert done.returncode != 0
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word in lines[0]
    assert m.key not in done.stderr
    assert not m.is_mounted()
    assert processes_below(m.path.parent) == []


def test_no_such_key_file(prepared: Mounted) -> None:
    prepared.option(key_file="/nonexistent/key")
    assert_refused(prepared.try_start(), prepared, "/nonexistent/key")


@pytest.mark.parametrize("content", ["", "two words\nand lines", '{"username": "me"}', "\0\1binary"])
def test_a_key_file_without_a_key(prepared: Mounted, tmp_path: Path, content: str) -> None:
    file = tmp_path / "key"
    file.write_text(content)
    file.chmod(0o600)
    prepared.option(key_file=file)
    assert_refused(prepared.try_start(), prepared, str(file))


def test_a_license_file_is_accepted(prepared: Mounted, tmp_path: Path) -> None:
    file = tmp_path / "license.json"
    file.write_text(f'{{"username": "me@example.org", "key": "{prepared.key}"}}')
    file.chmod(0o600)
    prepared.option(key_file=file)
    prepared.start()


def test_no_key_at_all(prepared: Mounted) -> None:
    done = cloudsimfs("mount", prepared.path, "--url", prepared.box.url)
    assert_refused(done, prepared, "--key-file")


def test_the_key_may_come_from_the_environment(box: Sandbox, prepared: Mounted) -> None:
    words = ["--url", box.url, "--cache-dir", str(prepared.cache)]
    done = cloudsimfs("mount", prepared.path, *words, env={"CLOUDSIMFS_API_KEY": box.key})
    assert done.returncode == 0, done.stderr
    for pid in prepared.pids:
        assert box.key.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize("version", ["v1", "v2", "auto"])
def test_a_refused_key(box: Sandbox, mount: MountFactory, version: str) -> None:
    m = mount(start=False, key="wrong-key-0123456789", api=version)
    assert_refused(m.try_start(), m, "does not accept the API key", str(m.key_file))


@pytest.fixture
def dead_url() -> Iterator[str]:
    """An address that refuses connections: bound, not listening."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_an_unreachable_service(prepared: Mounted, dead_url: str) -> None:
    prepared.option(url=dead_url)
    assert_refused(prepared.try_start(), prepared, dead_url)


def test_an_address_below_which_there_is_no_service(prepared: Mounted) -> None:
    prepared.option(url=f"{prepared.box.url}/elsewhere")
    assert_refused(prepared.try_start(), prepared, f"{prepared.box.url}/elsewhere", "check --url")


@pytest.mark.parametrize("more", ["/", "/api", "/api/v1", "/api/v2/"])
def test_an_address_with_the_version_that_belongs_to_its_calls(prepared: Mounted, more: str) -> None:
    prepared.option(url=f"{prepared.box.url}{more}")
    prepared.start()
    assert prepared.status()["url"] == prepared.box.url


@pytest.mark.parametrize("url", ["", "nonsense", "ftp://127.0.0.1/", "http://", "http://127.0.0.1:99999"])
def test_an_address_that_is_none(prepared: Mounted, url: str) -> None:
    prepared.option(url=url)
    assert_refused(prepared.try_start(), prepared)


def test_a_service_that_is_something_else(box: Sandbox, prepared: Mounted) -> None:
    box.faults.add("*", "html", status=200)
    assert_refused(prepared.try_start(), prepared)


def test_a_missing_mount_point(prepared: Mounted) -> None:
    prepared.path.rmdir()
    assert_refused(prepared.try_start(), prepared, str(prepared.path), "no such directory")


def test_a_file_as_mount_point(prepared: Mounted) -> None:
    prepared.path.rmdir()
    prepared.path.write_text("a file")
    assert_refused(prepared.try_start(), prepared, str(prepared.path), "not a directory")


def test_a_mount_point_that_is_not_empty(prepared: Mounted) -> None:
    (prepared.path / "mine").write_text("a file")
    assert_refused(prepared.try_start(), prepared, str(prepared.path), "not empty")
    assert (prepared.path / "mine").read_text() == "a file"


def test_a_mount_point_in_use(prepared: Mounted) -> None:
    prepared.start()
    done = prepared.try_start()
    assert done.returncode != 0
    assert done.stderr.count("\n") == 1
    assert "already mounted" in done.stderr
    assert len(prepared.pids) == 1
    (prepared.path / "f").write_bytes(b"still works")
    prepared.settle()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("cache_size", "many"),
        ("cache_size", "-1"),
        ("cache_size", ""),
        ("cache_size", "20"),
        ("umask", "9"),
        ("umask", "-22"),
        ("umask", "77777"),
        ("cache_dir", "/proc/nowhere"),
        ("log_file", "/proc/nowhere/log"),
        ("mount_options", "no_such_option_at_all"),
    ],
)
def test_a_bad_value(prepared: Mounted, option: str, value: str) -> None:
    if option == "mount_options":
        done = cloudsimfs(*_words(prepared), "-o", value)
    else:
        prepared.option(**{option: value})
        done = prepared.try_start()
    assert_refused(done, prepared, *([] if option == "mount_options" else [value]))
    if option == "log_file":
        assert (done.returncode, done.stderr.count(value)) == (2, 1)


def _words(m: Mounted) -> list[str | Path]:
    return ["mount", m.path, "--url", m.box.url, "--key-file", m.key_file, "--cache-dir", m.cache]


@pytest.mark.parametrize(("option", "value"), [("ttl", "-1"), ("ttl", "soon"), ("write_back", "-0.1"), ("api", "v3")])
def test_a_value_the_parser_refuses(prepared: Mounted, option: str, value: str) -> None:
    prepared.option(**{option: value})
    done = prepared.try_start()
    assert done.returncode != 0
    assert f"--{option.replace('_', '-')}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not prepared.is_mounted()


def test_a_relative_mount_point(box: Sandbox, prepared: Mounted) -> None:
    words: list[Any] = ["sh", "-c", 'cd "$0" && exec "$@"', prepared.path.parent]
    command = [sys.executable, "-m", "cloudsimfs", "mount", prepared.path.name, *map(str, _words(prepared)[2:])]
    done = subprocess.run(
        [*words, *command], capture_output=True, text=True, env=client_environment(), timeout=patient(60)
    )
    assert done.returncode == 0, done.stderr
    assert prepared.is_mounted()
    (prepared.path / "f").write_bytes(b"f")
    assert prepared.settle() == {"f": b"f"}


def test_unmounting_what_is_not_mounted(prepared: Mounted) -> None:
    assert_refused(prepared.umount(), prepared, str(prepared.path), "no cloudsimfs")


def test_a_mount_in_the_foreground_ends_in_order_on_a_signal(box: Sandbox, prepared: Mounted) -> None:
    command = [
        sys.executable,
        "-m",
        "cloudsimfs",
        *map(str, _words(prepared)),
        "--foreground",
        "--write-back",
        "0",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=client_environment()
    ) as process:
        assert process.stdout is not None
        assert "mounted" in process.stdout.readline()
        (prepared.path / "f").write_bytes(b"f")
        prepared.settle()
        process.terminate()
        _, errors = process.communicate(timeout=patient(30))
    assert "Traceback" not in errors
    assert not prepared.is_mounted()
