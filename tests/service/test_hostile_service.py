"""A service that means harm: memory and time are bounded by the client, whatever it sends (invariant 12)."""

from __future__ import annotations

import gc
import gzip
import itertools
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from cloudsimfs.clock import ManualClock
from cloudsimfs.errors import BadReply, LaunchUnresolved, ServiceError, TimedOut
from cloudsimfs.service import Client, Download, LaunchRequest, Retry, Signal, Timeouts, connect
from cloudsimfs.service.paging import LISTING_TIME
from hostile import Hostile, head

KEY = "k3y-of-the-hostile-test"
MIB = 1 << 20
IN_BUFFERS = 24 * MIB  # bytes that the sockets of one connection may hold, read by nobody
FLOOD = 256 * MIB  # bytes that a server offers, many times what may be read
BLOCK = bytes(1 << 16)
RUN = LaunchRequest(cpu="1", ram="standard", script="heat2d-1.0", folder="case")

VERBS: dict[str, Callable[[Client], Any]] = {
    "list": lambda client: client.list_directory(0, ""),
    "list-all": lambda client: client.list_all(),
    "view": lambda client: client.view("case/b"),
    "delete": lambda client: client.delete(1),
    "launch": lambda client: client.launch(RUN),
    "stop": lambda client: client.stop(1, Signal.HARD_STOP),
    "runs": lambda client: client.simulations(),
    "run": lambda client: client.simulation(1),
    "fetch-direct": lambda client: client.download_direct(1),
}


@contextmanager
def client_of(server: Hostile, **settings: Any) -> Iterator[Client]:
    values: dict[str, Any] = {"api": "v1", "retry": Retry(attempts=1), **settings}
    with connect(base_url=server.url, key=KEY, **values) as client:
        yield client


