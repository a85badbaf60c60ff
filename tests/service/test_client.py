"""Every verb in both API versions against the embedded service."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cloudsimfs.clock import ManualClock
from cloudsimfs.errors import (
    BadReply,
    BudgetSpent,
    Cancelled,
    ConfigError,
    KeyRefused,
    LinkExpired,
    NoSuchEntry,
    NotOffered,
    Refused,
    ServerFault,
    VersionChanged,
    VersionNotEnabled,
)
from cloudsimfs.sandbox import Sandbox, Settings
from cloudsimfs.service import Client, Entry, LaunchRequest, Retry, Signal, Timeouts, Urgency, budget, connect
from harness import patient

TREE = {
    "top.txt": b"t",
    "case/a.txt": b"aaa",
    "case/b ü'&.txt": b"",
    "case/sub/deep.bin": bytes(range(256)) * 40,
}
RUN = LaunchRequest(cpu="1", ram="standard", script="heat2d-1.0", folder="case")
Open = Callable[..., Client]


@pytest.fixture
def box() -> Iterator[Sandbox]:
    with Sandbox(settings=Settings(pending_seconds=60.0)) as box:
        box.populate(TREE)
        yield box
        assert not box.key_leaks


@pytest.fixture
def opened(box: Sandbox) -> Iterator[Open]:
    """Makes clients that are closed at the end."""
    clients: list[Client] = []

    def make(api: Any = "v1", **settings: Any) -> Client:
        values: dict[str, Any] = {"base_url": box.url, "key": box.key, "retry": Retry(base=0.001), **settings}
        clients.append(connect(api=api, **values))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture(params=["v1", "v2"])
def client(request: pytest.FixtureRequest, opened: Open) -> Client:
    return opened(request.param)


def find(client: Client, path: str) -> Entry:
    return next(entry for entry in client.list_all() if entry.path == path)


def test_listings(client: Client, box: Sandbox) -> None:
    root = client.list_directory(0, "").entries
    assert sorted((entry.path, entry.is_dir, entry.size) for entry in root) == [
        ("case", True, 0),
        ("top.txt", False, 1),
    ]
    case = next(entry for entry in root if entry.is_dir)
    listed = client.list_directory(case.id, "case").entries
    assert sorted(entry.name for entry in listed) == ["a.txt", "b ü'&.txt", "sub"]
    assert all(entry.mtime_ns for entry in listed)
    pages = 2 if client.api_version == "v2" else 1
    assert box.calls.counts() == {"list": 2 * pages}
    files = {entry.path: entry.size for entry in client.list_all() if not entry.is_dir}
    assert files == {path: len(data) for path, data in TREE.items()}


def test_pages(opened: Open, box: Sandbox) -> None:
    box.settings.page_size = 7
    box.populate({f"many/f{number:03}": b"" for number in range(30)})
    client = opened("v2")
    many = find(client, "many")
    assert len(client.list_directory(many.id, "many").entries) == 30
    assert [entry.name for entry in client.list_page(many.id, "many", 5)] == ["f028", "f029"]
    assert client.list_page(many.id, "many", 6) == []
    assert box.calls.counts()["list"] == 8 + 2
    with pytest.raises(NotOffered):
        opened("v1").list_page(many.id, "many", 1)


def test_pages_that_never_end(opened: Open, box: Sandbox) -> None:
    page = [box.entry("top.txt"), box.entry("case/a.txt") | {"name": "a", "basename": "a", "dirname": ""}]
    box.faults.add("list", "odd", variation=lambda _: page)
    with pytest.raises(BadReply, match="repeats"):
        opened("v2").list_directory(0, "")
    assert box.calls.counts()["list"] == 3


def test_a_page_of_refused_entries_is_not_the_end(opened: Open, box: Sandbox) -> None:
    def refuse_folders(page: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**raw, "id": "?"} if raw["type"] == "dir" else raw for raw in page]

    box.settings.page_size = 1
    box.faults.add("list", "odd", variation=refuse_folders)
    assert [entry.name for entry in opened("v2").list_directory(0, "").entries] == ["top.txt"]


def test_view(client: Client) -> None:
    found = client.view("case/a.txt")
    assert found is not None
    assert (found.entry.path, found.entry.size, found.children) == ("case/a.txt", 3, None)
    folder = client.view("case")
    assert folder is not None
    assert folder.entry.is_dir
    if client.api_version == "v1":
        assert folder.children is not None
        assert len(folder.children) == 3
        assert client.view("case/none") is None
    else:
        with pytest.raises(Refused, match="technical problem"):
            client.view("case/none")
    root = client.view("")
    assert root is not None
    assert len(root.children or ()) == 2


def test_entry(client: Client) -> None:
    entry = find(client, "case/a.txt")
    assert client.entry(entry.id) == entry
    with pytest.raises(NoSuchEntry, match="entry 999999"):
        client.entry(999_999)


def test_upload(client: Client, box: Sandbox) -> None:
    data = os.urandom(700_000)
    sent: list[int] = []
    parts = [data[:300_000], b"", data[300_000:]]
    stored = client.upload("new/ä b.bin", len(data), lambda: iter(parts), progress=sent.append)
    assert box.files()["new/ä b.bin"] == data
    assert sent == [300_000, 300_000, 700_000]
    assert stored.etag
    assert stored.stored_ns
    assert box.calls.counts() == {"upload-url": 1, "object-put": 1}
    client.upload("new/empty", 0, lambda: ())
    assert box.files()["new/empty"] == b""


def test_upload_direct(client: Client, box: Sandbox) -> None:
    client.upload_direct("new/ä b.bin", b"direct")
    assert box.files()["new/ä b.bin"] == b"direct"
    with pytest.raises(Refused, match="below 2000000 bytes"):
        client.upload_direct("new/large", bytes(2_000_000))
    assert box.calls.counts() == {"upload-direct": 1}


def test_upload_takes_one_new_link(client: Client, box: Sandbox) -> None:
    box.faults.add("object-put", "expired", times=1)
    client.upload("f", 3, lambda: [b"abc"])
    assert box.files()["f"] == b"abc"
    assert box.calls.counts() == {"upload-url": 2, "object-put": 2}
    box.faults.add("object-put", "expired")
    with pytest.raises(LinkExpired):
        client.upload("f", 3, lambda: [b"abc"])
    assert box.calls.counts() == {"upload-url": 4, "object-put": 4}


@pytest.mark.parametrize("parts", [[b"abc"], [b"abcdefgh"]], ids=["short", "long"])
def test_a_body_of_another_size_is_never_stored(opened: Open, box: Sandbox, parts: list[bytes]) -> None:
    with pytest.raises(Cancelled):
        opened().upload("f", 5, lambda: parts)
    assert "f" not in box.files()
    assert box.calls.counts()["upload-url"] == 1


@pytest.mark.parametrize("error", [Cancelled("written to again"), OSError(5, "disk"), ValueError("own")])
def test_a_failing_body_drops_the_upload(client: Client, box: Sandbox, error: Exception) -> None:
    closed = threading.Event()
    opened: list[int] = []

    def body() -> Iterator[bytes]:
        opened.append(1)
        try:
            yield bytes(100_000)
            raise error
        finally:
            closed.set()

    with pytest.raises(type(error)) as caught:
        client.upload("f", 200_000, body)
    assert caught.value is error
    assert closed.is_set()
    assert "f" not in box.files()
    assert len(opened) == 1
    assert box.calls.counts()["upload-url"] == 1


def test_stop_ends_transfers(opened: Open, box: Sandbox) -> None:
    stop = threading.Event()
    client = opened(stop=stop)
    link = client.download(find(client, "case/sub/deep.bin").id)
    fetched = client.fetch(link)

    def body() -> Iterator[bytes]:
        yield bytes(100)
        stop.set()
        yield bytes(100)

    with pytest.raises(Cancelled):
        client.upload("f", 200, body)
    with fetched, pytest.raises(Cancelled):
        list(fetched.blocks())
    with pytest.raises(Cancelled):
        client.list_all()
    assert "f" not in box.files()


def test_a_page_is_no_stored_file(opened: Open, box: Sandbox) -> None:
    client = opened()
    box.faults.add("object-put", "html", times=2)
    client.upload("f", 3, lambda: [b"abc"])
    assert box.files()["f"] == b"abc"
    box.faults.add("object-put", "html")
    with pytest.raises(ServerFault, match="a web page"):
        client.upload("g", 3, lambda: [b"abc"])
    assert "g" not in box.files()


def test_an_upload_that_failed_keeps_its_link_until_it_expires(opened: Open, box: Sandbox) -> None:
    clock = ManualClock()
    client = opened(clock=clock)
    upload = partial(client.upload, "f", 3, lambda: [b"abc"])
    fault = box.faults.add("object-put", "status", status=503)
    with pytest.raises(ServerFault):
        upload()
    box.faults.remove(fault)
    upload()
    assert box.calls.counts()["upload-url"] == 1
    upload()
    assert box.calls.counts()["upload-url"] == 2, "a link is for one file"
    fault = box.faults.add("object-put", "status", status=503)
    with pytest.raises(ServerFault):
        upload()
    box.faults.remove(fault)
    clock.advance(900)
    upload()
    assert box.calls.counts()["upload-url"] == 4


def test_a_store_that_is_down_is_tried_by_one_upload_at_a_time(opened: Open, box: Sandbox) -> None:
    clock = ManualClock()
    client = opened(clock=clock, retry=Retry(attempts=1))
    fault = box.faults.add("object-put", "status", status=503)

    def failures() -> list[str]:
        found = []
        for name in "abcdefghij":
            with pytest.raises(ServerFault) as caught:
                client.upload(name, 3, lambda: [b"abc"])
            found.append(str(caught.value))
        return found

    first = failures()
    assert ["not tried" in text for text in first] == [False] * 2 + [True] * 8
    assert all("HTTP 503" in text for text in first)
    clock.advance(1)
    assert ["not tried" in text for text in failures()] == [False] + [True] * 9
    assert box.calls.counts() == {"upload-url": 2, "object-put": 3}
    box.faults.remove(fault)
    clock.advance(2)
    for name in "abcdefghij":
        client.upload(name, 3, lambda: [b"abc"])
    assert box.calls.counts()["upload-url"] == 10


def test_md5_is_checked_where_the_etag_is_one(opened: Open, box: Sandbox) -> None:
    client = opened()
    client.upload("f", 3, lambda: [b"ab", b"c"])

    def with_md5(reply: Any) -> Any:
        reply.headers["ETag"] = f'"{hashlib.md5(b"other").hexdigest()}"'
        return reply

    def encrypted(reply: Any) -> Any:
        reply.headers["x-amz-server-side-encryption"] = "aws:kms"
        return with_md5(reply)

    fault = box.faults.add("object-put", "odd", variation=encrypted)
    client.upload("f", 3, lambda: [b"abc"])
    box.faults.remove(fault)
    box.faults.add("object-put", "odd", variation=with_md5)
    with pytest.raises(BadReply, match="other bytes"):
        client.upload("f", 3, lambda: [b"abc"])


@pytest.mark.parametrize(
    ("offset", "length", "start", "end"),
    [
        (0, None, 0, 10240),
        (0, 10, 0, 10),
        (100, None, 100, 10240),
        (10_000, 5000, 10_000, 10_240),
        (10_239, 1, 10_239, 10_240),
    ],
)
def test_fetch(client: Client, offset: int, length: int | None, start: int, end: int) -> None:
    link = client.download(find(client, "case/sub/deep.bin").id)
    with client.fetch(link, offset=offset, length=length) as fetched:
        data = b"".join(fetched.blocks())
    assert data == TREE["case/sub/deep.bin"][start:end]
    assert (fetched.offset, fetched.length, fetched.total) == (start, end - start, 10_240)
    assert fetched.partial == (offset > 0 or length is not None)
    with client.fetch(link, offset=offset, length=length, if_etag=fetched.etag) as again:
        assert again.etag == fetched.etag
        buffer = memoryview(bytearray(3000))
        assert b"".join(map(bytes, again.blocks(buffer))) == data


def test_fetching_into_a_buffer_gives_the_connection_back(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    link = client.download(find(client, "case/sub/deep.bin").id)
    caplog.set_level(logging.DEBUG, "urllib3")
    for _ in range(5):
        with client.fetch(link) as fetched:
            assert sum(map(len, fetched.blocks(memoryview(bytearray(3000))))) == 10_240
    assert sum("new HTTP" in record.getMessage() for record in caplog.records) <= 1
    with client.fetch(link) as fetched:
        next(fetched.blocks(memoryview(bytearray(3000))))  # read in part only: this one cannot be used again
    with client.fetch(link) as fetched:
        assert b"".join(map(bytes, fetched.blocks(memoryview(bytearray(3000))))) == TREE["case/sub/deep.bin"]


def test_fetch_of_another_version(opened: Open, box: Sandbox) -> None:
    client = opened()
    link = client.download(find(client, "case/a.txt").id)
    with pytest.raises(VersionChanged):
        client.fetch(link, if_etag='"other"')
    with pytest.raises(VersionChanged):
        client.fetch(link, offset=1000)
    for offset in (0, 1):
        with pytest.raises(VersionChanged, match="3 bytes, not 4"):
            client.fetch(link, offset=offset, if_size=4)
    with pytest.raises(ValueError):
        client.fetch(link, length=0)


def test_fetch_from_a_server_without_ranges(opened: Open, box: Sandbox) -> None:
    client = opened()
    link = client.download(find(client, "case/a.txt").id)
    box.faults.add("object-get", "odd", variation="ignore-range", times=1)
    with client.fetch(link, offset=1, length=1) as fetched:
        assert (fetched.partial, fetched.offset, fetched.length) == (False, 0, 3)
        assert b"".join(fetched.blocks()) == b"aaa"
    box.faults.add("object-get", "odd", variation="shifted-range", times=1)
    with pytest.raises(BadReply, match="another part"):
        client.fetch(link, offset=1, length=1)


def test_an_expired_download_link(client: Client, box: Sandbox) -> None:
    link = client.download(find(client, "case/a.txt").id)
    box.advance(1000)
    with pytest.raises(LinkExpired):
        client.fetch(link)
    assert box.calls.counts()["object-get"] == 1


def test_a_link_that_is_null_at_first(opened: Open, box: Sandbox) -> None:
    clock = ManualClock()
    client = opened(clock=clock)
    entry = find(client, "case/a.txt")
    box.faults.add("download-url", "null_link", times=2)
    client.download(entry.id)
    assert clock.monotonic() == 4.0
    box.faults.add("download-url", "null_link")
    with pytest.raises(Refused, match="no download link"):
        client.download(entry.id)
    assert box.calls.counts()["download-url"] == 3 + 5


def test_download_direct(client: Client, box: Sandbox) -> None:
    with client.download_direct(find(client, "case/sub/deep.bin").id) as fetched:
        assert b"".join(fetched.blocks()) == TREE["case/sub/deep.bin"]
    with pytest.raises(NoSuchEntry):
        client.download_direct(999_999)


def test_delete(client: Client, box: Sandbox) -> None:
    client.delete(find(client, "case/a.txt").id)
    assert "case/a.txt" not in box.files()
    with pytest.raises((NoSuchEntry, Refused)):
        client.delete(999_999)
    with pytest.raises(Refused):
        client.delete(0)
    client.delete(find(client, "case").id)
    assert box.paths() == ["top.txt"]


def test_delete_cache(opened: Open, box: Sandbox) -> None:
    client = opened("v2")
    client.upload("f", 1, lambda: [b"x"])
    assert "f" not in [entry.path for entry in client.list_all()]
    client.server_cache.delete(Urgency.NORMAL)
    assert "f" in [entry.path for entry in client.list_all()]
    assert box.calls.counts()["delete-cache"] == 1
    opened("v1").server_cache.delete(Urgency.NORMAL)
    assert box.calls.counts()["delete-cache"] == 1, "v1 has none"


def test_the_cache_is_deleted_once_for_all_who_want_the_truth(opened: Open, box: Sandbox) -> None:
    cache, since = opened("v2").server_cache, time.monotonic()
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: cache.outdo(since=since), range(16)))
    assert box.calls.counts()["delete-cache"] == 1
    cache.outdo(since=time.monotonic())
    assert box.calls.counts()["delete-cache"] == 2


@pytest.mark.parametrize("status", [400, 403, 404, 500])
def test_a_service_that_does_not_delete_its_cache_is_left_alone(opened: Open, box: Sandbox, status: int) -> None:
    cache = opened("v2").server_cache
    box.faults.add("delete-cache", "status", status=status)
    cache.outdo(since=time.monotonic())
    asked = box.calls.counts()["delete-cache"]
    assert asked
    for _ in range(5):
        cache.outdo(since=time.monotonic())
    assert box.calls.counts()["delete-cache"] == asked


def test_runs(client: Client, box: Sandbox) -> None:
    assert client.simulations() == []
    first, second = client.launch(RUN), client.launch(RUN)
    assert sorted(run.id for run in client.simulations()) == [first, second]
    run = client.simulation(second)
    assert (run.status_name, run.folder, run.cpu, run.script) == ("PENDING", "case", 1, "heat2d-1.0")
    assert run.output is not None
    with pytest.raises(Refused):
        client.sync(first)
    client.stop(first, Signal.HARD_STOP)
    assert box.runs()[0]["status"] in (40, 50)
    with pytest.raises((NoSuchEntry, Refused)):
        client.simulation(1)
    with pytest.raises(ValueError):
        client.stop(first, Signal.SYNC)


def test_options(client: Client, box: Sandbox) -> None:
    assert client.cpu_values() == tuple(str(cpu) for cpu in box.settings.cpus)
    assert client.ram_values() == box.settings.rams
    assert client.scripts() == box.settings.scripts


@pytest.mark.parametrize("enabled", [True, False])
def test_auto_costs_one_call(opened: Open, box: Sandbox, enabled: bool) -> None:
    box.settings.v2_enabled = enabled
    client = opened("auto")
    assert box.calls.api_count() == 0
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: client.api_version, range(8)))
    assert found == {"v2" if enabled else "v1"}
    assert box.calls.api_count() == 1


@pytest.mark.parametrize("body", ['{"errors": ["A technical problem has occurred, try again later."]}', "<html>", ""])
def test_a_passing_failure_does_not_decide_the_version(opened: Open, box: Sandbox, body: str) -> None:
    clock = ManualClock()
    client = opened("auto", clock=clock)
    box.faults.add("cpu", "status", status=403, body=body, times=2)
    assert [client.api_version for _ in range(3)] == ["v1"] * 3
    clock.advance(600)
    assert [client.api_version for _ in range(3)] == ["v1"] * 3
    clock.advance(1200)
    assert [client.api_version for _ in range(3)] == ["v2"] * 3
    assert box.calls.counts()["cpu"] == 3


def test_a_wrong_key(opened: Open, box: Sandbox) -> None:
    for api in ("v1", "v2", "auto"):
        client = opened(api, key="wrong-key-wrong")
        with pytest.raises(KeyRefused) as caught:
            client.list_directory(0, "")
        assert not isinstance(caught.value, VersionNotEnabled)
        assert "wrong-key-wrong" not in str(caught.value)


def test_v2_not_enabled(opened: Open, box: Sandbox) -> None:
    box.settings.v2_enabled = False
    with pytest.raises(VersionNotEnabled, match="GET /storage/index/name/asc/1: HTTP 403: User not enabled"):
        opened("v2").list_directory(0, "")


def test_the_key_in_the_query(opened: Open, box: Sandbox) -> None:
    client = opened("v1", key_in_query=True)
    assert len(client.list_directory(0, "").entries) == 2
    client.upload("f", 1, lambda: [b"x"])


@pytest.mark.parametrize("status", [404, 405])
@pytest.mark.parametrize(
    ("operation", "verb"),
    [
        ("list", lambda client, _: client.list_directory(0, "")),
        ("ram", lambda client, _: client.ram_values()),
        ("scripts", lambda client, _: client.scripts()),
        ("simulations", lambda client, _: client.simulations()),
        ("simulation", lambda client, run: client.simulation(run)),
        ("delete", lambda client, _: client.delete(find(client, "case/a.txt").id)),
        ("download-url", lambda client, _: client.download(find(client, "top.txt").id)),
    ],
)
def test_falls_back_to_v1_once(
    opened: Open, box: Sandbox, operation: str, status: int, verb: Callable[[Client, int], Any]
) -> None:
    client = opened("v2")
    run = client.launch(RUN)
    box.faults.add(operation, "status", status=status, version=2)
    verb(client, run)
    box.populate(TREE)
    verb(client, run)
    versions = [call.version for call in box.calls.entries(operation)]
    detours = 2 if operation == "download-url" else 1
    assert versions == [2] * detours + [1, 1]


def test_an_unknown_id_is_not_a_missing_call(opened: Open, box: Sandbox) -> None:
    client = opened("v2")
    box.faults.add("simulation", "status", status=404, version=2, times=1)
    with pytest.raises(NoSuchEntry):
        client.simulation(1)
    run = client.launch(RUN)
    client.simulation(run)
    assert [call.version for call in box.calls.entries("simulation")] == [2, 1, 2]


def test_the_services_limit_and_its_reserve(opened: Open, box: Sandbox) -> None:
    box.settings.hourly_limit = 20
    client = opened("v1")
    for _ in range(18):
        client.cpu_values()
    with pytest.raises(BudgetSpent, match=r"GET /simulation/cpu: not sent, 18 of 20 API calls"):
        client.cpu_values()
    run = client.launch(RUN)
    client.stop(run, Signal.HARD_STOP)
    assert box.calls.api_count() == 20
    state = client.budget.snapshot()
    assert (state.limit, state.used, state.remaining, state.reserve) == (20, 20, 0, 2)


def test_over_the_limit_of_a_silent_service(opened: Open, box: Sandbox) -> None:
    box.settings.hourly_limit = 2
    box.settings.limit_headers = False
    client = opened("v1")
    client.cpu_values()
    client.cpu_values()
    with pytest.raises(BudgetSpent) as caught:
        client.cpu_values()
    assert caught.value.retry_after
    assert client.budget.snapshot().remaining == 0
    with pytest.raises(BudgetSpent, match="not sent"):
        client.cpu_values(urgency=Urgency.CONTROL)
    assert box.calls.api_count() == 3


@pytest.mark.parametrize(
    "url",
    ["", "host", "ftp://h", "http://", "https://u:p@h", "https://h/?x=1", "https://[bad", "https://h:port"],
)
def test_bad_base_urls(url: str) -> None:
    with pytest.raises(ConfigError):
        connect(base_url=url, key="abcdefgh")


@pytest.mark.parametrize("host", ["sim.example", "127.evil.example", "10.0.0.1", "localhost.example"])
def test_no_key_goes_unencrypted_to_another_machine_unasked(host: str) -> None:
    with pytest.raises(ConfigError, match="say --insecure-http"):
        connect(base_url=f"http://{host}", key="abcdefgh")
    connect(base_url=f"http://{host}", key="abcdefgh", insecure_http=True).close()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3:8765", "[::1]:8765"])
def test_this_machine_needs_no_encryption(host: str) -> None:
    connect(base_url=f"http://{host}", key="abcdefgh").close()


@pytest.mark.parametrize("key", ["", "two words", "two\nlines", "schlüssel"])
def test_bad_keys(key: str) -> None:
    with pytest.raises(ConfigError):
        connect(base_url="https://h", key=key)


def test_names_that_are_not_utf8_are_never_sent(opened: Open, box: Sandbox) -> None:
    client = opened()
    for verb in (
        lambda: client.view("a\udcff"),
        lambda: client.upload("a\udcff", 0, lambda: ()),
        lambda: client.upload_direct("a\udcff", b""),
        lambda: client.launch(LaunchRequest("1", "r", "s", "a\udcff")),
    ):
        with pytest.raises(ConfigError):
            verb()
    assert box.calls.api_count() == 0


def test_netrc_and_environment_add_no_credentials(
    opened: Open, box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    client = opened("v1", timeouts=Timeouts(connect=5, read=5))
    with client.fetch(client.download(find(client, "case/a.txt").id)) as fetched:
        assert b"".join(fetched.blocks()) == b"aaa"
    assert not box.key_leaks  # it notes an Authorization header as well


def test_one_client_serves_many_threads(client: Client, box: Sandbox) -> None:
    link = client.download(find(client, "case/sub/deep.bin").id)

    def part(number: int) -> bytes:
        with client.fetch(link, offset=number * 160, length=160) as fetched:
            return b"".join(fetched.blocks())

    with ThreadPoolExecutor(32) as pool:
        listings = [pool.submit(client.list_directory, 0, "") for _ in range(32)]
        assert b"".join(pool.map(part, range(64))) == TREE["case/sub/deep.bin"]
        assert {len(each.result(patient(30)).entries) for each in listings} == {2}
    assert box.calls.counts()["object-get"] == 64
    state = client.budget.snapshot()
    assert state.used == state.calls == box.calls.api_count()


def test_the_call_that_finds_the_version_out_is_not_made_twice(opened: Open, box: Sandbox) -> None:
    client = opened("auto")
    assert client.api_version == "v2"
    assert client.cpu_values() == tuple(str(cpu) for cpu in box.settings.cpus)
    assert box.calls.counts() == {"cpu": 1}
    client.cpu_values()
    assert box.calls.counts() == {"cpu": 2}


# -- several programs of one account ----------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["v1", "v2"])
def test_many_calls_after_a_pause_leave_the_reserve_to_others(
    opened: Open, box: Sandbox, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One program has not called for a while, and does not know that another has used up the hour's calls."""
    box.settings.hourly_limit = 50
    monkeypatch.setattr(budget, "_ALONE", 1e6)  # the clock flies while it waits
    clock = ManualClock()
    idle, busy = opened(api, clock=clock), opened(api)
    idle.cpu_values()
    for _ in range(44):
        busy.cpu_values()
    with pytest.raises(BudgetSpent):
        busy.cpu_values()
    used = box.calls.api_count()
    clock.advance(60)
    with ThreadPoolExecutor(16) as pool:
        looks = [pool.submit(idle.cpu_values) for _ in range(16)]
        failed = [look for look in looks if isinstance(look.exception(), BudgetSpent)]
    assert len(failed) >= 15
    assert box.calls.api_count() <= used + 1
    assert idle.budget.snapshot().used == box.calls.api_count(), "the calls of both"
    for _ in range(busy.budget.snapshot().reserve - 1):
        busy.cpu_values(urgency=Urgency.CONTROL)
