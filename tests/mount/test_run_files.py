"""The files of `.simulations/`: modes and sizes, `latest/`, pictures, sentences of failures, what walkers cost."""

from __future__ import annotations

import base64
import errno
import os
import signal
import stat
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudsimfs.sandbox import Sandbox
from harness import MountFactory, errno_of, mode_of, need, patient, run, wait_until
from runs_harness import LONG, SHORT, WORDS, Simulations

STATE = ("README", "budget", "error", "runs", "runs.json")
OF_RUN = ("cpu", "ended", "folder", "info.json", "log", "nopre", "ram", "script", "started", "status")


def shell(sims: Simulations, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in the mount's root, as a user types it."""
    command = ["bash", "-c", f'cd "$0" && {script}', str(sims.path.parent)]
    return subprocess.run(command, capture_output=True, text=True, timeout=patient(60), check=False)


def pending(box: Sandbox, folder: str) -> int:
    """A run that has not started yet, launched by somebody else."""
    box.put(f"{folder}/heat.ini", b"")
    return box.launch(folder)


# -- the table -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["v2"])
def test_names_and_modes(sims: Simulations) -> None:
    run_id = sims.launch()
    top, own = sims.path, sims.path / str(run_id)
    assert set(os.listdir(top)) == {*STATE, "launch", "latest", "options", str(run_id)}
    assert set(os.listdir(own)) == {*OF_RUN, "images", "results", "stop", "sync"}
    assert sorted(os.listdir(top / "options")) == ["cpu", "ram", "scripts"]
    assert {mode_of(top / name) for name in STATE} | {mode_of(own / name) for name in OF_RUN} == {0o444}
    assert mode_of(top / "launch") == 0o644
    assert (mode_of(own / "stop"), mode_of(own / "sync")) == (0o200, 0o200)
    assert os.readlink(own / "results") == "../../case"
    for word in ("limit", "used", "remaining", "resets_at"):
        assert f"{word} " in sims.read("budget")


@pytest.mark.parametrize("api", ["v2"])
def test_newest_runs_by_folder(box: Sandbox, mount: MountFactory) -> None:
    box.settings.pending_seconds = 3600
    ids = {folder: pending(box, folder) for folder in ("a/case", "b/case", "case", "case/fine", "case/log")}
    ids["a/case"] = pending(box, "a/case")
    sims = Simulations(mount())
    for folder, run_id in ids.items():
        assert sims.read(f"latest/{folder}/status") == "PENDING\n"
        assert (sims.path / f"latest/{folder}/status").resolve() == sims.path / f"{run_id}/status"
        assert sims.read(f"latest/{folder}/folder") == f"{folder}\n"
    assert sorted(os.listdir(sims.path / "latest")) == ["a", "b", "case"]
    assert errno_of(lambda: os.listdir(sims.path / "latest/nowhere")) == errno.ENOENT
    assert str(ids["case"]) not in run("ls", sims.path / "latest/case/fine/")


@pytest.mark.parametrize("api", ["v1"])
def test_values_that_are_hostile(box: Sandbox, mount: MountFactory) -> None:
    odd = {"folder": "../../etc", "script": "two\nlines \x1b[2J", "ram": "high mem"}
    changes: list[dict[str, str]] = [{"folder": "../../etc"}, {"folder": "a//b"}, {"folder": ""}, odd]
    run_ids = [pending(box, "case") for _ in changes]
    for run_id, change in zip(run_ids, changes, strict=True):
        box.alter_run(run_id, **change)
    sims = Simulations(mount())
    assert not (sims.path / f"{run_ids[0]}/results").is_symlink()
    assert os.listdir(sims.path / "latest") == []
    lines = sims.read("runs").splitlines()
    assert len(lines) == 4
    assert all(len(line.split(" ")) == 8 for line in lines)
    assert r"high\040mem" in lines[0]
    assert "\x1b" not in sims.read("runs") + sims.read(f"{run_ids[3]}/script")
    assert sims.read(f"{run_ids[3]}/script").count("\n") == 1


# -- results -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cached", [False, True])
def test_results_of_a_sync_are_seen_in_few_calls(
    box: Sandbox, mount: MountFactory, sims: Simulations, cached: bool
) -> None:
    """However often somebody looks, and though v2 goes on showing what it has cached."""
    box.settings.caches_listings = cached
    box.populate(LONG)
    run_id = sims.launch()
    sims.wait_for(run_id, "RUNNING")
    top = sims.path.parent
    before = set(os.listdir(top / "case"))
    assert "results" not in before
    box.calls.reset()
    assert sims.write(f"{run_id}/sync", "1") == 0
    wait_until(lambda: "results" in os.listdir(top / "case"), "the results are seen")
    counts = box.calls.counts()
    assert sum(call.is_api for call in box.calls.entries()) <= 8, counts


# -- pictures ------------------------------------------------------------------------------------------------


def test_pictures_are_files(box: Sandbox, sims: Simulations) -> None:
    run_id = sims.launch()
    sims.wait_for(run_id, "COMPLETED")
    images = sims.path / f"{run_id}/images"
    assert sorted(os.listdir(images)) == ["residuals.png", "temperature.png"]
    for name in os.listdir(images):
        data = (images / name).read_bytes()
        assert data == box.files()[f"case/results/{name}"]
        assert (images / name).stat().st_size == len(data)
    box.faults.add("*", "reset")
    assert (images / "residuals.png").read_bytes().startswith(b"\x89PNG")
    box.faults.clear()
    assert errno_of(lambda: (images / "none.png").read_bytes()) == errno.ENOENT


@pytest.mark.parametrize("api", ["v1"])
def test_pictures_of_other_forms(box: Sandbox, mount: MountFactory) -> None:
    box.populate(SHORT)
    data = b"\x89PNG and more bytes"
    encoded = base64.b64encode(data).decode()
    pictures = [f"data:image/png;base64,{encoded}", {"name": "bare.png", "data": encoded}, "case/heat.ini", "junk"]
    run_id = pending(box, "case")
    box.faults.add("simulations", "odd", variation=lambda runs: [{**run, "images": pictures} for run in runs])
    sims = Simulations(mount())
    images = sims.path / f"{run_id}/images"
    assert (images / "image-1.png").read_bytes() == (images / "bare.png").read_bytes() == data
    stored = next(each for each in images.iterdir() if each.is_symlink())
    assert stored.read_bytes() == box.files()["case/heat.ini"]
    assert errno_of(lambda: (images / "image-4.png").read_bytes()) == errno.EIO
    assert "neither a link nor an image" in sims.read("error")


def test_an_old_link_to_a_picture_is_renewed(box: Sandbox, mount: MountFactory) -> None:
    box.populate(SHORT)
    sims = Simulations(mount(run_ttl=3600))
    run_id = sims.launch()
    wait_until(lambda: box.runs()[0]["status"] == 10, "the run completes")
    sims.write(f"{run_id}/stop", "soft")  # refused, but the state is looked at
    os.listdir(sims.path / f"{run_id}/images")
    box.advance(box.settings.link_seconds + 1)
    assert (sims.path / f"{run_id}/images/residuals.png").read_bytes().startswith(b"\x89PNG")


# -- failures ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["v2"])
def test_every_errno_has_its_sentence(box: Sandbox, sims: Simulations) -> None:
    need("bash")
    done = sims.launch()
    sims.wait_for(done, "COMPLETED")
    box.settings.pending_seconds = 3600.0
    run_id = sims.launch()

    def refused(script: str, code: int, *said: str) -> None:
        result = shell(sims, script)
        assert result.returncode != 0, script
        assert os.strerror(code) in result.stderr, result.stderr
        for word in said:
            assert word in sims.read("error"), sims.read("error")

    refused(f"echo '{WORDS.replace('=case', '=nowhere')}' > .simulations/launch", errno.ENOENT, "nowhere", "copy")
    refused("echo soft > .simulations/99/stop", errno.ENOENT, "no run 99", "`cloudsimfs runs`")
    refused(f"echo '{WORDS.replace('=2', '=3')}' > .simulations/launch", errno.EINVAL, "cpu", "'3'", "1, 2, 4")
    refused(f"echo '{WORDS} nopr=1' > .simulations/launch", errno.EINVAL, "'nopr'", "nopre")
    refused(f"echo '{WORDS} nopre=7' > .simulations/launch", errno.EINVAL, "SPOT", "REGULAR")
    refused(f"echo gently > .simulations/{run_id}/stop", errno.EINVAL, "gently", "`soft`", "`hard`")
    refused(f"echo soft > .simulations/{done}/stop", errno.EBUSY, f"run {done}", "COMPLETED", "RUNNING")
    refused(f"echo 1 > .simulations/{run_id}/sync", errno.EBUSY, f"run {run_id}", "PENDING", "RUNNING")
    assert "echo" not in sims.read("error")
    # the folder is not writable: the kernel says so to all but root, who hears it from the mount
    refused("echo x > .simulations/new", errno.EPERM if os.geteuid() == 0 else errno.EACCES)
    for fault, code, said in (
        ({"kind": "status", "status": 401}, errno.EACCES, "stop"),
        ({"kind": "status", "status": 408}, errno.ETIMEDOUT, "stop"),
        ({"kind": "reset"}, errno.EHOSTUNREACH, "stop"),
        ({"kind": "status", "status": 429}, errno.EDQUOT, "again in"),
    ):
        box.faults.add("stop", **fault)
        refused(f"echo soft > .simulations/{run_id}/stop", code, said)
        box.faults.clear()
    box.calls.reset()


@pytest.mark.parametrize("api", ["v2"])
def test_a_spent_budget_is_edquot_and_keeps_a_reserve(box: Sandbox, mount: MountFactory) -> None:
    box.settings.pending_seconds = 3600.0
    run_id = pending(box, "case")
    box.populate(SHORT)
    m = mount(calls_per_hour=20, run_ttl=0)
    sims = Simulations(m)
    sims.read("runs")
    for _ in range(30):
        (m.path / ".cloudsimfs/refresh").write_text("/")
        assert os.listdir(m.path) == ["case"], "what is known, when nothing is left"
    wait_until(lambda: "remaining 0\n" in sims.read("budget"), "the calls are spent")
    assert sims.write(f"{run_id}/stop", "hard") == 0, "commands have the reserve"
    for _ in range(6):
        code = sims.write("launch", WORDS)
    assert code == errno.EDQUOT
    assert "API calls of this hour are used" in sims.read("error")


@pytest.mark.parametrize("api", ["v2"])
def test_read_without_a_network(box: Sandbox, mount: MountFactory) -> None:
    box.populate(SHORT)
    m = mount(run_ttl=0.1)
    sims = Simulations(m)
    run_id = sims.launch()
    sims.wait_for(run_id, "COMPLETED")
    log = sims.read(f"{run_id}/log")
    scripts = sims.read("options/scripts")
    m.option(offline=True)
    m.remount()
    box.calls.reset()
    assert "launch" in sims.read("README")
    assert sims.read("options/scripts") == scripts == "".join(f"{name}\n" for name in box.settings.scripts)
    assert (sims.path / "options/scripts").stat().st_size == len(scripts)
    assert sims.read("latest/case/log") == log
    assert f"id={run_id} " in sims.read("launch")
    assert f"{run_id} COMPLETED" in sims.read("runs")
    assert sims.write("launch", WORDS) == errno.EHOSTUNREACH
    assert box.calls.entries() == []


# -- walkers -------------------------------------------------------------------------------------------------


def test_walkers_are_not_trapped(box: Sandbox, mount: MountFactory, tmp_path: Path) -> None:
    box.populate(LONG)
    m = mount(run_ttl=3600, ttl=3600)
    sims = Simulations(m)
    for _ in range(3):
        box.launch("case")
    sims.read("runs")
    run("find", m.path)
    box.calls.reset()
    assert sorted(os.listdir(m.path)) == ["case"]
    commands: list[list[str | Path]] = [
        ["cp", "-r", m.path, tmp_path / "copy"],
        ["grep", "-rc", "heat", m.path],
        ["tar", "-C", m.path, "-cf", tmp_path / "all.tar", "."],
        ["du", "-a", m.path],
        ["find", m.path, "-size", "+0"],
        ["ls", "-alR", m.path],
        ["chmod", "-R", "u+r", m.path],
    ]
    for command in commands:
        run(*command)
    assert ".simulations" not in run("tar", "-tf", tmp_path / "all.tar")
    assert {call.operation for call in box.calls.entries() if call.is_api} <= {"download-url"}
    box.calls.reset()
    run("find", "-L", sims.path, "-maxdepth", "4", "-name", "log", "-size", "+0")
    run("du", "-a", sims.path)
    assert box.calls.api_count() == 0


def test_fifty_logs_at_once(box: Sandbox, mount: MountFactory) -> None:
    """As fifty `tail -f` hold them open."""
    box.settings.hourly_limit, box.settings.pending_seconds = 500, 3600.0
    run_ids = [pending(box, f"case{number}") for number in range(50)]
    sims = Simulations(mount(run_ttl=0.3, api="auto"))
    fds = [os.open(sims.path / f"{run_id}/log", os.O_RDONLY) for run_id in run_ids]
    try:
        for run_id in run_ids:
            box.say(run_id, f"line of {run_id}\n")
        wait_until(lambda: all(os.pread(fd, 100, 0) for fd in fds), "all logs grow")
        assert [os.pread(fd, 100, 0).decode() for fd in fds] == [f"line of {run_id}\n" for run_id in run_ids]
        assert all(os.fstat(fd).st_size for fd in fds)
    finally:
        for fd in fds:
            os.close(fd)
    assert box.calls.api_count() < 20
    used = box.calls.api_count()
    wait_until(lambda: all(stat.S_ISREG(os.stat(sims.path / f"{run_id}/log").st_mode) for run_id in run_ids), "stat")
    assert box.calls.api_count() <= used + 2


def test_who_opens_a_log_is_told_its_size_of_now(box: Sandbox, mount: MountFactory) -> None:
    """As `tail -n 1` asks for it, before it reads from there: not the one the kernel was told a moment ago."""
    box.settings.pending_seconds = 3600.0
    run_id = pending(box, "case")
    log = Simulations(mount(run_ttl=0)).path / f"{run_id}/log"
    for number in range(100):
        log.stat()
        box.say(run_id, f"line {number}\n")
        fd = os.open(log, os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size
            assert os.pread(fd, 10_000, 0)[:size].decode().endswith(f"line {number}\n")
        finally:
            os.close(fd)


@pytest.mark.parametrize("api", ["v1", "v2"])
def test_less_follows_the_log(box: Sandbox, mount: MountFactory, tmp_path: Path) -> None:
    """`less +F` on a terminal of its own."""
    need("less")
    script = need("script")
    box.settings.pending_seconds = 3600.0
    run_id = pending(box, "case")
    box.say(run_id, "first line\n")
    sims = Simulations(mount(run_ttl=0.1))
    shown, pid = tmp_path / "shown", tmp_path / "pid"
    command = [script, "-qfec", f"echo $$ >{pid}; exec less +F {sims.path}/{run_id}/log", str(shown)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env={"TERM": "vt100"}):
        try:
            wait_until(lambda: b"first line" in shown.read_bytes(), "less shows the first line")
            box.say(run_id, "second line\n")
            wait_until(lambda: b"second line" in shown.read_bytes(), "less shows the next line")
        finally:
            wait_until(lambda: pid.read_text().endswith("\n"), "less has been started")
            os.kill(int(pid.read_text()), signal.SIGKILL)  # it outlives `script`, and its file, else


def test_what_a_run_costs(box: Sandbox, mount: MountFactory) -> None:
    """From launch to results: every call is worth it."""
    box.populate(LONG)
    m = mount(run_ttl=3600, ttl=3600)
    sims = Simulations(m)
    os.listdir(m.path / "case")

    def calls(action: Callable[[], object]) -> Counter[str]:
        box.calls.reset()
        action()
        return Counter(call.operation for call in box.calls.entries() if call.is_api)

    first = calls(sims.launch)
    assert first == Counter(cpu=1, ram=1, scripts=1, simulations=first["simulations"], launch=1)
    assert first["simulations"] == 1
    wait_until(lambda: box.runs()[0]["status"] == 30, "the run goes on")
    assert calls(lambda: sims.read("latest/case/status")) == Counter(simulations=1)
    run_id = int(sims.read("launch").split()[0].removeprefix("id="))
    assert sum(calls(lambda: sims.read(f"{run_id}/log")).values()) <= 1
    assert calls(lambda: sims.write(f"{run_id}/sync", "1")) == Counter(sync=1)
    wait_until(lambda: len(box.files()) > len(LONG), "results are stored")
    shown = calls(lambda: os.listdir(sims.path / f"{run_id}/results"))
    assert shown["simulations"] <= 1, "a look at the state"
    assert shown["list"] <= 2, "the folder and, as the last page, nothing"
    assert calls(lambda: sims.write(f"{run_id}/stop", "hard")) == Counter(stop=1)
    assert calls(sims.launch) == Counter(simulations=1, launch=1)
