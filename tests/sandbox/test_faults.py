"""Faults to order: each kind fires as asked, as often as asked, and nowhere else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from cloudsimfs.sandbox import Fault, Sandbox
from harness import patient
from rawapi import send

OCTETS = {"Content-Type": "application/octet-stream"}


@pytest.fixture
def box() -> Iterator[Sandbox]:
    with Sandbox() as running:
        running.populate({"case/a": b"a" * 1000, "case/b": b"b" * 100_000})
        yield running


def call(box: Sandbox, version: int = 1, path: str = "/storage", **options: Any) -> requests.Response:
    return send(box, version, options.pop("method", "GET"), path, **options)


def link(box: Sandbox, path: str = "case/a") -> str:
    return str(call(box, path=f"/storage/{box.entry(path)['id']}/download/url").json()["url"])


def upload_link(box: Sandbox) -> str:
    asked = {"data": {"dirname": "case", "basename": "new", "contentType": OCTETS["Content-Type"]}}
    return str(call(box, path="/storage/upload/url", method="POST", json=asked).json()["url"])


def test_status_with_retry_after(box: Sandbox) -> None:
    fault = box.faults.add("list-all", "status", status=503, retry_after=7, body="busy", times=1)
    reply = call(box)
    assert (reply.status_code, reply.text, reply.headers["Retry-After"]) == (503, "busy", "7")
    assert call(box).status_code == 200
    assert fault.fired == 1


def test_selection(box: Sandbox) -> None:
    box.faults.add("view*", "status", status=500, version=2, path="case/?")
    body = {"path": "case/a"}
    assert call(box, 2, "/storage/view-by-path", method="POST", json=body).status_code == 500
    assert call(box, 2, "/storage/view-by-path", method="POST", json={"path": "case"}).status_code == 200
    assert call(box, 1, "/storage/view", method="POST", json={"data": body}).status_code == 200
    assert call(box).status_code == 200


def test_after_and_times(box: Sandbox) -> None:
    box.faults.add("list-all", "status", after=1, times=2)
    assert [call(box).status_code for _ in range(4)] == [200, 500, 500, 200]


def test_probability_is_seeded(box: Sandbox) -> None:
    def run() -> list[int]:
        fault = box.faults.add("list-all", "status", probability=0.5, seed=3)
        statuses = [call(box).status_code for _ in range(12)]
        box.faults.remove(fault)
        return statuses

    first = run()
    assert set(first) == {200, 500}
    assert run() == first


def test_reset_is_not_processed(box: Sandbox) -> None:
    url = upload_link(box)
    box.faults.add("object-put", "reset", times=1)
    with pytest.raises(requests.ConnectionError):
        requests.put(url, data=b"x", headers=OCTETS, timeout=10)
    assert "case/new" not in box.paths()


def test_drop_reply_is_processed(box: Sandbox) -> None:
    url = upload_link(box)
    box.faults.add("object-put", "drop_reply", times=1)
    with pytest.raises(requests.ConnectionError):
        requests.put(url, data=b"x", headers=OCTETS, timeout=10)
    assert box.files()["case/new"] == b"x"
    box.faults.add("delete", "drop_reply", times=1)
    with pytest.raises(requests.ConnectionError):
        call(box, path=f"/storage/{box.entry('case/new')['id']}", method="DELETE")
    assert "case/new" not in box.paths()


def test_late_is_done_some_requests_after_its_answer(box: Sandbox) -> None:
    box.faults.add("delete", "late", status=200, body='"soon"', amount=1, times=1)
    reply = call(box, path=f"/storage/{box.entry('case/a')['id']}", method="DELETE")
    assert (reply.status_code, reply.json()) == (200, "soon")
    assert "case/a" in box.paths()
    call(box)
    assert "case/a" in box.paths()
    call(box)
    assert "case/a" not in box.paths()


def test_late_is_done_when_the_fault_is_removed(box: Sandbox) -> None:
    box.faults.add("object-put", "late", status=200)
    reply = requests.put(upload_link(box), data=b"x", headers=OCTETS, timeout=10)
    assert reply.status_code == 200
    assert "case/new" not in box.paths()
    box.faults.clear()
    assert box.files()["case/new"] == b"x"
    assert reply.headers["ETag"] == requests.get(link(box, "case/new"), timeout=10).headers["ETag"]


def test_pretend_stores_nothing(box: Sandbox) -> None:
    url = upload_link(box)
    box.faults.add("object-put", "pretend", times=1)
    assert requests.put(url, data=b"x", headers=OCTETS, timeout=10).headers["ETag"]
    assert "case/new" not in box.paths()


def test_stale_and_swapped_answers(box: Sandbox) -> None:
    def view(path: str) -> Any:
        return call(box, 2, "/storage/view-by-path", method="POST", json={"path": path}).json()

    first = view("case/a")
    box.put("case/a", b"other bytes")
    fault = box.faults.add("view", "stale")
    assert view("case/a") == first
    box.faults.remove(fault)
    other = view("case/b")
    box.faults.add("view", "swapped")
    assert view("case/a") == other


def test_hang_until_removed(box: Sandbox) -> None:
    fault = box.faults.add("list-all", "hang")
    answers: list[int] = []
    caller = threading.Thread(target=lambda: answers.append(call(box).status_code))
    caller.start()
    assert box.calls.wait(lambda calls: len(calls) == 1)
    assert call(box, path="/storage/0/list").status_code == 200
    assert answers == []
    box.faults.remove(fault)
    caller.join(patient(10))
    assert answers == [200]


def test_close_ends_what_hangs() -> None:
    box = Sandbox()
    box.faults.add("*", "hang")
    caller = threading.Thread(target=lambda: _ignore_connection_error(box))
    caller.start()
    assert box.calls.wait(lambda calls: len(calls) == 1)
    box.close()
    caller.join(patient(10))
    assert not caller.is_alive()


def _ignore_connection_error(box: Sandbox) -> None:
    try:
        call(box)
    except requests.ConnectionError:
        pass


@pytest.mark.parametrize("path", ["case/a", "case/b"])
def test_truncate_announces_the_whole(box: Sandbox, path: str) -> None:
    box.faults.add("object-get", "truncate", amount=300)
    with requests.get(link(box, path), stream=True, timeout=10) as reply:
        assert reply.headers["Content-Length"] == str(len(box.files()[path]))
        received: list[bytes] = []
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            received.extend(reply.iter_content(100))
    assert b"".join(received) == box.files()[path][:300]


def test_truncated_upload_stores_nothing(box: Sandbox) -> None:
    url = upload_link(box)
    box.faults.add("object-put", "truncate", amount=1000)
    with pytest.raises(requests.ConnectionError):
        requests.put(url, data=b"x" * 100_000, headers=OCTETS, timeout=10)
    assert "case/new" not in box.paths()


def test_truncated_api_answer(box: Sandbox) -> None:
    box.faults.add("list-all", "truncate", times=1)
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        call(box)


def test_slow_and_latency(box: Sandbox) -> None:
    url = link(box, "case/b")
    box.faults.add("object-get", "slow", rate=400_000)
    box.faults.add("object-get", "latency", seconds=0.1)
    start = time.monotonic()
    assert len(requests.get(url, timeout=10).content) == 100_000
    assert time.monotonic() - start >= 0.3


def test_settings_shape_everything(box: Sandbox) -> None:
    url = link(box, "case/b")
    box.settings.latency, box.settings.bandwidth = 0.1, 400_000
    start = time.monotonic()
    assert len(requests.get(url, timeout=10).content) == 100_000
    assert time.monotonic() - start >= 0.3


def test_pages_and_error_bodies(box: Sandbox) -> None:
    box.faults.add("list-all", "html", times=1)
    reply = call(box)
    assert (reply.status_code, reply.headers["Content-Type"].split(";")[0]) == (200, "text/html")
    box.faults.add("list-all", "errors200", body="no", times=1)
    reply = call(box)
    assert (reply.status_code, reply.json()) == (200, {"errors": ["no"]})


def test_null_link_and_expired(box: Sandbox) -> None:
    box.faults.add("download-url", "null_link", times=2)
    number = box.entry("case/a")["id"]
    assert call(box, path=f"/storage/{number}/download/url").json() == {"url": None}
    assert call(box, 2, f"/storage/view-url/{number}").json() == {"response": {"mediaLink": None}}
    box.faults.add("object-get", "expired", status=400, times=1)
    url = link(box)
    reply = requests.get(url, timeout=10)
    assert (reply.status_code, b"<Code>ExpiredToken" in reply.content) == (400, True)
    assert requests.get(url, timeout=10).content == b"a" * 1000


def test_redirect(box: Sandbox) -> None:
    box.faults.add("list-all", "redirect", url="http://other.example/")
    reply = call(box, allow_redirects=False)
    assert (reply.status_code, reply.headers["Location"]) == (302, "http://other.example/")


@pytest.mark.parametrize(
    ("variation", "check"),
    [
        ("size-string", lambda entry: entry["size"] == "1000"),
        ("size-null", lambda entry: entry["size"] is None),
        ("size-missing", lambda entry: "size" not in entry),
        ("time-sql", lambda entry: len(entry["timeCreated"]) == 19 and " " in entry["timeCreated"]),
        ("time-missing", lambda entry: "timeCreated" not in entry),
        ("unknown-members", lambda entry: "zz" in entry and entry["size"] == 1000),
        ("wrapped", lambda entry: entry["response"]["size"] == 1000),
        ("wrapped-data", lambda entry: entry["data"]["size"] == 1000),
        ("null", lambda entry: entry is None),
    ],
)
def test_odd_entries(box: Sandbox, variation: str, check: Any) -> None:
    box.faults.add("entry", "odd", variation=variation)
    assert check(call(box, path=f"/storage/{box.entry('case/a')['id']}").json())


def test_odd_folders_and_envelopes(box: Sandbox) -> None:
    body = {"data": {"path": "case"}}
    for other in ("files", "content", "list"):
        box.faults.add("view", "odd", variation=f"children-{other}", times=1)
        folder = call(box, path="/storage/view", method="POST", json=body).json()
        assert (len(folder[other]), "children" in folder) == (2, False)
    box.faults.add("list", "odd", variation="dir-slash", times=1)
    assert call(box, path="/storage/0/list").json()[0]["name"] == "case/"
    box.faults.add("list", "odd", variation="unwrapped", times=1)
    assert isinstance(call(box, 2, "/storage/index/name/asc/1").json(), list)
    box.faults.add("list", "odd", variation="non-json", times=1)
    assert call(box, path="/storage/0/list").text == "OK"


def test_odd_links(box: Sandbox) -> None:
    path = f"/storage/{box.entry('case/a')['id']}/download/url"
    box.faults.add("download-url", "odd", variation="link-bare", times=1)
    assert call(box, path=path).json().startswith("http://")
    box.faults.add("download-url", "odd", variation="link-signedUrl", times=1)
    assert list(call(box, path=path).json()) == ["signedUrl"]
    box.faults.add("download-url", "odd", variation=lambda value: {"deep": value}, times=1)
    assert list(call(box, path=path).json()) == ["deep"]


def test_odd_objects(box: Sandbox) -> None:
    url = link(box)
    wanted = {"Range": "bytes=10-19"}
    box.faults.add("object-get", "odd", variation="ignore-range", times=1)
    reply = requests.get(url, headers=wanted, timeout=10)
    assert (reply.status_code, len(reply.content)) == (200, 1000)
    box.faults.add("object-get", "odd", variation="shifted-range", times=1)
    reply = requests.get(url, headers=wanted, timeout=10)
    assert reply.headers["Content-Range"] == "bytes 11-19/1000"
    box.faults.add("object-get", "odd", variation="no-etag", times=1)
    assert "ETag" not in requests.get(url, timeout=10).headers


def test_faults_over_http(box: Sandbox) -> None:
    url = f"{box.url}/sandbox/faults"
    wanted = {"operation": "list-all", "kind": "status", "status": 418, "times": 1}
    with requests.Session() as session:
        session.headers["X-API-key"] = box.key
        made = session.post(url, json=wanted, timeout=10).json()
        assert call(box).status_code == 418
        (shown,) = session.get(url, timeout=10).json()
        assert (shown["id"], shown["fired"]) == (made["id"], 1)
        assert session.delete(f"{url}/{made['id']}", timeout=10).status_code == 200
        assert session.get(url, timeout=10).json() == []
        for bad in ({"operation": "x"}, {"operation": "x", "kind": "y"}, {**wanted, "colour": 1}, [1]):
            assert session.post(url, json=bad, timeout=10).status_code == 400


WANTED = '{"operation": "*", "kind": "status", "status": 503}'


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"X-API-key": ""}, 401),
        ({"X-API-key": "a-wrong-key"}, 401),
        ({"Content-Type": "text/plain"}, 415),  # what a page in a browser may send to any site
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:{port}", "Origin": "http://evil.example:{port}"}, 403),
        ({"Host": "localhost:{port}", "Origin": "http://localhost:{port}"}, 200),
        ({}, 200),
    ],
)
def test_faults_are_only_set_by_who_has_the_key(box: Sandbox, headers: dict[str, str], status: int) -> None:
    port = box.url.rpartition(":")[2]
    sent = {"X-API-key": box.key, "Content-Type": "application/json"}
    sent |= {name: value.replace("{port}", port) for name, value in headers.items()}
    assert requests.post(f"{box.url}/sandbox/faults", WANTED, headers=sent, timeout=10).status_code == status
    assert len(box.faults.active()) == (status == 200)


@pytest.mark.parametrize(
    "path", ["/api/v1/storage/{n}", "/api/v1/storage/{n}/list", "/api/v2/simulation/view/{n}", "/sandbox/faults/{n}"]
)
def test_a_number_of_thousands_of_digits_is_of_no_call(box: Sandbox, path: str) -> None:
    headers = {"api-key": box.key, "X-API-key": box.key}
    method = "DELETE" if "faults" in path else "GET"
    reply = requests.request(method, box.url + path.replace("{n}", "9" * 5000), headers=headers, timeout=10)
    assert reply.status_code == 404


@pytest.mark.parametrize("values", [{"kind": "odd", "variation": "size-strnig"}, {"kind": "slow"}])
def test_a_fault_that_could_never_act_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Fault("*", **values)
