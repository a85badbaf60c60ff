"""Keeps secrets out of text: keys, signed links, licence files, personal desktop links.

Thread-safe. Everything that goes to a log, an error or a screen passes `redact`; never store what it was
given.
"""

from __future__ import annotations

import logging
import re
import threading

from cloudsimfs.text import printable, printable_lines

_SHORTEST = 4  # characters; shorter "secrets" would blank out ordinary words
_HIDDEN = "***"

_lock = threading.Lock()
_secrets: tuple[str, ...] = ()  # guarded by _lock for writing; longest first

_URL = re.compile(r"\b(https?|wss?)://([^\s\"'<>/?#]+)([^\s\"'<>?#]*)([?#][^\s\"'<>]*)?", re.IGNORECASE)
_TOKEN = re.compile(r"(?<=/)(?=[^/]*\d)[A-Za-z0-9_\-.=~%]{20,}(?=/|$)")
_OBJECT = re.compile(r"(/objects/)[^\s\"'<>?]+")
_QUERY = re.compile(r"\?[\w.\-%~]+=[^\s\"'<>]*")
_HEADER = re.compile(r"((?:x-)?api[-_ ]?key[\"']?\s*[:=]\s*)(?:b?[\"'][^\"']*[\"']|[^\s,;&\"'}\])]+)", re.IGNORECASE)
_MEMBER = re.compile(
    r"([\"'](?:key|token|access[-_]?token|secret|password|licen[cs]e[-_]?key)[\"']\s*:\s*)"
    r"(?:\"[^\"]*\"|'[^']*')",
    re.IGNORECASE,
)
_VNC = re.compile(r"(vnc_?url[\"']?\s*[:=]\s*)(?:\"[^\"]*\"|'[^']*'|[^\s,}]+)", re.IGNORECASE)
_BEARER = re.compile(r"(authorization[\"']?\s*[:=]\s*[\"']?)(?:(?:basic|bearer)\s+)?[^\s\"',}]+", re.IGNORECASE)


def register_secret(value: str) -> None:
    """Hide `value` wherever it turns up from now on. Values under 4 characters are ignored."""
    global _secrets
    if len(value) < _SHORTEST:
        return
    with _lock:
        if value not in _secrets:
            _secrets = tuple(sorted({*_secrets, value}, key=len, reverse=True))


def _bare_url(match: re.Match[str]) -> str:
    scheme, authority, path, query = match.groups()
    host = authority.rpartition("@")[2]
    return f"{scheme}://{host}{_TOKEN.sub('...', path)}{'?...' if query else ''}"


def redact(text: str) -> str:
    """`text` without registered secrets, key values, query strings of URLs and tokens in signed links."""
    for secret in _secrets:
        if secret in text:
            text = text.replace(secret, _HIDDEN)
    text = _VNC.sub(rf"\g<1>{_HIDDEN}", text)
    text = _URL.sub(_bare_url, text)
    text = _OBJECT.sub(r"\g<1>...", text)
    text = _HEADER.sub(rf"\g<1>{_HIDDEN}", text)
    text = _MEMBER.sub(rf"\g<1>{_HIDDEN}", text)
    text = _BEARER.sub(rf"\g<1>{_HIDDEN}", text)
    return _QUERY.sub("?...", text)


class RedactingFilter(logging.Filter):
    """For handlers whose formatter is not ours: rewrites the record itself, traceback included."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg = redact(record.getMessage())
        record.args = None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = redact(record.exc_text)
        if record.stack_info:
            record.stack_info = redact(record.stack_info)
        return True


class RedactingFormatter(logging.Formatter):
    """Formats as usual, then hides what is secret in the whole text, traceback included.

    The message is on one line, and a traceback is indented: a name with a newline cannot look like another record.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return redact(printable_lines(super().format(record)).replace("\n", "\n  "))
