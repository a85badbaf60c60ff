"""The virtual files as the kernel asks for them: which path is one, its attributes, and those that are open.

One write(2) is one command, and it acts at once. If it fails, the write fails with its errno and `.simulations/error`
says why. The root lists neither folder, so that programs that walk over the drive do not read every log.

Threading: called by FUSE callbacks on many threads. The only lock is that of the handle table, a leaf.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from cloudsimfs import paths
from cloudsimfs.clock import Clock
from cloudsimfs.concurrency.handletable import HandleTable
from cloudsimfs.concurrency.waiting import place_to_wait
from cloudsimfs.control.simulations import SIMULATIONS, Simulations
from cloudsimfs.control.state import STATE, MountState
from cloudsimfs.control.virtual import File, Folder, Link, Node, kind
from cloudsimfs.errors import (
    CloudsimfsError,
    Denied,
    Invalid,
    IsDirectory,
    NotDirectory,
    ServiceError,
)
from cloudsimfs.inode import Attr
from cloudsimfs.vfs.attributes import Owner
from cloudsimfs.vfs.localattrs import path_ino

TOP_NAMES = (SIMULATIONS, STATE)
FIRST_HANDLE = 1 << 62  # handles from here on belong to virtual files


@dataclass(slots=True)
class OpenFile:
    """An open virtual file. `snapshot` is what it held at open(2), or the answer to its last command."""

    path: str
    file: File
    snapshot: bytes
    failed: dict[bytes, CloudsimfsError] = field(default_factory=dict)  # the last command and its error, if it failed


def is_control(path: str) -> bool:
    return path.partition("/")[0] in TOP_NAMES


def is_control_handle(fh: int) -> bool:
    return fh >= FIRST_HANDLE


class ControlFiles:
    """What lies below `.simulations/` and `.cloudsimfs/`, as the kernel asks for it."""

    def __init__(self, simulations: Simulations, state: MountState, *, owner: Owner, clock: Clock) -> None:
        self._simulations = simulations
        self._state = state
        self._owner = owner
        self._open = HandleTable[OpenFile](FIRST_HANDLE)
        self._born_ns = int(clock.now() * 1e9)

    def close(self) -> None:
        self._simulations.close()

    def node(self, path: str) -> Node:
        """What is at a path of a virtual folder. Raises NotFound."""
        top, _, rest = path.partition("/")
        return self._simulations.node(rest) if top == SIMULATIONS else self._state.node(rest)

    # -- names and attributes ------------------------------------------------------------------------------

    def getattr(self, path: str) -> Attr:
        node = self.node(path)
        if isinstance(node, Folder):
            perm, size = 0o555, 0
        elif isinstance(node, Link):
            perm, size = 0o777, len(node.target.encode())
        else:
            perm, size = node.perm, self._size(node)
        born = self._born_ns
        return Attr(path_ino(path), kind(node) | perm, size, born, born, born, self._owner.uid, self._owner.gid)

    @staticmethod
    def _size(file: File) -> int:
        """The size of the contents: of the cached ones if reading may take a call; 0 if the service fails."""
        read = file.cached or file.read
        try:
            return 0 if read is None else len(read())
        except ServiceError:
            return 0

    def readdir(self, path: str) -> list[tuple[str, int, int]]:
        """(name, file type, inode number) of everything in a virtual folder. Raises NotFound, NotDirectory."""
        node = self.node(path)
        if not isinstance(node, Folder):
            raise NotDirectory(f"/{path}")
        below = [(name, paths.join(path, name)) for name in node.names()]
        return [(name, kind(self.node(child)), path_ino(child)) for name, child in below]

    def readlink(self, path: str) -> str:
        node = self.node(path)
        if not isinstance(node, Link):
            raise Invalid(f"/{path} is not a symbolic link")
        return node.target

    # -- open files ----------------------------------------------------------------------------------------

    def open(self, path: str, flags: int) -> int:
        """open(2). A file that is not live is read now. Raises NotFound, IsDirectory, Denied, or as its reader."""
        node = self.node(path)
        if not isinstance(node, File):
            raise IsDirectory(f"/{path}")
        access = flags & os.O_ACCMODE
        if (access != os.O_RDONLY and node.write is None) or (access == os.O_RDONLY and node.read is None):
            verb = "written" if access != os.O_RDONLY else "read"
            raise self._failed(Denied(f"/{path} cannot be {verb}; .simulations/README says what can"))
        snapshot = b"" if node.read is None or access == os.O_WRONLY else self._read(node)
        fh = self._open.add(OpenFile(path, node, snapshot))
        if node.live is not None:
            self._simulations.follow(node.live)
        return fh

    def _read(self, file: File) -> bytes:
        assert file.read is not None
        try:
            return file.read()
        except CloudsimfsError as error:
            raise self._failed(error) from error

    def release(self, fh: int) -> None:
        live = self._open.pop(fh).file.live
        if live is not None:
            self._simulations.unfollow(live)

    def read(self, fh: int, size: int, offset: int) -> bytes:
        opened = self._open.get(fh)
        cached = opened.file.cached if opened.file.live else None
        data = opened.snapshot if cached is None else cached()
        return data[offset : offset + size]

    def write(self, fh: int, data: bytes) -> None:
        """Carry out one command. If it fails, `.simulations/error` shows why."""
        opened = self._open.get(fh)
        again = opened.failed.pop(data, None)
        if again is not None:
            raise again  # a buffering writer writes it once more in close(): that is not a second command
        try:
            answer = self._command(opened.path, opened.file, data)
        except CloudsimfsError as error:
            opened.failed.clear()
            opened.failed[data] = error
            raise self._failed(error) from error
        if answer is not None:
            opened.snapshot = answer

    def _command(self, path: str, file: File, data: bytes) -> bytes | None:
        assert file.write is not None
        try:
            word = data.decode("utf-8").strip()
        except UnicodeDecodeError:
            raise Invalid("a command is text") from None
        if not word:
            raise Invalid("an empty command; .simulations/README shows what to write")
        with place_to_wait():  # a command may wait for another one, and for uploads
            answer = file.write(word)
        if path.startswith(SIMULATIONS):
            self._simulations.succeeded()
        return answer

    def _failed(self, error: CloudsimfsError) -> CloudsimfsError:
        self._simulations.failed(error)
        return error
