"""What all replies share, and runs, links and lookups: reply values to the product's own values.

Pure and thread-safe; tolerant of every shape docs/service.md names. A reply that fits nothing is BadReply,
which names the call and shows the reply's start, redacted. Storage entries are parsed by `entries`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote, urlsplit

from cloudsimfs import paths
from cloudsimfs.errors import BadReply
from cloudsimfs.redact import redact
from cloudsimfs.service.call import Call
from cloudsimfs.service.model import Image, RunStatus, Simulation

log = logging.getLogger(__name__)

Hook = Callable[[dict[str, Any]], Any]

_MAX = 2**63 - 1
_SHOWN = 200  # characters of a strange reply that an error shows
_LOOKED_AT = 8192  # characters of it that are redacted before it is cut to that
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
CHILD_MEMBERS = ("children", "files", "content", "list")
_LIST_MEMBERS = ("items", "entries", "results", "simulations", *CHILD_MEMBERS)
_URL_MEMBERS = ("url", "uploadUrl", "downloadUrl", "mediaLink", "signedUrl")
_OPTION_MEMBERS = ("value", "name", "label", "cpu", "ram", "script", "id")
_PICTURE_MEMBERS = ("url", "src", "mediaLink", "data", "content", "image", "path", "name")
_TITLE_MEMBERS = ("name", "basename", "title", "path")


def excerpt(value: Any) -> str:
    """The start of a strange reply, fit to be shown."""
    if isinstance(value, (bytes, bytearray)):
        text = value[:_LOOKED_AT].decode("utf-8", "replace")
    elif isinstance(value, str):
        text = value
    else:
        try:
            text = json.dumps(value)
        except (ValueError, TypeError, RecursionError):
            text = type(value).__name__
    text = redact(" ".join(text[:_LOOKED_AT].split()))
    text = "".join(each if each.isprintable() else "?" for each in text)  # nothing a terminal would obey
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def bad_reply(call: Call, value: Any, wanted: str) -> BadReply:
    return BadReply(f"{call.label}: the answer is not {wanted}: {excerpt(value)}")


def unwrap(value: Any) -> Any:
    """The value inside `{"response": ...}` or `{"data": ...}`; a bare value is itself."""
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
    """A whole number from 0 to 2**63-1, also as a numeric string; None if it is anything else."""
    if isinstance(value, str):
        value = value.strip()
        if not (value.isascii() and value.isdigit() and len(value) <= 19):
            return None
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX:
        return value
    return None


def timestamp_ns(value: Any) -> int | None:
    """Nanoseconds since the epoch from ISO 8601 or `YYYY-MM-DD HH:MM:SS`; without a zone it is UTC."""
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
    """A member as text; null and what is no scalar is empty."""
    if isinstance(value, str):
        return value
    return "" if value is None or isinstance(value, (dict, list, bool)) else str(value)


def _log_text(value: Any) -> str | None:
    """The log of a run from a string, or from a list of lines."""
    if isinstance(value, list):
        lines = (each if isinstance(each, str) else excerpt(each) for each in value)
        return "".join(line if line.endswith("\n") else line + "\n" for line in lines)
    return value if isinstance(value, str) else None


def _status(value: Any) -> int | None:
    if isinstance(value, str) and value.strip().upper() in RunStatus.__members__:
        return int(RunStatus[value.strip().upper()])
    return integer(value)


def _pictures(value: Any) -> tuple[Image, ...]:
    found: dict[str, Image] = {}
    for number, each in enumerate(value if isinstance(value, list) else (), 1):
        told = None
        if isinstance(each, dict):
            told = next((each[member] for member in _TITLE_MEMBERS if isinstance(each.get(member), str)), None)
            each = next((each[member] for member in _PICTURE_MEMBERS if isinstance(each.get(member), str)), None)
        if isinstance(each, str) and each:
            name = _picture_name(told, each, number)
            name = name if name not in found else f"{number}-{name}"
            found[name] = Image(name, each)
    return tuple(found.values())


def _picture_name(told: str | None, source: str, number: int) -> str:
    """A file name: the one the service told, else the end of the URL, else a number."""
    try:
        from_url = urlsplit(source).path if source.startswith(("http://", "https://")) else ""
    except ValueError:
        from_url = ""
    for name in (told or "", unquote(from_url)):
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
        images=_pictures(raw.get("images")),
        raw=raw,
    )


def simulation(call: Call, reply: Any) -> Simulation:
    """One run. Raises BadReply."""
    value = unwrap(reply)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, dict) and isinstance(value.get("simulation"), dict):
        value = value["simulation"]
    found = _simulation(value)
    if found is None:
        raise bad_reply(call, reply, "a simulation")
    return found


def simulations(call: Call, reply: Any) -> list[Simulation]:
    """The runs of a list or a page. Raises BadReply."""
    sent = items(call, reply, "a list of simulations")
    found = [each for each in map(_simulation, sent) if each is not None]
    if len(found) < len(sent):
        log.warning("%s: %d simulations refused: no usable id or status", call.label, len(sent) - len(found))
    return found


def launched(call: Call, reply: Any) -> int:
    """The id of a launched run: a bare id, or a simulation. Raises BadReply."""
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
        known = [value[member] for member in _URL_MEMBERS if member in value]
        if not known:
            raise BadReply(f"{call.label}: the answer has no link (members: {excerpt(sorted(map(str, value)))})")
        value = next((each for each in known if each), None)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or not value.startswith(("http://", "https://")):
        raise BadReply(f"{call.label}: the answer is no link")
    return value


def options(call: Call, reply: Any) -> tuple[str, ...]:
    """The values of a lookup, in the service's order, each once. Raises BadReply."""
    value = unwrap(reply)
    if isinstance(value, dict):
        inner = [each for each in value.values() if isinstance(each, list)]
        value = inner[0] if len(inner) == 1 else value
    if not isinstance(value, list):
        raise bad_reply(call, reply, "a list of values")
    found: dict[str, None] = {}
    for each in value:
        if isinstance(each, dict):
            each = next((each[member] for member in _OPTION_MEMBERS if member in each), None)
        text = _text(each).strip()
        if text and text.isprintable():
            found[text] = None
    if value and not found:
        raise bad_reply(call, reply, "a list of values")
    return tuple(found)
