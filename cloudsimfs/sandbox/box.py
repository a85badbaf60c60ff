"""The sandbox itself: storage, runs and HTTP server wired together, with verbs for tests.

Threading: the server runs in a thread of its own; every public method may be called from any other thread.
Must never leave anything behind after `close()`: no thread, process, socket or temporary file.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from aiohttp import web

from cloudsimfs.sandbox import snapshot
from cloudsimfs.sandbox.blobs import Blobs
from cloudsimfs.sandbox.faults import Faults
from cloudsimfs.sandbox.log import CallLog
from cloudsimfs.sandbox.objects import Links, Objects
from cloudsimfs.sandbox.runs import HARD_STOP, Runs
from cloudsimfs.sandbox.server import Server
from cloudsimfs.sandbox.settings import Clock, Settings
from cloudsimfs.sandbox.store import NoEntry, Store, Visible
from cloudsimfs.sandbox.v1 import V1
from cloudsimfs.sandbox.v2 import V2

_READ_BUFFER = 1024 * 1024  # bytes; a large buffer means fewer turns of the event loop per upload
_CLOSE_GRACE = 0.1  # seconds that open requests have to finish at close


class Sandbox:
    """The service, running from construction to `close()` (or the end of a `with`).

    `url` is the `{base_url}` of docs/service.md. At close, the stored files are kept in `data_dir`; without one they
    are deleted. Raises OSError if the port is in use, ValueError if `data_dir` holds a damaged index.
    """

    def __init__(
        self,
        *,
        key: str | None = None,
        port: int = 0,
        host: str = "127.0.0.1",
        data_dir: Path | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.key = key or secrets.token_hex(16)
        self.keys = {self.key}  # every key that is accepted, all of one account; may be changed at any time
        self.settings = settings or Settings()
        self.clock = Clock()
        self.faults = Faults()
        self.calls = CallLog()
        self.key_leaks: list[str] = []
        self._host = host
        self._socket = _listen(host, port)
        self.url = f"http://{host}:{self._socket.getsockname()[1]}"
        self._closed = False
        self._temporary = data_dir is None
        self._directory = Path(tempfile.mkdtemp(prefix="cloudsim-")) if data_dir is None else data_dir
        try:
            self._store = self._open_store()
        except (OSError, ValueError):
            self._socket.close()
            raise
        self._links = Links(self.url, self.clock, self.settings)
        self._runs = Runs(self._directory / "runs", self._store, self._links, self.clock, self.settings)
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(started,), name="sandbox", daemon=True)
        self._thread.start()
        started.wait()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the runs and the server, and delete temporary files. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self.faults.clear()
        self._runs.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        if self._temporary:
            shutil.rmtree(self._directory)
        else:
            snapshot.save(self._store, self._directory)
            shutil.rmtree(self._directory / "runs", ignore_errors=True)

    # -- acting as another client: listings show it at once -----------------------------------------------------

    def put(self, path: str, data: bytes | Path, *, lagged: bool = False) -> None:
        """Store a file; a Path names a local file to copy. `lagged`: listings show it later (`listing_lag`)."""
        self._store.put_data(path, data, Visible.LAGGED if lagged else Visible.NOW)

    def put_sparse(self, path: str, size: int) -> None:
        """Store a file of `size` zero bytes that take no disk space."""
        self._store.put_sparse(path, size)

    def populate(self, tree: Mapping[str, bytes]) -> None:
        """Store many small files."""
        self._store.populate(tree)

    def remove(self, path: str) -> None:
        """Delete a file or a folder. Raises KeyError if there is none."""
        try:
            self._store.remove(path)
        except NoEntry:
            raise KeyError(path) from None

    def launch(self, folder: str) -> int:
        """Start a run in a folder that is stored. Its id."""
        return self._runs.launch({"cpu": 2, "ram": "standard", "script": "heat2d-1.0", "folder": folder})

    def stop(self, run_id: int) -> None:
        """Stop a run hard; `runs()` shows it STOPPED a moment later. Raises LookupError if there is none."""
        self._runs.stop(run_id, HARD_STOP)

    def forget_run(self, run_id: int) -> None:
        """Delete a run from the list. Raises LookupError if there is none."""
        self._runs.forget(run_id)

    def say(self, run_id: int, text: str) -> None:
        """Append to a run's log what its solver did not print. Raises LookupError if there is none."""
        self._runs.say(run_id, text)

    def alter_run(self, run_id: int, **fields: Any) -> None:
        """Have a run list other fields than it was launched with. Raises LookupError if there is none."""
        self._runs.alter(run_id, fields)

    def advance(self, seconds: float) -> None:
        """Move the sandbox's clock forward: caches, lags, links and call limits follow it."""
        self.clock.advance(seconds)

    # -- looking ------------------------------------------------------------------------------------

    def files(self) -> dict[str, bytes]:
        """The stored files, whatever listings show. All their bytes come into memory."""
        return self._store.contents()

    def paths(self) -> list[str]:
        """The paths of all stored files, sorted."""
        return sorted(self._store.files())

    def entry(self, path: str) -> dict[str, Any]:
        """The stored file's entry, as listings will show it. Raises KeyError if there is none."""
        file = self._store.stored(path)
        if file is None:
            raise KeyError(path)
        return self._store.describe(file)

    def known_paths(self, folder: str) -> list[str]:
        """The paths of the files that a run in a folder would find, sorted."""
        return sorted(self._store.known_files(folder))

    def record_versions(self) -> list[tuple[str, bytes]]:
        """A list that every (path, bytes) version is appended to from now on; the list of an earlier call ends."""
        versions: list[tuple[str, bytes]] = []
        self._store.on_put = lambda path, data: versions.append((path, data))
        return versions

    def run(self, run_id: int) -> dict[str, Any]:
        """One run with all fields. Raises LookupError if there is none."""
        return self._runs.get(run_id)

    def runs(self) -> list[dict[str, Any]]:
        """All runs with all fields, oldest first."""
        return self._runs.all()

    def _open_store(self) -> Store:
        objects = self._directory / "objects"
        objects.mkdir(parents=True, exist_ok=True)
        store = Store(Blobs(objects), self.clock, self.settings)
        if not self._temporary:
            snapshot.load(store, self._directory)
        return store

    # -- the server's thread ------------------------------------------------------------------------

    def _serve(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        runner = self._loop.run_until_complete(self._start())
        started.set()
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(runner.cleanup())
            self._loop.run_until_complete(_cancel_all())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def _start(self) -> web.AppRunner:
        shared = (self._store, self._links, self._runs, self.clock, self.settings)
        server = Server(
            host=self._host,
            keys=self.keys,
            store=self._store,
            objects=Objects(self._store, self._links, self.clock, self.settings),
            clock=self.clock,
            settings=self.settings,
            faults=self.faults,
            calls=self.calls,
            key_leaks=self.key_leaks,
            routes={1: V1(*shared).routes(), 2: V2(*shared).routes()},
        )
        runner = web.AppRunner(
            server.app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=_CLOSE_GRACE,
            read_bufsize=_READ_BUFFER,
        )
        await runner.setup()
        await web.SockSite(runner, self._socket, backlog=1024).start()
        return runner


def serve_forever(
    host: str,
    port: int,
    data_dir: Path | None,
    key: str | None,
    settings: Settings | None,
    announce: Callable[[Sandbox], None],
) -> None:
    """Run a sandbox until SIGINT or SIGTERM; `announce` is called once it answers. Main thread only.

    Raises OSError if the port is in use.
    """
    ended = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        ended.set()

    os.umask(0o077)  # what is stored, and what runs make of it, is the user's alone
    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with Sandbox(key=key, port=port, host=host, data_dir=data_dir, settings=settings) as box:
            announce(box)
            ended.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


async def _cancel_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
