"""The mount and a local disk, side by side: each operation is done on both, and both must answer the same.

What was written and not closed may be lost when the daemon dies, and an operation that is under way then may be done
or not; `Pair.recover` accepts that and nothing else. The local tree is then made what the mount shows.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from dataclasses import dataclass, field
from typing import Any

from cloudsimfs.vfs.names import is_local_name
from fuzzops import (
    HIDDEN,
    SLOT,
    Node,
    Op,
    Outcome,
    Side,
    Snapshot,
    differences,
    digest,
    inodes,
    is_between,
    is_writing,
    read_file,
    rebuild,
    snapshot,
)

GONE = [["error", name] for name in ("ENOTCONN", "ECONNABORTED")]
NETWORK = ("EIO", "EHOSTUNREACH", "ETIMEDOUT", "EDQUOT", "EAGAIN")  # what a network that fails may be told as
DRAFTS = 90  # the slot that makes drafts files again
DEATH_BOUND = 3.0  # seconds from a write that a kill has cut short until the mount reads as dead
RELEASE_BOUND = 5.0  # seconds until libfuse has let go of a closed file


class Mismatch(Exception):
    """The mount did not do what a disk does. `kind` is the same for another one of its kind."""

    def __init__(self, op: Op, seen: Any, expected: Any) -> None:
        super().__init__(f"{op}: {seen}, expected {expected}")
        self.told = {"op": op, "seen": seen, "expected": expected}
        how = seen[:2] if seen[0] == "error" else seen[:1] if seen[0] == "ok" else ["tree"]
        self.kind = " ".join([op[0], *how, str(expected[0])])


class MountGone(Exception):
    """The daemon is dead; `op` is under way."""

    def __init__(self, op: Op) -> None:
        super().__init__(str(op))
        self.op = op


@dataclass
class Pair:
    """`closed` has the digests of all closed states."""

    mount: Side
    local: Side
    tolerant: bool = False  # the network fails, so that what needs it may fail
    shared: bool = False  # the present operation is in a folder in which others have files open
    closed: set[str] = field(default_factory=set)
    writable: set[int] = field(default_factory=set)  # slots
    dirty: dict[int, bytes | None] = field(default_factory=dict)  # local inode: what was closed last, None: nothing
    in_the_way: list[str] = field(default_factory=list)  # names in the last folder that was not empty
    failed: int = 0  # operations that the network made fail

    def do(self, op: Op) -> None:
        """Raises Mismatch, or MountGone."""
        if op[0] == "wait":
            time.sleep(op[1])
            return
        if op[0] in SLOT and op[1] not in self.local.open:
            return  # it could not be opened
        if op[0] == "close":
            self._note_closing(op[1])
        self.in_the_way = []
        seen = self.mount.do(op)
        halfway = op[0] in ("write", "pwrite") and seen[0] == "ok" and seen[1] < op[3]
        if seen in GONE or (halfway and self._is_dying()):
            raise MountGone(op)
        if self._is_excused(op, seen):
            return
        if seen[0] == "error" and self.mount.do(["room"]) in GONE:
            raise MountGone(op)  # it died before that could be seen
        expected = self._do_locally(op)
        if seen != expected:
            if op[0] in ("read", "pread") and seen[0] == "ok" and self._is_dying():
                raise MountGone(op)  # the kernel had the first pages only
            raise Mismatch(op, [*seen, *self.in_the_way], expected)

    def _is_dying(self) -> bool:
        """Whether only a part was written or read, because the daemon dies. The mount may live on for a moment."""
        until = time.monotonic() + DEATH_BOUND
        while time.monotonic() < until:
            if self.mount.do(["room"]) in GONE:
                return True
            time.sleep(0.01)
        return False

    def close_all(self) -> None:
        for slot in list(self.local.open):
            self.do(["close", slot])

    def check(self, folders: list[str]) -> None:
        """Compare all below these folders."""
        for folder in folders:
            found, expected = snapshot(self.mount.top, folder), snapshot(self.local.top, folder)
            if found != expected:
                raise Mismatch(["check", folder], differences(found, expected), ["none"])

    def forget(self, folders: list[str]) -> None:
        """Go on from what the mount shows, which must have the stored files, and may have no more of the rest."""
        for folder in folders:
            shown = snapshot(self.mount.top, folder)
            expected = snapshot(self.local.top, folder)
            wrong = [path for path, node in expected.items() if is_stored(path, node) and not same(shown, path, node)]
            wrong += [path for path in shown if path not in expected]
            if wrong:
                raise Mismatch(["forget", folder], differences(shown, expected), ["the same files", wrong])
            rebuild(self.local.top, folder, shown)
            if not os.path.isdir(self.mount.top + folder):
                os.mkdir(self.mount.top + folder)

    # -- what a mount may do that a disk does not --------------------------------------------------------------

    def _is_excused(self, op: Op, seen: Outcome) -> bool:
        """Whether the mount may have failed at this, so that the local disk is to be left as it is."""
        if seen[0] != "error":
            return False
        if seen[1] == "ENOTEMPTY":
            return self._holds_removed_files(op)
        if seen[1] == "ESTALE":
            return op[0] in SLOT and is_removed_folder(self.local.open[op[1]])
        if self.tolerant and seen[1] in NETWORK:
            self.failed += 1
            return True
        return False

    def _holds_removed_files(self, op: Op) -> bool:
        """Whether files that were removed while they were open are all that is in a folder (README, "Limits").

        libfuse lets go of a file a moment after its close, so this waits for it and tries again.
        """
        folder = self.mount.top + op[-1]
        until = time.monotonic() + RELEASE_BOUND
        while time.monotonic() < until:
            try:
                names = self.in_the_way = os.listdir(folder)
            except OSError:
                return False
            if names and not all(name.startswith(HIDDEN) for name in names):
                return False
            if self.shared or any(os.fstat(fd).st_nlink == 0 for fd in self.local.open.values()):
                return True  # the mount does not list them
            if self.mount.do(op)[0] == "ok":
                self.local.do(op)
                return True
            time.sleep(0.01)
        return False

    # -- what was closed, and what was not ---------------------------------------------------------------------

    def _do_locally(self, op: Op) -> Outcome:
        """Also keep what was closed, and which files have bytes that were not."""
        name, slot = op[0], op[1]
        path = self.local.top + str(op[2] if name == "open" else slot)
        if name in ("write", "pwrite", "ftruncate") and slot in self.writable:
            fd = self.local.open[slot]
            self.dirty.setdefault(os.fstat(fd).st_ino, content_of(fd))
        before = closed_file(path) if name == "truncate" or (name == "open" and is_writing(op[3])) else None
        inode = os.fstat(self.local.open[slot]).st_ino if name == "close" else 0
        outcome = self.local.do(op)
        if outcome[0] == "error":
            return outcome
        if name == "open" and is_writing(op[3]):
            self._note_opened(slot, before, truncated=bool(op[3] & os.O_TRUNC))
        elif name == "truncate" and before is not None:
            os.utime(path)  # a disk leaves the time if the size is the same
            self.closed.add(digest(read_file(path)))
            self.dirty.pop(before[0], None)  # as a close: also of what was written through other descriptors
        elif name == "close" and slot in self.writable:
            self.writable.discard(slot)
            self.dirty.pop(inode, None)
        return outcome

    def _note_opened(self, slot: int, before: tuple[int, bytes] | None, *, truncated: bool) -> None:
        self.writable.add(slot)
        inode = os.fstat(self.local.open[slot]).st_ino
        if before is None or before[0] != inode:
            self.dirty.setdefault(inode, None)
        elif truncated:
            self.dirty.setdefault(inode, before[1])

    def _note_closing(self, slot: int) -> None:
        if slot in self.writable:
            self.closed.add(digest(content_of(self.local.open[slot])))

    # -- after the death of the daemon -------------------------------------------------------------------------

    def recover(self, folders: list[str], under_way: Op | None) -> None:
        """Compare all with what the mount shows, accept what was under way, and go on from what is shown.

        Raises Mismatch.
        """
        before, loose = self._snapshot(folders), self._loose(folders)
        split = self._open_target(under_way)
        allowed = [before]
        if under_way is not None and under_way[0] != "wait":
            if under_way[0] == "close":
                loose |= self._loose(folders)
            self._do_locally(under_way)
            loose |= self._loose(folders)
            allowed.append(self._snapshot(folders))
        self._let_go()
        shown: Snapshot = {}
        for folder in folders:
            shown |= snapshot(self.mount.top, folder)
        if split and shown.get(split) is None:  # libfuse hides an open file before it gives its name away
            allowed = [{path: node for path, node in tree.items() if path != split} for tree in allowed]
            loose.pop(split, None)
        states = [[node.get(path) for node in allowed] for path in loose]
        found = [differences(shown, expected, loose=loose.keys()) for expected in allowed]
        if all(found):
            raise Mismatch(["recover", under_way], found[0], ["no difference"])
        for (path, closed), nodes in zip(loose.items(), states, strict=True):
            if not may_be_left(shown.get(path), closed, nodes):
                raise Mismatch(
                    ["recover", under_way], differences(shown, allowed[-1]), f"{path} as closed or written"
                )
        for folder in folders:
            below = {path: node for path, node in shown.items() if path.startswith(f"{folder}/")}
            rebuild(self.local.top, folder, below)
        for path in loose:
            if path in shown and shown[path][0] == "f":
                self.do(["open", DRAFTS, path, os.O_WRONLY | os.O_APPEND])
                self.do(["close", DRAFTS])

    def _open_target(self, under_way: Op | None) -> str:
        """The name that a rename was about to replace, if the file under it is open."""
        if under_way is None or under_way[0] != "rename":
            return ""
        target = closed_file(self.local.top + under_way[2])
        opened = {os.fstat(fd).st_ino for fd in self.local.open.values()}
        return str(under_way[2]) if target is not None and target[0] in opened else ""

    def _snapshot(self, folders: list[str]) -> Snapshot:
        found: Snapshot = {}
        for folder in folders:
            found |= snapshot(self.local.top, folder)
        return found

    def _loose(self, folders: list[str]) -> dict[str, bytes | None]:
        """The files with bytes that were not closed, and what was closed last."""
        paths: dict[int, str] = {}
        for folder in folders:
            paths |= inodes(self.local.top, folder)
        return {paths[inode]: closed for inode, closed in self.dirty.items() if inode in paths}

    def _let_go(self) -> None:
        for side in (self.mount, self.local):
            for fd in side.open.values():
                with contextlib.suppress(OSError):
                    os.close(fd)
            side.open.clear()
        self.writable.clear()
        self.dirty.clear()


def may_be_left(found: Node | None, closed: bytes | None, written: list[Node | None]) -> bool:
    """Whether a file that was not closed may look like this when its writer's mount is gone."""
    datas = [node[2] for node in written if node is not None and node[0] == "f"]
    if found is None:
        return closed is None or len(datas) < len(written)
    if found[0] != "f":
        return found in written
    return found[2] == closed or any(is_between(found[2], one, other) for one in datas for other in datas)


def is_removed_folder(fd: int) -> bool:
    """An open one, of which a mount says ESTALE (README, "Limits")."""
    found = os.fstat(fd)
    return stat.S_ISDIR(found.st_mode) and found.st_nlink == 0


def is_stored(path: str, node: Node) -> bool:
    return node[0] == "f" and not is_local_name(path.rpartition("/")[2])


def same(shown: Snapshot, path: str, node: Node) -> bool:
    return path in shown and (shown[path][0], shown[path][2]) == (node[0], node[2])


def content_of(fd: int) -> bytes:
    """Whatever the descriptor was opened for, and even if its file has no name any more."""
    return read_file(f"/proc/self/fd/{fd}")


def closed_file(path: str) -> tuple[int, bytes] | None:
    """Its inode number and bytes, if there is a file."""
    try:
        return os.stat(path).st_ino, read_file(path)
    except OSError:
        return None
