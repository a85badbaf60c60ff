"""Text for people: counts with the right plural, lists of words, and sizes. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

MIB = 1 << 20  # bytes
GIB = 1 << 30

_UNITS = {"": 1, "K": 1 << 10, "M": MIB, "G": GIB, "T": 1 << 40}


def count(number: int, noun: str) -> str:
    """`1 file`, `2 files`, `3 launches`."""
    ending = "" if number == 1 else "es" if noun.endswith(("ch", "sh", "s", "x")) else "s"
    return f"{number} {noun}{ending}"


def agree(number: int, one: str, many: str) -> str:
    """The form of a verb that agrees with a count: `1 file waits`, `2 files wait`."""
    return one if number == 1 else many


def listed(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def mib(size: float) -> str:
    """A number of bytes as `1.5 MiB`."""
    return f"{size / MIB:.1f} MiB"


def gib(size: float) -> str:
    """A number of bytes as `1.5 GiB`."""
    return f"{size / GIB:.1f} GiB"


def printable(text: str) -> str:
    """The text on one line, and without what would control a terminal or turn its words round: `\\n`, `\\x1b`.

    What is printable stays as it is, so an escape cannot be told from the same letters in a name.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def printable_lines(text: str) -> str:
    """The same for text of several lines, which may be indented by tabs."""
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


def parse_size(text: str) -> int:
    """`20G`, `512MiB`, `1000` as bytes; K, M, G, T are powers of 1024. Raises ValueError with the remedy."""
    match = re.fullmatch(r"\s*+(\d+(?:\.\d+)?)\s*+([KMGT]?)(?:i?B)?\s*+", text, re.IGNORECASE)
    if match is None:
        raise ValueError("not a size; write for example 500M or 20G")
    return int(float(match[1]) * _UNITS[match[2].upper()])
