"""The rules by which a listing settles what was done here, on values."""

from __future__ import annotations

import pytest

from cloudsimfs.inode import Inode, LocalAttr, Tombstone, WriteState
from cloudsimfs.service.model import Entry
from cloudsimfs.vfs.evidence import (
    LATE_DELETES,
    LATE_UPLOADS,
    inode_is_damaged,
    inode_is_settled,
    is_foreign_locked,
    tombstone_is_settled,
)

NOW = 1000.0


def file(entry_id: int = 7, size: int = 5, mtime_ns: int = 10**9) -> Entry:
    return Entry(entry_id, "d", "f", is_dir=False, size=size, mtime_ns=mtime_ns)


def folder(entry_id: int = 3) -> Entry:
    return Entry(entry_id, "", "d", is_dir=True)


@pytest.mark.parametrize(
    ("done", "listed", "later", "settled"),
    [
        (False, None, 1.0, False),  # not listed, but the delete is still to be sent
        (True, None, 1.0, True),
        (True, folder(), 1.0, False),  # deletes show late
        (True, folder(), LATE_DELETES + 1, True),  # it is there again, under its old id
        (True, folder(4), 1.0, True),  # others made it anew
        (False, folder(), LATE_DELETES + 1, False),
    ],
)
def test_a_removed_folder(done: bool, listed: Entry | None, later: float, settled: bool) -> None:
    gone = Tombstone("d", folder(), is_dir=True)
    if done:
        gone.finish(NOW)
    assert tombstone_is_settled(gone, listed, NOW + later) is settled


@pytest.mark.parametrize(
    ("listed", "later", "settled"),
    [
        (None, 1.0, False),  # uploads show late
        (None, LATE_UPLOADS + 1, True),  # others have removed it
        (file(), 1.0, False),  # what was there before
        (file(mtime_ns=19 * 10**9), 1.0, True),  # ours
        (file(mtime_ns=10 * 10**9), 1.0, False),  # as long as ours, but perhaps an upload of ours before that one
        (file(mtime_ns=10 * 10**9), LATE_UPLOADS + 1, True),
        (file(size=6, mtime_ns=10 * 10**9), 1.0, False),  # an older state of ours, shown late
        (file(size=6, mtime_ns=99 * 10**9), 1.0, True),  # others wrote after us
    ],
)
def test_a_stored_file(listed: Entry | None, later: float, settled: bool) -> None:
    inode = Inode("d/f", is_dir=False, entry=file(), attr=LocalAttr(ino=9))
    inode.state, inode.stored_ns, inode.stored_at = WriteState.STORED, 20 * 10**9, NOW
    assert inode_is_settled(inode, listed, NOW + later) is settled


@pytest.mark.parametrize(
    ("listed", "later", "damaged"),
    [
        (file(size=4, mtime_ns=20 * 10**9), 1.0, False),  # perhaps our state before, shown late
        (file(size=4, mtime_ns=20 * 10**9), LATE_UPLOADS + 1, True),
        (file(size=4, mtime_ns=19 * 10**9), LATE_UPLOADS + 1, True),  # the store counts whole seconds
        (file(size=4, mtime_ns=9 * 10**9), LATE_UPLOADS + 1, False),  # surely an older one
        (file(size=4, mtime_ns=99 * 10**9), LATE_UPLOADS + 1, False),  # somebody else's
        (file(size=0, mtime_ns=20 * 10**9), LATE_UPLOADS + 1, False),  # what was stored has 0 bytes
    ],
)
def test_a_stored_file_that_lost_bytes(listed: Entry, later: float, damaged: bool) -> None:
    inode = Inode("d/f", is_dir=False, entry=None, attr=LocalAttr(ino=9))
    inode.state, inode.stored_ns, inode.stored_at = WriteState.STORED, 20 * 10**9, NOW
    assert inode.size == 0
    assert inode_is_damaged(inode, listed, NOW + later) is damaged


@pytest.mark.parametrize(
    ("base", "uploaded", "in_doubt", "listed", "foreign"),
    [
        (None, False, False, file(), True),
        (file(), False, False, file(), False),
        (file(), False, False, file(size=6, mtime_ns=5 * 10**9), True),
        (
            file(),
            False,
            False,
            file(mtime_ns=3 * 10**9),
            False,
        ),  # the base may be an upload of ours just before this one
        (file(mtime_ns=5 * 10**9), False, False, file(size=6, mtime_ns=2 * 10**9), False),  # an older one, shown late
        (file(), True, False, file(size=6, mtime_ns=21 * 10**9), False),  # ours
        (file(), True, False, file(size=6, mtime_ns=99 * 10**9), True),
        (file(), True, True, file(size=6, mtime_ns=99 * 10**9), False),  # perhaps ours, whose answer was lost
        (file(), True, False, file(size=3, mtime_ns=99 * 10**9), False),  # as long as ours: listed with a late time
        (file(), False, False, folder(), False),
    ],
)
def test_what_others_have_stored(
    base: Entry | None, uploaded: bool, in_doubt: bool, listed: Entry, foreign: bool
) -> None:
    inode = Inode("d/f", is_dir=False, entry=base, attr=LocalAttr(ino=9))
    inode.uploaded, inode.in_doubt, inode.stored_ns, inode.stored_size = uploaded, in_doubt, 20 * 10**9, 3
    assert is_foreign_locked(inode, listed) is foreign
