"""JSON from the service, within bounds of memory that hold whatever is sent (docs/architecture.md, invariant 12).

`parse` reads an answer whose bytes are here. `parse_elements` reads a list that has no pages while it comes: each
element is replaced by what is kept of it, so the list is never in memory as it was sent. Pure.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

# All bounds of API answers. An answer may take 200 MiB while it is read, but for entries that are kept.
MAX_ANSWER = 4 << 20  # bytes of an ordinary answer
MAX_RUNS = 16 << 20  # bytes of an answer with runs, which brings their logs
MAX_LISTING = 1 << 29  # bytes of a list that is read while it comes
MAX_REFUSAL = 1 << 16  # bytes read of an answer that is no success
MAX_ELEMENT = 1 << 16  # characters of one element of such a list
MAX_ELEMENTS = 1_000_000  # elements of a list, also of all its pages
MAX_NAMES = 128 << 20  # bytes of memory for the names in a list
MAX_VALUES = 250_000  # values in an answer, about: brackets, braces and commas outside of strings
MAX_DEPTH = 64  # brackets and braces within each other
_ENVELOPES = 3  # objects around a list
_MEMBERS = 64  # members of such an object

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?+', re.DOTALL)
_BRACKET = re.compile(rb"[][{}]")
_BLANK = re.compile(r"[ \t\n\r]*")
_NO_LISTS = ("errors", "error")

Element = Callable[[Any], Any]
"""What is kept of an element of a list. Raises OverBound."""


class OverBound(ValueError):
    """The answer passes a bound. The text says which: "has more than ..."."""


def _number(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(parse_float=_number, parse_constant=_constant)


def parse(content: bytes | bytearray) -> Any:
    """The value of a whole answer; None if it is empty. Raises ValueError, also for what passes a bound."""
    if not content or content.isspace():
        return None
    _check_structure(content)
    return json.loads(content.decode("utf-8-sig"), parse_float=_number, parse_constant=_constant)


def _check_structure(content: bytes | bytearray) -> None:
    """Count values before they take memory: a list of nothing takes three bytes here, and 64 there."""
    if content.count(b"[") + content.count(b"{") <= MAX_DEPTH and content.count(b",") <= MAX_VALUES // 2:
        return
    outside = _STRING.sub(b"", content)
    if sum(map(outside.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise OverBound(f"has more than {MAX_VALUES} values")
    depth = 0
    for bracket in _BRACKET.finditer(outside):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > MAX_DEPTH:
            raise OverBound(f"is nested more than {MAX_DEPTH} deep")
        if depth < 0:
            return  # no JSON


def parse_elements(blocks: Iterable[bytes], element: Element) -> Any:
    """The value of an answer that comes in blocks, with `element` of each element of the list in it.

    The list may have objects around it. None if the answer is empty. Raises ValueError or RecursionError.
    """
    text = _Text(blocks)
    if not text.peek():
        return None
    value = _outer(text, element, 0)
    if text.peek():
        raise ValueError("more than one value")
    return value


def _outer(text: _Text, element: Element, depth: int) -> Any:
    mark = text.peek()
    if mark == "[":
        return _list(text, element)
    return _envelope(text, element, depth) if mark == "{" and depth < _ENVELOPES else text.value()


def _list(text: _Text, element: Element) -> list[Any]:
    text.take("[")
    kept: list[Any] = []
    if text.peek() == "]":
        text.take("]")
        return kept
    while True:
        kept.append(element(text.value()))
        if len(kept) > MAX_ELEMENTS:
            raise OverBound(f"has more than {MAX_ELEMENTS} elements")
        if text.take(",]") == "]":
            return kept


def _envelope(text: _Text, element: Element, depth: int) -> dict[str, Any]:
    text.take("{")
    members: dict[str, Any] = {}
    if text.peek() == "}":
        text.take("}")
        return members
    while True:
        text.peek()
        name = text.value()
        if not isinstance(name, str) or len(members) == _MEMBERS:
            raise ValueError("not an object around a list")
        text.take(":")
        members[name] = text.value() if name in _NO_LISTS else _outer(text, element, depth + 1)
        if text.take(",}") == "}":
            return members


class _Text:
    """The text of an answer while it comes. What was read is forgotten."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = iter(blocks)
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._at = 0
        self._ended = False

    def _more(self) -> bool:
        if self._ended:
            return False
        block = next(self._blocks, None)
        self._ended = block is None
        self._text = self._text[self._at :] + self._decoder.decode(block or b"", self._ended)
        self._at = 0
        return True

    def peek(self) -> str:
        """The next character that is no blank; empty at the end."""
        while True:
            blank = _BLANK.match(self._text, self._at)
            self._at = blank.end() if blank else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def take(self, marks: str) -> str:
        mark = self.peek()
        if not mark or mark not in marks:
            raise ValueError(f"one of {marks} is missing")
        self._at += 1
        return mark

    def value(self) -> Any:
        """The next value. It is read again from its start if it was not whole: at most once for each block."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except ValueError:
                if self._ended or len(self._text) - self._at > MAX_ELEMENT:
                    raise
            else:
                if end - self._at > MAX_ELEMENT:
                    raise OverBound(f"has an element of more than {MAX_ELEMENT} characters")
                if end < len(self._text) or self._ended:  # else a number may go on
                    self._at = end
                    return value
            self._more()
