"""API v2: the calls of docs/service.md, "v2 (documented)" and "v2 calls outside the document".

The server wraps the answers in `{"response": ...}`.

Threading: the event loop only. Must know nothing of faults or HTTP.
"""

from __future__ import annotations

from typing import Any

from cloudsimfs.sandbox.api import NUMBER, ApiRequest, Refusal, Route
from cloudsimfs.sandbox.objects import Links
from cloudsimfs.sandbox.run import SHORT_LACKS
from cloudsimfs.sandbox.runs import Runs
from cloudsimfs.sandbox.settings import Clock, Settings
from cloudsimfs.sandbox.store import Store, Visible, storage_path
from cloudsimfs.sandbox.tree import ROOT_ID
from cloudsimfs.sandbox.v1 import download_link

_STORAGE_FIELDS = ("name", "size")


class V2:
    """The routes of v2 and their handlers."""

    def __init__(self, store: Store, links: Links, runs: Runs, clock: Clock, settings: Settings) -> None:
        self._store = store
        self._links = links
        self._runs = runs
        self._clock = clock
        self._settings = settings
        self._listed: dict[int, tuple[float, list[dict[str, Any]]]] = {}  # by folder: until when it is cached

    def routes(self) -> list[Route]:
        order, page, entry_id = r"{field}/{order:asc|desc}", f"{{page:{NUMBER}}}", f"{{id:{NUMBER}}}"
        return [
            Route("GET", f"/storage/index/{order}/{page}", "list", self._index),
            Route("GET", rf"/storage/index/{order}/parent_id/{entry_id}/{page}", "list", self._index),
            Route("POST", "/storage/view-by-path", "view", self._view),
            Route("POST", "/storage/upload-url", "upload-url", self._upload_url),
            Route("GET", f"/storage/view-url/{entry_id}", "download-url", self._download_url),
            Route("GET", f"/storage/download/{entry_id}", "download-url", self._download),
            Route("DELETE", f"/storage/delete/{entry_id}", "delete", self._delete),
            Route("DELETE", "/user/delete-cache", "delete-cache", self._delete_cache),
            Route("GET", "/simulation/view-cpu", "cpu", lambda _: list(self._settings.cpus)),
            Route("GET", "/simulation/view-ram", "ram", lambda _: list(self._settings.rams)),
            Route("GET", "/simulation/view-scripts", "scripts", lambda _: list(self._settings.scripts)),
            Route("GET", f"/simulation/index-short/{order}/{page}", "simulations", self._simulations),
            Route("GET", f"/simulation/view-short/{entry_id}", "simulation", self._view_short),
            Route("GET", f"/simulation/view/{entry_id}", "simulation", self._view_run),
            Route("POST", "/simulation/add", "launch", self._add),
            Route("PUT", f"/simulation/stop/{entry_id}", "stop", self._stop),
            Route("PUT", f"/simulation/sync/{entry_id}", "sync", self._sync),
        ]

    # -- storage ------------------------------------------------------------------------------------

    def _index(self, request: ApiRequest) -> Any:
        entries = self._children(int(request.match.get("id", ROOT_ID)))
        if request.match["field"] not in _STORAGE_FIELDS:
            raise Refusal(400, "unknown field")
        if request.match["field"] == "size":
            entries.sort(key=lambda entry: (entry["size"] or 0, entry["name"]))
        else:
            entries.sort(key=lambda entry: str(entry["name"]))
        return self._page(entries, request)

    def _children(self, folder_id: int) -> list[dict[str, Any]]:
        """What a folder holds; with `settings.caches_listings`, what it held when it was listed first."""
        now, entries = self._clock.now(), self._store.children(folder_id)
        if not self._settings.caches_listings:
            return entries
        until, cached = self._listed.get(folder_id, (0.0, []))
        if until <= now:
            self._listed[folder_id] = now + self._settings.cache_seconds, entries
            return list(entries)
        there = {entry["name"] for entry in entries}
        return [entry for entry in cached if entry["name"] in there]

    def _page(self, items: list[dict[str, Any]], request: ApiRequest) -> list[dict[str, Any]]:
        """One page of `items`, which come in ascending order. Pages count from 1; one past the end is empty."""
        if request.match["order"] == "desc":
            items.reverse()
        size = self._settings.page_size
        start = (int(request.match["page"]) - 1) * size
        return items[start : start + size] if start >= 0 else []

    def _view(self, request: ApiRequest) -> Any:
        return self._store.entry_at(request.text("path").strip("/"))

    def _upload_url(self, request: ApiRequest) -> Any:
        request.text("contentType")
        path = storage_path(request.text("dirname"), request.text("filename"))
        if self._settings.one_kind and self._store.is_other_kind(path):
            raise Refusal(403, "A technical problem has occurred, try again later.")
        return {"url": self._links.upload(path, Visible.CACHED)}

    def _download_url(self, request: ApiRequest) -> Any:
        return {"mediaLink": self._link(request.id)}

    def _download(self, request: ApiRequest) -> Any:
        return {"url": self._link(request.id)}

    def _link(self, entry_id: int) -> str | None:
        return download_link(self._store, self._links, self._clock, self._settings, entry_id)

    def _delete(self, request: ApiRequest) -> Any:
        self._store.delete(request.id)
        return True

    def _delete_cache(self, _: ApiRequest) -> Any:
        self._store.delete_cache()
        self._listed.clear()
        return True

    # -- simulations --------------------------------------------------------------------------------

    def _simulations(self, request: ApiRequest) -> Any:
        runs = [_short(run) for run in self._runs.all()]
        field = request.match["field"]
        if runs and field not in runs[0]:
            raise Refusal(400, "unknown field")
        runs.sort(key=lambda run: (str(run[field]) if field != "id" else "", run["id"]))
        return self._page(runs, request)

    def _view_short(self, request: ApiRequest) -> Any:
        return _short(self._runs.get(request.id))

    def _view_run(self, request: ApiRequest) -> Any:
        run = self._runs.get(request.id)
        return {**run, "logs": run["output"]}

    def _add(self, request: ApiRequest) -> Any:
        return _short(self._runs.get(self._runs.launch(request.data)))

    def _stop(self, request: ApiRequest) -> Any:
        self._runs.stop(request.id, request.text("signal"))
        return True

    def _sync(self, request: ApiRequest) -> Any:
        self._runs.sync(request.id)
        return True


def _short(run: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in run.items() if name not in SHORT_LACKS}
