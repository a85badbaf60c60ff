"""Ask the service for the listing of one folder, and judge its answer (docs/architecture.md, invariant 4).

Threading: none of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from cloudsimfs import paths
from cloudsimfs.errors import NoSuchEntry, Refused
from cloudsimfs.listings.cache import Listing, by_name
from cloudsimfs.listings.looks import NEVER
from cloudsimfs.service import Client
from cloudsimfs.service.model import Entry, Listed


def ask(client: Client, path: str, entry_id: int, known: Listing | None, asked_at: float, since: float) -> Listing:
    """The listing of a folder by its id. `known` is its last one; `asked_at`, in monotonic seconds, is now.

    `since`: as for `Client.list_directory`.

    Raises ServiceError; a 404 as Refused, for it is no ENOENT by itself.
    """
    try:
        listed = _call(client, path, entry_id, known, since)
        if not listed.entries and holds_names(path, known):
            listed = _call(client, path, entry_id, known, since)
    except NoSuchEntry as error:
        raise Refused(str(error)) from None
    names = by_name(listed.entries)
    if listed.complete:
        return Listing(names, asked_at)
    known = known or Listing({}, NEVER)  # what is not shown to be gone stays
    unseen = known.names.keys() - names.keys()
    return Listing({**known.names, **names}, asked_at, complete=False, unseen=unseen)


def _may_be_cut(known: Listing | None, entries: Sequence[Entry]) -> bool:
    """Whether entries may be the first part of a folder that was listed before as `known`: only later names miss."""
    names = {entry.name for entry in entries}
    gone = set() if known is None else known.names.keys() - names
    return bool(gone) and any(min(map(key, gone)) > max(map(key, names)) for key in (str, str.casefold))


def holds_names(path: str, known: Listing | None) -> bool:
    """Whether one answer that shows an empty folder is not enough (invariant 4e): its last listing was not empty, or
    it is listed for the first time. The service has no empty folders (docs/service.md, "Behaviour"), but the root.
    """
    return path != paths.ROOT if known is None else bool(known.names)


def _call(client: Client, path: str, entry_id: int, known: Listing | None, since: float) -> Listed:
    if entry_id or path == paths.ROOT:
        return client.list_directory(entry_id, path, may_lack=partial(_may_be_cut, known), since=since)
    # its id is not known: it appears only in the paths of its files
    view = client.view(path)
    if view is None or not (view.entry.id or view.children):
        raise Refused(f"/{path}: files are listed in it, but it cannot be looked at")
    return client.list_directory(view.entry.id, path) if view.entry.id else Listed(view.children or [])
