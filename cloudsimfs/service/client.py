"""The verbs of the service: list, view, upload, download, delete, launch, stop, sync, in API v1 or v2.

Thread-safe: one client per account serves any number of threads. Every verb takes `urgency`, which decides what
happens when the hour's calls run out (`budget`), and raises only errors of `cloudsimfs.errors`. The client knows no
inodes and no caches, keeps no copy of what it read, and never sends a launch twice.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from cloudsimfs import paths
from cloudsimfs.clock import Clock, SystemClock
from cloudsimfs.errors import (
    BadReply,
    ConfigError,
    LaunchUnresolved,
    NoSuchEntry,
    NotOffered,
    Refused,
)
from cloudsimfs.redact import register_secret
from cloudsimfs.service import entries, parsing, v1, v2
from cloudsimfs.service.body import Body, Progress
from cloudsimfs.service.budget import Budget, Urgency
from cloudsimfs.service.call import Call, Timeouts, Version
from cloudsimfs.service.caller import ApiCaller, Outage
from cloudsimfs.service.credentials import check_key
from cloudsimfs.service.downloads import Downloads
from cloudsimfs.service.endpoint import Endpoint, check_base_url
from cloudsimfs.service.folders import Folders
from cloudsimfs.service.model import Download, Entry, LaunchRequest, Listed, Signal, Simulation, Stored, View
from cloudsimfs.service.objectstore import Fetched, ObjectStore
from cloudsimfs.service.paging import PageSize, all_pages
from cloudsimfs.service.retry import Retrier, Retry
from cloudsimfs.service.servercache import ServerCache
from cloudsimfs.service.transport import HttpTransport
from cloudsimfs.service.uploads import Uploads
from cloudsimfs.service.versions import Versions, check_done


def connect(
    *,
    base_url: str,
    key: str,
    api: Literal["auto", "v1", "v2"] = "auto",
    timeouts: Timeouts | None = None,
    retry: Retry | None = None,
    calls_per_hour: int | None = None,
    key_in_query: bool = False,
    insecure_http: bool = False,
    offline: bool = False,
    clock: Clock | None = None,
    stop: threading.Event | None = None,
) -> Client:
    """A client of the service at `base_url`. Makes no call: with `auto`, the first verb finds out the version.

    `calls_per_hour` limits the calls even if the service reports a higher limit or none. `key_in_query` sends the key
    as v1's query parameter (docs/service.md, "Authentication"). Without `insecure_http`, an address without https has
    to be this machine's. Setting `stop` ends waits and transfers: Cancelled.
    With `offline`, every call raises Unreachable and none is sent. Raises ConfigError.
    """
    check_key(key, "API key")
    register_secret(key)
    endpoint = Endpoint(check_base_url(base_url, insecure_http=insecure_http), key, key_in_query, offline)
    clock = clock or SystemClock()
    stop = stop or threading.Event()
    timeouts = timeouts or Timeouts()
    retrier = Retrier(retry or Retry(), clock, stop)
    budget = Budget(clock, stop, calls_per_hour)
    http = HttpTransport(timeouts, clock, stop)
    caller = ApiCaller(http, budget, retrier, clock, timeouts, endpoint)
    store = ObjectStore(http, retrier, clock, timeouts, secure=endpoint.secure)
    return Client(api, http, caller, store, retrier, budget, clock)


class Client:
    """One account of the service. Made by `connect`; use it as a context manager, or call `close`."""

    def __init__(
        self,
        api: Literal["auto", "v1", "v2"],
        http: HttpTransport,
        caller: ApiCaller,
        store: ObjectStore,
        retrier: Retrier,
        budget: Budget,
        clock: Clock,
    ) -> None:
        self.budget = budget
        self._http = http
        self._caller = caller
        self._versions = Versions(api, caller, clock)
        self._folders = Folders(caller, self._versions, clock)
        self._store = store
        self._uploads = Uploads(store, clock)
        self.server_cache = ServerCache(clock, self._delete_cache, offered=lambda: self._versions.known != "v1")
        self._downloads = Downloads(store, caller, self._versions, retrier)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the idle connections. Transfers still running end by themselves."""
        self._http.close()

    @property
    def api_version(self) -> Version:
        """The API version in use. With `auto`, the first access makes one call, which may raise."""
        return self._versions.in_use(Urgency.NORMAL)

    @property
    def clock_skew(self) -> float | None:
        """Seconds by which the service's clock was ahead at its last reply; None if the reply had no Date."""
        return self._caller.clock_skew

    @property
    def outage(self) -> Outage | None:
        """Since when the service has not answered; None if the last call was answered, or none was made."""
        return self._caller.outage

    # -- storage: names ---------------------------------------------------------------------------------

    def list_directory(
        self,
        entry_id: int,
        path: str,
        *,
        urgency: Urgency = Urgency.NORMAL,
        may_lack: Callable[[Sequence[Entry]], bool] = lambda _: False,
        since: float = math.inf,
    ) -> Listed:
        """The entries directly in a folder: `path`, with the id `entry_id` (0: the root).

        `may_lack(entries)` says whether the folder was known to hold names after these, which are all of a page (v2).
        `since`, in monotonic seconds: when a look at many folders began, of which this is one.
        Not complete if a folder of several pages (v2) has changed all the time while they were read.
        """
        return self._folders.listing(entry_id, path, urgency, may_lack, since)

    @property
    def page_size(self) -> PageSize:
        """What is known of v2's pages."""
        return self._folders.page_size

    def list_page(self, entry_id: int, path: str, page: int, *, urgency: Urgency = Urgency.NORMAL) -> list[Entry]:
        """One page (from 1) of a folder, sorted by name. Raises NotOffered in v1, which has no pages."""
        return self._folders.page(entry_id, path, page, urgency)

    def list_all(self, *, urgency: Urgency = Urgency.NORMAL) -> list[Entry]:
        """Every entry of the storage in one call, which is v1's also for v2 accounts. The reply can be large."""
        call = v1.list_all()
        reply = self._caller.call(call, urgency, entries.element(None))
        return entries.listing(call, reply, None)

    def view(self, path: str, *, urgency: Urgency = Urgency.NORMAL) -> View | None:
        """What is at `path`; None if certainly nothing. Raises Refused where v2's answer may mean either."""
        if path == paths.ROOT:
            return View(Entry(0, "", "", True), self.list_directory(0, paths.ROOT, urgency=urgency).entries)
        _check_text(path)
        call = v2.view(path) if self._versions.in_use(urgency) == "v2" else v1.view(path)
        try:
            return entries.view(call, self._caller.call(call, urgency), path)
        except NoSuchEntry:
            return None

    def entry(self, entry_id: int, *, urgency: Urgency = Urgency.NORMAL) -> Entry:
        """One entry by its id. The call is v1's, also for v2 accounts. Raises NoSuchEntry."""
        call = v1.entry(entry_id)
        return entries.entry(call, self._caller.call(call, urgency))

    def fetch_size(self, entry: Entry, *, urgency: Urgency = Urgency.NORMAL) -> Entry:
        """The entry with its size, which its listing left out. Raises Refused if the service never gives it."""
        current = self.entry(entry.id, urgency=urgency)
        if current.path != entry.path or current.is_dir:
            raise BadReply(f"entry {entry.id}: it is not the entry that was listed")
        if current.sized:
            return current
        with self.fetch(self.download(entry.id, urgency=urgency)) as body:  # closed unread: only its size is wanted
            if body.total is None:
                raise Refused(f"entry {entry.id}: the service does not say its size")
            return replace(current, size=body.total, sized=True)

    def delete(self, entry_id: int, *, urgency: Urgency = Urgency.NORMAL) -> None:
        """Delete a file, or a folder with its content. Raises NoSuchEntry if it was already gone."""
        if entry_id < 1:
            raise Refused("DELETE /storage: the root cannot be deleted")
        self._versions.acknowledged(v2.delete(entry_id), v1.delete(entry_id), urgency)

    def _delete_cache(self, urgency: Urgency) -> None:
        if self._versions.in_use(urgency) == "v1":
            raise NotOffered("DELETE /user/delete-cache: API v1 has no such call")
        self._do(v2.delete_cache(), urgency)

    # -- storage: bytes ---------------------------------------------------------------------------------

    def upload(
        self,
        path: str,
        size: int,
        body: Body,
        *,
        is_listed: Callable[[Stored], bool] = lambda _: True,
        progress: Progress | None = None,
        urgency: Urgency = Urgency.BACKGROUND,
    ) -> Stored:
        """Store `size` bytes as `path`: one call for the link, one PUT (docs/service.md, "Endpoints").

        `body()` gives the bytes for each attempt, from the start; its errors drop the connection and pass through.
        `progress` gets the number of bytes sent so far. An ETag that is an MD5 is compared with that of the bytes
        sent. Without an ETag, `is_listed` may be called: it says whether a listing shows the file (see `uploads`).
        """
        _check_text(path)

        def request_link() -> str:
            return self._upload_link(path, urgency)

        return self._uploads.put(path, size, body, request_link, is_listed, progress=progress)

    def _upload_link(self, path: str, urgency: Urgency) -> str:
        call = v2.upload_url(path) if self._versions.in_use(urgency) == "v2" else v1.upload_url(path)
        link = parsing.link(call, self._caller.call(call, urgency))
        if link is None:
            raise BadReply(f"{call.label}: the answer has no upload link")
        return link

    def upload_direct(self, path: str, data: bytes, *, urgency: Urgency = Urgency.NORMAL) -> None:
        """Store a file below 2 MB in one API call, which is v1's. Raises Refused if it is larger."""
        _check_text(path)
        call = v1.upload_direct(path, data)
        if len(data) >= v1.DIRECT_LIMIT:
            raise Refused(f"{call.label}: direct upload is for files below {v1.DIRECT_LIMIT} bytes")
        self._do(call, urgency)

    def download(self, entry_id: int, *, urgency: Urgency = Urgency.NORMAL) -> Download:
        """A link to the file. While the service answers with a null link, asks at most 5 times, 2 s apart."""
        return self._downloads.link(entry_id, urgency)

    def fetch(
        self,
        download: Download,
        *,
        offset: int = 0,
        length: int | None = None,
        if_etag: str | None = None,
        if_size: int | None = None,
    ) -> Fetched:
        """Open `length` bytes (None: the rest) from `offset` of a file, without an API call. Close the result.

        If the server ignores the range, the result has `offset` 0 and `partial` False. Raises LinkExpired when a new
        `download` is needed. Raises VersionChanged if the object's ETag or whole size (bytes) differs from `if_etag`
        or `if_size`, or if the object ends before `offset`.
        """
        return self._store.get(download, offset=offset, length=length, if_etag=if_etag, if_size=if_size)

    def download_direct(self, entry_id: int, *, urgency: Urgency = Urgency.NORMAL) -> Fetched:
        """Open a whole file with one API call, which is v1's. Close the result."""
        return self._downloads.open_direct(entry_id, urgency)

    # -- simulations ------------------------------------------------------------------------------------

    def simulations(
        self,
        *,
        logs: bool = False,
        enough: Callable[[list[Simulation]], bool] | None = None,
        urgency: Urgency = Urgency.NORMAL,
    ) -> list[Simulation]:
        """All runs of the user. v2 lists them without their logs, in pages, the newest first.

        With `logs`, v1's call is made, which has the logs, also for v2 accounts. `enough` gets the runs of the pages
        so far; it returns True to read no more pages.
        """
        if not logs and self._versions.has_v2("simulations", urgency):
            try:
                return all_pages(
                    "GET /simulation/index-short", lambda page: self._simulations_page(page, urgency), enough
                )
            except (NotOffered, NoSuchEntry) as error:
                return self._versions.fall_back("simulations", error, lambda: self._simulations_v1(urgency))
        return self._simulations_v1(urgency)

    def _simulations_v1(self, urgency: Urgency) -> list[Simulation]:
        call = v1.list_simulations()
        return parsing.simulations(call, self._caller.call(call, urgency))

    def _simulations_page(self, page: int, urgency: Urgency) -> tuple[list[Any], list[Simulation]]:
        call = v2.simulations_page(page)
        sent = parsing.items(call, self._caller.call(call, urgency), "a list of simulations")
        return sent, parsing.simulations(call, sent)

    def simulation(self, run_id: int, *, urgency: Urgency = Urgency.NORMAL) -> Simulation:
        """One run with its output. Raises NoSuchEntry."""
        call, reply = self._versions.either(v2.simulation(run_id), v1.simulation(run_id), urgency)
        return parsing.simulation(call, reply)

    def launch(self, request: LaunchRequest, *, urgency: Urgency = Urgency.CONTROL) -> int:
        """Start a run and return its id. Sends at most one POST, ever.

        Raises LaunchUnresolved if the POST may have arrived, but its answer is lost or unreadable: look at
        `simulations`, never launch again. Any other error means that no run was started.
        """
        for text in (request.folder, request.cpu, request.ram, request.script, request.mesh or ""):
            _check_text(text)
        call = v2.launch(request) if self._versions.in_use(urgency) == "v2" else v1.launch(request)
        try:
            return parsing.launched(call, self._caller.call(call, urgency))
        except BadReply as error:
            raise LaunchUnresolved(f"{error}; it may have started a run") from None

    def stop(self, run_id: int, signal: Signal, *, urgency: Urgency = Urgency.CONTROL) -> None:
        """Stop a run, softly or hard. Raises NoSuchEntry, or Refused if the run's state does not allow it."""
        if signal is Signal.SYNC:
            raise ValueError("use sync()")
        call = v2.stop(run_id, signal) if self._versions.in_use(urgency) == "v2" else v1.stop(run_id, signal)
        self._do(call, urgency)

    def sync(self, run_id: int, *, urgency: Urgency = Urgency.CONTROL) -> None:
        """Have a run save its results so far and go on.

        Raises NoSuchEntry, or Refused if the run's state does not allow it.
        """
        self._versions.acknowledged(v2.sync(run_id), v1.sync(run_id), urgency)

    def cpu_values(self, *, urgency: Urgency = Urgency.NORMAL) -> tuple[str, ...]:
        """The values that a launch may use for `cpu`."""
        probed = self._versions.take_probed()
        if probed is not None:
            return parsing.options(v2.cpu_values(), probed)
        return parsing.options(*self._versions.either(v2.cpu_values(), v1.cpu_values(), urgency))

    def ram_values(self, *, urgency: Urgency = Urgency.NORMAL) -> tuple[str, ...]:
        """The values that a launch may use for `ram`."""
        return parsing.options(*self._versions.either(v2.ram_values(), v1.ram_values(), urgency))

    def scripts(self, *, urgency: Urgency = Urgency.NORMAL) -> tuple[str, ...]:
        """The values that a launch may use for `script`."""
        return parsing.options(*self._versions.either(v2.scripts(), v1.scripts(), urgency))

    def _do(self, call: Call, urgency: Urgency) -> None:
        check_done(call, self._caller.call(call, urgency))


def _check_text(text: str) -> None:
    """Raises ConfigError for text that is not UTF-8: it would reach the service as something else."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ConfigError(f"{text!r}: the service takes UTF-8 only") from None
