"""The sandbox's signed URLs: ranges, conditions, expiry, whole uploads only."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
import requests

from cloudsimfs.sandbox import Sandbox

OCTETS = {"Content-Type": "application/octet-stream"}
DATA = bytes(range(256)) * 1000  # larger than what is kept in memory


@pytest.fixture
def box() -> Iterator[Sandbox]:
    with Sandbox() as running:
        running.put("large", DATA)
        running.put("small", DATA[:1000])
        running.put("empty", b"")
        yield running
        assert running.key_leaks == []


def download_url(box: Sandbox, path: str) -> str:
    url = f"{box.url}/api/v1/storage/{box.entry(path)['id']}/download/url"
    return str(requests.get(url, headers={"api-key": box.key}, timeout=10).json()["url"])


def upload_url(box: Sandbox, name: str) -> str:
    asked = {"data": {"dirname": "", "basename": name, "contentType": OCTETS["Content-Type"]}}
    url = f"{box.url}/api/v1/storage/upload/url"
    return str(requests.post(url, json=asked, headers={"api-key": box.key}, timeout=10).json()["url"])


def get(url: str, **headers: str) -> requests.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return requests.get(url, headers=named, timeout=10)


@pytest.mark.parametrize("path", ["large", "small"])
@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [
        ("0-0", 0, 1),
        ("10-19", 10, 20),
        ("500-", 500, None),
        ("-100", -100, None),
        ("900-999999999", 900, None),
    ],
)
def test_ranges(box: Sandbox, path: str, asked: str, start: int, stop: int | None) -> None:
    whole = box.files()[path]
    reply = get(download_url(box, path), Range=f"bytes={asked}")
    assert reply.status_code == 206
    assert reply.content == whole[start:stop]
    first = start if start >= 0 else len(whole) + start
    last = (stop or len(whole)) - 1
    assert reply.headers["Content-Range"] == f"bytes {first}-{last}/{len(whole)}"


@pytest.mark.parametrize("path", ["large", "small", "empty"])
def test_whole_and_head(box: Sandbox, path: str) -> None:
    url, whole = download_url(box, path), box.files()[path]
    reply = get(url)
    assert (reply.status_code, reply.content) == (200, whole)
    head = requests.head(url, timeout=10)
    assert head.headers["Content-Length"] == str(len(whole))
    assert head.headers["ETag"] == reply.headers["ETag"]
    assert head.headers["Accept-Ranges"] == "bytes"


@pytest.mark.parametrize(("path", "asked"), [("large", "256000-"), ("small", "5000-6000"), ("empty", "0-0")])
def test_range_outside(box: Sandbox, path: str, asked: str) -> None:
    reply = get(download_url(box, path), Range=f"bytes={asked}")
    assert reply.status_code == 416
    assert reply.headers["Content-Range"] == f"bytes */{len(box.files()[path])}"


def test_conditions(box: Sandbox) -> None:
    url = download_url(box, "small")
    etag = get(url).headers["ETag"]
    assert etag.startswith('"')
    assert get(url, If_Match=etag).status_code == 200
    assert get(url, If_Match='"other"').status_code == 412
    assert get(url, If_Range=etag, Range="bytes=0-9").status_code == 206
    assert get(url, If_Range='"other"', Range="bytes=0-9").status_code == 200


def test_a_replaced_file_has_another_etag(box: Sandbox) -> None:
    url = download_url(box, "large")
    before = get(url).headers["ETag"]
    box.put("large", DATA + b"more")
    assert get(url).headers["ETag"] != before
    assert get(download_url(box, "large")).content == DATA + b"more"


def test_a_download_in_progress_keeps_its_version(box: Sandbox) -> None:
    old = b"o" * 40_000_000  # more than the sockets hold
    box.put("big", old)
    with requests.get(download_url(box, "big"), stream=True, timeout=10) as reply:
        box.put("big", b"new")
        assert reply.raw.read() == old


def test_readers_of_a_file_that_is_replaced_get_one_version_each(box: Sandbox) -> None:
    url, versions = download_url(box, "large"), [bytes([n]) * 100_000 for n in range(8)]
    done = threading.Event()

    def replace() -> None:
        for version in itertools.cycle(versions):
            box.put("large", version)
            if done.is_set():
                return

    writer = threading.Thread(target=replace)
    writer.start()
    try:
        replies = [get(url) for _ in range(100)]
    finally:
        done.set()
        writer.join()
    assert {reply.status_code for reply in replies} == {200}
    assert all(reply.content in (*versions, DATA) for reply in replies)


def test_a_deleted_file_is_gone(box: Sandbox) -> None:
    url = download_url(box, "small")
    box.remove("small")
    reply = get(url)
    assert (reply.status_code, b"NoSuchKey" in reply.content) == (404, True)


def test_links_expire_and_cannot_be_changed(box: Sandbox) -> None:
    url = download_url(box, "small")
    parts = urlsplit(url)
    changed = [
        url.replace("signature=", "signature=0"),
        url.replace("expires=", "expires=9"),
        f"{box.url}{parts.path}",
        f"{box.url}/objects/unknown?{parts.query}",
    ]
    for bad in changed:
        assert get(bad).status_code == 403
    assert requests.put(url, data=b"x", headers=OCTETS, timeout=10).status_code == 403
    box.advance(box.settings.link_seconds + 1)
    reply = get(url)
    assert (reply.status_code, b"<Code>" in reply.content) == (403, True)


def test_upload_needs_its_content_type(box: Sandbox) -> None:
    url = upload_url(box, "new")
    for kind in ({}, {"Content-Type": "text/plain"}, {"Content-Type": "application/octet-stream; a=b"}):
        reply = requests.put(url, data=b"x", headers=kind, timeout=10)
        assert (reply.status_code, b"<Code>" in reply.content) == (403, True)
    assert "new" not in box.paths()
    reply = requests.put(url, data=b"x", headers=OCTETS, timeout=10)
    assert (reply.status_code, box.files()["new"]) == (200, b"x")
    assert reply.headers["ETag"] == get(download_url(box, "new")).headers["ETag"]
    assert "Date" in reply.headers


def test_a_cut_upload_stores_nothing(box: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    parts = urlsplit(upload_url(box, "small"))
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10) as raw:
        head = f"PUT {parts.path}?{parts.query} HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n"
        raw.sendall(f"{head}Content-Type: application/octet-stream\r\n\r\n".encode() + b"x" * 3_000_000)
        while sum(call.bytes for call in box.calls.entries("object-put")) < 3_000_000:
            time.sleep(0.005)  # the timeout of the test run bounds it
    # Whoever comes next finds the old file, and no call answered.
    assert get(download_url(box, "small")).content == DATA[:1000]
    assert box.calls.entries("object-put")[0].status == 0
    assert caplog.records == []


def test_a_sparse_object_takes_no_time(box: Sandbox) -> None:
    box.put_sparse("huge", 4 << 30)
    assert box.entry("huge")["size"] == 4 << 30
    reply = get(download_url(box, "huge"), Range=f"bytes={(4 << 30) - 10}-")
    assert (reply.status_code, reply.content) == (206, bytes(10))
    reply = get(download_url(box, "huge"), Range=f"bytes=0-{40 << 20}")
    assert reply.content == bytes((40 << 20) + 1)
