"""Images of a computation: a PNG writer, a residual plot, a temperature map. Standard library only.

Pure except for `write_atomically`.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

Colour = tuple[int, int, int]

BLACK, GREY, BLUE = (0, 0, 0), (220, 220, 220), (31, 119, 180)
_STOPS: tuple[Colour, ...] = ((0, 0, 4), (87, 16, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164))
_GLYPHS = {  # 3 x 5 pixels, one octal digit a row
    "0": "75557", "1": "26227", "2": "71747", "3": "71717", "4": "55711", "5": "74717", "6": "74757",
    "7": "71111", "8": "75757", "9": "75717", "-": "00700", "e": "07547", "s": "07471", "t": "27223",
    "p": "07574", "r": "06444", "i": "20222", "d": "11757", "u": "05557", "a": "06357", "l": "22222",
    "T": "72222", " ": "00000", ".": "00002",
}  # fmt: skip


class Canvas:
    """An RGB image. (0, 0) is the top left pixel; pixels outside are not drawn."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._pixels = bytearray(b"\xff" * (3 * width * height))

    def dot(self, x: int, y: int, colour: Colour) -> None:
        if 0 <= x < self.width and 0 <= y < self.height:
            at = 3 * (y * self.width + x)
            self._pixels[at : at + 3] = bytes(colour)

    def line(self, x0: int, y0: int, x1: int, y1: int, colour: Colour) -> None:
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        for i in range(steps + 1):
            self.dot(x0 + round((x1 - x0) * i / steps), y0 + round((y1 - y0) * i / steps), colour)

    def text(self, x: int, y: int, words: str, colour: Colour = BLACK, scale: int = 2) -> None:
        for index, letter in enumerate(words):
            for row, bits in enumerate(_GLYPHS.get(letter, _GLYPHS[" "])):
                for column in range(3 * scale):
                    if int(bits) >> (2 - column // scale) & 1:
                        for line in range(scale):
                            self.dot(x + index * 4 * scale + column, y + row * scale + line, colour)

    def png(self) -> bytes:
        return encode_png(self.width, self.height, bytes(self._pixels))


def encode_png(width: int, height: int, pixels: bytes) -> bytes:
    """8-bit RGB rows, top first, as a PNG file."""
    rows = b"".join(b"\0" + pixels[3 * width * y : 3 * width * (y + 1)] for y in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def residual_plot(residuals: Sequence[float]) -> bytes:
    """Residual over step on a logarithmic scale, as a PNG of 480 x 320."""
    canvas = Canvas(480, 320)
    left, right, top, bottom = 56, 464, 20, 284
    finite = [value for value in residuals if value > 0 and math.isfinite(value)]
    low = math.floor(math.log10(min(finite, default=0.1)))
    high = max(math.ceil(math.log10(max(finite, default=1.0))), low + 1)
    stride = -(-(high - low) // 8)  # at most nine labels
    for exponent in range(low, high + 1, stride):
        y = bottom - round((bottom - top) * (exponent - low) / (high - low))
        canvas.line(left, y, right, y, GREY)
        canvas.text(8, y - 5, f"1e{exponent}")
    for part in range(5):
        x = left + (right - left) * part // 4
        canvas.line(x, top, x, bottom, GREY)
        canvas.text(x - 10, bottom + 8, str(len(residuals) * part // 4))
    canvas.line(left, top, left, bottom, BLACK)
    canvas.line(left, bottom, right, bottom, BLACK)
    canvas.text(left + 4, 5, "residual")
    canvas.text(right - 36, bottom + 22, "step")
    stride = max(1, len(residuals) // (right - left))
    last: tuple[int, int] | None = None
    for step in range(0, len(residuals), stride):
        value = min(max(residuals[step], 10.0**low), 10.0**high)
        x = left + round((right - left) * (step + 1) / len(residuals))
        y = bottom - round((bottom - top) * (math.log10(value) - low) / (high - low))
        canvas.line(*(last or (x, y)), x, y, BLUE)
        last = (x, y)
    return canvas.png()


def colour_map(values: Sequence[Sequence[float]], low: float, high: float) -> bytes:
    """A field as a PNG of about 400 pixels a side, its first row at the bottom, each point a square."""
    scale = max(1, 400 // max(len(values), len(values[0])))
    palette = [bytes(_colour(i / 255)) * scale for i in range(256)]
    factor = 255 / (high - low) if high > low else 0.0
    rows = []
    for row in reversed(values):
        cells = [palette[min(255, max(0, int((value - low) * factor)))] for value in row]
        rows.append(b"".join(cells) * scale)
    return encode_png(len(values[0]) * scale, len(values) * scale, b"".join(rows))


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that readers see the old one or the new one, never a part."""
    part = path.with_name(f".{path.name}.tmp")
    part.write_bytes(data)
    os.replace(part, path)


def _colour(share: float) -> Colour:
    place = share * (len(_STOPS) - 1)
    index = min(int(place), len(_STOPS) - 2)
    rest = place - index
    red, green, blue = (round(a + (b - a) * rest) for a, b in zip(_STOPS[index], _STOPS[index + 1], strict=True))
    return (red, green, blue)
