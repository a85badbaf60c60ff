"""The sandbox's API v1 and v2: every storage call, the key, the limits, what the view cache hides."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

import cloudsimfs.sandbox
from cloudsimfs.sandbox import Sandbox, Settings
from harness import patient
from rawapi import send

OCTETS = {"Content-Type": "application/octet-stream"}


@pytest.fixture
def box() -> Iterator[Sandbox]:
    with Sandbox() as running:
        yield running
        assert running.key_leaks == []


def v1(box: Sandbox, method: str, path: str, data: dict[str, Any] | None = None) -> Any:
    reply = send(box, 1, method, path, json=None if data is None else {"data": data})
    assert reply.status_code == 200, reply.text
    return reply.json()


def v2(box: Sandbox, method: str, path: str, data: dict[str, Any] | None = None) -> Any:
    reply = send(box, 2, method, path, json=data)
    assert reply.status_code == 200, reply.text
    assert set(reply.json()) == {"response"}
    return reply.json()["response"]


def upload(box: Sandbox, version: int, dirname: str, name: str, data: bytes) -> None:
    asked = {"dirname": dirname, "contentType": OCTETS["Content-Type"]}
    if version == 1:
        url = v1(box, "POST", "/storage/upload/url", {**asked, "basename": name})["url"]
    else:
        url = v2(box, "POST", "/storage/upload-url", {**asked, "filename": name})["url"]
    assert requests.put(url, data=data, headers=OCTETS, timeout=10).status_code == 200


def names(entries: list[dict[str, Any]]) -> list[str]:
    return [entry["name"] for entry in entries]


# -- v1 ---------------------------------------------------------------------------------------------


def test_v1_upload_is_listed_viewed_and_downloaded(box: Sandbox) -> None:
    upload(box, 1, "case/system", "controlDict", b"deltaT 1;")
    assert names(v1(box, "GET", "/storage")) == ["case", "case/system", "case/system/controlDict"]
    folder = v1(box, "POST", "/storage/view", {"path": "case/system"})
    (file,) = folder["children"]
    assert v1(box, "GET", f"/storage/{folder['id']}/list") == [file]
    assert v1(box, "GET", f"/storage/{file['id']}") == file
    assert v1(box, "POST", "/storage/view", {"path": "/case/system/controlDict"}) == file
    link = v1(box, "GET", f"/storage/{file['id']}/download/url")["url"]
    assert requests.get(link, timeout=10).content == b"deltaT 1;"


def test_entries_look_as_observed(box: Sandbox) -> None:
    box.put("case/a", b"12345")
    folder, file = v1(box, "GET", "/storage")
    created = file.pop("timeCreated")
    assert time.strptime(created, "%Y-%m-%dT%H:%M:%SZ")
    assert file == {
        "id": file["id"], "name": "case/a", "basename": "a", "dirname": "case", "type": "file", "size": 5
    }  # fmt: skip
    assert (folder["type"], folder["size"], folder["dirname"]) == ("dir", "", "")
    box.settings.millis = True
    assert len(v1(box, "GET", "/storage")[1]["timeCreated"]) == len("2026-09-24T10:00:00.000Z")


def test_v1_direct_upload_and_download(box: Sandbox) -> None:
    form: dict[str, Any] = {"data": {"dirname": "case"}, "files": {"basename": ("mesh.msh", b"m" * 100)}}
    entry = send(box, 1, "POST", "/storage", **form).json()
    assert (entry["name"], entry["size"]) == ("case/mesh.msh", 100)
    redirect = send(box, 1, "GET", f"/storage/{entry['id']}/download/file", allow_redirects=False)
    assert redirect.status_code == 302
    assert requests.get(redirect.headers["Location"], timeout=10).content == b"m" * 100
    form["files"] = {"basename": ("big", b"b" * 2_000_000)}
    assert send(box, 1, "POST", "/storage", **form).status_code == 413
    assert box.paths() == ["case/mesh.msh"]


@pytest.mark.parametrize("version", [1, 2])
def test_folder_goes_with_its_last_file(box: Sandbox, version: int) -> None:
    box.populate({"a/b/one": b"1", "a/b/two": b"2", "c": b"3"})
    folder = v1(box, "POST", "/storage/view", {"path": "a/b"})
    path = f"/storage/{folder['id']}" if version == 1 else f"/storage/delete/{folder['id']}"
    assert send(box, version, "DELETE", path).status_code == 200
    assert box.files() == {"c": b"3"}
    assert names(v1(box, "GET", "/storage")) == ["c"]
    again = send(box, version, "DELETE", path)
    assert again.status_code == (404 if version == 1 else 403)


def test_overwrite_keeps_the_id(box: Sandbox) -> None:
    upload(box, 1, "", "a", b"old")
    before = box.entry("a")
    box.advance(5)
    upload(box, 1, "", "a", b"newer")
    after = v1(box, "GET", f"/storage/{before['id']}")
    assert after["size"] == 5
    assert after["timeCreated"] > before["timeCreated"]


@pytest.mark.parametrize("name", ["", "..", "a/b", "x" * 256])
def test_bad_names_are_refused(box: Sandbox, name: str) -> None:
    asked = {"dirname": "d", "basename": name, "contentType": "x"}
    assert send(box, 1, "POST", "/storage/upload/url", json={"data": asked}).status_code == 400


def test_missing_parameters_are_refused(box: Sandbox) -> None:
    assert send(box, 1, "POST", "/storage/view", json={"data": {}}).status_code == 400
    assert send(box, 1, "POST", "/storage/view", json={"path": "a"}).status_code == 400
    assert send(box, 1, "POST", "/storage/view", data="{").status_code == 400
    assert send(box, 2, "POST", "/storage/upload-url", json={"dirname": ""}).status_code == 403


# -- v2 ---------------------------------------------------------------------------------------------


def test_v2_upload_is_hidden_until_the_cache_is_deleted(box: Sandbox) -> None:
    upload(box, 2, "case", "a", b"1")
    assert box.files() == {"case/a": b"1"}
    assert v2(box, "GET", "/storage/index/name/asc/1") == []
    assert v1(box, "GET", "/storage") == []
    assert send(box, 2, "POST", "/storage/view-by-path", json={"path": "case/a"}).status_code == 403
    v2(box, "DELETE", "/user/delete-cache")
    (folder,) = v2(box, "GET", "/storage/index/name/asc/1")
    (file,) = v2(box, "GET", f"/storage/index/name/asc/parent_id/{folder['id']}/1")
    assert file == v2(box, "POST", "/storage/view-by-path", {"path": "case/a"})
    for path, member in (("view-url", "mediaLink"), ("download", "url")):
        link = v2(box, "GET", f"/storage/{path}/{file['id']}")[member]
        assert requests.get(link, timeout=10).content == b"1"


def test_v2_upload_shows_when_the_cache_runs_out(box: Sandbox) -> None:
    upload(box, 2, "", "a", b"1")
    box.advance(box.settings.cache_seconds - 2)
    assert v1(box, "GET", "/storage") == []
    box.advance(3)
    assert names(v1(box, "GET", "/storage")) == ["a"]


def test_v2_overwrite_shows_the_old_entry_until_the_cache_goes(box: Sandbox) -> None:
    box.put("a", b"old")
    before = v2(box, "POST", "/storage/view-by-path", {"path": "a"})
    upload(box, 2, "", "a", b"newer")
    assert v2(box, "POST", "/storage/view-by-path", {"path": "a"}) == before
    v2(box, "DELETE", "/user/delete-cache")
    assert v2(box, "POST", "/storage/view-by-path", {"path": "a"})["size"] == 5


def test_lags_delay_listings_and_nothing_shortens_them(box: Sandbox) -> None:
    box.settings.listing_lag = box.settings.delete_lag = 10
    upload(box, 1, "", "a", b"1")
    v2(box, "DELETE", "/user/delete-cache")
    assert v1(box, "GET", "/storage") == []
    box.advance(11)
    (entry,) = v1(box, "GET", "/storage")
    v1(box, "DELETE", f"/storage/{entry['id']}")
    assert box.files() == {}
    assert v1(box, "GET", "/storage") == [entry]
    assert send(box, 1, "GET", f"/storage/{entry['id']}/download/url").status_code == 404
    box.advance(11)
    assert v1(box, "GET", "/storage") == []


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("field", ["name", "size"])
def test_v2_pages_hold_everything_once_and_in_order(box: Sandbox, field: str, order: str) -> None:
    box.populate({f"f{i:03d}": b"x" * (997 * i % 131) for i in range(120)})
    pages = [v2(box, "GET", f"/storage/index/{field}/{order}/{page}") for page in range(1, 5)]
    assert [len(page) for page in pages] == [50, 50, 20, 0]
    entries = [entry for page in pages for entry in page]
    assert sorted(names(entries)) == box.paths()
    values = [entry[field] for entry in entries]
    assert values == sorted(values, reverse=order == "desc")


def test_v2_lookups_are_lists(box: Sandbox) -> None:
    assert v2(box, "GET", "/simulation/view-cpu")[:3] == [1, 2, 4]
    assert v2(box, "GET", "/simulation/view-ram") == v1(box, "GET", "/simulation/ram")
    assert v2(box, "GET", "/simulation/view-scripts") == v1(box, "GET", "/simulation/scripts")
    assert v1(box, "GET", "/simulation/cpu")[0] == "1"


def test_a_link_is_null_for_a_while_when_asked_to_be(box: Sandbox) -> None:
    box.settings.link_lag = 5
    box.put("a", b"1")
    path = f"/storage/view-url/{box.entry('a')['id']}"
    assert v2(box, "GET", path) == {"mediaLink": None}
    box.advance(6)
    assert v2(box, "GET", path)["mediaLink"].startswith(box.url)


# -- key and limits ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "headers", "query", "status"),
    [
        (1, {"api-key": "K"}, "", 200),
        (1, {}, "?api_key=K", 200),
        (1, {"X-API-key": "K"}, "", 401),
        (1, {"api-key": "wrong"}, "", 401),
        (2, {"X-API-key": "K"}, "", 200),
        (2, {"api-key": "K"}, "", 403),
        (2, {}, "?api_key=K", 403),
    ],
)
def test_each_version_takes_the_key_its_own_way(
    version: int, headers: dict[str, str], query: str, status: int
) -> None:
    path = "storage" if version == 1 else "storage/index/name/asc/1"
    with Sandbox(key="K") as box:
        reply = requests.get(f"{box.url}/api/v{version}/{path}{query}", headers=headers, timeout=10)
    assert reply.status_code == status
    if (version, status) == (2, 403):
        assert reply.json() == {"errors": ["Unauthorized."]}


def test_v2_can_be_off_for_the_account(box: Sandbox) -> None:
    box.settings.v2_enabled = False
    reply = send(box, 2, "GET", "/storage/index/name/asc/1")
    assert (reply.status_code, reply.json()) == (403, {"errors": ["User not enabled."]})
    assert v1(box, "GET", "/storage") == []


def test_call_budget(box: Sandbox) -> None:
    box.settings.hourly_limit = 2
    used = [send(box, 1, "GET", "/storage").headers["x-ratelimit-hourly-used"] for _ in range(2)]
    assert used == ["1", "2"]
    refused = send(box, 1, "GET", "/storage")
    assert refused.status_code == 429
    assert 0 < int(refused.headers["Retry-After"]) <= 3600
    refused = send(box, 2, "GET", "/simulation/view-cpu")
    assert (refused.status_code, refused.json()) == (403, {"errors": ["Rate limit exceeded."]})
    box.advance(3600)
    again = send(box, 1, "GET", "/storage")
    assert (again.status_code, again.headers["x-ratelimit-hourly-used"]) == (200, "1")
    assert again.headers["x-ratelimit-daily-limit"] == "0"
    box.settings.limit_headers = False
    assert "x-ratelimit-hourly-used" not in send(box, 1, "GET", "/storage").headers


@pytest.mark.parametrize("version", [1, 2])
def test_unknown_calls_answer_404(box: Sandbox, version: int) -> None:
    assert send(box, version, "GET", "/storage/index/nothing").status_code == 404


# -- log and life -----------------------------------------------------------------------------------


def test_calls_are_logged_under_shared_names(box: Sandbox) -> None:
    upload(box, 1, "d", "a", b"123")
    upload(box, 2, "d", "a", b"1234")
    assert box.calls.counts() == {"upload-url": 2, "object-put": 2}
    assert box.calls.api_count() == 2
    put = box.calls.entries("object-put")[1]
    assert (put.subject, put.bytes, put.status, put.version) == ("d/a", 4, 200, 0)
    shown = requests.get(f"{box.url}/sandbox/calls", headers={"X-API-key": box.key}, timeout=10).json()
    assert shown["counts"] == {"upload-url": 2, "object-put": 2}
    assert "signature" not in str(shown)
    box.calls.reset()
    assert box.calls.api_count() == 0


def test_a_key_sent_to_a_signed_url_is_noticed() -> None:
    with Sandbox() as box:
        box.put("a", b"1")
        link = v1(box, "GET", f"/storage/{box.entry('a')['id']}/download/url")["url"]
        for header in ("api-key", "X-API-key"):
            requests.get(link, headers={header: box.key}, timeout=10)
        requests.get(f"{link}&api_key={box.key}", timeout=10)
        assert len(box.key_leaks) == 3


def test_another_client_is_seen_at_once(box: Sandbox) -> None:
    box.put("a/b", b"1")
    box.put("a/c", b"2")
    box.remove("a/b")
    assert names(v1(box, "GET", "/storage")) == ["a", "a/c"]
    box.remove("a")
    assert v1(box, "GET", "/storage") == []
    with pytest.raises(KeyError):
        box.remove("a")
    with pytest.raises(KeyError):
        box.entry("a/b")


def test_a_data_directory_is_kept_and_served_again(tmp_path: Path) -> None:
    with Sandbox(data_dir=tmp_path) as box:
        box.populate({"a/small": b"1", "a/large": b"2" * 100_000})
        upload(box, 2, "a", "hidden", b"3")
        v2(box, "DELETE", "/user/delete-cache")
        before, entries = box.files(), v1(box, "GET", "/storage")
    with Sandbox(data_dir=tmp_path) as box:
        assert box.files() == before
        assert sorted(map(str, v1(box, "GET", "/storage"))) == sorted(map(str, entries))
        box.put("b", b"4")
        ids = [found["id"] for found in v1(box, "GET", "/storage")]
        assert len(set(ids)) == len(ids) == 5


def test_in_the_foreground_until_a_signal(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from cloudsimfs.sandbox import serve_forever as serve;"
        f"where = Path({str(tmp_path)!r}); show = lambda box: print(box.url, flush=True);"
        "serve('127.0.0.1', 0, where, 'k', None, show)"
    )
    root = str(Path(cloudsimfs.sandbox.__file__).parents[2])
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": root}) as process:
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        assert requests.get(f"{url}/api/v1/storage?api_key=k", timeout=10).json() == []
        process.terminate()
        assert process.wait(patient(10)) == 0
    assert (tmp_path / "index.json").exists()


def test_clients_in_parallel_do_not_hurt_each_other(box: Sandbox) -> None:
    def work(number: int) -> None:
        for turn in range(5):
            upload(box, 1 + number % 2, f"d{number}", f"f{turn}", bytes([number]) * (turn * 50_000))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    v2(box, "DELETE", "/user/delete-cache")
    wanted = {f"d{n}/f{turn}": bytes([n]) * (turn * 50_000) for n in range(8) for turn in range(5)}
    assert box.files() == wanted
    assert len(v1(box, "GET", "/storage")) == 48


def test_close_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = set(threading.enumerate())
    box = Sandbox(settings=Settings(pending_seconds=60))
    box.put("case/heat.ini", b"")
    run = {"cpu": "1", "ram": "standard", "folder": "case", "script": "heat2d-1.0"}
    v1(box, "POST", "/simulation", run)
    box.close()
    box.close()
    assert list(tmp_path.iterdir()) == []
    assert set(threading.enumerate()) == before
    with pytest.raises(requests.ConnectionError):
        requests.get(box.url, timeout=10)
