"""A mount's storage side without a kernel, over a real client and a sandbox."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from cloudsimfs import paths
from cloudsimfs.clock import Clock, ManualClock
from cloudsimfs.config import Config
from cloudsimfs.errors import NotFound
from cloudsimfs.sandbox import Sandbox
from cloudsimfs.service import Client, Credentials, Retry, connect
from cloudsimfs.uploader.conflicts import Conflicts
from cloudsimfs.uploader.delete import Deleter
from cloudsimfs.uploader.upload import Uploader
from cloudsimfs.vfs.filesystem import FileSystem
from cloudsimfs.writeback.queue import WorkQueue
from harness import wait_until

Size = int | None  # bytes; None: absent
TTL = 60.0  # seconds
NEVER = 1e9  # seconds of write-back


class Ticking(ManualClock):
    """Never the same moment twice, as with the real clock: what came first can be told."""

    def __init__(self) -> None:
        super().__init__()
        self._one_by_one = threading.Lock()

    def monotonic(self) -> float:
        with self._one_by_one:
            self.advance(1e-6)
            return super().monotonic()


@contextmanager
def storage_side(box: Sandbox, directory: Path, api: Literal["v1", "v2"], clock: Clock) -> Iterator[FileSystem]:
    """A mount's storage side, without a kernel, that uploads at once."""
    stop = threading.Event()
    client = connect(base_url=box.url, key=box.key, api=api, stop=stop)
    config = Config(box.url, Credentials(None, box.key), directory, api=api, write_back=0.0)
    files = started(config, client, clock)
    yield files
    stop.set()
    close(files, client)


def started(config: Config, client: Client, clock: Clock) -> FileSystem:
    """Wired as `mount` does it, without what the kernel is told and tells."""
    files = FileSystem(
        config,
        client,
        clock,
        on_change=lambda _directory, _names: None,
        interrupted=lambda: False,
        may_preview=lambda: True,
    )
    conflicts = Conflicts(files.tree, on_conflict=lambda _directory, _names: None)
    uploader = Uploader(client, files.tree, files.writeback, conflicts, clock=clock)
    deleter = Deleter(client, files.tree, files.writeback, clock=clock)
    files.restore()
    files.start({"upload": uploader.run, "delete": deleter.run})
    return files


def close(files: FileSystem, client: Client) -> None:
    files.stop()
    files.close()
    client.close()


class World:
    """The same on a clock moved by hand, with a user's hands."""

    def __init__(
        self, box: Sandbox, directory: Path, api: Literal["v1", "v2"], clock: Ticking, *, write_back: float = NEVER
    ) -> None:
        self.box = box
        self.clock = clock
        config = Config(
            url=box.url,
            credentials=Credentials(None, box.key),
            cache_dir=directory,
            api=api,
            ttl=TTL,
            write_back=write_back,
        )
        self.client = connect(
            base_url=box.url, key=box.key, api=api, retry=Retry(attempts=2, base=0.001), clock=clock
        )
        self.files = started(config, self.client, clock)
        self.tree = self.files.tree
        self.queues: list[WorkQueue] = [self.files.writeback.queue, self.files.writeback.view_cache._queue]

    def close(self) -> None:
        close(self.files, self.client)

    def rest(self) -> None:
        """Until nothing happens any more unless the clock moves."""

        def at_rest() -> bool:
            for queue in self.queues:
                with queue.lock:
                    queue.lock.notify_all()  # the clock may have been moved
                    now = self.clock.monotonic()
                    if any(job.running or not (job.held or job.due > now) for job in queue.pending()):
                        return False
            return not self.files.dcache._flights

        wait_until(at_rest, "no job is due and no listing under way")

    def write(self, path: str, data: bytes) -> None:
        handles = self.files.handles
        try:
            self.tree.lookup(path)
        except NotFound:
            fh = handles.create(path, 0o644, os.O_WRONLY)
        else:
            fh = handles.open(path, os.O_WRONLY | os.O_TRUNC)
        handles.write(fh, data, 0)
        handles.flush(fh)
        handles.release(fh)

    def read(self, path: str) -> bytes:
        fh = self.files.handles.open(path, os.O_RDONLY)
        try:
            buffer = bytearray(1 << 20)
            return bytes(buffer[: self.files.handles.read(fh, memoryview(buffer), 0)])
        finally:
            self.files.handles.release(fh)

    def size(self, path: str) -> Size:
        """As stat(2) finds it: from the root down."""
        try:
            for above in reversed(list(parents(path))):
                assert self.tree.getattr(above).is_dir
            return self.tree.getattr(path).size
        except NotFound:
            return None


def parents(path: str) -> list[str]:
    """The folders above a path, the nearest first, without the root."""
    found = []
    while path := paths.parent(path):
        found.append(path)
    return found
