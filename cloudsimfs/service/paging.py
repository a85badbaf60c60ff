"""Listings in pages, when the service does not say how many there are. Pure: the caller fetches the pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from cloudsimfs.errors import BadReply
from cloudsimfs.service.model import Entry, Simulation

MAX_PAGES = 20_000  # of one listing; a service that sends more would never end

Record = TypeVar("Record", Entry, Simulation)


def all_pages(
    label: str,
    page: Callable[[int], tuple[list[Any], list[Record]]],
    enough: Callable[[list[Record]], bool] | None = None,
) -> list[Record]:
    """The records of all pages up to the first empty one, or until `enough(records)` is true. Raises BadReply.

    `page(number)` fetches one page, from 1, and returns it as sent and parsed. A record that moves to the next page
    between two calls is returned once.
    """
    records: dict[int, Record] = {}
    previous: list[Any] = []
    for number in range(1, MAX_PAGES + 1):
        sent, parsed = page(number)
        if not sent:
            return list(records.values())
        if sent == previous:
            raise BadReply(f"{label}: page {number} repeats the page before it")
        previous = sent
        records.update((record.id, record) for record in parsed)
        if enough is not None and enough(list(records.values())):
            return list(records.values())
    raise BadReply(f"{label}: more than {MAX_PAGES} pages")
