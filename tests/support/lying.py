"""A service that lies once: one answer of one call is another plausible one, and a day's work goes on around it.

LIES        the table: which answers each operation may give instead of the true one
UNKNOWABLE  what no client can find out, with the reason
day         a whole day with one lie, or the true one
run_all     many of them, in processes of their own
"""

from __future__ import annotations

import fnmatch
import json
import multiprocessing
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cloudsimfs.sandbox import Sandbox, Settings
from harness import Mounted, Watchdog, clean_up, state_home
from moving import Ahead
from workday import STORED, Work, check, finish, going_on, half_made, remount, start, work

GENERIC = "A technical problem has occurred, try again later."
LATER = {"later": 4, "much later": 30}  # requests after which a late effect comes
# Calls for other paths are like those for these. The operations that name no path have the path "".
PATHS = frozenset(STORED) | {"", "case", "case/heat.ini", "case/results", "moved", "old", "study"}


# -- the lies ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lie:
    """One plausible answer. `fault` has the values of a fault of the embedded service."""

    name: str
    fault: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One lie: the answer to the `nth` call of an operation for a path. `position` says which one that is of all."""

    api: str
    operation: str
    path: str
    nth: int
    position: str
    lie: Lie

    @property
    def title(self) -> str:
        return f"{self.api} {self.operation} /{self.path} ({self.position}): {self.lie.name}"


def lies(api: str, operation: str) -> list[Lie]:
    """The plausible answers of an operation besides the true one."""
    found: list[Lie] = []
    for pattern, make in LIES:
        if fnmatch.fnmatchcase(operation, pattern):
            found += make(api)
    return list({lie.name: lie for lie in found}.values())


def _body(api: str, text: str = GENERIC) -> str:
    return json.dumps({"message": text} if api == "v1" else {"errors": [text]})


def _refused(*statuses: int) -> Callable[[str], list[Lie]]:
    """The call fails, and nothing is done."""
    return lambda api: [Lie(f"{s}", {"kind": "status", "status": s, "body": _body(api)}) for s in statuses]


def _done(*statuses: int) -> Callable[[str], list[Lie]]:
    """The call is carried out, and an error or nothing is answered."""

    def make(api: str) -> list[Lie]:
        answered = [Lie(f"done, {s}", {"kind": "lie", "status": s, "body": _body(api)}) for s in statuses]
        return [*answered, Lie("done, no answer", {"kind": "drop_reply"})]

    return make


def _late(*statuses: int, answer: object = None) -> Callable[[str], list[Lie]]:
    """The call is carried out some requests after its answer: an error, `answer` with 200, or none."""

    def make(api: str) -> list[Lie]:
        answers: dict[str, dict[str, Any]] = {str(s): {"status": s, "body": _body(api)} for s in statuses}
        answers["no answer"] = {}
        if answer is not None:
            answers["200"] = {"status": 200, "body": _wrapped(api, answer)}
        return [
            Lie(f"{name}, done {when}", {"kind": "late", "amount": amount, **values})
            for name, values in answers.items()
            for when, amount in LATER.items()
        ]

    return make


def _pretended(answer: object) -> Callable[[str], list[Lie]]:
    """The call is answered as if it had been carried out."""
    return lambda api: [Lie("200, not done", {"kind": "status", "status": 200, "body": _wrapped(api, answer)})]


def _wrapped(api: str, value: object) -> str:
    return json.dumps(value if api == "v1" else {"response": value})


def _older(_: str) -> list[Lie]:
    return [Lie("as at first", {"kind": "stale"}), Lie("another one's", {"kind": "swapped"})]


def _changed(**variations: Callable[[Any], Any] | str) -> Callable[[str], list[Lie]]:
    """The answer is changed."""
    return lambda _: [
        Lie(name.replace("_", " "), {"kind": "odd", "variation": vary}) for name, vary in variations.items()
    ]


def _plain(**kinds: dict[str, Any]) -> Callable[[str], list[Lie]]:
    return lambda _: [Lie(name.replace("_", " "), fault) for name, fault in kinds.items()]


def _no_item(where: slice) -> Callable[[Any], Any]:
    """The list without one item. What is no list has its own list, if any, changed."""

    def vary(value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("children"), list):
            return {**value, "children": vary(value["children"])}
        if not isinstance(value, list):
            return value
        return value[where]

    return vary


_LISTS = _changed(
    empty=_no_item(slice(0, 0)), without_the_last=_no_item(slice(-1)), without_the_first=_no_item(slice(1, None))
)
_ACK = {"message": "done"}

STORED_LATER = {"kind": "late", "status": 200, "amount": LATER["much later"]}

LIES: list[tuple[str, Callable[[str], list[Lie]]]] = [
    ("*", _refused(404, 403, 500)),
    ("list", _older),
    ("list", _LISTS),
    ("list-all", _older),
    ("list-all", _LISTS),
    ("view", _older),
    ("view", _LISTS),
    ("entry", _older),
    ("upload-url", _older),
    ("upload-url", _plain(no_link={"kind": "null_link"})),
    ("download-url", _older),
    ("download-url", _plain(no_link={"kind": "null_link"})),
    ("object-get", _refused(416)),
    ("object-get", _changed(all_of_it="ignore-range", another_version="other-etag", other_bytes="shifted-range")),
    ("object-get", _plain(cut_off={"kind": "truncate"})),
    ("object-put", _done(404, 403, 412, 500)),
    ("object-put", _plain(stored_otherwise={"kind": "corrupt"}, as_if_stored={"kind": "pretend"})),
    ("object-put", _plain(no_etag={"kind": "status", "status": 200}, stored_later=STORED_LATER)),
    ("object-put", _late(500)),
    ("delete", _refused(409)),
    ("delete", _done(404, 403, 409, 500)),
    ("delete", _pretended(True)),
    ("delete", _late(403, 404, 500, answer=True)),
    ("launch", _refused(400, 401, 409, 429)),
    ("launch", _done(400, 401, 403, 404, 405, 409, 429, 500)),
    ("launch", _plain(errors_200={"kind": "errors200"}, page_200={"kind": "html"})),
    ("launch", _late(403, 404, 500)),
    ("stop", _done(404, 403, 409, 500)),
    ("stop", _pretended(_ACK)),
    ("stop", _late(500, answer=_ACK)),
    ("sync", _done(404, 403, 409, 500)),
    ("sync", _pretended(_ACK)),
    ("sync", _late(500, answer=_ACK)),
    ("delete-cache", _pretended(True)),
    ("delete-cache", _late(500, answer=True)),
    ("simulations", _older),
    ("simulations", _LISTS),
    ("simulation", _older),
    ("cpu", _LISTS),
    ("ram", _LISTS),
    ("scripts", _LISTS),
]

# (title of the case, what was violated, both as patterns, and why no client can know)
UNKNOWABLE = [
    (
        "* object-put *: stored otherwise",
        "half made: *",
        "bits flip on the way: the ETag tells afterwards, and the file is sent again",
    ),
    (
        "* object-put *: as if stored",
        "lost: * has nothing, *",
        "the store has proved with the ETag that it has the bytes; listings without the file may as well mean that "
        "others have removed it",
    ),
    (
        "* object-put *: stored later",
        "lost: *",
        "the store had acknowledged this version long ago: if it is listed as newer than the next one, others may as "
        "well have stored it again",
    ),
    (
        "* delete /reborn *, done much later",
        "lost: reborn has nothing, *",
        "a listing had shown the new file: if it is gone then, others may as well have removed it",
    ),
    (
        "* upload-url *: another one's",
        "*",
        "a signed URL is opaque: what is sent to another file's is stored under that file's name",
    ),
    (
        "* launch *: 40?, done *later",
        "twice: *",
        "the launch was refused, and the list had no new run when the same was asked for again: it began later",
    ),
]


def reason(case: Case, violation: str) -> str | None:
    """Why no client can know this, if so."""
    for title, violated, why in UNKNOWABLE:
        if fnmatch.fnmatchcase(case.title, title) and fnmatch.fnmatchcase(violation, violated):
            return why
    return None


# -- all cases -----------------------------------------------------------------------------------------------


def cases(api: str, calls: Sequence[tuple[str, str]], only: str = "*", *, every: bool = False) -> list[Case]:
    """A case for each lie and the first, the middle and the last call of each operation of a day for a path.

    With `every` for each call.
    """
    found = []
    for (operation, path), count in sorted(Counter(calls).items()):
        if path in PATHS and fnmatch.fnmatchcase(operation, only):
            places = {(count + 1) // 2: "middle", count: "last", 1: "first"} if count > 1 else {1: "only"}
            if every:
                places = {nth: f"call {nth}" for nth in range(1, count + 1)}
            found += [
                Case(api, operation, path, nth, place, lie)
                for lie in lies(api, operation)
                for nth, place in sorted(places.items())
            ]
    return found


def run_all(directory: Path, wanted: Sequence[Case], workers: int) -> Iterator[Result]:
    """The results of the cases as they come, from processes of their own."""
    context = multiprocessing.get_context("fork")  # a case may hold functions, which cannot be sent
    todo, done = context.SimpleQueue(), context.SimpleQueue()
    for number in [*range(len(wanted)), *[None] * workers]:
        todo.put(number)
    processes = [context.Process(target=_work_off, args=(directory, wanted, todo, done)) for _ in range(workers)]
    for process in processes:
        process.start()
    try:
        for _ in wanted:
            number, result = done.get()
            yield replace(result, case=wanted[number])
    finally:
        for process in processes:
            process.join(timeout=10)
            process.terminate()


def _work_off(directory: Path, wanted: Sequence[Case], todo: Any, done: Any) -> None:
    try:
        while (number := todo.get()) is not None:
            place = directory / f"{wanted[number].api}-{number}"
            result = day(place, wanted[number].api, wanted[number])
            shutil.rmtree(place, ignore_errors=True)
            done.put((number, replace(result, case=None)))
    finally:
        shutil.rmtree(state_home(), ignore_errors=True)


# -- one case ----------------------------------------------------------------------------------------------


@dataclass
class Result:
    """How a day went. `case` is None for the true one; `log` is the mount's."""

    case: Case | None
    violations: list[str]
    fired: bool
    calls: list[tuple[str, str]]  # operation and path
    seconds: float
    failed: list[str] = field(default_factory=list)  # what the user was told
    log: str = ""

    @property
    def reasons(self) -> list[str | None]:
        """For each violation, why no client can know it, if so."""
        return [None if self.case is None else reason(self.case, violation) for violation in self.violations]

    @property
    def is_fine(self) -> bool:
        return all(self.reasons)

    @property
    def verdict(self) -> str:
        if not self.fired:
            return "not reached"
        if not self.violations:
            return "ok"
        return "cannot be known" if self.is_fine else "VIOLATED"

    def __str__(self) -> str:
        """What is wrong, with what the user was told and the log's last words."""
        title = "the true day" if self.case is None else self.case.title
        notable = [line for line in self.log.splitlines() if not re.search(r"INFO .*: (stored|unmounted)", line)]
        return "\n".join([title, *self.violations, *map("told: {}".format, self.failed), *notable[-40:]])


