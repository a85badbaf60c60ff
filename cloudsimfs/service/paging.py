"""Listings that come in pages, of which nothing says how many there are. Pure: the caller gets the pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from cloudsimfs.errors import BadReply
from cloudsimfs.service.model import Entry, Simulation

MOST_PAGES = 20_000  # of one listing; more is a service that never ends

Record = TypeVar("Record", Entry, Simulation)


def all_pages(
    label: str,
    page: Callable[[int], tuple[list[Any], list[Record]]],
    enough: Callable[[list[Record]], bool] | None = None,
) -> list[Record]:
    """The records of all pages up to the empty one, or to what is `enough`.

    `page(number)`, from 1, gets one: as it was sent, and parsed. What moved to the next page meanwhile is taken once.
    """
    found: dict[int, Record] = {}
    before: list[Any] = []
    for number in range(1, MOST_PAGES + 1):
        sent, parsed = page(number)
        if not sent:
            return list(found.values())
        if sent == before:
            raise BadReply(f"{label}: page {number} repeats the page before it")
        before = sent
        found.update((each.id, each) for each in parsed)
        if enough is not None and enough(list(found.values())):
            return list(found.values())
    raise BadReply(f"{label}: more than {MOST_PAGES} pages")
