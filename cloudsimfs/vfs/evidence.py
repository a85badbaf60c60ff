"""The rules of evidence: what a listing proves about what was done here. Pure, but for the inode's lock.

The service's times are whole seconds, its listings may lag behind uploads and deletes, and two uploads of one size
may look alike: each rule says what it takes for sure, and the rest stays as it is.
"""

from __future__ import annotations

from cloudsimfs.inode import Inode, Tombstone, WriteState
from cloudsimfs.service.model import Entry

SECOND_NS = 1_000_000_000  # nanoseconds; the unit of the service's times
LATE_DELETES = 60.0  # seconds; a listing asked for so long after a delete shows what is there
LATE_UPLOADS = 900.0  # seconds; the same for an upload ("some minutes", docs/service.md)
BASE_SLACK_NS = 3_000_000_000  # nanoseconds by which the last upload may be later than the one that was confirmed
CLOCK_SLACK_NS = 2_000_000_000  # nanoseconds by which a time of whole seconds may lag behind the store's clock


def tombstone_is_settled(tombstone: Tombstone, entry: Entry | None, asked_at: float) -> bool:
    """Whether a listing that shows `entry` under the tombstone's name ends it."""
    if entry is None:
        return tombstone.done
    if tombstone.entry is None:
        return tombstone.done  # it was looked for then, and nothing was there
    if tombstone.is_dir:  # others may have made it anew, and a path may keep its id
        return entry.id != tombstone.entry.id or (tombstone.done and asked_at > tombstone.done_at + LATE_DELETES)
    # a later version is somebody else's new file; the deleted one may be listed for a while
    return entry.fingerprint != tombstone.entry.fingerprint and tombstone.done


def inode_is_settled(inode: Inode, entry: Entry | None, asked_at: float) -> bool:
    """Whether a listing that shows `entry` under the inode's name is now the truth."""
    with inode.lock:
        if inode.local_only or inode.writers:
            return False
        if inode.state is WriteState.CLEAN:  # open for reading: the handle keeps its version
            return entry is None or inode.entry is None or entry.fingerprint != inode.entry.fingerprint
        if inode.state is not WriteState.STORED:
            return False
        if entry is None:  # listed late, or others have removed it since
            return asked_at > inode.stored_at + LATE_UPLOADS
        if entry.is_dir:
            return False
        if inode.entry is not None and entry.fingerprint == inode.entry.fingerprint:
            # what was there before; or ours, stored in the same second with the same size, and the two look alike
            return is_ours(inode, entry) and (entry.mtime_ns or 0) > (inode.stored_ns or 0) - SECOND_NS
        if entry.size != inode.size:  # either an older state shown late, or somebody wrote after us
            return is_newer(inode, entry)
        # an older upload of ours may have had the same size, and be listed first
        listed, stored = entry.mtime_ns, inode.stored_ns
        is_older = listed is not None and stored is not None and listed < stored - SECOND_NS
        return not is_older or asked_at > inode.stored_at + LATE_UPLOADS


def inode_is_damaged(inode: Inode, entry: Entry, asked_at: float) -> bool:
    """Whether a listing shows our upload, by its time, with another size, too late to be an older state."""
    with inode.lock:
        if inode.state is not WriteState.STORED or inode.writers or entry.is_dir or entry.size == inode.size:
            return False
        if not entry.sized or inode.stored_ns is None or entry.mtime_ns is None:
            return False
        ours = abs(entry.mtime_ns - inode.stored_ns) <= CLOCK_SLACK_NS
        return ours and asked_at > inode.stored_at + LATE_UPLOADS


def is_foreign(inode: Inode, entry: Entry) -> bool:
    """Whether a file listed under the inode's name is surely another than `inode.entry`, and none of our uploads.

    The caller holds the inode's lock.
    """
    if entry.is_dir or entry.mtime_ns is None:
        return False
    if inode.entry is not None and not is_later(inode.entry, entry):
        return False
    if not inode.uploaded:
        return True
    # ours may be listed by now, also one whose answer was lost
    return not inode.in_doubt and entry.size != inode.stored_size and is_newer(inode, entry)


def is_later(base: Entry, entry: Entry) -> bool:
    """Whether an entry is surely a later version than `base`: not the same, not an older one shown late, and not the
    later one of two uploads that look alike.
    """
    known = base.mtime_ns is not None and entry.mtime_ns is not None
    return known and (entry.mtime_ns or 0) > (base.mtime_ns or 0) + BASE_SLACK_NS


def is_newer(inode: Inode, entry: Entry) -> bool:
    """Whether an entry is of a time after our upload, by the store's clock."""
    stored, listed = inode.stored_ns, entry.mtime_ns
    return stored is not None and listed is not None and listed > stored + CLOCK_SLACK_NS


def is_ours(inode: Inode, entry: Entry) -> bool:
    """Whether a listed entry is surely what we uploaded last, so that its bytes need not be fetched."""
    known = inode.stored_ns is not None and entry.mtime_ns is not None
    return known and entry.size == inode.size and not is_newer(inode, entry)
