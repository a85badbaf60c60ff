"""The one wiring place: builds all objects of a mount, replays the journal, serves, and ends in order."""

from __future__ import annotations

import logging
import os
import resource
import signal
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from cloudsimfs import __version__, paths
from cloudsimfs.clock import Clock, SystemClock
from cloudsimfs.config import KERNEL_SHARE, Config
from cloudsimfs.control.build import runs_of_account
from cloudsimfs.control.control import Control
from cloudsimfs.control.metrics import prometheus
from cloudsimfs.control.simulations import run_paths
from cloudsimfs.control.status import Report
from cloudsimfs.errors import (
    BadReply,
    BudgetSpent,
    CloudsimfsError,
    KeyRefused,
    MountError,
    NotDirectory,
    NotFinished,
    NotFound,
    NotOffered,
    ServerFault,
    TimedOut,
    TryAgain,
    Unreachable,
    VersionNotEnabled,
    WrongState,
)
from cloudsimfs.fuse.binding import interrupted, library_version, serve
from cloudsimfs.fuse.pagecache import KernelCache
from cloudsimfs.fuse.previews import is_spare
from cloudsimfs.host.daemon import on_signal
from cloudsimfs.operations import Operations
from cloudsimfs.service import Client, connect
from cloudsimfs.uploader.conflicts import Conflicts
from cloudsimfs.uploader.delete import Deleter
from cloudsimfs.uploader.upload import Uploader
from cloudsimfs.vfs.filesystem import FileSystem
from cloudsimfs.vfs.tree import Node, is_dir
from cloudsimfs.writeback.queue import Runner

log = logging.getLogger(__name__)

FLUSH_BOUND = 20.0  # seconds one write to `flush` may take; who waits longer writes again
BARRIER_BOUND = 900.0  # seconds a launch waits for its files
SETTLING = 60.0  # seconds in which results may arrive after a sync, a stop or an end


