"""`doctor`: each thing that can be wrong is found, with its remedy; what it costs; the exit status."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloudsimfs import config
from cloudsimfs.cli import checks
from cloudsimfs.clock import ManualClock
from cloudsimfs.config import profiles
from cloudsimfs.host import mountpoint
from cloudsimfs.listings.store import Learnt, ListingStore
from cloudsimfs.sandbox import Sandbox
from cloudsimfs.service import connect
from cloudsimfs.service.failures import ahead
from harness import Mounted, MountFactory, client_environment, cloudsimfs, patient

NO_SETTINGS = config.Settings(profiles.DEFAULT, {})
Doctor = Callable[..., tuple[int, dict[str, dict[str, str]]]]


@pytest.fixture
def api() -> str:
    return "v2"


@pytest.fixture
def run_doctor(box: Sandbox, tmp_path: Path) -> Doctor:
    """Runs it for `box`; the status and the findings that are not about mounts, which may be others' here."""

    def run(*words: str, key: str = box.key, **settings: str) -> tuple[int, dict[str, dict[str, str]]]:
        env = {"CLOUDSIMFS_API_KEY": key, "CLOUDSIMFS_URL": box.url, "CLOUDSIMFS_CACHE_DIR": str(tmp_path)}
        done = cloudsimfs("doctor", "--json", *words, env=env | settings)
        assert done.stderr == ""
        assert key not in done.stdout
        found = json.loads(done.stdout)
        return done.returncode, {each["what"]: each for each in found if each["what"] != "mounts"}

    return run


@pytest.mark.parametrize(("version", "calls"), [("auto", 2), ("v1", 1), ("v2", 1)])
def test_all_is_well_for_at_most_two_calls(run_doctor: Doctor, box: Sandbox, version: str, calls: int) -> None:
    box.put("case/f", b"f")
    box.calls.reset()
    _, found = run_doctor("--api", version)
    assert {each["level"] for each in found.values()} == {"ok"}, found
    assert set(found) >= {"libfuse", "/dev/fuse", "fusermount3", "disk", "account", "service", "clock", "old files"}
    assert box.calls.api_count() == calls


@pytest.mark.parametrize(("lags", "word"), [(True, "they lag"), (False, "do not lag"), (None, "not known")])
def test_what_was_learnt_of_listings(run_doctor: Doctor, tmp_path: Path, lags: bool | None, word: str) -> None:
    assert "listings" not in run_doctor("--offline")[1]
    (tmp_path / "account/data").mkdir(mode=0o700, parents=True)
    store = ListingStore(tmp_path / "account/listings.db")
    store.start()
    store.learn(Learnt(50, lags))
    store.close()
    found = run_doctor("--offline")[1]["listings"]
    assert found["level"] == "ok"
    assert "50 entries" in found["text"]
    assert word in found["text"]


def test_offline_asks_nobody(run_doctor: Doctor, box: Sandbox) -> None:
    _, found = run_doctor("--offline")
    assert "service" not in found
    assert box.calls.api_count() == 0


def test_a_refused_key_and_a_dead_address(run_doctor: Doctor) -> None:
    status, found = run_doctor(key="wrong-key-0123456789")
    assert status == 1
    assert found["service"]["level"] == "failure"
    assert found["service"]["remedy"] == "cloudsimfs login"
    status, found = run_doctor(CLOUDSIMFS_URL="http://127.0.0.1:1")
    assert status == 1
    assert "network" in found["service"]["remedy"]


def test_no_account_yet(tmp_path: Path) -> None:
    done = cloudsimfs("doctor", "--cache-dir", tmp_path, "--url", "https://a.example")
    assert done.returncode == 1
    assert "failure  account: no API key for https://a.example" in done.stdout
    assert "\x1b" not in done.stdout  # colours are for terminals


def test_files_that_the_service_will_delete(box: Sandbox) -> None:
    now = box.clock.now()
    box.put("case/old", b"x")
    box.advance(58 * checks.DAY)
    box.put("case/new", b"x")
    with connect(base_url=box.url, key=box.key, api="v1") as client:
        found = {
            each.what: each for each in checks.check_service(client, NO_SETTINGS, now=lambda: now + 58 * checks.DAY)
        }
    assert found["old files"].level == "warning"
    assert "1 will be deleted" in found["old files"].text
    assert "/case/old" in found["old files"].text


