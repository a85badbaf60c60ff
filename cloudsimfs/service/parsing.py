"""Replies as values of `model`: the parts that all replies share, runs, links and lookups.

Pure and thread-safe. Every shape that docs/service.md names is understood. Any other reply raises BadReply, which
names the call and shows the start of the reply, redacted. `entries` parses storage entries.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote, urlsplit

from cloudsimfs import paths
from cloudsimfs.errors import BadReply
from cloudsimfs.redact import redact
from cloudsimfs.service.call import Call
from cloudsimfs.service.model import Image, RunStatus, Simulation

log = logging.getLogger(__name__)

_MAX_INTEGER = 2**63 - 1
_EXCERPT_LENGTH = 200  # characters of a strange reply that an error shows
_EXCERPT_SOURCE = 64 << 10  # characters of it that are redacted before it is cut: a secret may straddle the cut
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
CHILD_MEMBERS = ("children", "files", "content", "list")
_LIST_MEMBERS = ("items", "entries", "results", "simulations", *CHILD_MEMBERS)
_URL_MEMBERS = ("url", "uploadUrl", "downloadUrl", "mediaLink", "signedUrl")
_OPTION_MEMBERS = ("value", "name", "label", "cpu", "ram", "script", "id")
_IMAGE_MEMBERS = ("url", "src", "mediaLink", "data", "content", "image", "path", "name")
_TITLE_MEMBERS = ("name", "basename", "title", "path")


def excerpt(value: Any) -> str:
    """The start of a strange reply: redacted, on one line, printable."""
    if isinstance(value, (bytes, bytearray)):
        text = value[:_EXCERPT_SOURCE].decode("utf-8", "replace")
    elif isinstance(value, str):
        text = value
    else:
        try:
            text = json.dumps(value)
        except (ValueError, TypeError, RecursionError):
            text = type(value).__name__
    text = redact(" ".join(text[:_EXCERPT_SOURCE].split()))
    text = "".join(char if char.isprintable() else "?" for char in text)  # no terminal escapes
    return text if len(text) <= _EXCERPT_LENGTH else text[: _EXCERPT_LENGTH - 3] + "..."


def bad_reply(call: Call, value: Any, wanted: str) -> BadReply:
    """The error for a reply that is not `wanted` ("a listing")."""
    return BadReply(f"{call.label}: the answer is not {wanted}: {excerpt(value)}")


def unwrap(value: Any) -> Any:
    """The value inside `{"response": ...}` or `{"data": ...}`; a bare value as it is."""
    for _ in range(3):
        if not isinstance(value, dict) or "id" in value:
            return value
        if "response" in value:
            value = value["response"]
        elif "data" in value and "name" not in value:
            value = value["data"]
        else:
            return value
    return value


def integer(value: Any) -> int | None:
    """A whole number from 0 to 2**63-1, also from a numeric string; None for anything else."""
    if isinstance(value, str):
        value = value.strip()
        if not (value.isascii() and value.isdigit() and len(value) <= 19):
            return None
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_INTEGER:
        return value
    return None


def timestamp_ns(value: Any) -> int | None:
    """Nanoseconds since the epoch from ISO 8601 or `YYYY-MM-DD HH:MM:SS`. Without a zone, the time is UTC."""
    if not isinstance(value, str) or not value:
        return None
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return (moment - _EPOCH) // _MICROSECOND * 1000
    except (ValueError, OverflowError):
        return None


def items(call: Call, reply: Any, wanted: str = "a list") -> list[Any]:
    """The list in a reply, bare or in an envelope. Raises BadReply."""
    value = unwrap(reply)
    if isinstance(value, dict):
        for member in _LIST_MEMBERS:
            if isinstance(value.get(member), list):
                value = value[member]
                break
    if not isinstance(value, list):
        raise bad_reply(call, reply, wanted)
    return value


# -- simulations ------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    """A member as text. Null, and anything but a string or a number, is empty."""
    if isinstance(value, str):
        return value
    return "" if value is None or isinstance(value, (dict, list, bool)) else str(value)


def _log_text(value: Any) -> str | None:
    """The log of a run, from a string or from a list of lines."""
    if isinstance(value, list):
        lines = (line if isinstance(line, str) else excerpt(line) for line in value)
        return "".join(line if line.endswith("\n") else line + "\n" for line in lines)
    return value if isinstance(value, str) else None


def _status(value: Any) -> int | None:
    if isinstance(value, str) and value.strip().upper() in RunStatus.__members__:
        return int(RunStatus[value.strip().upper()])
    return integer(value)


def _images(value: Any) -> tuple[Image, ...]:
    images: dict[str, Image] = {}
    for number, item in enumerate(value if isinstance(value, list) else (), 1):
        title, source = None, item
        if isinstance(item, dict):
            title = _first_text(item, _TITLE_MEMBERS)
            source = _first_text(item, _IMAGE_MEMBERS)
        if isinstance(source, str) and source:
            name = _image_name(title, source, number)
            name = name if name not in images else f"{number}-{name}"
            images[name] = Image(name, source)
    return tuple(images.values())


def _first_text(item: Mapping[str, Any], members: Iterable[str]) -> str | None:
    """The first of these members that is text."""
    return next((item[member] for member in members if isinstance(item.get(member), str)), None)


def _image_name(title: str | None, source: str, number: int) -> str:
    """A file name: the title from the service, else the end of the URL, else a number."""
    try:
        from_url = urlsplit(source).path if source.startswith(("http://", "https://")) else ""
    except ValueError:
        from_url = ""
    for name in (title or "", unquote(from_url)):
        name = name.rpartition("/")[2]
        if name.isprintable() and len(name) <= 100 and paths.is_safe_name(name):
            return name
    return f"image-{number}.png"


def _simulation(raw: Any) -> Simulation | None:
    if not isinstance(raw, dict):
        return None
    ident, status = integer(raw.get("id")), _status(raw.get("status"))
    if not ident or status is None:
        return None
    output, logs = _log_text(raw.get("output")), _log_text(raw.get("logs"))
    return Simulation(
        id=ident,
        status=status,
        script=_text(raw.get("script")),
        cpu=integer(raw.get("cpu")) or 0,
        ram=_text(raw.get("ram")),
        folder=_text(raw.get("folder")).strip("/"),
        nopre=integer(raw.get("nopre")),
        mesh=_text(raw.get("mesh")) or None,
        started=_text(raw.get("idate")),
        ended=_text(raw.get("edate")),
        output=output or (output if logs is None else logs),
        images=_images(raw.get("images")),
        raw=raw,
    )


def simulation(call: Call, reply: Any) -> Simulation:
    """One run. Raises BadReply."""
    value = unwrap(reply)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, dict) and isinstance(value.get("simulation"), dict):
        value = value["simulation"]
    run = _simulation(value)
    if run is None:
        raise bad_reply(call, reply, "a simulation")
    return run


def simulations(call: Call, reply: Any) -> list[Simulation]:
    """The runs of a list or a page. Raises BadReply."""
    sent = items(call, reply, "a list of simulations")
    runs = [run for run in map(_simulation, sent) if run is not None]
    if len(runs) < len(sent):
        log.warning("%s: %d simulations refused: no usable id or status", call.label, len(sent) - len(runs))
    return runs


def launched(call: Call, reply: Any) -> int:
    """The id of a launched run, from a bare id or a simulation. Raises BadReply."""
    value = unwrap(reply)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    for member in ("simulation", "id", "simulation_id", "simulationId"):
        if isinstance(value, dict) and member in value:
            value = value[member]
    ident = integer(value)
    if not ident:
        raise bad_reply(call, reply, "the id of a simulation")
    return ident


# -- links and lookups ------------------------------------------------------------------------------


def link(call: Call, reply: Any) -> str | None:
    """A signed URL; None if the service has none yet. Raises BadReply."""
    value = unwrap(reply)
    if isinstance(value, dict):
        urls = [value[member] for member in _URL_MEMBERS if member in value]
        if not urls:
            raise BadReply(f"{call.label}: the answer has no link (members: {excerpt(sorted(map(str, value)))})")
        value = next((url for url in urls if url), None)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or not value.startswith(("http://", "https://")):
        raise BadReply(f"{call.label}: the answer is not a link")
    return value


def options(call: Call, reply: Any) -> tuple[str, ...]:
    """The values of a lookup in the service's order, without repeats. Raises BadReply."""
    value = unwrap(reply)
    if isinstance(value, dict):
        inner = [member for member in value.values() if isinstance(member, list)]
        value = inner[0] if len(inner) == 1 else value
    if not isinstance(value, list):
        raise bad_reply(call, reply, "a list of values")
    texts: dict[str, None] = {}  # for its order
    for item in value:
        if isinstance(item, dict):
            item = next((item[member] for member in _OPTION_MEMBERS if member in item), None)
        text = _text(item).strip()
        if text and text.isprintable():
            texts[text] = None
    if value and not texts:
        raise bad_reply(call, reply, "a list of values")
    return tuple(texts)
