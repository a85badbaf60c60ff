"""How the run commands reach runs: through the files of a mount or, without one, through the same files made here.

With a mount, its cache and its journal serve the command, too. Without one, the account's directory keeps what is
known and which launches were begun, so that a repeated command does not start a second run.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from cloudsimfs import config, paths
from cloudsimfs.cli.mounts import mount_at_hand, mount_of
from cloudsimfs.clock import SystemClock
from cloudsimfs.control.simulations import SIMULATIONS, Simulations
from cloudsimfs.control.virtual import File
from cloudsimfs.errors import MountError, NotDirectory, NotFound, Refused, TryAgain
from cloudsimfs.host import mountpoint
from cloudsimfs.journal.journal import Journal
from cloudsimfs.runs.account import runs_of_account
from cloudsimfs.service import Client
from cloudsimfs.text import agree, count
from cloudsimfs.vfs import accountdir

LOG_BLOCK = 1 << 20  # bytes read at a time
CHOOSE = "name one with --mount, or a service with --url"
Reader = Callable[[int], bytes]
"""Reads from an offset, at most LOG_BLOCK bytes."""


class RunFiles(Protocol):
    """The files below `.simulations/`. What cannot be read or written raises CloudsimfsError with the sentence."""

    def read(self, name: str) -> str: ...
    def write(self, name: str, text: str) -> None: ...

    def ask(self, name: str, text: str) -> str:
        """Write a command and read its answer."""

    def follow(self, name: str) -> AbstractContextManager[Reader]:
        """Open a file; the status and the log are kept up to date while they are open."""

    def storage_path(self, text: str) -> str:
        """A folder as the user named it (in the storage, or in the mount) as a storage path."""


@contextmanager
def reach(top: Path | None, settings: config.Settings, *, direct: bool) -> Iterator[RunFiles]:
    """Use the mount at `top`, else (unless `direct`) the one at hand, else none."""
    mount = mount_of(top) if top is not None else None if direct else mount_at_hand(CHOOSE)
    if mount is not None:
        yield InMount(mount)
        return
    account = config.account(settings)
    with (
        accountdir.provisional(account.directory),
        account.connect() as client,
        contextlib.closing(Journal(account.directory / "journal.db")) as journal,
    ):
        runs = runs_of_account(
            client,
            journal,
            RemoteStorage(client, journal),
            NoCaches(),
            directory=account.directory,
            launches=config.launches_dir(account.directory),
            ttl=settings["run-ttl"],
            bulk=account.api != "v2",
            clock=SystemClock(),
        )
        with contextlib.closing(Simulations(runs, changed=lambda _: None)) as simulations:
            yield InProcess(simulations)


def _send(fd: int, text: str) -> None:
    """Write a command with one write(2). A file object would take a refusal with EAGAIN for nothing written."""
    os.write(fd, text.encode("utf-8", "surrogateescape"))


class InMount:
    """The files of a mount."""

    def __init__(self, top: Path) -> None:
        self._top = top
        self._place = top / SIMULATIONS

    def read(self, name: str) -> str:
        with self._explaining_failures():
            return (self._place / name).read_text("utf-8", "replace")

    def write(self, name: str, text: str) -> None:
        with self._explaining_failures(), open(self._place / name, "wb", buffering=0) as file:
            _send(file.fileno(), text)

    def ask(self, name: str, text: str) -> str:
        with self._explaining_failures(), open(self._place / name, "r+b", buffering=0) as file:
            _send(file.fileno(), text)
            return os.pread(file.fileno(), LOG_BLOCK, 0).decode("utf-8", "replace")

    @contextmanager
    def follow(self, name: str) -> Iterator[Reader]:
        with self._explaining_failures():
            fd = os.open(self._place / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield lambda offset: os.pread(fd, LOG_BLOCK, offset)
        finally:
            os.close(fd)

    def storage_path(self, text: str) -> str:
        """A path that exists on this machine is taken as one; any other is a path in the storage."""
        place = os.path.abspath(text)
        below = os.path.relpath(place, self._top)
        if not below.startswith("..") and (os.path.isabs(text) or os.path.isdir(place)):
            return below
        return text.strip("/")

    @contextmanager
    def _explaining_failures(self) -> Iterator[None]:
        """Raise the sentence that the mount has kept of a failure, in place of the bare errno."""
        try:
            yield
        except OSError as error:
            sentence = ""
            with contextlib.suppress(OSError):
                sentence = (self._place / "error").read_text("utf-8", "replace").strip()
            if not sentence or error.errno in mountpoint.DEAD:
                raise
            raise MountError(sentence) from error


class InProcess:
    """The same files without a mount."""

    def __init__(self, simulations: Simulations) -> None:
        self._simulations = simulations

    def _file(self, name: str) -> File:
        node = self._simulations.node(name)
        assert isinstance(node, File)
        return node

    def read(self, name: str) -> str:
        file = self._file(name)
        assert file.read is not None
        return file.read().decode("utf-8", "replace")

    def write(self, name: str, text: str) -> None:
        self.ask(name, text)

    def ask(self, name: str, text: str) -> str:
        file = self._file(name)
        assert file.write is not None
        answer = file.write(text)
        self._simulations.succeeded()
        return (answer or b"").decode("utf-8", "replace")

    @contextmanager
    def follow(self, name: str) -> Iterator[Reader]:
        file = self._file(name)
        assert file.read is not None
        assert file.cached is not None
        assert file.live is not None
        cached = file.cached
        file.read()
        self._simulations.follow(file.live)
        try:
            yield lambda offset: cached()[offset : offset + LOG_BLOCK]
        finally:
            self._simulations.unfollow(file.live)

    def storage_path(self, text: str) -> str:
        return text.strip("/")


class RemoteStorage:
    """The storage without a mount, for a launch (`launch.Storage`)."""

    def __init__(self, client: Client, journal: Journal) -> None:
        self._client = client
        self._journal = journal

    def storage_path(self, text: str) -> str:
        return text.strip("/")

    def check_folder(self, path: str) -> None:
        try:
            view = self._client.view(path)
        except Refused:  # what v2 also says of a path that is not there
            view = None
        if view is None:
            raise NotFound(f"there is no folder {path!r} in the storage; upload the case first")
        if not view.entry.is_dir:
            raise NotDirectory(f"{path!r} is a file; a run needs its folder")

    def barrier(self, path: str) -> None:
        """Refuse if a mount has not uploaded something yet: the run would miss it."""
        waiting = [
            row.path for row in self._journal.files() if row.state != "stored" and paths.is_within(row.path, path)
        ]
        if waiting:
            wait = f"{count(len(waiting), 'file')} {agree(len(waiting), 'waits', 'wait')}"
            raise TryAgain(f"/{waiting[0]} is not on the service yet ({wait}): mount, then launch")


class NoCaches:
    """Without a mount nothing is cached that a run may change."""

    def results_expected(self, folder: str) -> None:
        pass

    def results_saved(self, folder: str) -> None:
        pass

    def runs_changed(self, run_ids: set[int], active: frozenset[str]) -> None:
        pass