def day(directory: Path, api: str, case: Case | None) -> Result:
    """A day with one lie, or the true one."""
    began = time.monotonic()
    settings = Settings(hourly_limit=0, pending_seconds=0.05, page_size=3, cache_seconds=60.0)
    with Sandbox(settings=settings) as box:
        box.populate(STORED)
        box.advance(10)
        versions = box.record_versions()
        directory.mkdir()
        clock = Ahead(directory / "ahead")
        m = Mounted(box, directory, api=api, program=clock.program, write_back=0.5, ttl=60, run_ttl=1)
        fault = None
        if case is not None:
            fault = box.faults.add(case.operation, path=case.path, times=1, after=case.nth - 1, **case.lie.fault)
        try:
            with Watchdog(directory) as watchdog:
                today = Work(box, m, clock)
                with going_on(today):
                    start(today)
                    work(today)
                    remount(today)
                    calls = _calls(box)
                    finish(today)
                found = [*check(today), *half_made(today, versions)]
                if m.umount().returncode != 0:
                    found.append("umount: it does not drain")
            if watchdog.fired:
                found.append("hung: the mount was killed")
        except (AssertionError, OSError) as error:
            found, calls = [f"broken: {type(error).__name__}: {error}"[:600]], _calls(box)
            today = Work(box, m, clock)
        finally:
            clean_up(directory)
        fired = fault is not None and fault.fired > 0
        return Result(case, found, fired, calls, time.monotonic() - began, today.failed, m.log())


def _calls(box: Sandbox) -> list[tuple[str, str]]:
    return [(call.operation, call.subject) for call in box.calls.entries()]
