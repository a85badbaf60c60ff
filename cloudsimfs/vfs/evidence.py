"""The rules of evidence: what a listing proves about local changes. Pure, but for the inode's lock.

The service's times are whole seconds. Its listings may lag behind uploads and deletes. Two uploads of one size may
look alike. So each rule says what counts as proof; without proof nothing changes.
"""

from __future__ import annotations

from cloudsimfs.inode import UNKNOWN, Base, Inode, Sent, Tombstone, WriteState
from cloudsimfs.service.model import Entry

SECOND_NS = 1_000_000_000  # nanoseconds; the unit of the service's times
LATE_DELETES = 60.0  # seconds; a listing asked for this long after a delete can be trusted
LATE_UPLOADS = 900.0  # seconds; the same for an upload (docs/service.md, "Behaviour")
EARLY_UPLOADS = 10.0  # seconds; an upload over which an earlier one may have been stored is then repeated once
BASE_SLACK_NS = 3_000_000_000  # nanoseconds; our last upload may be this much later than the one that was confirmed
CLOCK_SLACK_NS = 2_000_000_000  # nanoseconds; a time in whole seconds may be this far from the store's clock


def tombstone_is_settled(tombstone: Tombstone, entry: Entry | None, asked_at: float, gone_at: float) -> bool:
    """Whether a listing that shows `entry` under the tombstone's name ends it (the rule is at `Tombstone`).

    `gone_at` is monotonic seconds: when the service had deleted the name and all below it; inf: not yet.
    """
    if asked_at <= gone_at:
        return False
    if entry is None or asked_at > gone_at + LATE_DELETES:
        return True
    removed = tombstone.entry
    if entry.is_dir:  # a folder of others has another id; the tombstone of a file may hide a removed folder, too
        return tombstone.is_dir and removed is not None and removed.id not in (0, entry.id)
    if removed is None or removed.is_dir:
        return True  # nothing was found to delete, or no file: this has come since
    if not removed.id:  # it was uploaded from here
        return is_foreign_locked(tombstone.base, entry)
    return entry.fingerprint != removed.fingerprint  # a new file of others


def is_what_was_removed(tombstone: Tombstone, entry: Entry) -> bool:
    """Whether an entry is the very one that the service should have deleted."""
    removed = tombstone.entry
    if removed is None or not removed.id or entry.is_dir != removed.is_dir:
        return False
    return entry.id == removed.id if entry.is_dir else entry.fingerprint == removed.fingerprint


def inode_is_settled(inode: Inode, entry: Entry | None, asked_at: float) -> bool:
    """Whether a listing that shows `entry` under the inode's name is now the truth."""
    with inode.lock:
        if inode.local_only or inode.writers:
            return False
        if inode.state is WriteState.CLEAN:  # open for reading: the handle keeps its version
            return entry is None or inode.entry is None or entry.fingerprint != inode.entry.fingerprint
        if inode.state is not WriteState.STORED:
            return False
        if entry is None or entry.is_dir:  # not listed yet, or lost: the last copy is the one here
            return False
        in_doubt = _may_still_arrive(inode) and not _is_of_others(inode, entry)
        if in_doubt and (not is_late(inode, asked_at) or _may_be_earlier(inode, entry)):
            return False
        if inode.entry is not None and entry.fingerprint == inode.entry.fingerprint:
            # the version before ours; or ours, if it looks the same: stored in the same second, with the same size
            return is_ours(inode, entry) and (entry.mtime_ns or 0) > (inode.stored_ns or 0) - SECOND_NS
        if entry.size != inode.size:  # either an older version listed late, or a newer one of others
            return is_newer(inode, entry)
        # an older upload of ours may have had the same size, and be listed first
        listed, stored = entry.mtime_ns, inode.stored_ns
        is_older = listed is not None and stored is not None and listed < stored - SECOND_NS
        return not is_older or is_late(inode, asked_at)


