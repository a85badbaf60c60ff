"""`runs`, `options`, `launch`, `stop`, `sync`, `log` and `wait`, with a mount and without; the README's session."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from cloudsimfs.sandbox import CASES, Sandbox
from harness import ROOT, Mounted, MountFactory, client_environment, cloudsimfs, need, patient, wait_until, write_key
from runs_harness import LONG, SHORT, Simulations

WORDS = ("--cpu", "2", "--ram", "standard", "--script", "heat2d-1.0")
ERROR, STOPPED, TIMED_OUT = 3, 4, 5
Command = Callable[..., CompletedProcess[str]]


@pytest.fixture
def mounted(box: Sandbox, mount: MountFactory) -> Command:
    """Commands on a mount."""
    m = mount(run_ttl=0.1)
    return lambda name, *words, **options: cloudsimfs(name, "--mount", m.path, *words, **options)


@pytest.fixture
def account(box: Sandbox, tmp_path: Path, api: str) -> list[str | Path]:
    """The options of commands without a mount."""
    key = write_key(tmp_path, box.key)
    return ["--url", box.url, "--key-file", key, "--cache-dir", tmp_path / "cache", "--api", api]


@pytest.fixture
def direct(account: list[str | Path]) -> Command:
    """Commands without a mount."""
    environment = {"CLOUDSIMFS_RUN_TTL": "0.1"}
    return lambda name, *words, env=None, **options: cloudsimfs(
        name, *account, *words, env={**environment, **(env or {})}, **options
    )


@pytest.fixture(params=["mounted", "direct"])
def command(request: pytest.FixtureRequest, api: str) -> Command:
    """The same with `api`, either way."""
    found: Command = request.getfixturevalue(request.param)
    return found


def ok(done: CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def wait_for_status(box: Sandbox, run_id: int, status: int) -> None:
    wait_until(lambda: {run["id"]: run["status"] for run in box.runs()}[run_id] == status, f"status {status}")


# -- the commands --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["v2"])
def test_a_session_of_commands(box: Sandbox, command: Command) -> None:
    box.populate(LONG)
    assert json.loads(ok(command("options", "--json")))["cpu"] == [str(cpu) for cpu in box.settings.cpus]
    assert "nothing was started" in ok(command("launch", "case", *WORDS, "--dry-run"))
    assert box.runs() == []
    run_id = int(ok(command("launch", "case", *WORDS)))
    wait_for_status(box, run_id, 30)
    (row,) = json.loads(ok(command("runs", "--json")))
    assert (row["id"], row["status_name"], row["folder"]) == (run_id, "RUNNING", "case")
    assert str(run_id) in ok(command("runs"))
    ok(command("sync", "case"))
    done = command("wait", "--timeout", "0.2")
    assert done.returncode == TIMED_OUT
    assert "still RUNNING" in done.stderr
    ok(command("stop", str(run_id)))
    done = command("wait", "case")
    assert done.returncode == STOPPED
    assert re.match(rf"run {run_id} in case: STOPPED after \d:\d\d:\d\d\n", done.stdout)
    assert ok(command("log", str(run_id))) == box.runs()[0]["output"]
    for words, said in (
        (("stop", "case"), "STOPPED"),
        (("log", "nowhere"), "no run in a folder 'nowhere'"),
        (("launch", "case", *WORDS, "--cpu", "3"), "cpu '3' is not offered; there is: 1, 2, 4, 8, among others"),
    ):
        done = command(*words)
        assert done.returncode == 1
        assert said in done.stderr
        assert done.stderr.count("\n") == 1, "one clear line"


@pytest.mark.parametrize("api", ["v2"])
def test_a_launch_whose_files_cannot_be_stored(box: Sandbox, mount: MountFactory) -> None:
    """The mount refuses it with EAGAIN, which is no success."""
    box.populate(SHORT)
    m = mount()
    box.faults.add("upload-url", "status", status=500)
    (m.path / "case/heat.ini").write_bytes(SHORT["case/heat.ini"] + b"# changed\n")
    done = cloudsimfs("launch", "--mount", m.path, "case", *WORDS)
    assert done.returncode == 1
    assert "case/heat.ini" in done.stderr
    assert done.stderr.count("\n") == 1, "one clear line"
    assert box.runs() == []
    m.kill()


@pytest.mark.parametrize("api", ["v2"])
def test_waiting_for_the_end(box: Sandbox, command: Command, tmp_path: Path) -> None:
    """The log is followed to its end, and the desktop hears of it."""
    box.populate(SHORT)
    desktop = tmp_path / "notify-send"
    desktop.write_text('#!/bin/sh\necho "$2" >> "$0.told"\n')
    desktop.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    run_id = int(ok(command("launch", "case", *WORDS)))
    followed = ok(command("log", "-f", env=environment))
    assert followed == box.runs()[0]["output"]
    assert "finished" in followed
    assert json.loads(ok(command("wait", "--json", env=environment)))["status_name"] == "COMPLETED"
    told = (tmp_path / "notify-send.told").read_text().splitlines()
    assert len(told) == 2
    assert told[0].startswith(f"run {run_id} in case: COMPLETED")


@pytest.mark.parametrize("api", ["v1"])
def test_a_run_that_failed(box: Sandbox, direct: Command) -> None:
    box.populate({**SHORT, "case/heat.ini": b"[grid]\n"})
    ok(direct("launch", "case", *WORDS))
    done = direct("wait")
    assert done.returncode == ERROR
    assert "ERROR" in done.stdout


@pytest.mark.parametrize("api", ["v2"])
def test_a_hard_stop_asks_on_a_terminal(box: Sandbox, mount: MountFactory) -> None:
    box.populate(LONG)
    m = mount(run_ttl=0.1)
    run_id = Simulations(m).launch()

    def stop(answer: bytes, *words: str) -> int:
        leader, terminal = pty.openpty()
        arguments = [
            sys.executable,
            "-m",
            "cloudsimfs",
            "stop",
            "--hard",
            str(run_id),
            "--mount",
            str(m.path),
            *words,
        ]
        with subprocess.Popen(
            arguments, stdin=terminal, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=client_environment()
        ) as process:
            os.write(leader, answer)
            status = process.wait(patient(60))
        os.close(leader)
        os.close(terminal)
        return status

    assert stop(b"n\n") != 0
    assert box.runs()[0]["status"] in (20, 30)
    assert stop(b"", "--yes") == 0
    wait_for_status(box, run_id, 50)


@pytest.mark.parametrize("api", ["v2"])
def test_a_repeated_command_starts_one_run(box: Sandbox, direct: Command, account: list[str | Path]) -> None:
    """The first one is killed before it can know."""
    box.populate(SHORT)
    ok(direct("options"))
    box.faults.add("launch", "drop_reply", times=1)
    fault = box.faults.add("simulations", "hang", after=1)
    arguments = [sys.executable, "-m", "cloudsimfs", "launch", *account, "case", *WORDS]
    with subprocess.Popen(arguments, env=client_environment()) as first:
        wait_until(lambda: fault.fired, "it asks what has become of its launch")
        first.kill()
    assert len(box.runs()) == 1
    box.faults.remove(fault)
    done = direct("launch", "case", *WORDS)
    assert done.returncode == 1
    assert f"did start run {box.runs()[0]['id']}" in done.stderr
    assert len(box.runs()) == 1


@pytest.mark.parametrize("api", ["v2"])
def test_which_mount_is_meant(box: Sandbox, mount: MountFactory) -> None:
    box.populate({**SHORT, "deep/er/heat.ini": SHORT["case/heat.ini"]})
    m = mount(run_ttl=0.1)
    inside = f"cd {m.path}/deep && {sys.executable} -m cloudsimfs"
    done = subprocess.run(
        ["sh", "-c", f"{inside} launch er {' '.join(WORDS)} && {inside} wait er"],
        capture_output=True, text=True, env=client_environment(), timeout=patient(60), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert box.runs()[0]["folder"] == "deep/er"
    done = cloudsimfs("runs", "--mount", m.path.parent)
    assert done.returncode == 1
    assert "not inside a cloudsimfs mount" in done.stderr


@pytest.mark.parametrize("api", ["v2"])
def test_without_a_mount_pending_files_hold_a_launch_back(box: Sandbox, mount: MountFactory) -> None:
    box.populate(SHORT)
    m = mount(write_back=3600)
    (m.path / "case/new").write_bytes(b"not yet stored")
    account: list[str | Path] = ["--url", box.url, "--key-file", m.key_file, "--cache-dir", m.cache]
    done = cloudsimfs("launch", *account, "case", *WORDS)
    assert done.returncode == 1
    assert "/case/new is not on the service yet" in done.stderr
    assert box.runs() == []


# -- the session as the README shows it ----------------------------------------------------------------------


def session_of(file: Path) -> str:
    """The bash lines between the markers `# session: begin` and `# session: end` of a script, or of a page."""
    match = re.search(r"^ *# session: begin\n(.*?)^ *# session: end$", file.read_text(), re.MULTILINE | re.DOTALL)
    assert match is not None, f"{file} shows no session"
    return match[1]


@pytest.mark.parametrize("api", ["v2"])
def test_the_session(box: Sandbox, m: Mounted, tmp_path: Path) -> None:
    need("bash")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "cloudsimfs").write_text(f'#!/bin/sh\nexec {sys.executable} -m cloudsimfs "$@"\n')
    (tools / "cloudsimfs").chmod(0o755)
    script = f"set -eu; cd {m.path}\n{session_of(ROOT / 'scripts/session')}".replace("timeout 5", "timeout 1")
    m.option(run_ttl=0.2)
    m.remount()
    done = subprocess.run(
        ["bash", "-c", script],
        env={**client_environment(), "PATH": f"{tools}:{os.environ['PATH']}", "CASE": str(CASES / "heated-plate")},
        capture_output=True, text=True, timeout=patient(80), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "STOPPED" in done.stdout
    assert "it ended with status 4" in done.stdout
    assert "step,residual,Tmax" in done.stdout
    assert done.stdout.rstrip().endswith("results written")
    assert box.runs()[0]["status"] == 50


def test_the_readme_shows_the_same_session() -> None:
    readme = (ROOT / "README.md").read_text()
    if "# session: begin" not in readme:
        pytest.skip("the README has no session between markers")
    lines = [line.strip() for line in session_of(ROOT / "README.md").splitlines()]
    assert lines == [line.strip() for line in session_of(ROOT / "scripts/session").splitlines()]
