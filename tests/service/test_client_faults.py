"""The service client under faults: what is sent again, what never is, and that nothing is left behind."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import re
import socket
import struct
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest

from cloudsimfs.clock import ManualClock
from cloudsimfs.errors import (
    BadReply,
    BudgetSpent,
    CloudsimfsError,
    KeyRefused,
    LaunchUnresolved,
    LinkExpired,
    NoSuchEntry,
    Refused,
    ServerFault,
    ServiceError,
    TimedOut,
    Unreachable,
)
from cloudsimfs.sandbox import Sandbox, Settings
from cloudsimfs.service import Client, Download, LaunchRequest, Retry, Signal, Timeouts, connect
from harness import longer

RUN = LaunchRequest(cpu="1", ram="standard", script="heat2d-1.0", folder="case")
DATA = bytes(range(256)) * 400
ATTEMPTS = 3
QUICK = Retry(attempts=ATTEMPTS, base=0.001)
BRIEF = Timeouts(connect=10.0, read=1.0, data=1.0, total=60.0)  # for who waits in vain
CATCH_ALL = '{"errors": ["A technical problem has occurred, try again later."]}'

Verb = Callable[[Client, Sandbox], Any]


@pytest.fixture
def box() -> Iterator[Sandbox]:
    with Sandbox(settings=Settings(pending_seconds=60.0, hourly_limit=0)) as box:
        box.populate({"case/a.bin": DATA, "case/b": b"b"})
        yield box
        assert not box.key_leaks


@pytest.fixture(params=["v1", "v2"])
def client(request: pytest.FixtureRequest, box: Sandbox) -> Iterator[Client]:
    with connect(base_url=box.url, key=box.key, api=request.param, retry=QUICK) as client:
        yield client


@pytest.fixture(params=["v1", "v2"])
def brief(request: pytest.FixtureRequest, box: Sandbox) -> Iterator[Client]:
    """A client that does not wait for long. No calls are counted of one to which a busy machine may seem to hang."""
    with connect(base_url=box.url, key=box.key, api=request.param, retry=QUICK, timeouts=BRIEF) as client:
        yield client


def ident(box: Sandbox, path: str) -> int:
    return int(box.entry(path)["id"])


def fetch(client: Client, box: Sandbox) -> None:
    with client.fetch(client.download(ident(box, "case/a.bin")), if_size=len(DATA)) as fetched:
        assert b"".join(fetched.blocks()) == DATA


def upload(client: Client, box: Sandbox) -> None:
    client.upload("case/new", len(DATA), lambda: [DATA])


SAFE: dict[str, Verb] = {
    "list": lambda client, _: client.list_directory(0, ""),
    "list-all": lambda client, _: client.list_all(),
    "view": lambda client, _: client.view("case/b"),
    "entry": lambda client, box: client.entry(ident(box, "case/b")),
    "upload-url": upload,
    "upload-direct": lambda client, _: client.upload_direct("case/direct", b"x"),
    "download-url": lambda client, box: client.download(ident(box, "case/b")),
    "download-direct": lambda client, box: client.download_direct(ident(box, "case/b")).close(),
    "cpu": lambda client, _: client.cpu_values(),
    "ram": lambda client, _: client.ram_values(),
    "scripts": lambda client, _: client.scripts(),
    "simulations": lambda client, _: client.simulations(),
    "object-put": upload,
    "object-get": fetch,
}

PASSING: dict[str, dict[str, Any]] = {
    "500": {"kind": "status", "status": 500},
    "503": {"kind": "status", "status": 503, "retry_after": 0},
    "reset": {"kind": "reset"},
    "lost answer": {"kind": "drop_reply"},
}


@pytest.mark.parametrize("operation", SAFE)
@pytest.mark.parametrize("fault", PASSING)
def test_safe_calls_are_repeated(client: Client, box: Sandbox, operation: str, fault: str) -> None:
    SAFE[operation](client, box)
    usual = box.calls.counts()[operation]
    box.calls.reset()
    box.faults.add(operation, times=ATTEMPTS - 1, **PASSING[fault])
    SAFE[operation](client, box)
    assert box.calls.counts()[operation] == usual + ATTEMPTS - 1


@pytest.mark.parametrize("operation", SAFE)
@pytest.mark.parametrize("fault", PASSING)
def test_attempts_are_bounded(client: Client, box: Sandbox, operation: str, fault: str) -> None:
    box.faults.add(operation, **PASSING[fault])
    with pytest.raises(ServiceError) as caught:
        SAFE[operation](client, box)
    assert isinstance(caught.value, (ServerFault, Unreachable))
    assert box.calls.counts()[operation] == ATTEMPTS
    assert str(caught.value).startswith(("GET ", "POST ", "PUT "))


@pytest.mark.parametrize(
    ("fault", "error", "calls"),
    [
        ({"kind": "status", "status": 401}, KeyRefused, 1),
        ({"kind": "status", "status": 400, "body": "no"}, Refused, 1),
        ({"kind": "status", "status": 418}, Refused, 1),
        ({"kind": "html"}, ServerFault, ATTEMPTS),
        ({"kind": "html", "status": 502}, ServerFault, ATTEMPTS),
        ({"kind": "errors200"}, CloudsimfsError, 1),
        ({"kind": "truncate"}, Unreachable, ATTEMPTS),
        ({"kind": "odd", "variation": "non-json"}, BadReply, 1),
        ({"kind": "redirect", "url": "https://elsewhere.invalid/"}, Refused, 1),
        ({"kind": "status", "status": 429}, BudgetSpent, 1),
        ({"kind": "status", "status": 429, "retry_after": 3600}, BudgetSpent, 1),
        ({"kind": "status", "status": 403, "body": '{"errors": ["Rate limit exceeded."]}'}, BudgetSpent, 1),
    ],
    ids=lambda value: "-".join(str(part) for part in value.values()) if isinstance(value, dict) else "",
)
def test_each_failure_has_its_error(
    client: Client, box: Sandbox, fault: dict[str, Any], error: type[Exception], calls: int
) -> None:
    box.faults.add("list", **fault)
    with pytest.raises(error) as caught:
        client.list_directory(0, "")
    assert box.calls.counts()["list"] == calls
    assert box.key not in "".join(traceback.format_exception(caught.value))


def test_a_service_that_hangs(brief: Client, box: Sandbox) -> None:
    box.faults.add("list", "hang")
    with pytest.raises(TimedOut):
        brief.list_directory(0, "")
    assert box.calls.counts()["list"] == ATTEMPTS
    box.faults.add("launch", "hang")
    with pytest.raises(LaunchUnresolved):
        brief.launch(RUN)
    assert box.calls.counts()["launch"] == 1


def test_retry_after_is_waited_for_if_it_fits(box: Sandbox) -> None:
    clock = ManualClock()
    with connect(base_url=box.url, key=box.key, api="v1", clock=clock, retry=QUICK) as client:
        box.faults.add("list", "status", status=429, retry_after=100, times=1)
        client.list_directory(0, "")
        assert 100 <= clock.monotonic() < 101
        box.faults.add("list", "status", status=503, retry_after=100, times=1)
        client.list_directory(0, "")
        assert 200 <= clock.monotonic() < 202
        box.faults.add("list", "status", status=503, retry_after=1000, times=1)
        with pytest.raises(ServerFault):
            client.list_directory(0, "")
    assert box.calls.counts()["list"] == 5


LAUNCH_FAULTS: list[tuple[dict[str, Any], type[Exception], int]] = [
    ({"kind": "drop_reply"}, LaunchUnresolved, 1),
    ({"kind": "reset"}, LaunchUnresolved, 0),
    ({"kind": "truncate", "amount": 1}, LaunchUnresolved, 1),
    ({"kind": "html"}, LaunchUnresolved, 0),
    ({"kind": "status", "status": 500}, LaunchUnresolved, 0),
    ({"kind": "status", "status": 503, "retry_after": 0}, LaunchUnresolved, 0),
    ({"kind": "odd", "variation": "non-json"}, LaunchUnresolved, 1),
    ({"kind": "odd", "variation": "empty"}, LaunchUnresolved, 1),
    ({"kind": "odd", "variation": "null"}, LaunchUnresolved, 1),
    ({"kind": "redirect", "url": "/api/v1/simulation"}, LaunchUnresolved, 0),
    ({"kind": "status", "status": 400, "body": "bad"}, Refused, 0),
    ({"kind": "status", "status": 401}, KeyRefused, 0),
    ({"kind": "status", "status": 404}, NoSuchEntry, 0),
    ({"kind": "status", "status": 429, "retry_after": 0}, BudgetSpent, 0),
    ({"kind": "status", "status": 429}, BudgetSpent, 0),
    ({"kind": "errors200"}, LaunchUnresolved, 0),
    ({"kind": "status", "status": 403}, LaunchUnresolved, 0),
    ({"kind": "status", "status": 403, "body": CATCH_ALL}, LaunchUnresolved, 0),
    ({"kind": "status", "status": 403, "body": '{"errors": ["No such folder."]}'}, Refused, 0),
    ({"kind": "html", "status": 403}, LaunchUnresolved, 0),
    ({"kind": "html", "status": 404}, LaunchUnresolved, 0),
]


@pytest.mark.parametrize(
    ("fault", "error", "started"),
    LAUNCH_FAULTS,
    ids=lambda value: "-".join(str(part) for part in value.values()) if isinstance(value, dict) else "",
)
def test_a_launch_is_one_post(
    client: Client, box: Sandbox, fault: dict[str, Any], error: type[Exception], started: int
) -> None:
    box.faults.add("launch", **fault)
    with pytest.raises(error) as caught:
        client.launch(RUN)
    assert type(caught.value) is error
    box.faults.clear()
    assert box.calls.counts()["launch"] == 1
    if fault["kind"] != "errors200":
        assert len(box.runs()) == started


@contextlib.contextmanager
def proxy(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> Iterator[bytearray]:
    """A proxy of http and https that takes one whole request, answers, and resets the connection."""
    received = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            while b"}}" not in received and not received.startswith(b"CONNECT"):
                received.extend(connection.recv(65536))
            connection.sendall(answer)
            if not answer:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.delenv("no_proxy", raising=False)
        yield received
        thread.join()


def test_a_launch_lost_behind_a_proxy_is_unresolved(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        proxy(monkeypatch, b"") as received,
        connect(base_url="http://sim.example", key="k" * 16, api="v1", insecure_http=True) as client,
        pytest.raises(LaunchUnresolved),
    ):
        client.launch(RUN)
    assert received.startswith(b"POST http://sim.example/api/v1/simulation ")


def test_a_launch_that_a_proxy_let_through_to_nobody_was_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        proxy(monkeypatch, b"HTTP/1.1 503 Service Unavailable\r\n\r\n") as received,
        connect(base_url="https://sim.example", key="k" * 16, api="v1") as client,
        pytest.raises(Unreachable, match="the proxy failed"),
    ):
        client.launch(RUN)
    assert received.startswith(b"CONNECT sim.example:443 ")


def test_a_launch_that_never_left_is_definite() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with connect(base_url=url, key="abcdefgh", api="v1", retry=QUICK) as client:
            with pytest.raises(Unreachable, match="connection refused"):
                client.launch(RUN)
            assert client.budget.snapshot().calls == 0
            with pytest.raises(Unreachable, match=r"GET /storage: 127\.0\.0\.1:[0-9]+: connection refused"):
                client.list_all()


def test_a_lost_launch_after_an_older_failure_is_unresolved(client: Client, box: Sandbox) -> None:
    box.faults.add("launch", "drop_reply")
    with connect(base_url="http://127.0.0.1:1", key="abcdefgh", api="v1", retry=QUICK) as dead:
        try:
            dead.list_all()
        except Unreachable:
            with pytest.raises(LaunchUnresolved):
                client.launch(RUN)


def test_a_delete_whose_answer_was_lost(client: Client, box: Sandbox) -> None:
    box.faults.add("delete", "drop_reply", times=1)
    with contextlib.suppress(NoSuchEntry, Refused):
        client.delete(ident(box, "case/b"))
    assert "case/b" not in box.files()


def test_stop_and_sync_are_repeated(client: Client, box: Sandbox) -> None:
    run = client.launch(RUN)
    box.faults.add("stop", "reset", times=1)
    client.stop(run, Signal.HARD_STOP)
    assert box.calls.counts()["stop"] == 2


def test_a_cut_download_is_noticed(brief: Client, box: Sandbox) -> None:
    link = brief.download(ident(box, "case/a.bin"))
    box.faults.add("object-get", "truncate", times=1, amount=1000)
    with brief.fetch(link) as fetched, pytest.raises(Unreachable, match="cut off"):
        list(fetched.blocks())
    box.faults.add("object-get", "hang", times=1)
    fetch(brief, box)


# -- a server that says anything ----------------------------------------------------------------------


class Scripted:
    """Answers each connection with the next of `replies`, bytes as they are; the last one stays."""

    def __init__(self, *replies: bytes, hasty: bool = False) -> None:
        self._hasty = hasty  # answers before the request's body has come
        self.requests: list[bytes] = []
        self.replies = list(replies)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            with peer, contextlib.suppress(OSError):
                peer.settimeout(5)
                self._answer(peer)

    def _answer(self, peer: socket.socket) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            block = peer.recv(65536)
            if not block:
                return
            request += block
        head, _, body = request.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        while length and not self._hasty and len(body) < int(length[1]):
            body += peer.recv(65536)
        self.requests.append(head)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        peer.sendall(reply.replace(b"{url}", self.url.encode()))

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


KEY = "k3y-of-the-scripted-test"


def scripted(server: Scripted, **settings: Any) -> Client:
    values = {"api": "v1", "retry": QUICK, **settings}
    return connect(base_url=server.url, key=KEY, **values)


def reply(status: str, *headers: str, body: bytes = b"", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {size}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x00\xff garbage\r\n\r\n",
        b"HTTP/1.1 abc nope\r\n\r\n",
        b"HTTP/1.1 99999 big\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n[",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\nConnection: close\r\n\r\n[",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n[]\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n[",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd",
        b"HTTP/1.1 200 OK\r\n" + b"X-Many: y\r\n" * 500 + b"\r\n[]",
        b"HTTP/1.1 200 OK\r\nX-Long: " + b"y" * 100_000 + b"\r\n\r\n[]",
        reply("302 Found", "Location: http://[bad"),
        reply("302 Found", "Location: gopher://x/"),
        reply("200 OK", body=b"[" * 50_000),
        reply("200 OK", body=b"\xff\xfe\xfd"),
        reply("500 Oops", "Retry-After: soon", body=b"<html>"),
        reply("503 Oops", "Retry-After: 99999999999", body=b"x"),
    ],
    ids=lambda answer: repr(answer[:48]),
)
def test_hostile_answers_end_in_our_errors(answer: bytes) -> None:
    with Scripted(answer) as server, scripted(server) as client:
        for verb in (client.list_all, lambda: client.fetch(Download(f"{server.url}/o")).close()):
            with contextlib.suppress(ServiceError):
                verb()
        with pytest.raises(ServiceError):
            client.list_all()
        with pytest.raises(LaunchUnresolved):
            client.launch(RUN)
        assert all(b"POST" not in head for head in server.requests[:-1])


def test_redirects_within_the_api_keep_the_key() -> None:
    hop = reply("301 Moved", "Location: {url}/api/v1/storage/")
    with Scripted(hop, hop, reply("200 OK", body=b"[]")) as server, scripted(server) as client:
        assert client.list_all() == []
        assert all(KEY.encode() in head for head in server.requests)
    with Scripted(hop) as server, scripted(server) as client:
        with pytest.raises(Refused, match="more than 5 redirects"):
            client.list_all()
        assert len(server.requests) == 6


def test_the_key_never_follows_to_another_host() -> None:
    with Scripted(reply("200 OK", body=b"[]")) as other:
        for status in ("301 Moved", "307 Temporary"):
            answer = reply(status, f"Location: {other.url}/api/v1/storage")
            with Scripted(answer) as server, scripted(server) as client:
                with pytest.raises(Refused, match="another host"):
                    client.list_all()
                with pytest.raises(Refused, match="another host"):
                    client.delete(1)
        assert other.requests == []


def test_downloads_are_followed_without_the_key() -> None:
    with Scripted(reply("200 OK", body=b"bytes")) as store:
        hop = reply("302 Found", f"Location: {store.url}/o?sig=1")
        with Scripted(hop, hop) as server, scripted(server) as client:
            with client.download_direct(5) as fetched:
                assert b"".join(fetched.blocks()) == b"bytes"
            with client.fetch(Download(f"{server.url}/first")) as fetched:
                assert b"".join(fetched.blocks()) == b"bytes"
            assert KEY.encode() in server.requests[0]
            assert KEY.encode() not in server.requests[1]
        assert len(store.requests) == 2
        assert all(KEY.encode() not in head for head in store.requests)


def test_a_direct_download_without_redirect() -> None:
    page = b"<html>is a file too"
    with (
        Scripted(reply("200 OK", body=page)) as server,
        scripted(server) as client,
        client.download_direct(5) as fetched,
    ):
        assert b"".join(fetched.blocks()) == page


def test_a_compressed_file_is_refused() -> None:
    answer = reply("200 OK", "Content-Encoding: gzip", body=b"abc")
    with Scripted(answer) as server, scripted(server) as client, pytest.raises(BadReply, match="compressed"):
        client.fetch(Download(server.url))


@pytest.mark.parametrize(
    "header",
    ["", "bytes 0-9/10", "bytes 5-4/10", "bytes 5-20/30", "bytes */10", "bytes 5-8/30", "items 5-9/10"],
)
def test_a_part_must_be_the_one_asked_for(header: str) -> None:
    answer = reply("206 Partial", f"Content-Range: {header}", body=b"abcde")
    with Scripted(answer) as server, scripted(server) as client, pytest.raises(BadReply):
        client.fetch(Download(server.url), offset=5, length=5)


@pytest.mark.parametrize("link", ["", "file:///etc/passwd", "http://", "//h/x", "http://[bad", "ftp://h/x"])
def test_unusable_links(link: str) -> None:
    with connect(base_url="http://127.0.0.1:1", key=KEY, api="v1") as client, pytest.raises(BadReply):
        client.fetch(Download(link))


def test_links_are_not_downgraded() -> None:
    client = connect(base_url="https://127.0.0.1:1", key=KEY, api="v1")
    with client, pytest.raises(BadReply, match="not https"):
        client.fetch(Download("http://127.0.0.1:1/o"))


def test_a_refusal_before_the_upload_is_through() -> None:
    answer = reply("403 Forbidden", body=b"<Error/>")
    with Scripted(answer, hasty=True) as server, scripted(server) as client:
        link = reply("200 OK", body=f'{{"url": "{server.url}/o"}}'.encode())
        server.replies = [link, answer, link, reply("400 Bad")]
        with pytest.raises(LinkExpired, match="HTTP 400"):
            client.upload("f", 20_000_000, lambda: [bytes(20_000_000)])
        assert len(server.requests) == 4


def test_a_strange_listing_of_known_entries_is_a_bad_reply() -> None:
    body = b'{"strange": [{"id": 1, "name": "a", "basename": "a", "dirname": "", "type": "file", "size": 1}]}'
    told = pytest.raises(BadReply, match="GET /storage: the answer is not a listing")
    with Scripted(reply("200 OK", body=body)) as server, scripted(server) as client, told:
        client.list_all()


def test_a_stale_pooled_connection_is_survived() -> None:
    kept = reply("200 OK", body=b"[]").replace(b"Connection: close\r\n", b"")
    with Scripted(kept) as server, scripted(server) as client:
        for _ in range(5):
            assert client.list_all() == []


# -- nothing is left behind ---------------------------------------------------------------------------


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("seed", range(longer(1, 8)))
@pytest.mark.parametrize("api", ["v1", "v2"])
def test_thousands_of_faulted_operations_leave_nothing(box: Sandbox, api: Literal["v1", "v2"], seed: int) -> None:
    """In parts that can run side by side."""
    gc.collect()
    threads, files = threading.active_count(), open_files()
    generator = random.Random(seed)
    kinds: list[dict[str, Any]] = [
        {"kind": "status", "status": 500},
        {"kind": "status", "status": 403},
        {"kind": "reset"},
        {"kind": "drop_reply"},
        {"kind": "truncate"},
        {"kind": "html"},
        {"kind": "errors200"},
    ]
    for number, fault in enumerate(kinds):
        box.faults.add("*", probability=0.1, seed=seed + number, **fault)
    nowhere = LaunchRequest(cpu="1", ram="standard", script="heat2d-1.0", folder="none")
    verbs: list[Verb] = [*SAFE.values(), lambda client, _: client.launch(nowhere)]
    done = 0
    told: list[str] = []
    with connect(base_url=box.url, key=box.key, api=api, retry=QUICK) as client:
        for _ in range(1250):
            try:
                generator.choice(verbs)(client, box)
                done += 1
            except ServiceError as error:
                told.append(str(error))
        assert min(done, len(told)) > 250
        assert not any(box.key in text for text in told)
        gc.collect()
        assert open_files() - files < 32  # both ends of a few pooled connections
    gc.collect()
    assert threading.active_count() == threads
