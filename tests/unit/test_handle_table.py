"""Handles: given out once, closed once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from cloudsimfs.concurrency.handletable import HandleTable
from cloudsimfs.errors import BadHandle


def test_a_handle_is_used_once() -> None:
    table = HandleTable[str](first=7)
    fh = table.add("a")
    assert (fh, table.get(fh), len(table)) == (7, "a", 1)
    assert table.pop(fh) == "a"
    assert table.add("b") == 8
    assert table.items() == ["b"]


def test_an_unknown_handle_is_an_error() -> None:
    table = HandleTable[str]()
    fh = table.add("a")
    table.pop(fh)
    for action in (table.get, table.pop):
        with pytest.raises(BadHandle):
            action(fh)


def test_a_handle_goes_on_with_another_item_unless_it_has_already() -> None:
    table = HandleTable[list[int]]()
    old, new = [1], [1]
    fh = table.add(old)
    assert table.replace(fh, old, new)
    assert not table.replace(fh, old, new)
    assert table.get(fh) is new
    assert not table.replace(99, old, new)


def test_threads_get_handles_of_their_own() -> None:
    table = HandleTable[int]()
    with ThreadPoolExecutor(8) as pool:
        handles = list(pool.map(table.add, range(500)))
    assert sorted(handles) == list(range(1, 501))
    assert [table.get(fh) for fh in handles] == list(range(500))
