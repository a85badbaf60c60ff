"""What a meeting (`fuzzmeet`) knows of each version of a file that was stored, by others or here."""

from __future__ import annotations

from dataclasses import dataclass

from harness import Tree


@dataclass(eq=False)
class Version:
    """`end`: only how it ends is known. `since` is the hold-up during which it met a change of ours, if it did."""

    path: str
    data: bytes
    ours: bool
    must: bool = True
    end: bool = False
    shown: bool = False
    endangered: bool = False
    since: int | None = None
    appended: bytes = b""  # what was written here; the rest was on the service

    def is_in(self, stored: Tree) -> bool:
        return any(data.endswith(self.data) if self.end else data == self.data for data in stored.values())


def sizes(tree: Tree) -> dict[str, int]:
    return {path: len(data) for path, data in sorted(tree.items())}
