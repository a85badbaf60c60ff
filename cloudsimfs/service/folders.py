"""Listings of folders: v1's in one call, v2's in pages. With `auto`, v1's wherever it is offered: it has no pages.

Thread-safe. Keeps nothing but what `Pager` learns of the service.
"""

from __future__ import annotations

from cloudsimfs.clock import Clock
from cloudsimfs.errors import NoSuchEntry, NotOffered, TimedOut
from cloudsimfs.service import entries, parsing, v1, v2
from cloudsimfs.service.budget import Urgency
from cloudsimfs.service.caller import ApiCaller
from cloudsimfs.service.model import Entry, Listed
from cloudsimfs.service.paging import LISTING_TIME, MayLack, Order, Page, Pager, PageSize
from cloudsimfs.service.versions import Versions


class Folders:
    def __init__(self, caller: ApiCaller, versions: Versions, clock: Clock) -> None:
        self._caller = caller
        self._clock = clock
        self._versions = versions
        self._pager = Pager(clock)

    @property
    def page_size(self) -> PageSize:
        return self._pager.size

    def listing(self, entry_id: int, path: str, urgency: Urgency, may_lack: MayLack, since: float) -> Listed:
        def without_pages() -> Listed:
            call = v1.list_directory(entry_id)
            return Listed(entries.listing(call, self._caller.call(call, urgency, entries.element(path)), path))

        if not self._versions.has_v2("list", urgency):
            return without_pages()
        whole = self._versions.if_better("list without pages", without_pages)
        if whole is not None:
            return whole
        ends = self._clock.monotonic() + LISTING_TIME

        def page(order: Order, number: int) -> Page:
            # The background may wait for the next hour's calls between two pages: the number of entries ends it.
            if urgency is not Urgency.BACKGROUND and self._clock.monotonic() > ends:
                raise TimedOut(f"GET /storage/index: page {number} comes after more than {LISTING_TIME:.0f} s")
            return self._page(entry_id, path, order, number, urgency)

        try:
            return self._pager.list_folder(entry_id, page, may_lack, since)
        except (NotOffered, NoSuchEntry) as error:
            return self._versions.fall_back("list", error, without_pages)

    def page(self, entry_id: int, path: str, number: int, urgency: Urgency) -> list[Entry]:
        if not self._versions.has_v2("list", urgency):
            raise NotOffered("GET /storage/index: API v1 has no pages")
        return self._page(entry_id, path, "asc", number, urgency).entries

    def _page(self, entry_id: int, path: str, order: Order, number: int, urgency: Urgency) -> Page:
        call = v2.list_page(entry_id, number, order)
        sent = parsing.items(call, self._caller.call(call, urgency), "a listing")
        return Page(len(sent), entries.listing(call, sent, path))
