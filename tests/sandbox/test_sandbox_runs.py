"""The sandbox's simulations: launch, follow, sync, stop, end; and the solver they run."""

from __future__ import annotations

import configparser
import io
import itertools
import os
import re
import resource
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

import cloudsimfs.sandbox
import harness
from cloudsimfs.sandbox import CASES, Sandbox, Settings
from cloudsimfs.sandbox.plot import residual_plot
from cloudsimfs.sandbox.solver import MOST_MEMORY, BadCase, Case, Solver, read_case, vtk
from harness import client_environment, patient, wait_until
from rawapi import send

CASE = CASES / "heated-plate"
PENDING, RUNNING, STOPPING, STOPPED, COMPLETED, ERROR = 20, 30, 40, 50, 10, 60
DOCUMENTED = {
    *("id", "mdate", "user_id", "bucket", "cpu", "ram", "nopre", "folder", "mesh", "script"),
    *("clean", "idate", "edate", "status", "pid", "tid", "output", "images"),
}  # docs/service.md, "Fields"
ASKED = {"cpu": "2", "ram": "standard", "script": "heat2d-1.0", "folder": "case"}


@pytest.fixture
def box() -> Iterator[Sandbox]:
    with Sandbox(settings=Settings(pending_seconds=0.01, hourly_limit=0)) as running:
        yield running
        assert running.key_leaks == []


def case_file(steps: int = 20, delay: float = 0.0, **others: str) -> bytes:
    """The shipped case, small: 16 x 12 points."""
    parser = configparser.ConfigParser(inline_comment_prefixes=("#", ";"))
    parser.read(CASE / "heat.ini")
    parser["grid"].update(nx="16", ny="12")
    parser["time"].update(steps=str(steps), delay=str(delay), write_every="10", **others)
    text = io.StringIO()
    parser.write(text)
    return text.getvalue().encode()


def call(box: Sandbox, version: int, method: str, path: str, body: Any = None) -> requests.Response:
    data = {"data": body} if version == 1 and body is not None else body
    return send(box, version, method, f"/simulation{path}", json=data)


def launch(box: Sandbox, **others: Any) -> int:
    reply = call(box, 1, "POST", "", {**ASKED, **others})
    assert reply.status_code == 200, reply.text
    assert isinstance(reply.json(), int)
    return int(reply.json())


def run_of(box: Sandbox, run_id: int) -> dict[str, Any]:
    return next(run for run in box.runs() if run["id"] == run_id)


def wait_for(box: Sandbox, run_id: int, *statuses: int) -> dict[str, Any]:
    wait_until(lambda: run_of(box, run_id)["status"] in statuses, f"run {run_id} is in a state of {statuses}")
    return run_of(box, run_id)


def wait_for_steps(box: Sandbox, run_id: int, count: int) -> None:
    wait_until(lambda: run_of(box, run_id)["output"].count("\nstep ") >= count, f"it has made {count} steps")


# -- life cycle -------------------------------------------------------------------------------------


def test_a_run_computes_and_saves(box: Sandbox) -> None:
    box.populate({"case/heat.ini": case_file(), "case/sub/note": b"n", "other": b"o"})
    run_id = launch(box)
    wait_for(box, run_id, COMPLETED, ERROR)
    run = call(box, 1, "GET", f"/{run_id}").json()
    assert run["status"] == COMPLETED, run["output"]
    assert re.search(r"^step 20/20  residual \d\.\d\de-\d\d  Tmax \d+\.\d$", run["output"], re.MULTILINE)
    assert box.paths() == [
        "case/heat.ini",
        "case/results/field_000010.vtk",
        "case/results/field_000020.vtk",
        "case/results/residuals.csv",
        "case/results/residuals.png",
        "case/results/temperature.png",
        "case/sub/note",
        "other",
    ]
    assert [image["name"] for image in run["images"]] == ["residuals.png", "temperature.png"]
    picture = requests.get(run["images"][0]["url"], timeout=10).content
    assert picture == box.files()["case/results/residuals.png"]


def test_v1_fields_are_the_documented_ones(box: Sandbox) -> None:
    box.put("case/heat.ini", case_file())
    run_id = launch(box, nopre=0)
    wait_for(box, run_id, COMPLETED)
    (run,) = call(box, 1, "GET", "").json()
    assert run == call(box, 1, "GET", f"/{run_id}").json() | {"images": run["images"]}
    assert set(run) == DOCUMENTED
    assert (run["cpu"], run["nopre"], run["folder"], run["script"]) == (2, 0, "case", "heat2d-1.0")
    for name in ("mdate", "idate", "edate"):
        assert time.strptime(run[name], "%Y-%m-%d %H:%M:%S")


