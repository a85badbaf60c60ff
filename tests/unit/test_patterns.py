"""Regular expressions take time in proportion to the text: each one of the package is fed its worst cases.

A pattern that backtracks over the same text again and again takes the square of its length. Steps cannot be counted,
so the time for a text is compared with the time for a shorter one of the same kind.
"""

from __future__ import annotations

import ast
import itertools
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import cloudsimfs

ROOT = Path(cloudsimfs.__file__).parent
FUNCTIONS = ("compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer")
SHORT, FACTOR = 400, 16
MOST = 6 * FACTOR  # times the short text's time: a linear pattern takes FACTOR, a quadratic one FACTOR squared
ANCHORED = "vfs/names.py"  # whose pattern is used for whole names only
LEAST = 2e-3  # seconds; a linear pattern takes a twentieth for the long text, a quadratic one fifty times as long

# What is repeated after each beginning.
PUMPS = (" ", "a", "0", "\n")
END = "\x00"
# Texts that the package's patterns wait for. A new pattern that begins with others: add one.
BEGINNINGS = (
    "", "A" * 16, "A" * 16 + "=", "1", "1.5", "1K", "\n", ".", "..swp", "~", ".~lock.", "bytes ", "bytes 1-2/",
    "bytes=", "/", "/1", "/objects/", "?a", "?a=", "http://", "http://h", "http://h/", "http://h/?", "wss://",
    "api key", "x-api-key:", "api_key=", "api_key='", 'api_key="', '"key":', "'token' : ", '"secret":"',
    '"secret":\'', "vnc_url", "vncurl=", 'vncurl="', "authorization", "authorization:", "authorization: bearer",
    "not ", "not yet ", "limit ", "rate", "user_allow_other", "PRUNEFS", "PRUNEFS=", 'PRUNEFS = "',
    "Environment=", "ExecStart=", "\\040", '"0123456789abcdef',
)  # fmt: skip


def patterns() -> Iterator[tuple[str, tuple[re.Pattern[str], bool]]]:
    """Every pattern that the sources write out: the module and line, and whether texts are searched for it."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if _is_pattern(node):
                assert isinstance(node, ast.Call)
                flags = re.NOFLAG
                for value in (*node.args[1:], *(keyword.value for keyword in node.keywords)):
                    if isinstance(value, ast.Attribute) and ast.unparse(value).startswith("re."):
                        flags |= re.RegexFlag[value.attr]
                text = ast.literal_eval(node.args[0])
                text = text.decode("latin-1") if isinstance(text, bytes) else text
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                is_searched = ast.unparse(node.func) != "re.fullmatch" and not where.startswith(ANCHORED)
                yield where, (re.compile(text, flags), is_searched)


def _is_pattern(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in {f"re.{name}" for name in FUNCTIONS}


PATTERNS = dict(patterns())


def seconds(action: Callable[[], object]) -> float:
    begun = time.thread_time()
    action()
    return time.thread_time() - begun


def takes_the_square(pattern: re.Pattern[str], beginning: str, pump: str, *, is_searched: bool = True) -> bool:
    short, long = (beginning + pump * (size // len(pump)) + END for size in (SHORT, SHORT * FACTOR))
    uses: list[Callable[[str], object]] = [pattern.fullmatch]
    if is_searched:
        uses.append(partial(pattern.sub, ""))
    for use in uses:
        for _ in range(3):  # a busy machine may make one seem slow
            took = seconds(partial(use, long))
            if took < LEAST or took < MOST * min(seconds(partial(use, short)) for _ in range(3)):
                break
        else:
            return True
    return False


@pytest.mark.parametrize("where", PATTERNS)
def test_no_pattern_takes_the_square_of_the_text(where: str) -> None:
    pattern, is_searched = PATTERNS[where]
    repeated = [("", beginning) for beginning in BEGINNINGS if beginning]
    for beginning, pump in (*itertools.product(BEGINNINGS, PUMPS), *repeated):
        slow = takes_the_square(pattern, beginning, pump, is_searched=is_searched)
        assert not slow, f"{pattern.pattern!r} on {beginning!r} and {pump!r} many times"


@pytest.mark.parametrize(
    ("pattern", "beginning"),
    [(r"[a-z\s]{16,}={0,2}\s*", "a" * 16), (r"\s*(\d+)\s*([KMGT]?)\s*", "1"), (r"^\s*a\s*$", "")],
)
def test_the_test_finds_such_patterns(pattern: str, beginning: str) -> None:
    assert takes_the_square(re.compile(pattern, re.MULTILINE), beginning, "\n")


def test_every_pattern_is_found() -> None:
    assert len(PATTERNS) == sum(
        len(re.findall(rf"\bre\.(?:{'|'.join(FUNCTIONS)})\(", path.read_text())) for path in ROOT.rglob("*.py")
    )
