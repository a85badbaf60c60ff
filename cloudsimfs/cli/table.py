"""Tables for people: columns that fit the terminal, a heading, the last column cut if it must be."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

import click

from cloudsimfs.text import printable

GAP = "  "
NARROW = 8  # characters that a cut column keeps at least


def echo_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table. Columns too wide for the terminal are cut, the widest first; a pipe gets everything."""
    lines = [list(headings), *(list(map(printable, row)) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    if sys.stdout.isatty():
        widths = _fitted(widths, shutil.get_terminal_size().columns)
    for number, line in enumerate(lines):
        text = GAP.join(_cut(cell, width).ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        click.echo(click.style(text, bold=True) if number == 0 else text)


def _fitted(widths: list[int], room: int) -> list[int]:
    widths = list(widths)
    while sum(widths) + len(GAP) * (len(widths) - 1) > room and max(widths) > NARROW:
        widths[widths.index(max(widths))] -= 1
    return widths


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
