"""One command starts one run (docs/architecture.md, invariant 7): lost answers, kills, cut networks, repetitions."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudsimfs.runs.launch import DOUBT
from cloudsimfs.sandbox import Sandbox
from harness import Mounted, MountFactory, cloudsimfs, patient, state_home, wait_until
from moving import Ahead
from rawapi import send
from runs_harness import SHORT, WORDS, Simulations


@pytest.fixture
def m(box: Sandbox, mount: MountFactory) -> Mounted:
    box.populate(SHORT)
    return mount(run_ttl=0.1)


def killed_while(m: Mounted, condition: Callable[[], object]) -> None:
    """Launch from a shell, and kill the daemon once the condition holds."""
    script = ["sh", "-c", f"cd '{m.path}' && echo '{WORDS}' > .simulations/launch"]
    with subprocess.Popen(script, stderr=subprocess.DEVNULL) as shell:
        try:
            wait_until(condition, "the launch is so far")
            m.kill()
            assert shell.wait(patient(20)) != 0
        finally:
            shell.kill()


def asked_for(box: Sandbox, operation: str) -> Callable[[], bool]:
    box.calls.reset()
    return lambda: box.calls.counts()[operation] > 0


def ids(box: Sandbox) -> list[int]:
    return [found["id"] for found in box.runs()]


# -- the daemon killed at each step --------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["v2"])
def test_killed_before_the_intent(box: Sandbox, m: Mounted) -> None:
    (m.path / "case/new").write_bytes(b"to be stored first")
    fault = box.faults.add("upload-url", "hang")
    killed_while(m, asked_for(box, "upload-url"))
    box.faults.remove(fault)
    m.start()
    assert box.runs() == []
    sims = Simulations(m)
    assert sims.read("error") == ""
    assert [sims.launch()] == ids(box)
    assert box.files()["case/new"] == b"to be stored first"


@pytest.mark.parametrize("api", ["v2"])
def test_killed_with_the_post_under_way(box: Sandbox, m: Mounted) -> None:
    """Whether it gets through is up to the network; nobody here can know that."""
    fault = box.faults.add("launch", "hang")
    killed_while(m, asked_for(box, "launch"))
    box.faults.remove(fault)
    m.start()
    sims = Simulations(m)
    code = sims.write("launch", WORDS)
    assert (code, len(box.runs())) in [(errno.EAGAIN, 0), (errno.EEXIST, 1)]
    assert ("did start run" if box.runs() else "no new run is to be seen") in sims.read("error")


def test_killed_between_the_post_and_its_answer(box: Sandbox, m: Mounted) -> None:
    box.faults.add("launch", "drop_reply", times=1)
    fault = box.faults.add("simulations", "hang", after=1)  # the run cannot be looked for
    killed_while(m, box.runs)
    box.faults.remove(fault)
    m.start()
    sims = Simulations(m)
    assert "got no answer" in sims.read("error"), "who looks is told"
    assert sims.write("launch", WORDS) == errno.EEXIST
    assert f"did start run {ids(box)[0]}" in sims.read("error")
    assert len(box.runs()) == 1
    assert len({sims.launch(), *ids(box)}) == 2, "asked for again, knowing of the first one"


@pytest.mark.parametrize("api", ["v1"])
def test_killed_after_the_answer(box: Sandbox, m: Mounted) -> None:
    sims = Simulations(m)
    run_id = sims.launch(f"{WORDS} key=day-1")
    m.crash()
    assert sims.launch(f"{WORDS} key=day-1") == run_id
    m.remount()
    assert sims.launch(f"{WORDS} key=day-1") == run_id
    assert sims.write("launch", f"{WORDS.replace('=2', '=4')} key=day-1") == errno.EINVAL
    assert f"key=day-1 has launched run {run_id}" in sims.read("error")
    assert ids(box) == [run_id]


def test_a_post_that_never_arrived(box: Sandbox, m: Mounted) -> None:
    """Nobody can know: the user is told, and decides."""
    sims = Simulations(m)
    fault = box.faults.add("launch", "reset")
    for _ in range(2):
        assert sims.write("launch", WORDS) == errno.EAGAIN
        assert "no new run is to be seen" in sims.read("error")
    box.faults.remove(fault)
    m.crash()
    assert sims.write("launch", WORDS) == errno.EAGAIN
    assert "force=1" in sims.read("error")
    assert box.runs() == []
    assert [sims.launch(f"{WORDS} force=1")] == ids(box)
    assert len({sims.launch(), *ids(box)}) == 2


@pytest.mark.parametrize("api", ["v2"])
def test_without_a_network_nothing_is_sent(box: Sandbox, m: Mounted) -> None:
    sims = Simulations(m)
    sims.read("options/cpu")
    box.faults.add("*", "reset")
    assert sims.write("launch", WORDS) == errno.EHOSTUNREACH
    box.faults.clear()
    assert box.runs() == []
    assert [sims.launch()] == ids(box)


# -- an answer that is not true ------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 429])
def test_a_refusal_of_a_launch_that_was_carried_out(box: Sandbox, m: Mounted, api: str, status: int) -> None:
    """The list is looked at before the same is sent again, whatever the service said."""
    sims = Simulations(m)
    lie = {"status": status, "times": 1, "body": '{"errors": ["no"]}', "retry_after": 0}  # else a 429 lasts an hour
    box.faults.add("launch", "lie", **lie)
    assert sims.write("launch", f"{WORDS} key=k") != 0
    assert sims.launch(f"{WORDS} key=k") == ids(box)[0]
    assert len(box.runs()) == 1
    box.faults.add("launch", "lie", **lie)
    assert sims.write("launch", WORDS) != 0
    assert sims.write("launch", WORDS) == errno.EEXIST, "without a key the user is told, and decides"
    assert len(box.runs()) == 2
    assert box.calls.counts()["launch"] == 2


@pytest.mark.parametrize("api", ["v2"])
def test_a_refused_launch_whose_run_is_listed_late(box: Sandbox, mount: MountFactory, tmp_path: Path) -> None:
    """A launch with a key waits a moment and looks again, rather than start a second run."""
    box.populate(SHORT)
    clock = Ahead(tmp_path / "ahead")
    sims = Simulations(mount(run_ttl=0.1, program=clock.program))
    box.faults.add("launch", "late", status=409, times=1, amount=4, body='{"errors": ["no"]}')
    assert sims.write("launch", f"{WORDS} key=k") != 0
    assert box.runs() == []
    looks, over = box.calls.counts()["simulations"], threading.Event()

    def list_it_once_it_was_looked_for() -> None:
        box.calls.wait(
            lambda calls: sum(call.operation == "simulations" and call.status > 0 for call in calls) > looks
        )
        send(box, 2, "GET", "/simulation/view-cpu")
        while not over.wait(0.1):
            clock.move(1.0)

    lists = threading.Thread(target=list_it_once_it_was_looked_for)
    lists.start()
    try:
        assert [sims.launch(f"{WORDS} key=k")] == ids(box)
    finally:
        over.set()
        lists.join()
    assert box.calls.counts()["launch"] == 1


@pytest.mark.parametrize("api", ["v2"])
def test_a_true_refusal_is_soon_forgotten(box: Sandbox, mount: MountFactory, tmp_path: Path) -> None:
    box.populate(SHORT)
    clock = Ahead(tmp_path / "ahead")
    sims = Simulations(mount(run_ttl=0.1, program=clock.program))
    box.faults.add("launch", "status", status=409, times=1, body='{"errors": ["not now"]}')
    assert sims.write("launch", f"{WORDS} key=k") != 0
    assert "got no answer" not in sims.read("error")
    clock.move(DOUBT + 1)
    assert [sims.launch(f"{WORDS} key=k")] == ids(box)
    assert sims.launch(f"{WORDS} key=k") == ids(box)[0]


@pytest.mark.parametrize("api", ["v2"])
def test_an_answer_with_the_id_of_an_older_run(box: Sandbox, m: Mounted) -> None:
    sims = Simulations(m)
    older = sims.launch()
    box.faults.add("launch", "lie", status=200, body=f"{older}", times=1)
    assert sims.launch(f"{WORDS} key=k") == max(ids(box)) != older
    assert len(box.runs()) == 2


@pytest.mark.parametrize("api", ["v2"])
def test_a_lost_answer_is_not_taken_for_somebody_elses_run(box: Sandbox, mount: MountFactory) -> None:
    """Runs that others began before ours was sent are known; of several later ones none is guessed."""
    box.populate(SHORT)
    sims = Simulations(mount(run_ttl=600))
    sims.read("runs")  # a list without what follows is fresh for ten minutes
    box.launch("case")
    fault = box.faults.add("launch", "reset")
    assert sims.write("launch", WORDS) == errno.EAGAIN
    assert "no new run is to be seen" in sims.read("error")
    box.faults.remove(fault)
    later = [box.launch("case"), box.launch("case")]
    assert sims.write("launch", WORDS) == errno.EAGAIN
    assert f"several new runs with these words ({later[0]} and {later[1]})" in sims.read("error")
    assert len(ids(box)) == 3


# -- one account, several places -----------------------------------------------------------------------------


def launched_beside(m: Mounted, *options: str, state: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Launch by a command that uses no mount, with a cache directory of its own or that of `m`."""
    words: list[str | Path] = [
        "launch", "case", "--cpu", "2", "--ram", "standard", "--script", "heat2d-1.0",
        "--url", m.box.url, "--key-file", m.key_file, "--api", "v2",
    ]  # fmt: skip
    if "--cache-dir" not in options:
        words += ["--cache-dir", m.cache]
    return cloudsimfs(*words, *options, env={"XDG_STATE_HOME": str(state)} if state else None)