def test_v2_calls(box: Sandbox) -> None:
    box.put("case/heat.ini", case_file())
    made = call(box, 2, "POST", "/add", {**ASKED, "cpu": 4}).json()["response"]
    assert (made["cpu"], made["status"]) == (4, PENDING)
    wait_for(box, made["id"], COMPLETED)
    short = call(box, 2, "GET", f"/view-short/{made['id']}").json()["response"]
    assert not {"output", "logs"} & set(short)
    assert {"cpu_hrs", "cost", "vnc_url"} <= set(short)
    whole = call(box, 2, "GET", f"/view/{made['id']}").json()["response"]
    assert "finished" in whole["output"]
    assert whole["logs"] == whole["output"]
    second = call(box, 2, "POST", "/add", ASKED).json()["response"]
    box.settings.page_size = 1
    pages = [call(box, 2, "GET", f"/index-short/id/desc/{page}").json()["response"] for page in (1, 2, 3)]
    assert [[run["id"] for run in page] for page in pages] == [[second["id"]], [made["id"]], []]


def test_the_log_grows_and_sync_saves_while_it_runs(box: Sandbox) -> None:
    box.put("case/heat.ini", case_file(steps=10_000, delay=0.02))
    run_id = launch(box)
    wait_for_steps(box, run_id, 2)
    before = len(run_of(box, run_id)["output"])
    wait_until(lambda: len(run_of(box, run_id)["output"]) > before, "the log grows")
    assert box.paths() == ["case/heat.ini"]
    assert call(box, 1, "PUT", f"/{run_id}/sync", {"signal": "SIGQUIT"}).status_code == 200
    wait_until(lambda: "case/results/temperature.png" in box.paths(), "the results are saved")
    lines = run_of(box, run_id)["output"].count("\n")
    wait_until(lambda: run_of(box, run_id)["output"].count("\n") > lines, "the log grows again")
    assert run_of(box, run_id)["status"] == RUNNING
    assert run_of(box, run_id)["output"].count("sync: results written") == 1
    fields = set(box.paths())
    assert call(box, 2, "PUT", f"/sync/{run_id}").status_code == 200
    wait_until(lambda: set(box.paths()) > fields, "the second save has written newer results")
    assert len(run_of(box, run_id)["images"]) == 2


@pytest.mark.parametrize("version", [1, 2])
def test_soft_stop_saves(box: Sandbox, version: int) -> None:
    box.put("case/heat.ini", case_file(steps=10_000, delay=0.02))
    run_id = launch(box)
    wait_for(box, run_id, RUNNING)  # the solver may not be ready yet: the signal must not be lost
    path = f"/{run_id}/stop" if version == 1 else f"/stop/{run_id}"
    assert call(box, version, "PUT", path, {"signal": "SIGTSTP"}).status_code == 200
    run = wait_for(box, run_id, STOPPED, ERROR)
    assert run["status"] == STOPPED
    assert "results written" in run["output"]
    assert "case/results/residuals.csv" in box.paths()
    for again in ("SIGTSTP", "SIGINT"):
        assert call(box, 1, "PUT", f"/{run_id}/stop", {"signal": again}).status_code == 409
        refused = call(box, 2, "PUT", f"/stop/{run_id}", {"signal": again})
        assert (refused.status_code, list(refused.json())) == (403, ["errors"])
    assert call(box, 1, "PUT", f"/{run_id}/sync", {"signal": "SIGQUIT"}).status_code == 409


def test_hard_stop_saves_nothing(box: Sandbox) -> None:
    box.put("case/heat.ini", case_file(steps=10_000, delay=0.01))
    run_id = launch(box)
    wait_for_steps(box, run_id, 12)
    assert call(box, 1, "PUT", f"/{run_id}/stop", {"signal": "SIGINT"}).status_code == 200
    run = wait_for(box, run_id, STOPPED)
    assert box.paths() == ["case/heat.ini"]
    assert run["edate"]
    with pytest.raises(ProcessLookupError):
        os.kill(run["pid"], 0)


def test_stop_while_pending(box: Sandbox) -> None:
    box.settings.pending_seconds = 60
    box.put("case/heat.ini", case_file())
    run_id = launch(box)
    assert run_of(box, run_id)["status"] == PENDING
    assert call(box, 1, "PUT", f"/{run_id}/sync", {"signal": "SIGQUIT"}).status_code == 409
    assert call(box, 1, "PUT", f"/{run_id}/stop", {"signal": "SIGTSTP"}).status_code == 200
    assert wait_for(box, run_id, STOPPED)["output"] == ""


def test_input_missing_or_wrong_ends_as_error(box: Sandbox) -> None:
    box.populate({"case/readme": b"", "bad/heat.ini": b"[grid]\nnx = many\n"})
    runs = [wait_for(box, launch(box, folder=folder), ERROR) for folder in ("case", "bad")]
    assert "no heat.ini" in runs[0]["output"]
    assert "heat.ini: [" in runs[1]["output"]
    assert "Traceback" not in runs[0]["output"] + runs[1]["output"]


