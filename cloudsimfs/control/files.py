"""The virtual folders in the mount's root: `.simulations/`, and `.cloudsimfs/`, by which tools talk to a mount.

One write(2) is one command; it acts at once and fails with the errno of that write and a sentence in
`.simulations/error`. The root does not list them, so that what walks over the drive does not get lost in logs.

Threading: called by FUSE callbacks on many threads; `_lock` protects the open handles, a leaf.
"""

from __future__ import annotations

import itertools
import os
import threading
from dataclasses import dataclass, field
from typing import Protocol

from cloudsimfs import paths
from cloudsimfs.clock import Clock
from cloudsimfs.control.simulations import SIMULATIONS, Simulations
from cloudsimfs.control.virtual import File, Folder, Link, Node, as_json, kind, text
from cloudsimfs.errors import (
    BadHandle,
    CloudsimfsError,
    Denied,
    Invalid,
    IsDirectory,
    NotDirectory,
    NotFound,
    ServiceError,
)
from cloudsimfs.inode import Attr
from cloudsimfs.vfs.attrs import path_ino

STATE = ".cloudsimfs"
TOP_NAMES = (SIMULATIONS, STATE)
STATE_NAMES = ("status", "status.json", "pending", "metrics", "recover", "recover.json", "refresh", "flush")
FIRST_HANDLE = 1 << 62  # handles from here on belong to virtual files


@dataclass(slots=True)
class Handle:
    """An open virtual file, with what it held when it was opened, or the answer to its last command."""

    path: str
    file: File
    snapshot: bytes
    failed: dict[bytes, CloudsimfsError] = field(default_factory=dict)  # the last command, if it failed


class Mounted(Protocol):
    """What `.cloudsimfs/` shows and does."""

    def status(self) -> dict[str, object]: ...
    def status_text(self) -> str: ...
    def pending_text(self) -> str: ...
    def metrics_text(self) -> str: ...
    def drafts(self) -> list[dict[str, object]]: ...
    def recover(self, command: str) -> None: ...
    def refresh(self, path: str) -> None: ...
    def storage_path(self, text: str) -> str: ...
    def flush(self) -> None: ...


def is_control(path: str) -> bool:
    return path.partition("/")[0] in TOP_NAMES


def is_control_handle(fh: int) -> bool:
    return fh >= FIRST_HANDLE


class Control:
    def __init__(self, simulations: Simulations, mounted: Mounted, *, clock: Clock) -> None:
        self._simulations = simulations
        self._lock = threading.Lock()
        self._handles: dict[int, Handle] = {}  # guarded by _lock
        self._next = itertools.count(FIRST_HANDLE)
        self._born_ns = int(clock.now() * 1e9)
        self._state: dict[str, Node] = {
            STATE: Folder(lambda: list(STATE_NAMES)),
            f"{STATE}/status": text(mounted.status_text),
            f"{STATE}/status.json": text(lambda: as_json(mounted.status())),
            f"{STATE}/pending": text(mounted.pending_text),
            f"{STATE}/metrics": text(mounted.metrics_text),
            f"{STATE}/recover": File(write=mounted.recover),
            f"{STATE}/recover.json": text(lambda: as_json(mounted.drafts())),
            f"{STATE}/refresh": File(write=lambda word: mounted.refresh(mounted.storage_path(word))),
            f"{STATE}/flush": File(write=lambda _: mounted.flush()),
        }

    def close(self) -> None:
        self._simulations.close()

    def node(self, path: str) -> Node:
        top, _, rest = path.partition("/")
        if top == SIMULATIONS:
            return self._simulations.node(rest)
        try:
            return self._state[path]
        except KeyError:
            raise NotFound(f"/{path}") from None

    # -- what operations asks ----------------------------------------------------------------------------

    def getattr(self, path: str, *, uid: int, gid: int) -> Attr:
        node = self.node(path)
        if isinstance(node, Folder):
            perm, size = 0o555, 0
        elif isinstance(node, Link):
            perm, size = 0o777, len(node.target.encode())
        else:
            perm, size = node.perm, self._size(node)
        born = self._born_ns
        return Attr(path_ino(path), kind(node) | perm, size, born, born, born, uid, gid)

    @staticmethod
    def _size(file: File) -> int:
        """Of what is known, where reading may need a call of its own; 0 if the service cannot be asked."""
        read = file.known or file.read
        try:
            return 0 if read is None else len(read())
        except ServiceError:
            return 0

    def readdir(self, path: str) -> list[tuple[str, int, int]]:
        """(name, file type, inode number) of all in a virtual folder."""
        node = self.node(path)
        if not isinstance(node, Folder):
            raise NotDirectory(f"/{path}")
        below = [(name, paths.join(path, name)) for name in node.names()]
        return [(name, kind(self.node(child)), path_ino(child)) for name, child in below]

    def readlink(self, path: str) -> str:
        node = self.node(path)
        if not isinstance(node, Link):
            raise Invalid(f"/{path} is no link")
        return node.target

    def open(self, path: str, flags: int) -> int:
        """A handle; `flags` are the system's O_ flags. What is not live is read now."""
        node = self.node(path)
        if not isinstance(node, File):
            raise IsDirectory(f"/{path}")
        access = flags & os.O_ACCMODE
        if (access != os.O_RDONLY and node.write is None) or (access == os.O_RDONLY and node.read is None):
            verb = "written" if access != os.O_RDONLY else "read"
            raise self._failed(Denied(f"/{path} cannot be {verb}; .simulations/README says what can"))
        snapshot = b"" if node.read is None or access == os.O_WRONLY else self._read(node)
        with self._lock:
            fh = next(self._next)
            self._handles[fh] = Handle(path, node, snapshot)
        if node.live is not None:
            self._simulations.poller.follow(node.live)
        return fh

    def _read(self, file: File) -> bytes:
        assert file.read is not None
        try:
            return file.read()
        except CloudsimfsError as error:
            raise self._failed(error) from error

    def _handle(self, fh: int) -> Handle:
        with self._lock:
            found = self._handles.get(fh)
        if found is None:
            raise BadHandle(f"handle {fh}")
        return found

    def release(self, fh: int) -> None:
        with self._lock:
            handle = self._handles.pop(fh, None)
        if handle is not None and handle.file.live is not None:
            self._simulations.poller.unfollow(handle.file.live)

    def read(self, fh: int, size: int, offset: int) -> bytes:
        handle = self._handle(fh)
        now = handle.file.known if handle.file.live else None
        data = handle.snapshot if now is None else now()
        return data[offset : offset + size]

    def write(self, fh: int, data: bytes) -> None:
        """One command. Its failure stays readable in `.simulations/error`."""
        handle = self._handle(fh)
        again = handle.failed.pop(data, None)
        if again is not None:
            raise again  # a buffering writer's close() repeats what could not be written: not a second command
        try:
            answer = self._command(handle.path, handle.file, data)
        except CloudsimfsError as error:
            handle.failed.clear()
            handle.failed[data] = error
            raise self._failed(error) from error
        if answer is not None:
            handle.snapshot = answer

    def _command(self, path: str, file: File, data: bytes) -> bytes | None:
        assert file.write is not None
        try:
            word = data.decode("utf-8").strip()
        except UnicodeDecodeError:
            raise Invalid("a command is text") from None
        if not word:
            raise Invalid("an empty command; .simulations/README shows what to write")
        answer = file.write(word)
        if path.startswith(SIMULATIONS):
            self._simulations.succeeded()
        return answer

    def _failed(self, error: CloudsimfsError) -> CloudsimfsError:
        self._simulations.failed(error)
        return error
