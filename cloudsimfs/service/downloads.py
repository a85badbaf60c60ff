"""Downloads: the signed link of a file, from the version that gives one, and direct downloads.

Thread-safe: it has no state of its own.
"""

from __future__ import annotations

from cloudsimfs.errors import NoSuchEntry, NotOffered, Refused
from cloudsimfs.service import parsing, v1, v2
from cloudsimfs.service.budget import Urgency
from cloudsimfs.service.call import Call
from cloudsimfs.service.caller import ApiCaller
from cloudsimfs.service.model import Download
from cloudsimfs.service.objectstore import Fetched, ObjectStore, opened
from cloudsimfs.service.retry import Retrier
from cloudsimfs.service.transport import Reply
from cloudsimfs.service.versions import Versions

_LINK_TRIES = 5  # calls until a download link that is null is given up
_LINK_PAUSE = 2.0  # seconds between them (docs/service.md, "URLs")


class Downloads:
    def __init__(self, store: ObjectStore, caller: ApiCaller, versions: Versions, retrier: Retrier) -> None:
        self._store = store
        self._caller = caller
        self._versions = versions
        self._retrier = retrier

    def link(self, entry_id: int, urgency: Urgency) -> Download:
        """See `Client.download`."""
        for tries in range(_LINK_TRIES):
            if tries:
                self._retrier.wait(f"download link of entry {entry_id}", _LINK_PAUSE)
            link = self._ask(entry_id, urgency)
            if link is not None:
                return Download(link)
        raise Refused(f"entry {entry_id}: the service has no download link for it yet; try again later")

    def _ask(self, entry_id: int, urgency: Urgency) -> str | None:
        """The link by v2's documented call, else by the one public clients use, else by v1's."""
        candidates: list[tuple[str, Call]] = [("", v1.download_url(entry_id))]
        if self._versions.in_use(urgency) == "v2":
            candidates = [
                ("download", v2.download(entry_id)),
                ("view-url", v2.view_url(entry_id)),
                *candidates,
            ]
        missing: list[str] = []
        for name, call in candidates:
            if self._versions.lacks(name):
                continue
            try:
                link = parsing.link(call, self._caller.call(call, urgency))
            except (NotOffered, NoSuchEntry):
                if not name:
                    raise
                missing.append(name)
                continue
            self._versions.note_lacking(missing)
            return link
        raise NotOffered(f"entry {entry_id}: the service offers no download link")

    def open_direct(self, entry_id: int, urgency: Urgency) -> Fetched:
        """See `Client.download_direct`."""
        call = v1.download_direct(entry_id)
        reply = self._caller.open(call, urgency)
        if isinstance(reply, Reply):
            return opened(call.label, reply)
        return self._store.get(Download(reply))