def inode_is_damaged(inode: Inode, entry: Entry | None, asked_at: float) -> bool:
    """Whether the service has lost an upload that it acknowledged, or has stored an earlier one of ours over it.

    A listing that can be trusted does not show it, or shows it, by its time, with another size. If that can be no
    upload of ours, others have replaced it, or the service has stored a part: ours is stored beside it
    (`uploader.conflicts`). The earlier upload had no answer; it is listed as newer, or for so long that ours should
    have taken its place.
    """
    with inode.lock:
        if inode.state is not WriteState.STORED or inode.writers or (entry is not None and entry.is_dir):
            return False
        late = is_late(inode, asked_at)
        if entry is None or (inode.entry is not None and entry.fingerprint == inode.entry.fingerprint):
            return late and not inode.missed  # what was there before
        if _may_be_earlier(inode, entry):
            # it may have been stored before ours, and be listed late: to store ours once more does no harm
            return late or is_newer(inode, entry) or (not inode.missed and asked_at > inode.stored_at + EARLY_UPLOADS)
        if not entry.sized or inode.stored_ns is None or entry.mtime_ns is None or entry.size == inode.size:
            return False
        near = abs(entry.mtime_ns - inode.stored_ns) <= CLOCK_SLACK_NS
        return near and (late or is_foreign_locked(inode, entry))


def is_late(inode: Inode, asked_at: float) -> bool:
    """Whether a listing was asked for so long after our upload that it can be trusted."""
    return asked_at > inode.stored_at + LATE_UPLOADS


def _may_still_arrive(inode: Inode) -> bool:
    """Whether a try to upload had no answer: it may be stored over the last upload, or over the next one."""
    return any(not upload.answered for upload in inode.sent)


def _may_be_earlier(inode: Inode, entry: Entry) -> bool:
    """Whether an entry may be such a try, with other bytes than the last upload."""
    return any(
        upload.generation != inode.generation and not upload.answered and upload.size == entry.size
        for upload in inode.sent
    )


def _is_of_others(base: Inode | Base, entry: Entry) -> bool:
    """Whether an entry is certainly no upload of ours: none that may be listed with its time had its size."""
    stored, listed = base.stored_ns, entry.mtime_ns
    if not entry.sized or stored is None or listed is None or listed < stored - CLOCK_SLACK_NS:
        return False
    if not base.sent and not is_newer(base, entry):
        return False  # nothing is known of what was sent shortly before (a journal of 0.1.0)
    return not any(_may_be_listed_as(entry, upload, stored) for upload in base.sent)


def _may_be_listed_as(entry: Entry, upload: Sent, last_ns: int) -> bool:
    """Whether an entry may be this upload. `last_ns` is when the last one of the file was stored."""
    if upload == UNKNOWN:
        return entry.mtime_ns is None or entry.mtime_ns <= last_ns + CLOCK_SLACK_NS
    if upload.size != entry.size:
        return False
    if upload.stored_ns is None or upload.stored_ns == last_ns or entry.mtime_ns is None:
        return True  # without an answer it may come at any time; the last one may be listed with a late time
    return entry.mtime_ns <= upload.stored_ns + CLOCK_SLACK_NS


def is_foreign_locked(base: Inode | Base, entry: Entry) -> bool:
    """Whether a file listed under the name is certainly that of others: it is later than all of the base.

    An inode is its own base: the caller holds its lock.
    """
    if entry.is_dir or entry.mtime_ns is None:
        return False
    if base.entry is not None and not is_later(base.entry, entry):
        return False
    if not base.uploaded:
        return True
    # an upload of ours may be listed by now, even if its answer was lost, and with a late time
    if base.stored_ns is not None:
        return _is_of_others(base, entry)
    if not entry.sized or any(upload.size == entry.size for upload in base.sent):
        return False
    return bool(base.sent) and not any(upload.answered for upload in base.sent)


def is_later(base: Entry, entry: Entry) -> bool:
    """Whether an entry is certainly a later version than `base`.

    The same version, an older one listed late, and the later one of two uploads that look alike are not.
    """
    if base.mtime_ns is None or entry.mtime_ns is None:
        return False
    alike = base.size == entry.size or not (base.sized and entry.sized)
    return entry.mtime_ns > base.mtime_ns + (BASE_SLACK_NS if alike else 0)


def is_newer(base: Inode | Base, entry: Entry) -> bool:
    """Whether the entry's time is later than our upload, by the store's clock."""
    stored, listed = base.stored_ns, entry.mtime_ns
    return stored is not None and listed is not None and listed > stored + CLOCK_SLACK_NS


def is_ours(inode: Inode, entry: Entry) -> bool:
    """Whether a listed entry is certainly our last upload, so that its bytes need not be fetched."""
    timed = inode.stored_ns is not None and entry.mtime_ns is not None
    return timed and entry.size == inode.size and not is_newer(inode, entry)
