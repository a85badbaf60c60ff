"""What a disk may hold after a crash, from the operations that `recording` has noted.

A process that dies leaves all that was done. A power loss leaves what was fsynced, and of the rest what the disk got
to, in any order: a fsync of a file keeps the file's bytes, one of a directory the names in it, and nothing else does.
That is less than most filesystems keep. Of an operation that was not fsynced there may be nothing, all of it, or, of
a write, the first part of its bytes.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from recording import ROOT, Op

SECTOR = 512  # bytes; a write is torn between two of them
BLOCK = 4096  # bytes; only zeros are made a hole
KEPT, DROPPED, TORN = "kept", "dropped", "torn"
NAMES = frozenset(("create", "mkdir", "rename", "unlink", "rmdir"))


@dataclass
class Disk:
    """Files, by number, and the names in directories, by theirs."""

    files: dict[int, bytes] = field(default_factory=dict)
    notes: dict[int, dict[str, bytes]] = field(default_factory=dict)  # extended attributes
    names: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})

    def copy(self) -> Disk:
        notes = {ino: dict(found) for ino, found in self.notes.items()}
        return Disk(dict(self.files), notes, {ino: dict(found) for ino, found in self.names.items()})

    def do(self, op: Op) -> None:
        if op.kind in NAMES:
            self._rename(op)
        elif op.kind == "xattr":
            found = self.notes.setdefault(op.ino, {})
            found.pop(op.name, None)
            if op.data is not None:
                found[op.name] = op.data
        elif op.kind not in ("fsync", "mark"):
            self.files[op.ino] = _changed(self.files.get(op.ino, b""), op)

    def _rename(self, op: Op) -> None:
        """A change of names. What an operation before it has made may be missing."""
        place, name = op.place
        names = self.names.setdefault(place, {})
        if op.kind == "create":
            self.files.setdefault(op.ino, b"")
        elif op.kind == "mkdir":
            self.names.setdefault(op.ino, {})
        elif names.get(name) == op.ino:
            del names[name]
        if op.kind in ("create", "mkdir"):
            names[name] = op.ino
        elif op.kind == "rename":
            target, name = op.to
            self.names.setdefault(target, {})[name] = op.ino

    def tree(self, ino: int = ROOT, above: str = "") -> Iterator[tuple[str, int]]:
        """(path, number) of everything that has a name, each directory before what is in it."""
        for name, found in sorted(self.names[ino].items()):
            yield above + name, found
            if found in self.names:
                yield from self.tree(found, f"{above}{name}/")

    def digest(self) -> str:
        """The same for disks that no program can tell apart."""
        found = hashlib.md5(usedforsecurity=False)
        for path, ino in self.tree():
            found.update(f"{path} {self.notes.get(ino)} {len(self.files.get(ino, b''))} ".encode())
            found.update(self.files.get(ino, b""))
        return found.hexdigest()

    def write_to(self, directory: Path) -> None:
        """Make these files in a directory."""
        for path, ino in self.tree():
            if ino in self.names:
                (directory / path).mkdir(mode=0o700)
                continue
            with open(os.open(directory / path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
                _write_sparse(file.fileno(), self.files.get(ino, b""))
            for name, value in self.notes.get(ino, {}).items():
                os.setxattr(directory / path, name, value)


def _changed(data: bytes, op: Op) -> bytes:
    if op.kind == "truncate":
        return data[: op.size].ljust(op.size, b"\0")
    if op.kind == "punch":
        end = min(len(data), op.offset + op.size)
        return data[: op.offset] + bytes(max(0, end - op.offset)) + data[max(op.offset, end) :]
    assert op.kind == "write"
    assert op.data is not None
    return data[: op.offset].ljust(op.offset, b"\0") + op.data + data[op.offset + len(op.data) :]


def _write_sparse(fd: int, data: bytes) -> None:
    os.truncate(fd, len(data))
    for start in range(0, len(data), BLOCK):
        block = data[start : start + BLOCK]
        if block.count(0) != len(block):
            os.pwrite(fd, block, start)


class History:
    """The disk as operation after operation is done: all of it, and what of it is safe."""

    def __init__(self) -> None:
        self.live = Disk()
        self._safe = Disk()
        self._pending: list[Op] = []

    def do(self, op: Op) -> None:
        self.live.do(op)
        if op.kind == "fsync":
            for done in self._pending:
                if _owner(done) == op.ino:
                    self._safe.do(done)
            self._pending = [done for done in self._pending if _owner(done) != op.ino]
        elif op.kind != "mark":
            self._pending.append(op)

    def after_power_loss(self, chance: random.Random, most: int, *, overtaking: bool) -> Iterator[tuple[str, Disk]]:
        """What the disk may hold if the power goes now, and in words what became of the operations under way.

        First all is lost, then all bytes, then all names; `most` more are chosen by `chance`. Without `overtaking`,
        what a database's log got since its last fsync is there only if all bytes and names of other files are.
        """
        pending = self._pending
        logs = {ino for path, ino in self.live.tree() if path.endswith("-wal")}
        for number in range(-3, most) if pending else ():
            fates = self._fates(chance, number)
            if not overtaking:
                _hold_back(pending, fates, logs)
            lost = [f"{fate} {_text(op)}" for op, fate in zip(pending, fates, strict=True) if fate != KEPT]
            yield f"{number}: {', '.join(lost)}", self._with(pending, fates)

    def _fates(self, chance: random.Random, number: int) -> list[str]:
        """What becomes of the operations that are not safe yet."""
        pending = self._pending
        if number < 0:
            kept = {-3: (), -2: (True,), -1: (False,)}[number]  # are names kept, or is all else
            return [KEPT if (op.kind in NAMES) in kept else DROPPED for op in pending]
        fates = [KEPT] * len(pending)
        owners = sorted({_owner(op) for op in pending})
        if number % 3 == 0:  # one alone
            fates[chance.randrange(len(pending))] = chance.choice([DROPPED, TORN])
        elif number % 3 == 1:  # all from one moment on, of some files
            some, since = chance.sample(owners, chance.randint(1, len(owners))), chance.randrange(len(pending))
            fates = [DROPPED if at >= since and _owner(op) in some else KEPT for at, op in enumerate(pending)]
        else:
            fates = [chance.choice([KEPT, DROPPED, TORN]) for _ in pending]
        return fates

    def _with(self, pending: Iterable[Op], fates: Iterable[str]) -> Disk:
        disk = self._safe.copy()
        for op, fate in zip(pending, fates, strict=True):
            if fate == KEPT or (fate == TORN and op.kind not in ("write", "truncate")):
                disk.do(op)
            elif fate == TORN and op.data is not None:
                disk.do(op._replace(data=op.data[: len(op.data) // 2 // SECTOR * SECTOR]))
        return disk


def _hold_back(pending: list[Op], fates: list[str], logs: set[int]) -> None:
    """Lose what was written to the logs, if anything was lost of what they may speak of."""
    ops = list(enumerate(pending))
    if any(fates[at] != KEPT for at, op in ops if op.ino not in logs and op.kind not in ("unlink", "mark")):
        for at, op in ops:
            if op.ino in logs:
                fates[at] = DROPPED


def _owner(op: Op) -> int:
    """Whose fsync makes the operation safe: the file, or the directory of the name."""
    return op.place[0] if op.kind in NAMES else op.ino


def _text(op: Op) -> str:
    where = f"{op.place[1]}>{op.to[1]}" if op.kind == "rename" else op.place[1] or op.name or op.offset
    return f"{op.kind} {op.ino} {where} {len(op.data or b'') or op.size or ''}".strip()