def test_a_diverged_run_is_completed(box: Sandbox) -> None:
    box.put("case/heat.ini", case_file(steps=2000, step_size="1e6"))
    run = wait_for(box, launch(box), COMPLETED, ERROR)
    assert run["status"] == COMPLETED
    assert "error: the solution diverged" in run["output"]


def test_close_kills_the_solver() -> None:
    with Sandbox(settings=Settings(pending_seconds=0)) as box:
        box.put("case/heat.ini", case_file(steps=10_000, delay=0.05))
        run = wait_for(box, launch(box), RUNNING)
    with pytest.raises(ProcessLookupError):
        os.kill(run["pid"], 0)


@pytest.mark.parametrize(
    "change",
    [{"cpu": "3"}, {"ram": "huge"}, {"script": "x"}, {"folder": "none"}, {"folder": ""}, {"nopre": 2}],
)
def test_launch_is_checked(box: Sandbox, change: dict[str, Any]) -> None:
    box.put("case/heat.ini", case_file())
    assert call(box, 1, "POST", "", {**ASKED, **change}).status_code == 400
    assert call(box, 2, "POST", "/add", {**ASKED, **change}).status_code == 403
    assert box.runs() == []


@pytest.mark.parametrize("letter", " ,()'$~\"#*?")
def test_folders_a_run_cannot_have(box: Sandbox, letter: str) -> None:
    folder = f"a{letter}b"
    box.put(f"{folder}/heat.ini", case_file())
    assert call(box, 1, "POST", "", {**ASKED, "folder": folder}).status_code == 400


def test_a_run_finds_only_what_the_service_has_learnt_of(box: Sandbox) -> None:
    asked = {"dirname": "case", "filename": "heat.ini", "contentType": "application/octet-stream"}
    headers = {"X-API-key": box.key}
    url = requests.post(f"{box.url}/api/v2/storage/upload-url", json=asked, headers=headers, timeout=10)
    kind = {"Content-Type": "application/octet-stream"}
    requests.put(url.json()["response"]["url"], data=case_file(), headers=kind, timeout=10)
    assert call(box, 2, "POST", "/add", ASKED).status_code == 403
    requests.delete(f"{box.url}/api/v2/user/delete-cache", headers=headers, timeout=10)
    assert call(box, 2, "POST", "/add", ASKED).status_code == 200


def test_unknown_runs(box: Sandbox) -> None:
    assert call(box, 1, "GET", "/1").status_code == 404
    assert call(box, 2, "GET", "/view/1").status_code == 403
    assert call(box, 1, "PUT", "/1/stop", {"signal": "SIGINT"}).status_code == 404


# -- solver -----------------------------------------------------------------------------------------


def read(tmp_path: Path, text: bytes) -> Case:
    (tmp_path / "heat.ini").write_bytes(text)
    return read_case(tmp_path / "heat.ini")


def test_the_field_settles_to_the_mean_of_its_edges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = case_file(steps=1500).replace(b"nx = 16", b"nx = 15").replace(b"ny = 12", b"ny = 15")
    case = read(tmp_path, text.replace(b"write_every = 10", b"write_every = 1500"))
    solver = Solver(case, tmp_path / "results")
    solver.run()
    assert solver.field[7][7] == pytest.approx(325.0, abs=0.1)
    assert "finished" in capsys.readouterr().out


def test_vtk_is_legacy_binary(tmp_path: Path) -> None:
    case = read(tmp_path, case_file())
    values = [[float(100 * j + i) for i in range(case.nx)] for j in range(case.ny)]
    data = vtk(case, values, 7)
    head, _, body = data.partition(b"LOOKUP_TABLE default\n")
    lines = head.decode().splitlines()
    assert lines[0] == "# vtk DataFile Version 3.0"
    assert lines[2:5] == ["BINARY", "DATASET STRUCTURED_POINTS", "DIMENSIONS 16 12 1"]
    assert lines[-2:] == ["POINT_DATA 192", "SCALARS temperature float 1"]
    assert struct.unpack(">192f", body[:-1]) == tuple(itertools.chain(*values))


