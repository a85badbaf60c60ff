"""Storage entries from replies: listings, single entries, view-by-path.

Pure and thread-safe. Replies are not trusted (docs/architecture.md, invariant 10d): an entry with an impossible name,
id, size or folder is left out. One log line per reply counts the entries left out.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cloudsimfs import paths
from cloudsimfs.errors import BadReply
from cloudsimfs.service.answers import MAX_NAMES, Element, OverBound
from cloudsimfs.service.call import Call
from cloudsimfs.service.model import Entry, View
from cloudsimfs.service.parsing import (
    CHILD_MEMBERS,
    bad_reply,
    excerpt,
    integer,
    items,
    timestamp_ns,
    unwrap,
)

log = logging.getLogger(__name__)

_NO_MEMBERS = "no members"
_DIRECTORY_TYPES = frozenset({"dir", "directory", "folder"})


class _Refused(Exception):
    """An entry is left out. The text says why."""


class _Folders:
    """Checks and interns dirnames. One per listing: nearly all its entries share them."""

    def __init__(self) -> None:
        self._clean: dict[str, str] = {}  # by the dirname as it was sent
        self.size = 0  # bytes of memory

    def clean(self, dirname: str) -> str:
        folder = self._clean.get(dirname)
        if folder is None:
            folder = dirname.strip("/")
            if folder == ".":
                folder = paths.ROOT
            if folder and not all(paths.is_safe_name(part) for part in folder.split("/")):
                raise _Refused("an unsafe folder")
            folder = self._clean[dirname] = sys.intern(folder)
            self.size += sys.getsizeof(dirname) + sys.getsizeof(folder)
        return folder


def _place(raw: Mapping[str, Any], folders: _Folders, listed: str | None) -> tuple[str, str]:
    """(dirname, name) of an entry. `listed` is the folder that was listed; None if all entries were."""
    whole, last, dirname = raw.get("name"), raw.get("basename"), raw.get("dirname")
    whole = whole.strip("/") if isinstance(whole, str) else ""
    last = last.strip("/") if isinstance(last, str) else ""
    above, slash, end = whole.rpartition("/")
    if not last:
        last = end
    if isinstance(dirname, str):
        folder = folders.clean(dirname)
    elif slash:
        folder = folders.clean(above)
    elif listed is not None:
        folder = listed
    else:
        folder = paths.ROOT
    if not paths.is_safe_name(last):
        raise _Refused("an unsafe name")
    if (slash and whole != (f"{folder}/{last}" if folder else last)) or (not slash and end not in ("", last)):
        raise _Refused("a name and a folder that disagree")
    if listed is not None and folder != listed:
        raise _Refused("a folder other than the listed one")
    return folder, last


def _size(raw: Mapping[str, Any]) -> int | None:
    value = raw.get("size")
    if value is None or value == "":
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    size = integer(value)
    if size is None:
        raise _Refused("an impossible size")
    return size


def _is_directory(raw: Mapping[str, Any]) -> bool:
    kind = raw.get("type")
    if isinstance(kind, str) and kind:
        return kind.lower() in _DIRECTORY_TYPES
    name = raw.get("name")
    return (isinstance(name, str) and name.endswith("/")) or raw.get("size") == ""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Stands in a list for an element that is no usable entry: `listing` counts it."""

    reason: str


def element(listed: str | None) -> Element:
    """For a list without pages: turns each element into an Entry, or a LeftOut, as soon as it is read."""
    folders = _Folders()
    left_out: dict[str, LeftOut] = {}
    names = 0  # bytes

    def keep(raw: Any) -> Entry | LeftOut:
        nonlocal names
        try:
            entry = _entry(raw, folders, listed)
        except _Refused as reason:
            return left_out.setdefault(str(reason), LeftOut(str(reason)))
        names += sys.getsizeof(entry.name)
        if names + folders.size > MAX_NAMES:
            raise OverBound(f"has names of more than {MAX_NAMES} bytes")
        return entry

    return keep


def _entry(raw: Any, folders: _Folders, listed: str | None) -> Entry:
    if isinstance(raw, Entry):
        return raw  # made by `element`, as is the next
    if isinstance(raw, LeftOut):
        raise _Refused(raw.reason)
    if not isinstance(raw, dict):
        raise _Refused(_NO_MEMBERS)
    ident = integer(raw.get("id"))
    if not ident:
        raise _Refused("no usable id")
    dirname, name = _place(raw, folders, listed)
    if _is_directory(raw):
        return Entry(ident, dirname, name, True, 0, timestamp_ns(raw.get("timeCreated")))
    size = _size(raw)
    return Entry(ident, dirname, name, False, size or 0, timestamp_ns(raw.get("timeCreated")), size is not None)


def _entries(call: Call, items: Iterable[Any], listed: str | None) -> list[Entry]:
    folders = _Folders()
    entries: list[Entry] = []
    refused: dict[str, int] = {}
    for raw in items:
        try:
            entries.append(_entry(raw, folders, listed))
        except _Refused as reason:
            refused[str(reason)] = refused.get(str(reason), 0) + 1
    if refused:
        counts = ", ".join(f"{count} with {reason}" for reason, count in refused.items())
        log.warning("%s: entries refused: %s", call.label, counts)
    return entries


def _is_entry(item: Any) -> bool:
    """Whether it is an entry of some kind, though perhaps not a usable one."""
    return isinstance(item, dict) or (isinstance(item, LeftOut) and item.reason != _NO_MEMBERS)


def listing(call: Call, reply: Any, folder: str | None) -> list[Entry]:
    """A folder's listing, a page of it, or all entries (`folder` None). Raises BadReply."""
    sent = items(call, reply, "a listing")
    entries = _entries(call, sent, None if folder is None else sys.intern(folder))
    if sent and not entries and not any(map(_is_entry, sent)):
        raise bad_reply(call, reply, "a listing")
    return entries


def entry(call: Call, reply: Any) -> Entry:
    """One entry. Raises BadReply."""
    value = unwrap(reply)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    try:
        return _entry(value, _Folders(), None)
    except _Refused as reason:
        raise BadReply(f"{call.label}: the answer is not an entry ({reason}): {excerpt(reply)}") from None


def view(call: Call, reply: Any, path: str) -> View | None:
    """What view-by-path says about `path`; None if it says that nothing is there. Raises BadReply."""
    value = unwrap(reply)
    dirname, name = paths.split(path)
    if value is None or value == []:
        return None
    if isinstance(value, list):
        if len(value) == 1 and isinstance(value[0], dict):
            single = _entries(call, value, None)
            if single and single[0].path == path:
                return View(single[0])
        return View(Entry(0, dirname, name, True), listing(call, value, path))
    if not isinstance(value, dict):
        raise bad_reply(call, reply, "an entry")
    member = next((name for name in CHILD_MEMBERS if isinstance(value.get(name), list)), None)
    children = None if member is None else _entries(call, value[member], path)
    if member is not None and "id" not in value:
        return View(Entry(0, dirname, name, True), children)
    own = entry(call, value)
    if own.path != path:
        raise BadReply(f"{call.label}: the answer is about another path: {excerpt(own.path)}")
    return View(own, children)