class Mount:
    """A mount of `config` on `mountpoint`. `ready` is called once the kernel has it, with a note for the user."""

    def __init__(self, config: Config, mountpoint: Path, *, ready: Callable[[str], None]) -> None:
        self._config = config
        self._mountpoint = mountpoint
        self._ready = ready
        self._note = ""
        self._clock: Clock = SystemClock()
        self._stop = threading.Event()
        self.client = _connect(config, self._clock, self._stop)
        self._kernel_cache = KernelCache()
        self._files = FileSystem(
            config,
            self.client,
            self._clock,
            on_change=self._kernel_cache.listing_changed,
            interrupted=interrupted,
            may_preview=lambda: is_spare(self.client.budget.snapshot()),
        )
        self._conflicts = Conflicts(self._files.tree, on_conflict=self._kernel_cache.listing_changed)
        self._report = Report(config, mountpoint, self.client, self._files, self._conflicts)
        self._control = Control(
            runs_of_account(
                self.client,
                self._files.journal,
                self,
                directory=config.cache_dir,
                ttl=config.run_ttl,
                bulk=config.api != "v2",
                clock=self._clock,
            ),
            self,
            clock=self._clock,
        )
        timeout = config.ttl * KERNEL_SHARE
        self._operations = Operations(
            self._files,
            self._control,
            self._kernel_cache,
            timeout=timeout,
            on_init=self._started,
            on_destroy=self._ended,
        )

    def serve(self) -> None:
        """Check that the service answers, replay the journal, mount, and serve until unmounted."""
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would hold the key
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # one per open file
        on_signal(signal.SIGUSR1, lambda: log.info("the state of the mount:\n%s", self.status_text()))
        try:
            self._check_service()
        except CloudsimfsError:
            self._let_go()
            raise
        self._files.restore()
        try:
            serve(self._operations, str(self._mountpoint), options=_fuse_options(self._config))
        except RuntimeError as error:
            if self._stop.is_set():
                return  # it was served and ended in order; a signal gives libfuse a status of its own
            raise MountError(f"{self._mountpoint}: libfuse could not mount (status {error})") from error

    def _check_service(self) -> None:
        """Prove URL and key by the first listing, which is needed anyway.

        A service that cannot be reached does not matter to one who has been here before: what is known is served.
        """
        try:
            self._files.dcache.check()
        except VersionNotEnabled:
            raise
        except KeyRefused as error:
            where = self._config.key_source
            raise MountError(f"{self._config.url} does not accept the API key from {where} ({error})") from None
        except (NotFound, NotOffered, BadReply) as error:
            url = self._config.url
            reason = "it lists no storage" if isinstance(error, NotFound) else error
            raise MountError(f"{url} answers, but not as the service does; check --url: {reason}") from None
        except (Unreachable, TimedOut, BudgetSpent, ServerFault) as error:
            if not self._files.dcache.knows(paths.ROOT):
                raise MountError(
                    f"{self._config.url} does not answer; check --url and the network: {error}"
                ) from None
            silent = "has no calls left" if isinstance(error, BudgetSpent) else "does not answer"
            self._note = (
                f"{self._config.url} {silent} ({error}): what is known of it is shown, and what is written waits"
            )
            log.warning("%s", self._note)

    def _started(self) -> None:
        self._files.start(self._runners())
        version = ".".join(map(str, library_version()))
        log.info(
            "cloudsimfs %s serves %s on %s (libfuse %s)",
            __version__,
            self._config.url,
            self._mountpoint,
            version,
        )
        self._ready(self._note)

    def _runners(self) -> dict[str, Runner]:
        """What does the jobs of each kind: the layer above the storage side."""
        files = self._files
        uploader = Uploader(self.client, files.tree, files.writeback, self._conflicts, clock=self._clock)
        deleter = Deleter(self.client, files.tree, files.writeback, clock=self._clock)
        return {"upload": uploader.run, "delete": deleter.run}

    def _ended(self) -> None:
        """Unmounted. What is not uploaded yet stays in the journal for the next mount."""
        waiting = len(self._files.writeback.pending())
        self._stop.set()
        self._control.close()
        self._files.stop()
        self._let_go()
        log.info("unmounted; pending for the next mount: %d", waiting)

    def _let_go(self) -> None:
        """Of the cache directory, and of the connections."""
        self._files.close()
        self.client.close()

    # -- what runs and the control files ask for -----------------------------------------------------------

    def storage_path(self, text: str) -> str:
        """A path as users write it: of the storage, or within the mount."""
        top = str(self._mountpoint)
        path = os.path.normpath(text)
        if path == top or path.startswith(top + "/"):
            path = path[len(top) :]
        return "" if path == "." else path.strip("/")

    def check_folder(self, path: str) -> None:
        try:
            node = self._lookup_again(path)
        except NotFound:
            raise NotFound(f"there is no folder {path!r} in the storage; copy the case in first") from None
        if not is_dir(node):
            raise NotDirectory(f"{path!r} is a file; a run needs its folder")

    def _lookup_again(self, path: str) -> Node:
        """What others have just put there counts: before a folder is called missing, the service is asked."""
        try:
            return self._files.tree.lookup(path)
        except NotFound:
            self._files.dcache.invalidate(paths.parent(path))
            return self._files.tree.lookup(path)

    def barrier(self, path: str) -> None:
        self._files.writeback.check_refused(path)
        for inode in self._files.tree.half_written():
            if paths.is_within(inode.path, path) and not inode.local_only:
                raise WrongState(
                    f"/{inode.path} was being written when the last mount ended, and is not stored; "
                    "`cloudsimfs recover` uploads or discards it"
                )
        try:
            self._files.writeback.drain(path, timeout=BARRIER_BOUND, interrupted=self._must_not_wait)
        except TryAgain:
            self._check_calls()  # no calls are left: the reason of it, with the errno it has
            raise

    def _must_not_wait(self) -> bool:
        """Asked while a launch waits. Raises BudgetSpent: who launches must not wait for the hour to turn."""
        if self.client.budget.snapshot().waiting:
            self._check_calls()
        return interrupted()

    def _check_calls(self) -> None:
        budget = self.client.budget.snapshot()
        if budget.remaining == 0:
            raise BudgetSpent(
                "no API calls are left in this hour for the uploads that the launch needs",
                retry_after=max(0.0, budget.resets_at - self._clock.now()),
            )

    def refresh(self, path: str) -> None:
        """Look anew at a path and all below it, and for a while often: others are writing there."""
        path = path.strip("/")
        self._files.dcache.invalidate(paths.parent(path))
        self._files.dcache.expect_changes(path, SETTLING)
        self._kernel_cache.invalidate(path)
        self._kernel_cache.settle()

    def results_expected(self, folder: str) -> None:
        """Look anew inside, and for a while often. The listing above says no more of the folder than before."""
        self._files.dcache.expect_changes(folder, SETTLING)
        self._kernel_cache.invalidate(folder)

    def runs_changed(self, run_ids: set[int], active: frozenset[str]) -> None:
        self._files.dcache.keep_steady(active)
        if run_ids:
            self.contents_changed(run_paths(run_ids))

    def contents_changed(self, changed: list[str]) -> None:
        self._kernel_cache.invalidate_all(changed)

    def drafts(self) -> list[dict[str, object]]:
        return [asdict(draft) for draft in self._files.recovery.drafts()]

    def recover(self, command: str) -> None:
        self._files.recovery.command(command, bound=FLUSH_BOUND)

    def flush(self) -> None:
        """Wait until all is stored. Raises TimedOut when it takes longer than one write may: write again."""
        try:
            self._files.writeback.drain(timeout=FLUSH_BOUND, interrupted=interrupted)
        except NotFinished as error:
            raise TimedOut(str(error)) from error

    def status(self) -> dict[str, object]:
        return self._report.status()

    def status_text(self) -> str:
        return self._report.status_text()

    def pending_text(self) -> str:
        return self._report.pending_text()

    def metrics_text(self) -> str:
        return prometheus(self._report.status())


def _connect(config: Config, clock: Clock, stop: threading.Event) -> Client:
    return connect(
        base_url=config.url,
        key=config.credentials.key,
        api=config.api,
        calls_per_hour=config.calls_per_hour,
        offline=config.offline,
        key_in_query=config.key_in_query,
        clock=clock,
        stop=stop,
    )


def _fuse_options(config: Config) -> dict[str, str | bool]:
    options: dict[str, str | bool] = {
        "fsname": config.url.replace(",", "_"),
        "subtype": "cloudsimfs",
        "default_permissions": True,
        "ro": config.read_only,
        "allow_other": config.allow_other,
    }
    for option in config.mount_options:
        name, equals, value = option.partition("=")
        options[name] = value if equals else True
    return options