@pytest.mark.parametrize("residuals", [[1e-1, 1e-2, 1e-3], [0.5], [0.0, 0.0], [1e-9 * i for i in range(5000)]])
def test_png(residuals: list[float]) -> None:
    data = residual_plot(residuals)
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", data[16:24]) == (480, 320)
    (length,) = struct.unpack(">I", data[33:37])
    pixels = zlib.decompress(data[41 : 41 + length])
    assert len(pixels) == 320 * (1 + 3 * 480)
    assert len(set(pixels)) > 3


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ((b"nx = 16", b"nx = 2"), "nx"),
        ((b"nx = 16", b"nx = nan"), "nx"),
        ((b"steps = 20", b"steps = many"), "steps"),
        ((b"top = 400.0", b""), "top"),
        ((b"[material]", b"[matter]"), "density"),
        ((b"[grid]", b"grid"), "grid"),
    ],
)
def test_bad_input_is_named(tmp_path: Path, change: tuple[bytes, bytes], named: str) -> None:
    with pytest.raises(BadCase, match=named):
        read(tmp_path, case_file().replace(*change))


def test_the_shipped_case_is_complete_and_runs(tmp_path: Path) -> None:
    files = [path.relative_to(CASE) for path in CASE.rglob("*") if path.is_file()]
    assert 6 <= len(files) <= 10
    assert len({path.parent for path in files}) == 3
    case = read_case(CASE / "heat.ini")
    assert case.nx * case.ny >= 1000
    (tmp_path / "heat.ini").write_bytes(case_file(steps=1))
    command = [sys.executable, "-P", "-m", "cloudsimfs.sandbox.solver"]
    root = str(Path(cloudsimfs.sandbox.__file__).parents[2])
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        timeout=patient(30),
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_solver_imports_no_third_party_module() -> None:
    code = "import sys, cloudsimfs.sandbox.solver; print(sorted({'aiohttp', 'requests'} & set(sys.modules)))"
    root = str(Path(cloudsimfs.sandbox.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        timeout=patient(30),
        check=True,
    )
    assert done.stdout == b"[]\n"


# -- what a run may take ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "values", "said"),
    [
        ("grid", {"nx": "60000", "ny": "60000"}, "60000 x 60000 points are too many"),
        ("grid", {"nx": "9" * 5000}, "at most 1e\\+15"),
        ("time", {"steps": "9" * 5000}, "at most 1e\\+15"),
        ("material", {"name": "100 %"}, ""),
    ],
)
def test_a_case_is_bounded(tmp_path: Path, section: str, values: dict[str, str], said: str) -> None:
    parser = configparser.ConfigParser(interpolation=None, inline_comment_prefixes=("#", ";"))
    parser.read_string(case_file().decode())
    parser[section].update(values)
    with open(tmp_path / "heat.ini", "w") as file:
        parser.write(file)
    if not said:
        assert read_case(tmp_path / "heat.ini").material == "100 %"
        return
    with pytest.raises(BadCase, match=said) as caught:
        read_case(tmp_path / "heat.ini")
    assert len(str(caught.value)) < 200


def test_a_run_has_a_memory_limit(box: Sandbox) -> None:
    box.populate({"case/heat.ini": case_file(steps=1000, delay=0.5)})
    run_id = box.launch("case")
    wait_until(lambda: "step 1/" in box.run(run_id)["output"], "the first step")
    assert resource.prlimit(box.run(run_id)["pid"], resource.RLIMIT_AS) == (MOST_MEMORY, MOST_MEMORY)
    box.stop(run_id)


# -- the command -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("port", ["99999", "-1", "x"])
def test_a_port_that_is_none_is_said(port: str) -> None:
    done = harness.cloudsimfs("sandbox", "--port", port)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: Invalid value for '--port': ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("host", "is_warned"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_the_command_keeps_its_files_private_and_warns(tmp_path: Path, host: str, is_warned: bool) -> None:
    key, data = tmp_path / "key", tmp_path / "data"
    command = [sys.executable, "-m", "cloudsimfs", "sandbox", "--host", host, "--port", "0"]
    with subprocess.Popen(
        ["sh", "-c", 'umask 0; exec "$@"', "sh", *command, "--key-file", str(key), "--data-dir", str(data)],
        env=client_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            url = process.stdout.readline().partition("listens at ")[2].partition(",")[0]
            octets = {"Content-Type": "application/octet-stream"}
            body = {"data": {"basename": "f", "dirname": "", "contentType": octets["Content-Type"]}}
            asked = f"{url}/api/v1/storage/upload/url"
            owner = {"api-key": key.read_text().strip()}
            link = requests.post(asked, json=body, headers=owner, timeout=10).json()["url"]
            stored = requests.put(link, b"text" * 100_000, headers=octets, timeout=10)
            assert stored.status_code == 200, stored.text
        finally:
            process.terminate()
        warned = process.stderr.read()
    assert warned.startswith("warning: 0.0.0.0 is not loopback") == is_warned, warned
    found = [each for each in [key, data, *data.rglob("*")] if each.stat().st_mode & 0o077]
    assert found == []
    assert any(each.is_file() and each.parent.name == "objects" for each in data.rglob("*"))
