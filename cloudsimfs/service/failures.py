"""What a reply's status and text mean: the map from HTTP to the errors of `cloudsimfs.errors`. Pure, no I/O.

The service documents no statuses of failures; the rules are those of docs/service.md, "Errors".
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from cloudsimfs.errors import (
    BadReply,
    BudgetSpent,
    KeyRefused,
    NoSuchEntry,
    NotOffered,
    Refused,
    ServerFault,
    ServiceError,
    TimedOut,
    Unexplained,
    VersionNotEnabled,
)
from cloudsimfs.service import answers
from cloudsimfs.service.answers import Element
from cloudsimfs.service.call import Call
from cloudsimfs.service.parsing import excerpt

_RATE = re.compile(r"rate.?limit|too many requests|quota|limit (?:exceeded|reached)", re.IGNORECASE)
_KEY = re.compile(r"unauthori[sz]ed|unauthenticated|forbidden|\bapi.?key\b|invalid key|access denied", re.IGNORECASE)
_NOT_ENABLED = re.compile(r"not (?:yet |been )*(?:enabled|activated|available)|no access", re.IGNORECASE)
# texts that v2 sends whatever the cause (docs/service.md, "Envelopes"), and similar ones
_NO_CAUSE = re.compile(
    r"technical (?:problem|error|difficult)|try again|something went wrong|unexpected|internal error", re.IGNORECASE
)
_OF_VERSION = re.compile(r"\bv2\b|\bversion\b|\buser\b|\baccount\b", re.IGNORECASE)


def is_page(headers: Mapping[str, str], content: bytes | bytearray) -> bool:
    """Whether this is a web page, which comes from a gateway or a portal, not from the API."""
    if "html" in headers.get("content-type", "").lower():
        return True
    return content[:64].lstrip()[:1] == b"<"


def errors_text(value: Any) -> str | None:
    """The texts of `{"errors": [...]}`; None if the value is no failure envelope."""
    if not isinstance(value, dict) or "id" in value:
        return None
    errors = value.get("errors") or value.get("error")
    if not errors:
        return None
    if isinstance(errors, dict):
        errors = list(errors.values())
    texts = errors if isinstance(errors, list) else [errors]
    return excerpt("; ".join(text if isinstance(text, str) else excerpt(text) for text in texts))


def decode(call: Call, headers: Mapping[str, str], content: bytes | bytearray) -> Any:
    """The JSON value of a 2xx reply. Raises BadReply, or the error that its `errors` mean."""
    if is_page(headers, content):
        raise ServerFault(f"{call.label}: a web page came instead of an answer: {excerpt(content)}")
    try:
        value = answers.parse(content)
    except (ValueError, RecursionError) as error:
        if call.ack:
            return None
        raise _unreadable(call, error, content) from None
    return _without_errors(call, value)


def decode_elements(call: Call, headers: Mapping[str, str], blocks: Iterator[bytes], element: Element) -> Any:
    """The same for a list without pages, while it comes. `element` of each element is kept."""
    start = next(blocks, b"")
    if is_page(headers, start):
        raise ServerFault(f"{call.label}: a web page came instead of an answer: {excerpt(start)}")
    try:
        value = answers.parse_elements(itertools.chain([start], blocks), element)
    except (ValueError, RecursionError) as error:
        raise _unreadable(call, error, start) from None
    return _without_errors(call, value)


def _unreadable(call: Call, error: Exception, content: bytes | bytearray) -> BadReply:
    if isinstance(error, answers.OverBound):
        return BadReply(f"{call.label}: the answer {error}")
    return BadReply(f"{call.label}: the answer is not JSON: {excerpt(content)}")


def _without_errors(call: Call, value: Any) -> Any:
    reason = errors_text(value)
    if reason is not None:
        raise _by_text(call, reason, reason)
    return value


def failure(call: Call, status: int, headers: Mapping[str, str], content: bytes | bytearray) -> ServiceError:
    """The error that a reply with a status other than 2xx stands for."""
    page = is_page(headers, content)
    reason = _reason(headers, content)
    text = f"{call.label}: HTTP {status}" + (f": {reason}" if reason else "")
    if status == 429 or (status == 403 and _RATE.search(reason)):
        return BudgetSpent(text)
    if status == 401:
        return VersionNotEnabled(text) if _names_version(call, reason) else KeyRefused(text)
    if status == 403 and not reason:
        return KeyRefused(text)
    if status == 403:
        return Unexplained(text) if page else _by_text(call, reason, text)
    if status in (405, 501):
        return NotOffered(text)
    if status == 404:
        if call.subject is None or page:  # a gateway's page says nothing about an entry
            return NotOffered(f"{text}: the service has no such call; is the base URL right?")
        return NoSuchEntry(f"{call.label}: no such {call.subject}" + (f": {reason}" if reason else ""))
    if status == 408:
        return TimedOut(text)
    if status >= 500:
        return ServerFault(text)
    return Unexplained(text) if page else Refused(text)


def is_open(error: ServiceError, status: int, headers: Mapping[str, str], content: bytes | bytearray) -> bool:
    """Whether the service may have executed the call in spite of this reply."""
    if status >= 500 or status == 408 or 300 <= status < 400:
        return status != 501
    return isinstance(error, Unexplained) or is_page(headers, content) or (status == 403 and not content.strip())


def _by_text(call: Call, reason: str, text: str) -> ServiceError:
    """The error for a failure that only its text explains: v2 answers 403 whatever the cause."""
    if not text.startswith(call.label):
        text = f"{call.label}: {text}"
    if _RATE.search(reason):
        return BudgetSpent(text)
    if _names_version(call, reason):
        return VersionNotEnabled(text)
    if _KEY.search(reason):
        return KeyRefused(text)
    return Unexplained(text) if _NO_CAUSE.search(reason) else Refused(text)


def _names_version(call: Call, reason: str) -> bool:
    """Whether the text says that the account has no API v2."""
    return call.version == "v2" and bool(_NOT_ENABLED.search(reason) and _OF_VERSION.search(reason))


def _reason(headers: Mapping[str, str], content: bytes | bytearray) -> str:
    """What the reply gives as the reason; empty if nothing."""
    if is_page(headers, content):
        return "(a web page)"
    try:
        value = answers.parse(content)
    except (ValueError, RecursionError):
        return excerpt(content)
    reason = errors_text(value)
    if reason is not None:
        return reason
    if isinstance(value, dict):
        value = value.get("message") or value.get("detail") or value
    return "" if not value else excerpt(value)


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds to wait by the Retry-After header, which has seconds or a date; None without a usable one."""
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    stamp = _timestamp(value)
    return None if stamp is None else max(0.0, stamp - now)


def ahead(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds by which the sender's clock is ahead of `now`. Its Date header has whole seconds only."""
    stamp = _timestamp(headers.get("date", ""))
    return None if stamp is None else stamp - now


def _timestamp(value: str) -> float | None:
    try:
        moment = parsedate_to_datetime(value)
        return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
