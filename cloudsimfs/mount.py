"""The one wiring place: builds all objects of a mount, replays the journal, serves, and stops in order."""

from __future__ import annotations

import logging
import resource
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from cloudsimfs import __version__
from cloudsimfs.clock import Clock, SystemClock
from cloudsimfs.config import KERNEL_SHARE, Config, launches_dir
from cloudsimfs.control.files import ControlFiles
from cloudsimfs.control.mounted import MountedCaches, MountedStorage
from cloudsimfs.control.simulations import Simulations
from cloudsimfs.control.state import MountState
from cloudsimfs.control.status import Report
from cloudsimfs.errors import (
    BadReply,
    BudgetSpent,
    CloudsimfsError,
    KeyRefused,
    MountError,
    NotFound,
    NotOffered,
    Refused,
    ServerFault,
    TimedOut,
    Unreachable,
    VersionNotEnabled,
)
from cloudsimfs.fuse.binding import interrupted, library_version, serve
from cloudsimfs.fuse.pagecache import KernelCache
from cloudsimfs.fuse.previews import is_spare
from cloudsimfs.host import mountpoint
from cloudsimfs.host.daemon import on_signal
from cloudsimfs.operations import Operations
from cloudsimfs.runs.account import runs_of_account
from cloudsimfs.service import Client, connect
from cloudsimfs.uploader.conflicts import Conflicts
from cloudsimfs.uploader.delete import Deleter
from cloudsimfs.uploader.upload import Uploader
from cloudsimfs.vfs.filesystem import FileSystem
from cloudsimfs.writeback.queue import Runner

log = logging.getLogger(__name__)


class Mount:
    """A mount of `config` on `mountpoint`. `ready` is called with a note for the user once the kernel has it."""

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
        self._control = self._control_files()
        timeout = config.ttl * KERNEL_SHARE
        self._operations = Operations(
            self._files,
            self._control,
            self._kernel_cache,
            timeout=timeout,
            on_init=self._started,
            on_destroy=self._ended,
        )

    def _control_files(self) -> ControlFiles:
        """The virtual folders `.cloudsimfs/` and `.simulations/`, over the storage side and the client."""
        config, files, clock = self._config, self._files, self._clock
        storage = MountedStorage(
            files.tree, files.dcache, files.writeback, self.client.budget, mountpoint=self._mountpoint, clock=clock
        )
        caches = MountedCaches(files.dcache, self._kernel_cache)
        runs = runs_of_account(
            self.client,
            files.journal,
            storage,
            caches,
            directory=config.cache_dir,
            launches=launches_dir(config.cache_dir),
            ttl=config.run_ttl,
            bulk=config.api != "v2",
            clock=clock,
        )
        return ControlFiles(
            Simulations(runs, changed=caches.contents_changed),
            MountState(self._report, files.recovery, storage, caches),
            owner=files.owner,
            clock=clock,
        )

    def serve(self) -> None:
        """Check that the service answers, replay the journal, mount, and serve until unmounted.

        Raises MountError, or the CloudsimfsError of the first listing.
        """
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would contain the key
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # one per open file
        on_signal(signal.SIGUSR1, self._log_state)
        try:
            self._check_service()
        except CloudsimfsError:
            self._let_go()
            raise
        self._files.restore()
        mountpoint.clear(self._mountpoint)
        try:
            serve(self._operations, str(self._mountpoint), options=_fuse_options(self._config))
        except RuntimeError as error:
            if self._stop.is_set():
                return  # it has served and ended in order; after a signal libfuse returns a status, too
            raise MountError(f"{self._mountpoint}: libfuse could not mount (status {error})") from error

    def _log_state(self) -> None:
        log.info("the state of the mount:")
        for line in self._report.status_text().splitlines():
            log.info("%s", line)

    def _check_service(self) -> None:
        """Prove URL and key by the first listing, which is needed anyway.

        If the service cannot be reached but the root was listed before, the mount serves what is known. Raises
        MountError, VersionNotEnabled.
        """
        try:
            self._files.check()
        except VersionNotEnabled:
            raise
        except KeyRefused as error:
            where = self._config.key_source
            raise MountError(f"{self._config.url} does not accept the API key from {where} ({error})") from None
        except (NotFound, NotOffered, BadReply, Refused) as error:
            if isinstance(error, Refused) and self._files.was_listed:
                self._serve_what_is_known("refuses to list", error)
                return
            url = self._config.url
            reason = "it lists no storage" if isinstance(error, NotFound) else error
            raise MountError(f"{url} answers, but not as the service does; check --url: {reason}") from None
        except (Unreachable, TimedOut, BudgetSpent, ServerFault) as error:
            if not self._files.was_listed:
                raise MountError(
                    f"{self._config.url} does not answer; check --url and the network: {error}"
                ) from None
            self._serve_what_is_known(
                "has no calls left" if isinstance(error, BudgetSpent) else "does not answer", error
            )

    def _serve_what_is_known(self, reason: str, error: CloudsimfsError) -> None:
        self._note = f"{self._config.url} {reason} ({error}): what was listed before is shown, and changes wait"
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
        """The functions that run the jobs of each kind. They belong to the layer above the storage side."""
        files = self._files
        uploader = Uploader(self.client, files.tree, files.writeback, self._conflicts, clock=self._clock)
        deleter = Deleter(self.client, files.tree, files.writeback, clock=self._clock)
        return {"upload": uploader.run, "delete": deleter.run}

    def _ended(self) -> None:
        """Stop after the unmount. What is not uploaded yet stays in the journal for the next mount."""
        waiting = self._files.pending
        self._stop.set()
        self._control.close()
        self._files.stop()
        self._let_go()
        log.info("unmounted; pending for the next mount: %d", waiting)

    def _let_go(self) -> None:
        """Release the cache directory and the connections."""
        self._files.close()
        self.client.close()


def _connect(config: Config, clock: Clock, stop: threading.Event) -> Client:
    return connect(
        base_url=config.url,
        key=config.credentials.key,
        api=config.api,
        calls_per_hour=config.calls_per_hour,
        offline=config.offline,
        key_in_query=config.key_in_query,
        insecure_http=config.insecure_http,
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
