"""Whether a name is absent: a complete listing says so, or the service (docs/architecture.md, invariant 4a).

Threading: none of its own. What the service answers is kept with the listing; two threads may ask the same.
"""

from __future__ import annotations

from cloudsimfs import paths
from cloudsimfs.errors import NotDirectory, NotFound, Refused, ServiceError
from cloudsimfs.listings.cache import Listing
from cloudsimfs.service import Client
from cloudsimfs.service.model import Entry


def named(client: Client, listing: Listing, path: str, *, stale: bool = False) -> Entry | None:
    """What is at `path`, by the listing of its directory; None if it is definitely absent.

    If the listing is not complete and has missed the name, the service is asked, once for each listing. With `stale`,
    the entry of an earlier listing will do if the call fails; otherwise it raises ServiceError.
    """
    name = paths.name(path)
    if listing.complete or (name in listing.names and name not in listing.unseen):
        return listing.names.get(name)
    if name not in listing.answers:
        try:
            listing.answers[name] = _view(client, path)
        except ServiceError:
            if stale and name in listing.names:
                return listing.names[name]
            raise
    return listing.answers[name]


def _view(client: Client, path: str) -> Entry | None:
    """View by path. One answer proves no absence, and v2's is a refusal that gives no reason (docs/service.md,
    "Envelopes"). So the service is asked twice, and then whether it answers such calls at all.
    """
    refused: Refused | None = None
    for _ in range(2):
        try:
            view = client.view(path)
        except Refused as error:
            refused = error
        else:
            if view is not None:
                return view.entry
    if refused is not None and client.view(paths.parent(path)) is None:
        raise refused
    return None


def as_folder(path: str, entry: Entry | None) -> Entry:
    """The entry of a directory. Raises NotFound if there is none, NotDirectory."""
    if entry is None:
        raise NotFound(f"/{path}")
    if not entry.is_dir:
        raise NotDirectory(f"/{path}")
    return entry
