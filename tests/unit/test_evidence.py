"""The rules by which a listing settles what was done here, on values."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from cloudsimfs.inode import RECENT_NS, SENT_KEPT, Base, Inode, LocalAttr, Sent, Tombstone, WriteState
from cloudsimfs.service.model import Entry
from cloudsimfs.vfs.evidence import (
    EARLY_UPLOADS,
    LATE_DELETES,
    LATE_UPLOADS,
    inode_is_damaged,
    inode_is_settled,
    is_foreign_locked,
    tombstone_is_settled,
)
from cloudsimfs.vfs.names import unknown_file, unknown_folder

NOW = 1000.0


def file(entry_id: int = 7, size: int = 5, mtime_ns: int = 10**9) -> Entry:
    return Entry(entry_id, "d", "f", is_dir=False, size=size, mtime_ns=mtime_ns)


def folder(entry_id: int = 3) -> Entry:
    return Entry(entry_id, "", "d", is_dir=True)


@pytest.mark.parametrize(
    ("gone_at", "listed", "later", "settled"),
    [
        (math.inf, None, 1.0, False),  # not listed, but the delete is still to be sent
        (math.inf, folder(4), LATE_DELETES + 1, False),  # the same, whatever is listed
        (NOW, None, -1.0, False),  # asked for before that: perhaps an upload of ours that was not listed yet
        (NOW, None, 1.0, True),
        (NOW, folder(), 1.0, False),  # deletes show late
        (NOW, folder(), LATE_DELETES + 1, True),  # it is there after all
        (NOW, folder(4), 1.0, True),  # others made it anew
        (NOW, folder(4), -1.0, False),
        (NOW, file(), 1.0, True),  # of others: it is no folder
    ],
)
def test_a_removed_folder(gone_at: float, listed: Entry | None, later: float, settled: bool) -> None:
    gone = Tombstone("d", folder(), is_dir=True)
    assert tombstone_is_settled(gone, listed, NOW + later, gone_at) is settled


def test_a_removed_folder_of_unknown_id() -> None:
    """It may be listed for the first time after its delete."""
    gone = Tombstone("d", unknown_folder("d"), is_dir=True)
    assert not tombstone_is_settled(gone, folder(), NOW + 1.0, NOW)
    assert tombstone_is_settled(gone, folder(), NOW + LATE_DELETES + 1, NOW)


@pytest.mark.parametrize(
    ("removed", "listed", "later", "settled"),
    [
        (file(), None, 1.0, True),
        (file(), file(), 1.0, False),  # deletes show late
        (file(), file(), LATE_DELETES + 1, True),  # it is there after all
        (file(), file(mtime_ns=99 * 10**9), 1.0, True),  # a new file of others
        (None, file(), 1.0, True),  # nothing was found to delete: it has come since
        (unknown_file("d/f"), file(), 1.0, False),  # deleted with its folder before its id was known
        (file(), folder(), 1.0, False),  # the file may have taken the name of a folder removed before it
        (file(), folder(), LATE_DELETES + 1, True),
    ],
)
def test_a_removed_file(removed: Entry | None, listed: Entry | None, later: float, settled: bool) -> None:
    gone = Tombstone("d/f", removed)
    assert not tombstone_is_settled(gone, listed, NOW + later, math.inf)
    assert not tombstone_is_settled(gone, listed, NOW, NOW)
    assert tombstone_is_settled(gone, listed, NOW + later, NOW) is settled


@pytest.mark.parametrize(
    ("listed", "later", "settled"),
    [
        (None, 1.0, False),  # uploads show late
        (None, LATE_UPLOADS + 1, False),  # lost, or removed by others
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
        (file(size=6, mtime_ns=20 * 10**9), 1.0, False),  # perhaps our state before, shown late
        (file(size=4, mtime_ns=20 * 10**9), 1.0, True),  # none of ours had this size
        (file(size=6, mtime_ns=20 * 10**9), LATE_UPLOADS + 1, True),
        (file(size=4, mtime_ns=19 * 10**9), LATE_UPLOADS + 1, True),  # the store counts whole seconds
        (file(size=4, mtime_ns=9 * 10**9), LATE_UPLOADS + 1, False),  # surely an older one
        (file(size=4, mtime_ns=99 * 10**9), LATE_UPLOADS + 1, False),  # somebody else's
        (file(size=0, mtime_ns=20 * 10**9), LATE_UPLOADS + 1, False),  # what was stored has 0 bytes
        (None, 1.0, False),
        (None, LATE_UPLOADS + 1, True),
    ],
)
def test_a_stored_file_that_lost_bytes(listed: Entry | None, later: float, damaged: bool) -> None:
    inode = Inode("d/f", is_dir=False, entry=None, attr=LocalAttr(ino=9))
    inode.rebase_locked(Base(None, True, 20 * 10**9, (EARLIER, Sent(2, 0, answered=True, stored_ns=20 * 10**9))))
    inode.state, inode.stored_at = WriteState.STORED, NOW
    assert inode.size == 0
    assert inode_is_damaged(inode, listed, NOW + later) is damaged


@pytest.mark.parametrize(
    ("later", "missed", "damaged"),
    [(1.0, False, False), (LATE_UPLOADS + 1, False, True), (LATE_UPLOADS + 1, True, False)],
)
def test_a_stored_file_that_is_listed_as_it_was_before(later: float, missed: bool, damaged: bool) -> None:
    inode = Inode("d/f", is_dir=False, entry=file(), attr=LocalAttr(ino=9))
    inode.state, inode.stored_ns, inode.stored_at, inode.missed = WriteState.STORED, 20 * 10**9, NOW, missed
    assert not inode_is_settled(inode, file(), NOW + later)
    assert inode_is_damaged(inode, file(), NOW + later) is damaged


@pytest.mark.parametrize(
    ("listed", "later", "settled", "damaged"),
    [
        (file(size=0, mtime_ns=20 * 10**9), 1.0, False, False),  # ours, but the earlier one may still come
        (file(size=0, mtime_ns=20 * 10**9), LATE_UPLOADS + 1, True, False),
        (file(size=8, mtime_ns=20 * 10**9), 1.0, False, False),  # the earlier one: before ours, or after
        (file(size=8, mtime_ns=20 * 10**9), EARLY_UPLOADS + 1, False, True),
        (file(size=8, mtime_ns=20 * 10**9), LATE_UPLOADS + 1, False, True),
        (file(size=8, mtime_ns=23 * 10**9), 1.0, False, True),  # after ours
        (file(size=6, mtime_ns=23 * 10**9), LATE_UPLOADS + 1, True, False),  # somebody else's
    ],
)
def test_an_earlier_upload_without_an_answer(listed: Entry, later: float, settled: bool, damaged: bool) -> None:
    inode = Inode("d/f", is_dir=False, entry=None, attr=LocalAttr(ino=9))
    inode.state, inode.generation, inode.stored_at = WriteState.STORED, 2, NOW
    inode.rebase_locked(Base(None, True, 20 * 10**9, (Sent(1, 8), Sent(2, 0, answered=True))))
    assert inode_is_settled(inode, listed, NOW + later) is settled
    assert inode_is_damaged(inode, listed, NOW + later) is damaged


ANSWERED, UNANSWERED = Sent(2, 3, answered=True, stored_ns=20 * 10**9), Sent(1, 8)
EARLIER = Sent(1, 6, answered=True, stored_ns=19 * 10**9)
UNKNOWN: tuple[Sent, ...] = ()


@pytest.mark.parametrize(
    ("base", "sent", "stored_s", "listed", "foreign"),
    [
        (None, None, None, file(), True),
        (file(), None, None, file(), False),
        (file(), None, None, file(size=6, mtime_ns=5 * 10**9), True),
        # the base may be an upload of ours just before this one
        (file(), None, None, file(mtime_ns=3 * 10**9), False),
        (file(), None, None, file(size=6, mtime_ns=2 * 10**9), True),  # that would have the same size
        (file(), None, None, replace(file(size=0, mtime_ns=2 * 10**9), sized=False), False),
        # an older one, shown late
        (file(mtime_ns=5 * 10**9), None, None, file(size=6, mtime_ns=2 * 10**9), False),
        (file(), None, None, folder(), False),
        # in the same moment as our last, or just before or after it; none of ours was as long
        (file(), (ANSWERED,), 20, file(size=6, mtime_ns=21 * 10**9), True),
        (file(), (ANSWERED,), 20, file(size=6, mtime_ns=19 * 10**9), True),
        (file(), (EARLIER, ANSWERED), 20, file(size=6, mtime_ns=20 * 10**9), False),  # one of ours, listed late
        (file(), (EARLIER, ANSWERED), 20, file(size=6, mtime_ns=99 * 10**9), True),  # much later than that
        (file(), (ANSWERED,), 20, file(size=6, mtime_ns=17 * 10**9), False),  # what ours has replaced, listed late
        (file(mtime_ns=20 * 10**9), (ANSWERED,), 20, file(size=6, mtime_ns=20 * 10**9), False),  # as old as the base
        (file(), (ANSWERED,), 20, replace(file(mtime_ns=20 * 10**9), sized=False), False),
        (file(), (ANSWERED,), 20, file(size=6, mtime_ns=99 * 10**9), True),
        (
            file(),
            (ANSWERED,),
            20,
            file(size=3, mtime_ns=99 * 10**9),
            False,
        ),  # as long as ours: listed with a late time
        (file(), (ANSWERED,), None, file(size=6, mtime_ns=99 * 10**9), False),  # an upload of ours before that one
        (file(), (ANSWERED, UNANSWERED), 20, file(size=8, mtime_ns=99 * 10**9), False),  # ours, without an answer
        (file(), (ANSWERED, UNANSWERED), 20, file(size=6, mtime_ns=99 * 10**9), True),
        (file(), (UNANSWERED,), None, file(size=8, mtime_ns=99 * 10**9), False),
        (file(), (UNANSWERED,), None, file(size=6, mtime_ns=99 * 10**9), True),
        (None, (UNANSWERED,), None, file(size=6), True),
        (file(), (UNANSWERED,), None, replace(file(size=0, mtime_ns=99 * 10**9), sized=False), False),
        (file(), UNKNOWN, None, file(size=6, mtime_ns=99 * 10**9), False),
    ],
)
def test_what_others_have_stored(
    base: Entry | None, sent: tuple[Sent, ...] | None, stored_s: int | None, listed: Entry, foreign: bool
) -> None:
    """`sent`: None if no upload has begun since the base was listed; UNKNOWN if nothing is known of it."""
    inode = Inode("d/f", is_dir=False, entry=base, attr=LocalAttr(ino=9))
    stored_ns = None if stored_s is None else stored_s * 10**9
    inode.rebase_locked(Base(base, sent is not None, stored_ns, sent or ()))
    assert is_foreign_locked(inode, listed) is foreign


@pytest.mark.parametrize("listed_s", [19, 20, 22])
def test_what_is_not_known_of_earlier_uploads_stays_so(listed_s: int) -> None:
    """Whatever is listed may be one of them, unless it is later than our last."""
    inode = Inode("d/f", is_dir=False, entry=None, attr=LocalAttr(ino=9))
    inode.rebase_locked(Base(None, uploaded=True))
    listed, later = file(size=6, mtime_ns=listed_s * 10**9), file(size=6, mtime_ns=99 * 10**9)
    inode.may_arrive_locked(3)
    assert not is_foreign_locked(inode, listed)
    for _ in range(2):
        inode.may_arrive_locked(3)
        inode.arrived_locked(0, 20 * 10**9, NOW)
        assert not is_foreign_locked(inode, listed)
        assert is_foreign_locked(inode, later)


def test_tries_that_stay_in_doubt() -> None:
    """Of one version one is enough to know. There may be many versions, of which the last ones are known."""
    inode = Inode("d/f", is_dir=False, entry=None, attr=LocalAttr(1))
    for version in range(2 * SENT_KEPT):
        inode.generation = version
        for _ in range(3):
            inode.may_arrive_locked(version)
    assert len(inode.sent) <= SENT_KEPT
    inode.rebase_locked(Base())
    for _ in range(3):
        inode.may_arrive_locked(5)
    inode.arrived_locked(inode.generation, 0, NOW)
    answered = Sent(inode.generation, 5, answered=True, stored_ns=0)
    assert list(inode.sent) == [Sent(inode.generation, 5), answered]
    inode.may_arrive_locked(5)
    inode.arrived_locked(inode.generation, RECENT_NS, NOW)
    assert list(inode.sent) == [Sent(inode.generation, 5), replace(answered, stored_ns=RECENT_NS)], "sent once more"


def test_an_upload_shortly_before_the_last_is_known() -> None:
    """A listing may show it late, with a time close to that of the last one."""
    inode = Inode("d/f", is_dir=False, entry=None, attr=LocalAttr(1))
    for version, stored_ns in enumerate([0, RECENT_NS, RECENT_NS + 1], 1):
        inode.generation = version
        inode.may_arrive_locked(version)
        inode.arrived_locked(version, stored_ns, NOW)
    assert [upload.size for upload in inode.sent] == [2, 3]
