"""What a listing that is not complete may not prove about names that were removed here."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from cloudsimfs.inode import Tombstone
from cloudsimfs.listings.cache import Listing
from cloudsimfs.listings.dcache import DCache
from cloudsimfs.service.model import Entry
from cloudsimfs.vfs.tombstones import only_holds, was_replaced
from cloudsimfs.vfs.tree import Tree

OURS = Entry(2, "d", "f", is_dir=False, size=1, mtime_ns=10**18)


class OneListing:
    """A DCache whose every listing is this one, and that finds `there` where the listing cannot tell."""

    def __init__(self, listing: Listing, there: Entry | None = None) -> None:
        self._listing = listing
        self._there = there

    def look_into(self, folders: Set[str], *, since: float) -> None: ...

    def listing(self, path: str, *, since: float | None = None) -> Listing:
        return self._listing

    def at_hand(self, path: str, *, since: float) -> Listing | None:
        return self._listing

    def named(self, listing: Listing, path: str) -> Entry | None:
        return self._there


@pytest.mark.parametrize("complete", [True, False])
def test_a_folder_is_deleted_as_one_on_a_complete_listing_only(complete: bool) -> None:
    tombstone = Tombstone("d", Entry(1, "", "d", is_dir=True), is_dir=True)
    tombstone.below = [OURS]
    tree = cast(Tree, SimpleNamespace(dcache=OneListing(Listing({"f": OURS}, 1.0, complete))))
    assert only_holds(tree, tombstone, 0.0) is complete


def test_a_later_file_that_a_listing_missed_is_not_deleted() -> None:
    later = replace(OURS, mtime_ns=10**18 + 10**11)
    assert was_replaced(cast(DCache, OneListing(Listing({}, 1.0, complete=False), later)), OURS, 0.0)
