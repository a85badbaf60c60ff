"""API v1: the calls of docs/service.md, "v1 (documented)", answered with JSON without an envelope.

Threading: the event loop only. Must know nothing of faults or HTTP.
"""

from __future__ import annotations

from typing import Any

from cloudsimfs.sandbox.api import NUMBER, ApiRequest, Redirect, Refusal, Route
from cloudsimfs.sandbox.objects import Links
from cloudsimfs.sandbox.run import V2_ONLY
from cloudsimfs.sandbox.runs import Runs
from cloudsimfs.sandbox.settings import Clock, Settings
from cloudsimfs.sandbox.store import NoEntry, Store, Visible, storage_path
from cloudsimfs.sandbox.tree import File


class V1:
    """The routes of v1 and their handlers."""

    def __init__(self, store: Store, links: Links, runs: Runs, clock: Clock, settings: Settings) -> None:
        self._store = store
        self._links = links
        self._runs = runs
        self._clock = clock
        self._settings = settings

    def routes(self) -> list[Route]:
        entry, run = f"/storage/{{id:{NUMBER}}}", f"/simulation/{{id:{NUMBER}}}"
        return [
            Route("GET", "/simulation", "simulations", self._simulations),
            Route("POST", "/simulation", "launch", self._launch),
            Route("GET", "/simulation/cpu", "cpu", lambda _: [str(cpu) for cpu in self._settings.cpus]),
            Route("GET", "/simulation/ram", "ram", lambda _: list(self._settings.rams)),
            Route("GET", "/simulation/scripts", "scripts", lambda _: list(self._settings.scripts)),
            Route("GET", run, "simulation", self._simulation),
            Route("PUT", f"{run}/stop", "stop", self._stop),
            Route("PUT", f"{run}/sync", "sync", self._sync),
            Route("GET", "/storage", "list-all", lambda _: self._store.all_entries()),
            Route("POST", "/storage", "upload-direct", self._upload_direct),
            Route("POST", "/storage/upload/url", "upload-url", self._upload_url),
            Route("POST", "/storage/view", "view", self._view),
            Route("GET", f"{entry}/list", "list", lambda request: self._store.children(request.id)),
            Route("GET", entry, "entry", lambda request: self._store.entry(request.id)),
            Route("GET", f"{entry}/download/url", "download-url", self._download_url),
            Route("GET", f"{entry}/download/file", "download-direct", self._download_direct),
            Route("DELETE", entry, "delete", self._delete),
        ]

    # -- storage ------------------------------------------------------------------------------------

    def _view(self, request: ApiRequest) -> Any:
        entry = self._store.entry_at(request.text("path").strip("/"))
        if entry["type"] == "dir":
            entry["children"] = self._store.children(entry["id"])
        return entry

    def _upload_url(self, request: ApiRequest) -> Any:
        request.text("contentType")
        path = storage_path(request.text("dirname"), request.text("basename"))
        if self._settings.one_kind and self._store.is_other_kind(path):
            raise Refusal(403, "A technical problem has occurred, try again later.")
        return {"url": self._links.upload(path, Visible.LAGGED)}

    def _upload_direct(self, request: ApiRequest) -> Any:
        content = request.data.get("content")
        if not isinstance(content, bytes):
            raise Refusal(400, "a multipart form with the parts dirname and basename is required")
        if len(content) >= self._settings.direct_limit:
            raise Refusal(413, "file too large for a direct upload")
        path = storage_path(request.text("dirname"), request.text("basename"))
        return self._store.describe(self._store.put_data(path, content, Visible.LAGGED))

    def _download_url(self, request: ApiRequest) -> Any:
        return {"url": download_link(self._store, self._links, self._clock, self._settings, request.id)}

    def _download_direct(self, request: ApiRequest) -> Redirect:
        return Redirect(self._links.download(stored_file(self._store, request.id).path))

    def _delete(self, request: ApiRequest) -> Any:
        self._store.delete(request.id)
        return {"message": "deleted"}

    # -- simulations --------------------------------------------------------------------------------

    def _simulations(self, _: ApiRequest) -> Any:
        return [_documented(run) for run in self._runs.all()]

    def _simulation(self, request: ApiRequest) -> Any:
        return _documented(self._runs.get(request.id))

    def _launch(self, request: ApiRequest) -> Any:
        return self._runs.launch(request.data)

    def _stop(self, request: ApiRequest) -> Any:
        self._runs.stop(request.id, request.text("signal"))
        return {"message": "signal sent"}

    def _sync(self, request: ApiRequest) -> Any:
        if request.text("signal") != "SIGQUIT":
            raise Refusal(400, "sync takes the signal SIGQUIT")
        self._runs.sync(request.id)
        return {"message": "signal sent"}


def _documented(run: dict[str, Any]) -> dict[str, Any]:
    """The documented fields (docs/service.md, "Fields")."""
    return {name: value for name, value in run.items() if name not in V2_ONLY}


def stored_file(store: Store, entry_id: int) -> File:
    """The stored file with this id. Raises NoEntry."""
    file = store.stored_by_id(entry_id)
    if file is None:
        raise NoEntry(entry_id)
    return file


def download_link(store: Store, links: Links, clock: Clock, settings: Settings, entry_id: int) -> str | None:
    """A signed URL, or None for `settings.link_lag` seconds after an upload. Raises NoEntry."""
    file = stored_file(store, entry_id)
    return links.download(file.path) if clock.now() >= file.created + settings.link_lag else None
