"""`.simulations/` on a real mount: launch, follow, stop and sync runs by writing to files."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from pathlib import Path

import pytest

from cloudsimfs.sandbox import CASES, Sandbox
from harness import MountFactory, errno_of, need, patient, read_tree, run, wait_until
from runs_harness import LONG, SHORT, WORDS, Case, Simulations


@pytest.fixture
def long(box: Sandbox, mount: MountFactory) -> Simulations:
    """A mount with a case that runs until it is stopped."""
    box.populate(LONG)
    return Simulations(mount(run_ttl=0.1))


# -- a run from launch to results ----------------------------------------------------------------------------


def test_a_run_from_launch_to_results(box: Sandbox, sims: Simulations) -> None:
    run_id = sims.launch(f"{WORDS} nopre=1")
    assert [found["id"] for found in box.runs()] == [run_id]
    sims.wait_for(run_id, "COMPLETED")
    values = {name: sims.read(f"{run_id}/{name}") for name in ("script", "cpu", "ram", "nopre", "folder")}
    assert values == {"script": "heat2d-1.0\n", "cpu": "2\n", "ram": "standard\n", "nopre": "1\n", "folder": "case\n"}
    assert sims.read(f"{run_id}/started") != "\n"
    assert sims.read(f"{run_id}/ended") != "\n"
    log = sims.read(f"{run_id}/log")
    assert log == box.runs()[0]["output"]
    assert (sims.path / f"{run_id}/log").stat().st_size == len(log)
    wait_until(lambda: "residuals.csv" in str(results(sims, run_id)), "results show")
    assert results(sims, run_id) == results_stored(box)
    assert sims.read("runs").split()[:3] == [str(run_id), "COMPLETED", "heat2d-1.0"]
    assert [found["id"] for found in json.loads(sims.read("runs.json"))] == [run_id]
    assert sims.read("latest/case/status") == "COMPLETED\n"


def results(sims: Simulations, run_id: int) -> Case:
    return read_tree(sims.path / f"{run_id}/results")


def results_stored(box: Sandbox) -> Case:
    return {path.removeprefix("case/"): data for path, data in box.files().items()}


def test_launching_with_json(box: Sandbox, sims: Simulations) -> None:
    words = {"cpu": 2, "ram": "standard", "script": "heat2d-1.0", "folder": "case", "nopre": 0}
    run_id = sims.launch(json.dumps(words))
    found = box.runs()[0]
    assert (found["id"], found["cpu"], found["nopre"]) == (run_id, 2, 0)


def test_launching_by_the_path_in_the_mount(box: Sandbox, sims: Simulations) -> None:
    folder = sims.path.parent / "case"
    sims.launch(f"cpu=2 ram=standard script=heat2d-1.0 folder={folder}/")
    assert box.runs()[0]["folder"] == "case"


def test_from_a_shell(box: Sandbox, sims: Simulations) -> None:
    run("sh", "-e", "-c", f'echo "{WORDS}" > .simulations/launch; cat .simulations/runs', cwd=sims.path.parent)
    assert len(box.runs()) == 1
    script = "echo cpu=3 | tee .simulations/launch"
    command = ["sh", "-c", f'cd "$0" && {script}', str(sims.path.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(30), check=False)
    assert done.returncode != 0
    assert "Invalid argument" in done.stderr


def test_options(box: Sandbox, sims: Simulations) -> None:
    assert sims.read("options/cpu").split() == [str(cpu) for cpu in box.settings.cpus]
    assert sims.read("options/ram").split() == list(box.settings.rams)
    assert sims.read("options/scripts").split() == list(box.settings.scripts)
    assert os.listdir(sims.path / "options") != []
    assert "launch" in sims.read("README")


def test_every_file_has_its_true_size(long: Simulations) -> None:
    run_id = long.launch()
    long.wait_for(run_id, "RUNNING")
    long.write(f"{run_id}/stop", "hard")
    long.wait_for(run_id, "STOPPED")
    for directory, _, names in os.walk(long.path):
        for name in names:
            file = Path(directory, name)
            if os.access(file, os.R_OK) and file.name not in ("stop", "sync", "budget"):
                data = file.read_bytes()  # first: the size of a log that nobody looked at is not worth a call
                assert file.stat().st_size == len(data), file


def test_reading_is_free_while_it_is_fresh(box: Sandbox, mount: MountFactory) -> None:
    box.populate(SHORT)
    sims = Simulations(mount(run_ttl=3600))
    run_id = sims.launch()
    sims.read("runs")
    sims.read(f"{run_id}/log")
    box.calls.reset()
    for _ in range(3):
        for name in ("runs", "runs.json", f"{run_id}/status", f"{run_id}/info.json", f"{run_id}/log"):
            sims.read(name)
        os.listdir(sims.path)
        run("ls", "-lR", str(sims.path / str(run_id)))
    assert box.calls.entries() == []


def test_the_personal_link_is_not_shown(box: Sandbox, sims: Simulations) -> None:
    run_id = sims.launch()
    info = json.loads(sims.read(f"{run_id}/info.json"))
    assert info["id"] == run_id
    assert info["folder"] == "case"
    assert "vnc_url" not in info
    assert "vnc_url" not in sims.read("runs.json")


# -- following -----------------------------------------------------------------------------------------------


def test_the_log_grows(long: Simulations) -> None:
    run_id = long.launch()
    long.wait_for(run_id, "RUNNING")
    wait_until(lambda: long.read(f"{run_id}/log").count("\n") > 5, "the log has lines")
    first = long.read(f"{run_id}/log")
    wait_until(lambda: len(long.read(f"{run_id}/log")) > len(first), "the log grows")
    assert long.read(f"{run_id}/log").startswith(first)


def test_tail_follows_the_log(long: Simulations) -> None:
    tail = need("tail")
    run_id = long.launch()
    long.wait_for(run_id, "RUNNING")
    follow = [tail, "-f", "-n", "+1", "-s", "0.1", str(long.path / f"{run_id}/log")]
    with subprocess.Popen(follow, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(60)]
        finally:
            process.kill()
    assert b"".join(lines).decode() == "".join(long.read(f"{run_id}/log").splitlines(keepends=True)[:60])


# -- commands ------------------------------------------------------------------------------------------------


def long_at_work(long: Simulations) -> int:
    """A run of the long case that has done some steps."""
    run_id = long.launch()
    long.wait_for(run_id, "RUNNING")
    wait_until(lambda: long.read(f"{run_id}/log").count("\n") > 15, "some steps are done")
    return run_id


@pytest.mark.parametrize("word", ["soft", "SIGTSTP"])
def test_a_soft_stop_saves_results(box: Sandbox, long: Simulations, word: str) -> None:
    run_id = long_at_work(long)
    assert long.write(f"{run_id}/stop", word) == 0
    long.wait_for(run_id, "STOPPED")
    assert len(box.files()) > len(LONG)
    wait_until(lambda: results(long, run_id) == results_stored(box), "the results show")


@pytest.mark.parametrize("word", ["hard", "SIGINT"])
def test_a_hard_stop_saves_nothing(box: Sandbox, long: Simulations, word: str) -> None:
    run_id = long_at_work(long)
    assert long.write(f"{run_id}/stop", word) == 0
    long.wait_for(run_id, "STOPPED")
    assert box.files() == LONG


def test_sync_brings_results_and_the_run_goes_on(box: Sandbox, long: Simulations) -> None:
    run_id = long.launch()
    long.wait_for(run_id, "RUNNING")
    assert sorted(results(long, run_id)) == sorted(results_stored(box))
    wait_until(lambda: long.read(f"{run_id}/log").count("\n") > 15, "some steps are done")
    assert long.write(f"{run_id}/sync", "1") == 0
    wait_until(lambda: len(results(long, run_id)) > len(LONG), "results show")
    assert long.read(f"{run_id}/status") == "RUNNING\n"


def test_a_stop_in_the_wrong_state(box: Sandbox, sims: Simulations) -> None:
    run_id = sims.launch()
    sims.wait_for(run_id, "COMPLETED")
    for name, word in (("stop", "soft"), ("stop", "hard"), ("sync", "1")):
        assert sims.write(f"{run_id}/{name}", word) == errno.EBUSY
        assert "COMPLETED" in sims.read("error")


@pytest.mark.parametrize("api", ["v2"])
def test_bad_words_to_stop_and_sync(long: Simulations) -> None:
    run_id = long.launch()
    long.wait_for(run_id, "RUNNING")
    assert long.write(f"{run_id}/stop", "please") == errno.EINVAL
    assert "soft" in long.read("error")
    assert long.write(f"{run_id}/sync", "now") == errno.EINVAL
    assert long.write("999/stop", "soft") == errno.ENOENT
    assert long.read(f"{run_id}/status") == "RUNNING\n"


@pytest.mark.parametrize("api", ["v2"])
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (WORDS.replace("cpu=2", "cpu=3"), errno.EINVAL, "2"),
        (WORDS.replace("standard", "standart"), errno.EINVAL, "standard"),
        (WORDS.replace("heat2d-1.0", "heat2d"), errno.EINVAL, "heat2d-1.0"),
        (WORDS.replace("script", "skript"), errno.EINVAL, "script"),
        (WORDS.replace("folder=case", ""), errno.EINVAL, "folder"),
        (WORDS + " cpu=4", errno.EINVAL, "twice"),
        (WORDS + " nopre=2", errno.EINVAL, "nopre"),
        (WORDS + " loose", errno.EINVAL, "loose"),
        ('{"cpu": 2', errno.EINVAL, ""),
        ("[1, 2]", errno.EINVAL, ""),
        ('{"cpu": "2" "ram"}', errno.EINVAL, ""),
        ("", errno.EINVAL, "empty"),
        ("\udcff", errno.EINVAL, "text"),
        (WORDS.replace("=case", "=nowhere"), errno.ENOENT, "nowhere"),
        (WORDS.replace("=case", "=case/heat.ini"), errno.ENOTDIR, "heat.ini"),
        (WORDS.replace("=case", "='my case'"), errno.EINVAL, "' '"),
        (WORDS.replace("=case", "=a#b"), errno.EINVAL, "#"),
    ],
)
def test_a_bad_launch(box: Sandbox, sims: Simulations, words: str, code: int, said: str) -> None:
    data = words.encode("utf-8", "surrogateescape") + b"\n"
    assert errno_of(lambda: (sims.path / "launch").write_bytes(data)) == code
    assert said in sims.read("error")
    assert sims.read("error").count("\n") == 1
    assert box.runs() == []


@pytest.mark.parametrize("api", ["v2"])
def test_nothing_else_can_be_changed_there(sims: Simulations) -> None:
    run_id = sims.launch()
    path = sims.path
    outside = path.parent / "outside"
    outside.write_bytes(b"")
    for action in (
        lambda: (path / "new").write_bytes(b""),
        lambda: (path / "new").mkdir(),
        lambda: (path / f"{run_id}/new").touch(),
        lambda: (path / "runs").unlink(),
        lambda: (path / str(run_id)).rmdir(),
        lambda: path.rmdir(),
        lambda: os.rename(path / "runs", path / "walks"),
        lambda: os.rename(path / "runs", path.parent / "runs"),
        lambda: os.rename(outside, path / "runs"),
        lambda: os.rename(path, path.parent / "other"),
        lambda: (path / "runs").chmod(0o777),
    ):
        assert errno_of(action) == errno.EPERM
    assert errno_of(lambda: (path / "runs").write_text("x")) == errno.EACCES
    assert errno_of(lambda: (path / "999/status").read_text()) == errno.ENOENT
    assert errno_of(lambda: os.listdir(path / "999")) == errno.ENOENT


# -- launch exactly once -------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 3])
def test_a_lost_answer_to_a_launch_starts_one_run(box: Sandbox, sims: Simulations, times: int) -> None:
    box.faults.add("launch", "drop_reply", times=times)
    run_id = sims.launch()
    assert [found["id"] for found in box.runs()] == [run_id]
    assert box.calls.counts()["launch"] == 1


@pytest.mark.parametrize("api", ["v2"])
def test_an_unresolved_launch_is_refused_until_it_is_known(box: Sandbox, mount: MountFactory) -> None:
    box.populate(SHORT)
    sims = Simulations(mount(run_ttl=3600))
    box.faults.add("launch", "drop_reply", times=1)
    fault = box.faults.add("simulations", "status", status=500, after=1)  # the list before the launch is whole
    assert sims.write("launch", WORDS) == errno.EAGAIN
    assert sims.write("launch", WORDS) == errno.EAGAIN
    assert len(box.runs()) == 1
    box.faults.remove(fault)
    assert sims.write("launch", WORDS) != 0
    assert str(box.runs()[0]["id"]) in sims.read("error")
    assert len(box.runs()) == 1
    assert box.calls.counts()["launch"] == 1


def test_a_launch_that_was_never_sent_can_be_repeated(box: Sandbox, sims: Simulations) -> None:
    box.faults.add("launch", "status", status=400, times=1)
    assert sims.write("launch", WORDS) != 0
    assert box.runs() == []
    run_id = sims.launch()
    assert [found["id"] for found in box.runs()] == [run_id]


def test_the_same_key_launches_once(box: Sandbox, mount: MountFactory) -> None:
    box.populate(SHORT)
    m = mount()
    sims = Simulations(m)
    first = sims.launch(f"{WORDS} key=token-1")
    assert sims.launch(f"{WORDS} key=token-1") == first
    second = sims.launch(f"{WORDS} key=token-2")
    assert len({first, second}) == len(box.runs()) == 2


def test_the_same_key_launches_once_even_after_a_crash(box: Sandbox, mount: MountFactory) -> None:
    box.populate(SHORT)
    m = mount()
    first = Simulations(m).launch(f"{WORDS} key=token-1")
    m.crash()
    assert Simulations(m).launch(f"{WORDS} key=token-1") == first
    assert len(box.runs()) == 1


# -- a launch sees the files ---------------------------------------------------------------------------------


def test_a_launch_waits_for_its_files(box: Sandbox, mount: MountFactory) -> None:
    m = mount(write_back=3600, run_ttl=0.1)
    run("cp", "-r", CASES / "heated-plate", m.path / "case")
    (m.path / "case/heat.ini").write_bytes(SHORT["case/heat.ini"])
    (m.path / "elsewhere").write_bytes(b"not below the folder")
    box.faults.add("object-put", "latency", seconds=0.2)
    sims = Simulations(m)
    run_id = sims.launch()
    assert {path: data for path, data in box.files().items() if path in SHORT} == SHORT
    assert "elsewhere" not in box.files()
    sims.wait_for(run_id, "COMPLETED")


def test_nothing_is_launched_if_an_upload_failed(box: Sandbox, mount: MountFactory) -> None:
    m = mount(write_back=3600)
    (m.path / "case").mkdir()
    (m.path / "case/heat.ini").write_bytes(SHORT["case/heat.ini"])
    box.faults.add("upload-url", "status", status=400)
    sims = Simulations(m)
    assert sims.write("launch", WORDS) == errno.EAGAIN
    assert "heat.ini" in sims.read("error")
    assert box.runs() == []


# -- failures ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["v2"])
@pytest.mark.parametrize("run_ttl", [3600.0, 0.0])
def test_a_dead_service_shows_what_was_known(box: Sandbox, mount: MountFactory, run_ttl: float) -> None:
    """And nothing is launched: the runs that there are cannot be listed."""
    box.populate(SHORT)
    run_id = box.launch("case")
    wait_until(lambda: box.run(run_id)["status"] == 10, "the run is COMPLETED")
    sims = Simulations(mount(run_ttl=run_ttl))
    sims.wait_for(run_id, "COMPLETED")
    log = sims.read(f"{run_id}/log")
    for name in ("cpu", "ram", "scripts"):
        sims.read(f"options/{name}")
    box.faults.add("*", "reset")
    box.calls.reset()
    assert sims.read(f"{run_id}/status") == "COMPLETED\n"
    assert sims.read(f"{run_id}/log") == log
    assert sims.write("launch", WORDS) == errno.EHOSTUNREACH
    assert "reset" in sims.read("error")
    assert box.calls.counts()["launch"] == 0
    assert len(box.runs()) == 1
