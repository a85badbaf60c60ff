"""Sets of byte ranges: which parts of a sparse file are present. Pure arithmetic, not thread-safe by itself."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class RangeSet:
    """Disjoint, sorted, half-open ranges of byte offsets `[start, end)`. Ranges that touch are merged."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in ranges:
            self.add(start, end)

    def add(self, start: int, end: int) -> None:
        if start >= end:
            return
        first = bisect_left(self._ends, start)  # the first range that touches or follows `start`
        last = bisect_right(self._starts, end)  # one past the last range that touches `end`
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def clip(self, end: int) -> None:
        """Remove everything at and beyond `end`."""
        keep = bisect_left(self._starts, end)
        del self._starts[keep:], self._ends[keep:]
        if self._ends and self._ends[-1] > end:
            self._ends[-1] = end

    def remove(self, start: int, end: int) -> None:
        if start >= end:
            return
        first = bisect_right(self._ends, start)  # the first range that reaches beyond `start`
        last = bisect_left(self._starts, end)  # one past the last range that begins before `end`
        if first >= last:
            return
        before = [(self._starts[first], start)] if self._starts[first] < start else []
        after = [(end, self._ends[last - 1])] if self._ends[last - 1] > end else []
        self._starts[first:last] = [range_start for range_start, _ in before + after]
        self._ends[first:last] = [range_end for _, range_end in before + after]

    def covers(self, start: int, end: int) -> bool:
        if start >= end:
            return True
        at = bisect_right(self._starts, start) - 1
        return at >= 0 and self._ends[at] >= end

    def missing(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts of `[start, end)` that are not in the set, in order."""
        at = bisect_right(self._ends, start)
        while start < end:
            if at >= len(self._starts) or self._starts[at] >= end:
                yield start, end
                return
            if self._starts[at] > start:
                yield start, self._starts[at]
            start = self._ends[at]
            at += 1

    @property
    def total(self) -> int:
        """Bytes covered."""
        return sum(self._ends) - sum(self._starts)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._starts, self._ends, strict=True)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RangeSet) and list(self) == list(other)

    def __repr__(self) -> str:
        return f"RangeSet({list(self)})"

    __hash__ = None  # type: ignore[assignment]  # mutable
