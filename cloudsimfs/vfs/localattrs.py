"""Attributes that the service cannot store, by path, and inode numbers that are never shared.

The number of a path that was not renamed here is made from its name: every mount gets the same one, and none is
stored. A file that was made or renamed here keeps a number of its own. No other path gets that number while it does.

Threading: none of its own; guarded by Tree.lock.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable, Mapping

from cloudsimfs.inode import LocalAttr


def path_ino(path: str, turn: int = 0) -> int:
    """The inode number made from a path. If that is taken, `turn` 1, 2, ... give other ones."""
    if not path:
        return 1
    text = f"{path}\0{turn}" if turn else path
    digest = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return (int.from_bytes(digest) >> 1) | 2  # 0 means "none" and 1 is the root


def fresh_ino() -> int:
    """An inode number for a file made here. It is random, so that a new file never has a removed one's number."""
    return secrets.randbits(63) | 2


class LocalAttrs:
    """Local attributes by path. Registers with `on_rollback` how each change is undone."""

    def __init__(
        self,
        attrs: Mapping[str, LocalAttr],
        on_rollback: Callable[[Callable[[], object]], object] = lambda _: None,
    ) -> None:
        self._attrs = dict(attrs)
        self._on_rollback = on_rollback
        self._taken = Counter(attr.ino for attr in attrs.values() if attr.ino is not None)

    def get(self, path: str) -> LocalAttr | None:
        return self._attrs.get(path)

    def put(self, path: str, attr: LocalAttr) -> None:
        self._replace(path, attr)

    def pop(self, path: str) -> None:
        self._replace(path, None)

    def _replace(self, path: str, attr: LocalAttr | None) -> None:
        before = self._attrs.get(path)
        self._set(path, attr)
        self._on_rollback(lambda: self._set(path, before))

    def _set(self, path: str, attr: LocalAttr | None) -> None:
        before = self._attrs.pop(path, None)
        if before is not None and before.ino is not None:
            self._taken[before.ino] -= 1
            if not self._taken[before.ino]:
                del self._taken[before.ino]
        if attr is not None:
            self._attrs[path] = attr
            if attr.ino is not None:
                self._taken[attr.ino] += 1

    def ino(self, path: str) -> int:
        """The path's inode number."""
        attr = self._attrs.get(path)
        if attr is not None and attr.ino is not None:
            return attr.ino
        turn = 0
        while (number := path_ino(path, turn)) in self._taken:
            turn += 1
        return number