def test_a_key_in_two_cache_directories(box: Sandbox, m: Mounted, tmp_path: Path) -> None:
    sims = Simulations(m)
    run_id = sims.launch(f"{WORDS} key=k")
    done = launched_beside(m, "--key", "k", "--cache-dir", str(tmp_path / "another"))
    assert done.stdout == f"{run_id}\n", done.stderr
    assert ids(box) == [run_id]


def test_a_launch_without_answer_is_known_in_every_cache_directory(box: Sandbox, m: Mounted, tmp_path: Path) -> None:
    other = str(tmp_path / "another")
    fault = box.faults.add("launch", "reset")
    assert launched_beside(m, "--cache-dir", other).returncode == 1
    box.faults.remove(fault)
    assert Simulations(m).write("launch", WORDS) == errno.EAGAIN
    assert box.runs() == []


@pytest.mark.parametrize("api", ["v2"])
def test_a_key_on_two_machines(box: Sandbox, m: Mounted, tmp_path: Path) -> None:
    """Only the service knows what another machine did: its runs with the same words are asked about."""
    machine, other = tmp_path / "machine", str(tmp_path / "another")
    run_id = Simulations(m).launch(f"{WORDS} key=k")
    done = launched_beside(m, "--key", "k", "--cache-dir", other, state=machine)
    assert done.returncode == 1
    assert f"run {run_id} has the same words, and it was not launched from this machine" in done.stderr
    assert "yes=1" in done.stderr or "--yes" in done.stderr
    assert ids(box) == [run_id]
    done = launched_beside(m, "--key", "k", "--cache-dir", other, "--yes", state=machine)
    assert done.returncode == 0, done.stderr
    assert len(ids(box)) == 2
    again = launched_beside(m, "--key", "k", "--cache-dir", other, state=machine)
    assert again.stdout == done.stdout
    assert launched_beside(m, "--key", "k2", "--cache-dir", other, state=machine).returncode == 1, "the first one's"