def flood(start: bytes, block: bytes = BLOCK) -> Iterable[bytes]:
    yield start
    yield from itertools.repeat(block, FLOOD // len(block))


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("to", ["/elsewhere", "http://elsewhere.invalid/"])
def test_the_body_of_a_redirect_is_not_read(verb: str, to: str) -> None:
    with Hostile(lambda _: flood(head("302 Found", f"Location: {to}"))) as server, client_of(server) as client:
        with pytest.raises(ServiceError):
            VERBS[verb](client)
        assert server.sent < len(server.requests) * IN_BUFFERS


def test_a_compressed_redirect_is_not_unpacked() -> None:
    bomb = gzip.compress(bytes(FLOOD))
    start = head("302 Found", "Location: http://elsewhere.invalid/", "Content-Encoding: gzip")
    with Hostile(lambda _: [start, bomb]) as server, client_of(server) as client:
        tracemalloc.start()
        try:
            with pytest.raises(ServiceError):
                client.list_all()
            assert tracemalloc.get_traced_memory()[1] < 16 * MIB
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("verb", VERBS)
def test_nothing_compressed_is_asked_for(verb: str) -> None:
    with Hostile(lambda _: [head("400 Bad")]) as server, client_of(server) as client:
        with pytest.raises(ServiceError):
            VERBS[verb](client)
        assert all(b"accept-encoding: identity" in request.lower() for request in server.requests)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("status", ["400 Bad", "403 No", "404 None", "429 Slow", "503 Oops"])
def test_a_refusal_is_not_read_to_its_end(verb: str, status: str) -> None:
    with Hostile(lambda _: flood(head(status), b"x" * len(BLOCK))) as server, client_of(server) as client:
        with suppress(ServiceError):  # after a 404, there is nothing to view
            VERBS[verb](client)
        assert 0 < server.sent < len(server.requests) * IN_BUFFERS


@pytest.mark.parametrize("status", ["302 Found", "400 Bad", "403 No"])
def test_a_link_that_refuses_is_not_read_to_its_end(status: str) -> None:
    start = head(status, "Location: http://[bad")
    with Hostile(lambda _: flood(start)) as server, client_of(server) as client:
        with pytest.raises(ServiceError):
            client.fetch(Download(f"{server.url}/o"))
        assert server.sent < IN_BUFFERS


def test_a_launch_whose_refusal_has_no_end_may_have_started_a_run() -> None:
    start = head("400 Bad", "Content-Type: application/json") + b'{"errors": ["'
    with (
        Hostile(lambda _: flood(start, b"x" * len(BLOCK))) as server,
        client_of(server) as client,
        pytest.raises(LaunchUnresolved),
    ):
        client.launch(RUN)


# -- time -----------------------------------------------------------------------------------------------

HASTY = Timeouts(connect=10.0, read=5.0, data=5.0, total=1.0)
DRIPPED = 4096  # bytes, ten of them a second: minutes


def dripping(server: Hostile, start: bytes) -> Iterable[bytes]:
    yield start
    yield from server.drip(b" " * DRIPPED, 0.1)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("start", [head(), head("403 No"), b"HTTP/1.1 ", b"HTTP/1.1 200 OK\r\nX-Long: "], ids=repr)
def test_an_answer_that_drips_ends_with_the_calls_time(verb: str, start: bytes) -> None:
    with Hostile(lambda _: dripping(server, start)) as server, client_of(server, timeouts=HASTY) as client:
        if verb == "fetch-direct" and start == head():
            return  # a file may take as long as it likes
        with pytest.raises(ServiceError):
            VERBS[verb](client)
        assert server.sent < DRIPPED / 2


@pytest.mark.parametrize("start", [head("403 No"), b"HTTP/1.1 200 OK\r\nX-Long: "], ids=repr)
def test_a_store_that_drips_is_not_waited_for(start: bytes) -> None:
    with Hostile(lambda _: dripping(server, start)) as server, client_of(server, timeouts=HASTY) as client:
        with pytest.raises(ServiceError):
            client.fetch(Download(f"{server.url}/o"))
        stored = server.sent
        link = head() + f'{{"url": "{server.url}/o"}}'.encode()
        server.answer = lambda request: dripping(server, start) if request.startswith(b"PUT") else [link]
        with pytest.raises(ServiceError):
            client.upload("case/new", 3, lambda: [b"abc"])
        assert stored < DRIPPED / 2 > server.sent - stored


def test_a_file_may_take_longer_than_a_call() -> None:
    body = b"x" * 40
    with Hostile(lambda _: [head(), *server.drip(body, 0.05)]) as server:

        def answer(_: bytes) -> Iterable[bytes]:
            yield head()
            yield from server.drip(body, 0.05)

        server.answer = answer
        with client_of(server, timeouts=HASTY) as client, client.fetch(Download(f"{server.url}/o")) as fetched:
            assert b"".join(bytes(block) for block in fetched.blocks()) == body


def test_pages_that_come_for_ever_are_given_up() -> None:
    clock, numbers = ManualClock(), itertools.count(1)

    def page(_: bytes) -> Iterable[bytes]:
        clock.advance(20.0)
        yield head() + b'{"response": [{"id": %d, "name": "n%d", "type": "file", "size": 1}]}' % (
            (next(numbers),) * 2
        )

    with Hostile(page) as server, client_of(server, api="v2", clock=clock) as client:
        with pytest.raises(TimedOut, match="GET /storage/index: page 3"):
            client.list_directory(0, "")
        assert len(server.requests) < LISTING_TIME / 20.0 + 5


# -- memory ---------------------------------------------------------------------------------------------

RESIDENT = 200 * MIB  # bytes that any answer may take
ENTRY = b'{"id": 1, "name": "%d/a", "type": "file", "size": 1, "x": "' + b"y" * 500 + b'"}'
FLOODS: dict[str, tuple[bytes, bytes]] = {
    "lists": (b"[", b"[]," * 20_000),
    "objects": (b"[", b"{}," * 20_000),
    "small objects": (b'{"response": [', b'{"id":1},' * 10_000),
    "members": (b"{", b"".join(b'"%d":[],' % number for number in range(10_000))),
    "numbers": (b"[", b"1," * 30_000),
    "long numbers": (b"[", (b"9" * 4000 + b",") * 20),
    "one number": (b"[", b"9" * 60_000),
    "strings": (b'{"data": {"items": [', b'"ab",' * 12_000),
    "one string": (b'["', "\U0001f600".encode() * 15_000),
    "depth": (b"", b"[" * 60_000),
    "depth of objects": (b"", b'{"a":' * 12_000),
    "ends": (b"[", b"]" * 60_000),
    "blanks": (b"[", b" " * 60_000),
    "entries": (b"[", (ENTRY.replace(b"%d", b"1") + b",") * 100),
}


def resident(name: str) -> int:
    """Bytes of this process: VmRSS now, or VmHWM, the most since the last `forget_peak`."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) << 10


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


@pytest.mark.parametrize("flooded", FLOODS)
@pytest.mark.parametrize("verb", ["list", "list-all", "run", "stop"])
def test_no_answer_takes_all_memory(verb: str, flooded: str) -> None:
    start, block = FLOODS[flooded]
    blocks = [head() + start, *[block] * (48 * MIB // len(block))]
    with Hostile(lambda _: blocks) as server, client_of(server) as client:
        gc.collect()
        forget_peak()
        before = resident("VmRSS")
        with pytest.raises(ServiceError):
            VERBS[verb](client)
        assert resident("VmHWM") - before < RESIDENT


@pytest.mark.parametrize("size", ["1e999", "-1e999", "9" * 4000, "1" * 400 + ".5"])
def test_numbers_without_a_sense_are_refused(size: str) -> None:
    body = b'[{"id": 1, "name": "a", "type": "file", "size": %s}]' % size.encode()
    with Hostile(lambda _: [head(), body]) as server, client_of(server) as client:
        assert all(not entry.sized for entry in client.list_all())


@pytest.mark.parametrize("body", [b"[NaN]", b"[Infinity]", b'{"a": -Infinity}', b"[" + b"9" * 5000 + b"]"])
def test_what_is_no_json_is_a_bad_reply(body: bytes) -> None:
    with Hostile(lambda _: [head(), body]) as server, client_of(server) as client:
        for verb in (client.list_all, client.cpu_values):
            with pytest.raises(BadReply, match="not JSON"):
                verb()
