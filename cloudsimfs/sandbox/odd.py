"""Odd shapes: answers that docs/service.md assumes, which a client must understand, and some that it need not.

A variation turns the value of an answer into another value. The server itself makes the `ENVELOPES`. Pure. Must
never change a value in place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloudsimfs.sandbox.wire import Reply

Variation = Callable[[Any], Any]

ENVELOPES = ("wrapped", "wrapped-data", "unwrapped", "non-json", "empty")
"""Variations of the envelope: `{"response": v}` in v1, `{"data": v}`, no envelope in v2, text, no body."""

OBJECT_VARIATIONS = ("ignore-range", "no-etag", "other-etag", "shifted-range")
"""For object-get: the whole object with 200 in spite of a Range, no ETag, a wrong ETag, a wrong Content-Range."""


def _entries(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Variation:
    """A variation that applies `change` to every object inside."""

    def vary(value: Any) -> Any:
        if isinstance(value, list):
            return [vary(item) for item in value]
        if isinstance(value, dict):
            return change({name: vary(item) for name, item in value.items()})
        return value

    return vary


def _with(name: str, convert: Callable[[Any], Any]) -> Variation:
    return _entries(lambda entry: {**entry, name: convert(entry[name])} if name in entry else entry)


def _without(name: str) -> Variation:
    return _entries(lambda entry: {key: value for key, value in entry.items() if key != name})


def _rename(old: str, new: str) -> Variation:
    return _entries(lambda entry: {new if key == old else key: value for key, value in entry.items()})


def _slash(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "name": f"{entry['name']}/"} if entry.get("type") == "dir" else entry


def _link_name(new: str) -> Variation:
    names = ("url", "mediaLink")
    return _entries(lambda entry: {new if key in names else key: value for key, value in entry.items()})


def _bare_link(value: Any) -> Any:
    return value.get("url", value.get("mediaLink")) if isinstance(value, dict) else value


VARIATIONS: dict[str, Variation] = {
    "size-string": _with("size", str),
    "size-null": _with("size", lambda _: None),
    "size-missing": _without("size"),
    "time-sql": _with("timeCreated", lambda text: text[:19].replace("T", " ")),
    "time-missing": _without("timeCreated"),
    "time-null": _with("timeCreated", lambda _: None),
    "dir-slash": _entries(_slash),
    "children-files": _rename("children", "files"),
    "children-content": _rename("children", "content"),
    "children-list": _rename("children", "list"),
    "link-bare": _bare_link,
    "link-url": _link_name("url"),
    "link-uploadUrl": _link_name("uploadUrl"),
    "link-downloadUrl": _link_name("downloadUrl"),
    "link-mediaLink": _link_name("mediaLink"),
    "link-signedUrl": _link_name("signedUrl"),
    "unknown-members": _entries(lambda entry: {"x-new": {"deep": [1]}, **entry, "zz": None}),
    "null": lambda _: None,
    "id-string": _with("id", str),
}
KNOWN = frozenset((*VARIATIONS, *ENVELOPES, *OBJECT_VARIATIONS))


def vary_object(variation: str | Variation | None, reply: Reply) -> Reply:
    """The reply of an object-get with one of `OBJECT_VARIATIONS`, or changed by a callable."""
    if callable(variation):
        changed: Reply = variation(reply)
        return changed
    headers = dict(reply.headers)
    if variation == "no-etag":
        headers.pop("ETag", None)
    elif variation == "other-etag":
        headers["ETag"] = '"0000"'
    elif variation == "shifted-range" and "Content-Range" in headers:
        start, _, rest = headers["Content-Range"].removeprefix("bytes ").partition("-")
        headers["Content-Range"] = f"bytes {int(start) + 1}-{rest}"
    return replace(reply, headers=headers)