@pytest.mark.parametrize(("seconds", "level"), [(0, "ok"), (3600, "warning"), (-3600, "warning")])
def test_a_clock_that_is_wrong(box: Sandbox, seconds: float, level: str) -> None:
    import time

    with connect(base_url=box.url, key=box.key, api="v1", clock=ManualClock(time.time() + seconds)) as client:
        found = {each.what: each for each in checks.check_service(client, NO_SETTINGS)}
    assert found["clock"].level == level
    assert ("behind" in found["clock"].text) == (seconds < 0)


def test_the_date_header() -> None:
    assert ahead({"date": "Thu, 01 Jan 1970 00:01:00 GMT"}, 0.0) == 60.0
    assert ahead({}, 0.0) is None
    assert ahead({"date": "nonsense"}, 0.0) is None


# -- the machine -----------------------------------------------------------------------------------------------


def test_devices_that_cannot_be_used(tmp_path: Path) -> None:
    assert checks.check_device("/nonexistent").remedy.startswith("sudo modprobe fuse")
    assert checks.check_device(str(tmp_path)).level == "ok"


@pytest.mark.parametrize(
    ("text", "level"),
    [('PRUNEFS="nfs fuse.cloudsimfs"\n', "ok"), ('PRUNEFS = "nfs fuse.sshfs"\n', "warning"), ("", "warning")],
)
def test_updatedb_is_kept_off_by_the_remedy_as_given(tmp_path: Path, text: str, level: str) -> None:
    file = tmp_path / "updatedb.conf"
    file.write_text(text)
    found = checks.check_updatedb(file)
    assert found.level == level
    if found.remedy:
        subprocess.run(["sh", "-c", found.remedy.replace("sudo ", "")], check=True, stdout=subprocess.DEVNULL)
        assert checks.check_updatedb(file).level == "ok", file.read_text()
    assert checks.check_updatedb(tmp_path / "none").level == "ok"


def test_allow_other_needs_fuse_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    file = tmp_path / "fuse.conf"
    file.write_text("#user_allow_other\n")
    assert checks.check_fuse_conf(config.resolve({}), file).level == "ok"
    wanted = config.resolve({"allow-other": "true"})
    found = checks.check_fuse_conf(wanted, file)
    assert found.level == "failure"
    subprocess.run(["sh", "-c", found.remedy.replace("sudo ", "")], check=True, stdout=subprocess.DEVNULL)
    assert checks.check_fuse_conf(wanted, file).level == "ok"


def test_a_fusermount3_built_by_hand_has_a_fuse_conf_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/local/bin/{name}")
    found = checks.check_fuse_conf(config.resolve({"allow-other": "true"}))
    assert found.remedy == "echo user_allow_other | sudo tee -a /usr/local/etc/fuse.conf"


def test_a_mistyped_variable_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.check_environment().level == "ok"
    monkeypatch.setenv("CLOUDSIMFS_CACHE_SIZ", "5G")
    found = checks.check_environment()
    assert found.text == "CLOUDSIMFS_CACHE_SIZ is no setting; did you mean CLOUDSIMFS_CACHE_SIZE?"
    assert found.remedy == "unset CLOUDSIMFS_CACHE_SIZ"


def test_a_dead_mount_is_found_and_repaired(m: Mounted) -> None:
    def findings() -> list[checks.Finding]:
        return [each for each in checks.check_mounts() if str(m.path) in each.text]

    assert [each.level for each in findings()] == ["ok"]
    m.kill()
    assert mountpoint.state(m.path) == "dead"
    (found,) = findings()
    assert found.level == "failure"
    assert f"fusermount3 -uz {m.path}" in found.remedy
    assert found.repair is not None
    found.repair()
    assert findings() == []


def test_fix_unmounts_without_asking(mount: MountFactory) -> None:
    """In a namespace of its own: other dead mounts of this machine are not ours to repair."""
    if os.geteuid() != 0:
        pytest.skip("only root may make a mount namespace")
    m = mount()
    m.kill()
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-m", "cloudsimfs", "doctor"]
    options: dict[str, Any] = {
        "capture_output": True,
        "text": True,
        "env": client_environment(),
        "timeout": patient(60),
    }
    done = subprocess.run([*command, "--offline", "--fix"], check=False, **options)
    assert f"{m.path}: its daemon died: unmounted" in done.stdout
    done = subprocess.run([*command, "--offline"], check=False, stdin=subprocess.DEVNULL, **options)
    assert f"failure  mounts: {m.path}: its daemon died; do: fusermount3 -uz {m.path}" in done.stdout
    assert done.returncode == 1
