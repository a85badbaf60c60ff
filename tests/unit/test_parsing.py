"""The pure half of the service client: requests as documented, replies in every tolerated shape."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudsimfs.errors import (
    BadReply,
    BudgetSpent,
    CloudsimfsError,
    KeyRefused,
    NoSuchEntry,
    NotOffered,
    Refused,
    ServerFault,
    TimedOut,
    Unexplained,
    VersionNotEnabled,
)
from cloudsimfs.service import entries, failures, parsing, v1, v2
from cloudsimfs.service.call import Call
from cloudsimfs.service.model import Entry, LaunchRequest, Signal

CALL = v1.list_directory(17)
RUN = LaunchRequest(cpu="8", ram="highcore", script="s-1", folder="case1", nopre=1)
TIME_NS = 1_790_244_000_000_000_000  # 2026-09-24T10:00:00Z


def raw(**changes: Any) -> dict[str, Any]:
    """A file entry as docs/service.md shows it."""
    return {
        "id": 17,
        "name": "case/system/controlDict",
        "basename": "controlDict",
        "dirname": "case/system",
        "type": "file",
        "size": 1234,
        "timeCreated": "2026-09-24T10:00:00Z",
        **changes,
    }


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in raw().items() if name not in names}


FILE = Entry(17, "case/system", "controlDict", False, 1234, TIME_NS)


@pytest.mark.parametrize(
    ("call", "method", "path", "body"),
    [
        (v1.list_simulations(), "GET", "/simulation", None),
        (v1.simulation(7), "GET", "/simulation/7", None),
        (
            v1.launch(RUN),
            "POST",
            "/simulation",
            {"data": {"cpu": "8", "ram": "highcore", "folder": "case1", "script": "s-1", "nopre": 1}},
        ),
        (v1.cpu_values(), "GET", "/simulation/cpu", None),
        (v1.ram_values(), "GET", "/simulation/ram", None),
        (v1.scripts(), "GET", "/simulation/scripts", None),
        (v1.stop(7, Signal.HARD_STOP), "PUT", "/simulation/7/stop", {"data": {"signal": "SIGINT"}}),
        (v1.stop(7, Signal.SOFT_STOP), "PUT", "/simulation/7/stop", {"data": {"signal": "SIGTSTP"}}),
        (v1.sync(7), "PUT", "/simulation/7/sync", {"data": {"signal": "SIGQUIT"}}),
        (
            v1.upload_url("a/b/f"),
            "POST",
            "/storage/upload/url",
            {"data": {"dirname": "a/b", "basename": "f", "contentType": "application/octet-stream"}},
        ),
        (v1.list_directory(0), "GET", "/storage/0/list", None),
        (v1.list_all(), "GET", "/storage", None),
        (v1.view("a/b"), "POST", "/storage/view", {"data": {"path": "a/b"}}),
        (v1.entry(17), "GET", "/storage/17", None),
        (v1.download_url(17), "GET", "/storage/17/download/url", None),
        (v1.download_direct(17), "GET", "/storage/17/download/file", None),
        (v1.delete(17), "DELETE", "/storage/17", None),
        (v2.cpu_values(), "GET", "/simulation/view-cpu", None),
        (v2.ram_values(), "GET", "/simulation/view-ram", None),
        (v2.scripts(), "GET", "/simulation/view-scripts", None),
        (
            v2.launch(LaunchRequest("8", "r", "s", "f", mesh="m")),
            "POST",
            "/simulation/add",
            {"cpu": "8", "ram": "r", "folder": "f", "script": "s", "mesh": "m"},
        ),
        (v2.stop(7, Signal.SOFT_STOP), "PUT", "/simulation/stop/7", {"signal": "SIGTSTP"}),
        (v2.sync(7), "PUT", "/simulation/sync/7", {"signal": "SIGQUIT"}),
        (v2.simulation(7), "GET", "/simulation/view/7", None),
        (v2.simulations_page(2), "GET", "/simulation/index-short/id/desc/2", None),
        (
            v2.upload_url("a/b/f"),
            "POST",
            "/storage/upload-url",
            {"dirname": "a/b", "filename": "f", "contentType": "application/octet-stream"},
        ),
        (v2.list_page(0, 1), "GET", "/storage/index/name/asc/1", None),
        (v2.list_page(17, 3), "GET", "/storage/index/name/asc/parent_id/17/3", None),
        (v2.view("a/b"), "POST", "/storage/view-by-path", {"path": "a/b"}),
        (v2.download(17), "GET", "/storage/download/17", None),
        (v2.view_url(17), "GET", "/storage/view-url/17", None),
        (v2.delete(17), "DELETE", "/storage/delete/17", None),
        (v2.delete_cache(), "DELETE", "/user/delete-cache", None),
    ],
    ids=lambda value: f"{value.version} {value.label}" if isinstance(value, Call) else "",
)
def test_requests_are_the_documents(call: Call, method: str, path: str, body: Any) -> None:
    assert (call.method, call.path, call.json) == (method, path, body)
    assert call.once == (call.operation == "launch")


def test_a_mesh_needs_v2() -> None:
    with pytest.raises(NotOffered, match="mesh"):
        v1.launch(LaunchRequest("8", "r", "s", "f", mesh="m"))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (raw(), FILE),
        (raw(id="17"), FILE),
        (raw(size="1234"), FILE),
        (raw(size=1234.0), FILE),
        (raw(type="FILE"), FILE),
        (raw(dirname="/case/system/"), FILE),
        (raw(name="/case/system/controlDict"), FILE),
        (raw(name="controlDict"), FILE),
        (raw(unknown={"deep": [1]}), FILE),
        (raw(timeCreated="2026-09-24 10:00:00"), FILE),
        (raw(timeCreated="2026-09-24T12:00:00+02:00"), FILE),
        (without("dirname"), FILE),
        (without("basename"), FILE),
        (without("name"), FILE),
        (raw(size=None), Entry(17, "case/system", "controlDict", False, 0, TIME_NS, sized=False)),
        (without("size"), Entry(17, "case/system", "controlDict", False, 0, TIME_NS, sized=False)),
        (without("timeCreated"), Entry(17, "case/system", "controlDict", False, 1234, None)),
        (raw(timeCreated="yesterday"), Entry(17, "case/system", "controlDict", False, 1234, None)),
        (
            raw(timeCreated="0001-01-01T00:00:00+23:00"),
            Entry(17, "case/system", "controlDict", False, 1234, -62135679600 * 10**9),
        ),
        (raw(type="dir", size=""), Entry(17, "case/system", "controlDict", True, 0, TIME_NS)),
        (
            raw(type="dir", size="", name="case/system/controlDict/"),
            Entry(17, "case/system", "controlDict", True, 0, TIME_NS),
        ),
    ],
)
def test_tolerated_entries(value: Any, expected: Entry) -> None:
    for reply in ([value], {"response": [value]}, {"data": [value]}, {"response": {"data": [value]}}):
        assert entries.listing(CALL, reply, "case/system") == [expected]


HOSTILE: list[Any] = [
    raw(basename="", name=""),
    raw(basename=".", name="case/system/."),
    raw(basename="..", name="case/system/.."),
    raw(basename="a/b", name="case/system/a/b"),
    raw(basename="a\0b", name="case/system/a\0b"),
    raw(basename="a\ud800", name="case/system/a\ud800"),
    raw(basename="a" * 256, name="case/system/" + "a" * 256),
    raw(name="../../etc/passwd"),
    raw(name="case/system/other"),
    raw(dirname="..", name="../controlDict"),
    raw(dirname="case", name="case/controlDict"),
    raw(dirname="case", basename="system", name="case/system", type="dir", size=""),
    raw(dirname="case/system/x", name="case/system/x/controlDict"),
    raw(id=None),
    raw(id=0),
    raw(id=-1),
    raw(id=1.5),
    raw(id=True),
    raw(id="x"),
    raw(id=2**63),
    raw(size=-1),
    raw(size=2**63),
    raw(size="12x"),
    raw(size=1.5),
    raw(size=[]),
    without("name", "basename"),
    "case/system/controlDict",
    None,
    [],
]


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: json.dumps(value)[:60])
def test_hostile_entries_are_skipped_and_logged_once(value: Any, caplog: pytest.LogCaptureFixture) -> None:
    other = raw(id=18, name="case/system/x", basename="x")
    with caplog.at_level(logging.WARNING):
        listing = entries.listing(CALL, [value, other, value], "case/system")
    assert [entry.id for entry in listing] == [18]
    assert len([record for record in caplog.records if "refused: 2" in record.message]) == 1


def test_all_entries_keep_their_folders() -> None:
    deep = raw(id=1, dirname="a/b", name="a/b/f", basename="f")
    escaped = raw(id=2, dirname="a/../b", name="a/../b/f", basename="f")
    found = entries.listing(v1.list_all(), [deep, escaped], None)
    assert [entry.path for entry in found] == ["a/b/f"]


@pytest.mark.parametrize("reply", ["text", 5, {"a": 1}, None, ["x", "y"], {"response": None}])
def test_no_listing_is_a_bad_reply(reply: Any) -> None:
    with pytest.raises(BadReply, match="GET /storage/17/list"):
        entries.listing(CALL, reply, "")


def test_a_bad_reply_is_short_and_redacted() -> None:
    with pytest.raises(BadReply) as caught:
        entries.listing(CALL, {"api_key": "abcdef0123", "x": "y" * 1000, "e": "\x1b[2J"}, "")
    text = str(caught.value)
    assert "abcdef0123" not in text
    assert "\x1b" not in text
    assert len(text) < 300


@pytest.mark.parametrize("member", ["children", "files", "content", "list"])
def test_view_of_a_folder(member: str) -> None:
    folder = raw(id=3, name="case/system", basename="system", dirname="case", type="dir", size="")
    call = v1.view("case/system")
    view = entries.view(call, {**folder, member: [raw(), raw(id=9, dirname="x", name="x/y")]}, "case/system")
    assert view is not None
    assert (view.entry.path, view.entry.is_dir, view.children) == ("case/system", True, [FILE])


def test_other_views() -> None:
    call = v1.view("case/system/controlDict")
    view = entries.view(call, {"response": raw()}, "case/system/controlDict")
    assert view is not None
    assert (view.entry, view.children) == (FILE, None)
    assert entries.view(call, [raw()], "case/system/controlDict") == view
    bare = entries.view(v1.view("case/system"), [raw()], "case/system")
    assert bare is not None
    assert (bare.entry.id, bare.entry.is_dir, bare.children) == (0, True, [FILE])
    assert entries.view(call, None, "x") is None
    with pytest.raises(BadReply, match="another path"):
        entries.view(call, raw(), "case/other")
    with pytest.raises(BadReply):
        entries.view(call, {}, "case/other")


@pytest.mark.parametrize("member", ["url", "uploadUrl", "downloadUrl", "mediaLink", "signedUrl"])
def test_links(member: str) -> None:
    call = v1.download_url(1)
    assert parsing.link(call, {member: "https://h/x"}) == "https://h/x"
    assert parsing.link(call, {"response": {member: "https://h/x"}}) == "https://h/x"
    assert parsing.link(call, "https://h/x") == "https://h/x"
    assert parsing.link(call, {member: None}) is None
    hostile: list[Any] = [
        {"no": "https://h/x"},
        {member: 5},
        {member: "file:///etc/passwd"},
        {member: "/x"},
        7,
    ]
    for bad in hostile:
        with pytest.raises(BadReply) as caught:
            parsing.link(call, bad)
        assert "https://h/x" not in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ([1, 2, 96], ("1", "2", "96")),
        (["a", "b", "a"], ("a", "b")),
        ({"response": ["a"]}, ("a",)),
        ({"cpu": [1, 2]}, ("1", "2")),
        ([{"value": 4}, {"name": "x"}], ("4", "x")),
        ([], ()),
        (["ok", "two\nlines", None, ["x"]], ("ok",)),
    ],
)
def test_options(reply: Any, expected: tuple[str, ...]) -> None:
    assert parsing.options(v1.cpu_values(), reply) == expected


SIMULATION = {
    "id": 4711,
    "mdate": "2026-09-24 10:00:00",
    "user_id": 5,
    "bucket": "b",
    "cpu": 8,
    "ram": "highcore",
    "nopre": 1,
    "folder": "/case1/",
    "mesh": None,
    "script": "openFoam-v2406",
    "clean": 0,
    "idate": "2026-09-24 10:00:01",
    "edate": "",
    "status": 30,
    "pid": 99,
    "tid": None,
    "output": "line\n",
    "images": ["https://h/residual.png", {"url": "https://h/cpu.png"}, 5],
}


def test_simulation_keeps_all_members() -> None:
    run = parsing.simulation(v1.simulation(4711), SIMULATION)
    assert (run.id, run.cpu, run.ram, run.folder, run.nopre) == (4711, 8, "highcore", "case1", 1)
    assert (run.status_name, run.active, run.started, run.ended) == (
        "RUNNING",
        True,
        "2026-09-24 10:00:01",
        "",
    )
    assert run.output == "line\n"
    assert [(each.name, each.source) for each in run.images] == [
        ("residual.png", "https://h/residual.png"),
        ("cpu.png", "https://h/cpu.png"),
    ]
    assert run.raw == SIMULATION


@pytest.mark.parametrize(
    ("images", "names"),
    [
        (["https://h/a%20b.png?signature=x", "https://h/a%20b.png"], ["a b.png", "2-a b.png"]),
        ([{"name": "../../etc/passwd", "url": "https://h/x.png"}], ["passwd"]),
        ([{"name": "..", "url": "https://h/"}, {"name": "a\0b", "data": "data:image/png;base64,eA=="}], None),
        ([{"name": "n" * 300, "url": "https://["}], None),
        ("no list", []),
    ],
)
def test_pictures_have_names_fit_for_files(images: Any, names: list[str] | None) -> None:
    run = parsing.simulation(v1.simulation(4711), {**SIMULATION, "images": images})
    found = [each.name for each in run.images]
    assert found == ([f"image-{number}.png" for number in range(1, len(images) + 1)] if names is None else names)


@pytest.mark.parametrize(
    ("changes", "output"),
    [
        ({"output": None}, None),
        ({"output": ""}, ""),
        ({"output": "", "logs": "from logs"}, "from logs"),
        ({"output": None, "logs": ["a", "b"]}, "a\nb\n"),
        ({"output": "x", "logs": "y"}, "x"),
    ],
)
def test_the_log_of_a_run(changes: dict[str, Any], output: str | None) -> None:
    assert parsing.simulation(v2.simulation(1), {"response": {**SIMULATION, **changes}}).output == output


def test_simulations_without_id_or_status_are_skipped() -> None:
    broken = [{**SIMULATION, "id": "x"}, {**SIMULATION, "status": None}, 5]
    runs = parsing.simulations(v1.list_simulations(), [*broken, {**SIMULATION, "status": "completed"}])
    assert [run.status_name for run in runs] == ["COMPLETED"]
    assert parsing.simulation(v1.simulation(1), {**SIMULATION, "status": 77}).status_name == "UNKNOWN-77"


@pytest.mark.parametrize(
    "reply", [4711, "4711", {"id": 4711}, {"response": {"id": 4711}}, {"simulation": {"id": "4711"}}]
)
def test_launched(reply: Any) -> None:
    assert parsing.launched(v1.launch(RUN), reply) == 4711


@pytest.mark.parametrize("reply", [None, 0, -1, True, 1.5, "", "x", {}, [], [1, 2], {"id": None}])
def test_no_launch_id(reply: Any) -> None:
    with pytest.raises(BadReply):
        parsing.launched(v1.launch(RUN), reply)


@pytest.mark.parametrize(
    ("call", "status", "body", "error"),
    [
        (CALL, 401, "", KeyRefused),
        (CALL, 403, "", KeyRefused),
        (CALL, 403, '{"message": "Unauthorized"}', KeyRefused),
        (CALL, 403, '{"errors": ["Rate limit exceeded."]}', BudgetSpent),
        (CALL, 429, "", BudgetSpent),
        (CALL, 404, "", NoSuchEntry),
        (CALL, 404, '{"message": "not found"}', NoSuchEntry),
        (CALL, 404, "<html>no</html>", NotOffered),
        (v1.list_all(), 404, "", NotOffered),
        (CALL, 405, "", NotOffered),
        (CALL, 408, "", TimedOut),
        (CALL, 400, '{"message": "bad"}', Refused),
        (CALL, 409, "busy", Refused),
        (CALL, 500, "<html>", ServerFault),
        (v2.view("x"), 403, '{"errors": ["Unauthorized."]}', KeyRefused),
        (v2.view("x"), 403, '{"errors": ["User not enabled."]}', VersionNotEnabled),
        (v2.view("x"), 403, '{"errors": ["API v2 is not enabled for this account"]}', VersionNotEnabled),
        (v2.view("x"), 403, '{"errors": ["A technical problem has occurred, try again later."]}', Unexplained),
        (v2.view("x"), 403, "<html>no</html>", Unexplained),
        (v2.view("x"), 403, '{"errors": [["deep"], {"a": 1}]}', Refused),
    ],
)
def test_failures(call: Call, status: int, body: str, error: type[Exception]) -> None:
    found = failures.failure(call, status, {}, body.encode())
    assert type(found) is error
    assert call.label in str(found)


def test_errors_in_a_200() -> None:
    with pytest.raises(Refused, match="no room"):
        failures.decode(CALL, {}, b'{"errors": ["no room"]}')
    with pytest.raises(KeyRefused):
        failures.decode(CALL, {}, b'{"errors": "Unauthorized."}')
    with pytest.raises(ServerFault, match="web page"):
        failures.decode(CALL, {"content-type": "text/html"}, b"login please")
    with pytest.raises(BadReply, match="nested more than 64 deep"):
        failures.decode(CALL, {}, b"[" * 100_000)
    assert failures.decode(v1.delete(1), {}, b"OK") is None
    assert failures.decode(CALL, {}, b'{"errors": [], "response": 1}') == {"errors": [], "response": 1}


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("30", 30.0),
        ("Tue, 14 Nov 2023 22:14:20 GMT", 60.0),
        ("Tue, 14 Nov 2000 22:14:20 GMT", 0.0),
        ("soon", None),
        ("", None),
    ],
)
def test_retry_after(value: str, seconds: float | None) -> None:
    assert failures.retry_after({"retry-after": value}, 1_700_000_000.0) == seconds


def many(count: int) -> list[Any]:
    return [
        raw(
            id=number + 1,
            name=f"case{number // 100}/sys/f{number}",
            basename=f"f{number}",
            dirname=f"case{number // 100}/sys",
        )
        for number in range(count)
    ]


def calls_to_parse(reply: list[Any]) -> int:
    """Functions called, Python's and C's."""
    calls = itertools.count()
    sys.setprofile(lambda _, event, __: next(calls) if event in ("call", "c_call") else None)
    try:
        entries.listing(v1.list_all(), reply, None)
    finally:
        sys.setprofile(None)
    return next(calls)


def test_parsing_many_entries_is_fast_and_lean() -> None:
    """Function calls stand for time: a bounded number for each entry, the last as cheap as the first."""
    found = entries.listing(v1.list_all(), many(100_000), None)
    assert len(found) == 100_000
    assert found[0].dirname is found[99].dirname
    few, more = calls_to_parse(many(1000)), calls_to_parse(many(10_000))
    assert more <= 50 * 10_000
    assert more <= 10.5 * few


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "id",
                    "name",
                    "basename",
                    "dirname",
                    "type",
                    "size",
                    "timeCreated",
                    "children",
                    "url",
                    "status",
                ]
            )
            | st.sampled_from(
                ["response", "data", "errors", "images", "output", "logs", "cpu", "simulation", "mediaLink"]
            )
            | st.text(max_size=5),
            inner,
            max_size=8,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(JSON)
def test_hostile_json_ends_in_our_errors_only(value: Any) -> None:
    attempts: list[Callable[[], Any]] = [
        lambda: entries.listing(CALL, value, "case"),
        lambda: entries.listing(CALL, [value], None),
        lambda: entries.entry(CALL, value),
        lambda: entries.view(CALL, value, "case/x"),
        lambda: parsing.simulation(CALL, value),
        lambda: parsing.simulations(CALL, [value]),
        lambda: parsing.launched(CALL, value),
        lambda: parsing.link(CALL, value),
        lambda: parsing.options(CALL, value),
        lambda: failures.decode(CALL, {}, json.dumps(value).encode()),
        lambda: failures.failure(CALL, 403, {}, json.dumps(value).encode()),
    ]
    for attempt in attempts:
        try:
            result = attempt()
        except CloudsimfsError as error:
            told = str(error)
            result = None
        else:
            told = ""
        assert len(told) < 500
        for entry in getattr(result, "entries", []):
            assert ".." not in entry.path.split("/")
            assert entry.name
            assert entry.size >= 0


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_hostile_bytes_end_in_our_errors_only(content: bytes) -> None:
    assert str(failures.failure(CALL, 500, {}, content)).startswith(CALL.label)
    with contextlib.suppress(CloudsimfsError):
        failures.decode(CALL, {}, content)