@pytest.mark.parametrize("api", ["v2"])
def test_runs_of_this_machine_ask_for_no_word(box: Sandbox, m: Mounted) -> None:
    sims = Simulations(m)
    assert len({sims.launch(), sims.launch(f"{WORDS} key=a"), sims.launch(f"{WORDS} key=b")}) == 3


# -- one at a time -------------------------------------------------------------------------------------------


def at_once(count: int, action: Callable[[], object]) -> None:
    threads = [threading.Thread(target=action) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("api", ["v2"])
def test_a_key_in_many_hands(box: Sandbox, m: Mounted) -> None:
    """Threads in the mount and commands beside it: one run."""
    box.faults.add("launch", "latency", seconds=0.3)
    told: list[str] = []

    def command() -> None:
        told.append(launched_beside(m, "--key", "k").stdout)

    sims = Simulations(m)
    other = threading.Thread(target=at_once, args=(2, command))
    other.start()
    at_once(3, lambda: sims.write("launch", f"{WORDS} key=k"))
    other.join()
    assert len(box.runs()) == 1
    assert told == [f"{ids(box)[0]}\n"] * 2
    assert box.calls.counts()["launch"] == 1


@pytest.mark.parametrize("api", ["v2"])
def test_a_launch_waits_for_the_one_of_another_process(box: Sandbox, m: Mounted) -> None:
    """One at a time, so that each sees what the one before has recorded."""
    sims = Simulations(m)
    (data,) = m.cache.glob("**/data")
    book = state_home() / "cloudsimfs" / data.parent.name
    book.mkdir(parents=True, exist_ok=True)
    with open(book / "launch.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=sims.launch)
        thread.start()
        thread.join(2.0)
        assert thread.is_alive()
        assert box.calls.counts()["launch"] == 0
    thread.join()
    assert len(box.runs()) == 1


@pytest.mark.parametrize("api", ["v2"])
def test_a_key_stands_for_its_words(box: Sandbox, m: Mounted) -> None:
    sims = Simulations(m)
    assert sims.write("launch", f"{WORDS} key=k") == 0, sims.read("error")
    assert sims.write("launch", f"{WORDS} key=k") == 0, "the same again is the same run"
    assert sims.write("launch", f"{WORDS} nopre=0 key=k") == errno.EINVAL
    assert "take a new key" in sims.read("error")
    assert len(box.runs()) == 1


@pytest.mark.parametrize("api", ["v2"])
def test_the_answer_belongs_to_its_handle(box: Sandbox, m: Mounted) -> None:
    sims = Simulations(m)
    told: list[str] = []

    def ask() -> None:
        with open(sims.path / "launch", "r+b", buffering=0) as file:
            file.write(WORDS.encode())
            told.append(os.pread(file.fileno(), 1000, 0).decode())

    at_once(3, ask)
    assert sorted(int(re.findall(r"^id=(\d+) ", each)[0]) for each in told) == ids(box)


# -- the words -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["v2"])
def test_a_dry_run_starts_nothing(box: Sandbox, m: Mounted) -> None:
    sims = Simulations(m)
    assert sims.write("launch", f"{WORDS} dry-run=1") == 0
    assert sims.read("launch").startswith("id=- ")
    assert sims.write("launch", f"{WORDS.replace('=case', '=nowhere')} dry-run=1") == errno.ENOENT
    assert sims.write("launch", f"{WORDS} dry-run=yes") == errno.EINVAL
    assert box.runs() == []
    assert box.calls.counts()["launch"] == 0


def test_a_mesh(box: Sandbox, m: Mounted, api: str) -> None:
    box.put("mesh/points", b"1 2 3")
    sims = Simulations(m)
    code = sims.write("launch", f"{WORDS} mesh=mesh")
    if api == "v2":
        assert code == 0
        assert box.runs()[0]["mesh"] == "mesh"
    else:
        assert code == errno.EINVAL
        assert "API v1" in sims.read("error")
    assert sims.write("launch", f"{WORDS} mesh=nowhere") != 0


@pytest.mark.parametrize("api", ["v2"])
def test_case_and_mesh_are_stored_before_the_launch(box: Sandbox, mount: MountFactory) -> None:
    box.populate(SHORT)
    box.put("mesh/points", b"1 2 3")
    m = mount(write_back=3600)
    for path in ("case/added", "mesh/points", "other"):
        (m.path / path).parent.mkdir(exist_ok=True)
        (m.path / path).write_bytes(b"4 5 6")
    sims = Simulations(m)
    assert sims.write("launch", f"{WORDS} mesh=mesh") == 0, sims.read("error")
    stored = box.files()
    assert (stored["case/added"], stored["mesh/points"]) == (b"4 5 6", b"4 5 6")
    assert "other" not in stored


@pytest.mark.parametrize("api", ["v2"])
def test_options_that_are_new_are_found(box: Sandbox, m: Mounted) -> None:
    """What was looked up is kept for long; a value that is not among it is worth another look after ten minutes."""
    sims = Simulations(m)
    sims.launch()
    for file in m.cache.glob("*/runs/cpu.json"):
        file.write_text('[0, ["1", "2"]]')
    m.remount()
    box.settings.cpus = (1, 2, 4, 48)
    assert sims.launch(WORDS.replace("=2", "=48"))
    assert sims.read("options/cpu").split() == ["1", "2", "4", "48"]
