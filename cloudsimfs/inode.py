"""Inodes, attributes and write states: what the tree knows of one file or folder.

An `Inode` exists for each file or folder that is open or holds local truth (dirty, waiting for upload, made here).
A clean file that nobody has open is only an `Entry` in a listing. This module does no I/O.

All write states and their transitions (`Inode.transition` refuses any other):

    CLEAN --change--> DIRTY --close--> QUEUED --start--> UPLOADING --stored--> STORED --confirmed--> CLEAN
                        ^                ^ ^                |                    |
                        |                | +---- failed ----+                    |
                        |                +----------- damaged -------------------+
                        +-- change (from QUEUED, UPLOADING, STORED): generation + 1; its upload is called off

Locks: `Inode.lock` protects the inode's mutable fields. It may be held over local disk I/O, never over a call to
the service. docs/architecture.md, "Locks", has the order.
"""

from __future__ import annotations

import enum
import math
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cloudsimfs.service.model import Entry

if TYPE_CHECKING:
    from cloudsimfs.datacache.content import Content

ST_BLOCK = 512  # bytes, the unit of st_blocks (stat(2))
SENT_KEPT = 50  # uploads that are known of one file; the oldest are forgotten
RECENT_NS = 5_000_000_000  # nanoseconds; an upload so long before the last may be listed with a time close to it
NOBODY, ANYBODY = 0, -1  # values of `InodeState.closed_by` beside the numbers of handles


class WriteState(enum.Enum):
    CLEAN = "clean"
    DIRTY = "dirty"
    QUEUED = "queued"
    UPLOADING = "uploading"
    STORED = "stored"


TRANSITIONS: dict[tuple[WriteState, str], WriteState] = {
    (WriteState.CLEAN, "change"): WriteState.DIRTY,
    (WriteState.DIRTY, "change"): WriteState.DIRTY,
    (WriteState.QUEUED, "change"): WriteState.DIRTY,
    (WriteState.UPLOADING, "change"): WriteState.DIRTY,
    (WriteState.STORED, "change"): WriteState.DIRTY,
    (WriteState.DIRTY, "close"): WriteState.QUEUED,
    (WriteState.QUEUED, "start"): WriteState.UPLOADING,
    (WriteState.UPLOADING, "stored"): WriteState.STORED,
    (WriteState.UPLOADING, "failed"): WriteState.QUEUED,
    (WriteState.STORED, "confirmed"): WriteState.CLEAN,
    (WriteState.STORED, "damaged"): WriteState.QUEUED,
}


@dataclass(frozen=True, slots=True)
class Attr:
    """The attributes that getattr returns. Times in nanoseconds since the epoch, sizes in bytes."""

    ino: int
    mode: int  # type and permission bits
    size: int
    mtime_ns: int
    atime_ns: int
    ctime_ns: int
    uid: int
    gid: int
    nlink: int = 1

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.mode)


@dataclass(slots=True)
class LocalAttr:
    """Attributes that were set here. None: the service's value holds, or the mount's. Times in ns since the epoch."""

    ino: int | None = None
    perm: int | None = None
    uid: int | None = None
    gid: int | None = None
    mtime_ns: int | None = None
    atime_ns: int | None = None
    # The stored version that the times belong to. A file that others have replaced shows its own times again.
    version: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """An upload whose bytes were sent: the service may have it under the name, whether or not it answered."""

    generation: int  # of the inode; 0: of another inode that had the name before
    size: int  # bytes
    answered: bool = False
    stored_ns: int | None = None  # ns, by the store's clock, if the answer told it


def _is_needed(upload: Sent, last_ns: int | None) -> bool:
    """Whether an upload before the last may still be listed, or stored: `last_ns` is when the last one was stored."""
    if not upload.answered or upload == UNKNOWN:
        return True
    return last_ns is not None and upload.stored_ns is not None and upload.stored_ns > last_ns - RECENT_NS


UNKNOWN = Sent(0, -1, answered=True)  # uploads of which nothing more is known: what is listed may be one of them


@dataclass(frozen=True, slots=True)
class Base:
    """What a file here is based on: all that its name may lead to on the service without others having changed it.

    That is the version that was listed last, and the uploads from here that have begun since.
    """

    entry: Entry | None = None  # None: nothing was listed
    uploaded: bool = False  # an upload has begun since; if `sent` is empty, nothing more is known of it
    stored_ns: int | None = None  # ns, by the store's clock, of the last upload that was answered
    sent: tuple[Sent, ...] = ()  # that upload, those shortly before it, and the tries that were never answered


@dataclass(slots=True, eq=False)
class InodeState:
    """The fields of an inode that may change. They are restored when a step fails.

    Guarded by Inode.lock, except for the fields marked Tree: Tree.lock guards those.
    """

    path: str  # Tree
    attr: LocalAttr
    entry: Entry | None  # what the service had under this path when it was last seen; None: nothing
    unlinked: bool = False  # Tree
    # Tree, but may be read without it: a listing has shown another version under an open file's name
    replaced: bool = False
    content: Content | None = None  # None until first opened
    # The first `closed_size` bytes of `content` are the closed state in the journal. They must not change.
    # None: `closed_content` is the closed state, or there is none.
    closed_size: int | None = None
    closed_by: int = NOBODY  # the handle that closed it (ANYBODY: fsync(2)); it may overwrite the closed state
    closed_content: Content | None = None  # the closed state, while a copy of it is written to
    since_ns: int = 0  # ns since the epoch; the first write after the last close
    state: WriteState = WriteState.CLEAN
    generation: int = 0  # grows at the first change after a closed or stored state
    committed: bool = False  # the journal has the bytes as they are now as a closed state
    hides: Tombstone | None = None  # Tree; folders only: of a removed file that had the name, until that is settled
    pinned: bool = False  # the content is acquired for the open handles
    opens: int = 0  # Tree
    writers: int = 0  # Tree
    uploaded: bool = False  # as in `Base`, with `entry`
    stored_ns: int | None = None  # as in `Base`
    sent: tuple[Sent, ...] = ()  # as in `Base`
    stored_at: float = math.inf  # monotonic seconds of the end of our last upload, or of the replay
    missed: bool = False  # no listing has shown our upload in time, so it was uploaded again
    # Monotonic seconds: the replay, or the last upload that failed. Only a listing asked for later tells what others
    # have done.
    look_after: float = -math.inf
    local_only: bool = False  # Tree; its name never leaves this machine (`names.is_local_name`)


class Inode(InodeState):
    """A file or folder that has local truth or is open: its identity and its locks, around the state."""

    def __init__(self, path: str, *, is_dir: bool, entry: Entry | None, attr: LocalAttr) -> None:
        super().__init__(path, attr, entry)
        self.is_dir = is_dir
        self.lock = threading.RLock()
        # Held while the bytes are changed. Taken before `lock` and held longer: a closed state is copied before its
        # first byte changes.
        self.writing = threading.Lock()

    def snapshot(self) -> Callable[[], None]:
        """Return a function that restores the state. The caller holds Tree.lock and `lock` until the step ends."""
        before = [(name, getattr(self, name)) for name in InodeState.__slots__]

        def restore() -> None:
            for name, value in before:
                setattr(self, name, value)

        return restore

    def base_locked(self) -> Base:
        """What another inode that takes the name is based on. The caller holds `lock`."""
        sent = tuple(replace(upload, generation=0) for upload in self.sent)
        return Base(self.entry, self.uploaded, self.stored_ns, sent)

    def rebase_locked(self, base: Base) -> None:
        """Record what the service has under the name from now on. The caller holds `lock`."""
        self.entry, self.uploaded, self.stored_ns, self.sent = base.entry, base.uploaded, base.stored_ns, base.sent

    def may_arrive_locked(self, size: int) -> None:
        """Note that the last of `size` bytes is about to be sent. The caller holds `lock`."""
        upload = Sent(self.generation, size)
        tries = [earlier for earlier in self.sent if earlier == upload]  # one that stays in doubt tells of all
        others = [earlier for earlier in self.sent if earlier != upload]
        if self.uploaded and not self.sent:
            others.append(UNKNOWN)
        self.uploaded, self.sent = True, (*others, *tries[:1], upload)[-SENT_KEPT:]

    def arrived_locked(self, generation: int, stored_ns: int | None, at: float) -> None:
        """Note the store's answer to that, at `at` (monotonic seconds). The caller holds `lock`.

        It answers the last try. Those that were never answered may still be stored, over this one or over a later
        version: also earlier tries of these bytes. Those answered shortly before may be listed late.
        """
        tries = [upload for upload in self.sent if upload.generation == generation]
        if not tries:  # it has another name now
            return
        others = list(self.sent)
        others.remove(tries[-1])
        answered = replace(tries[-1], answered=True, stored_ns=stored_ns)
        self.sent = (*(upload for upload in others if _is_needed(upload, stored_ns)), answered)
        self.stored_ns, self.stored_at = stored_ns, at

    def settle_sent_locked(self) -> None:
        """End all doubt: those that were never answered have come by now, or never will. The caller holds `lock`."""
        self.sent = tuple(replace(upload, generation=self.generation, answered=True) for upload in self.sent)

    def transition_locked(self, event: str) -> None:
        """Take a step of TRANSITIONS; any other is a bug. The caller holds `lock`."""
        try:
            self.state = TRANSITIONS[self.state, event]
        except KeyError:
            raise AssertionError(f"{self.path}: no {event!r} in state {self.state.name}") from None

    def change_locked(self) -> bool:
        """Enter DIRTY before the bytes change. True if that ends a closed state. The caller holds `lock`."""
        first = self.committed or self.state is not WriteState.DIRTY
        if first:
            self.generation += 1
            self.committed = self.missed = False
        self.transition_locked("change")
        return first

    def restore(self, row_state: str, size: int) -> None:
        """Set the closed state that a journal row describes, at replay. `size` is in bytes."""
        self.state = {"closed": WriteState.QUEUED, "stored": WriteState.STORED}[row_state]
        self.committed, self.closed_size = True, size

    @property
    def ino(self) -> int:
        """The inode number. Every inode that was made here or opened has one."""
        assert self.attr.ino is not None
        return self.attr.ino

    def holds_closed_locked(self, start: int) -> bool:
        """Whether bytes from `start` on belong to the closed state in the journal. The caller holds `lock`."""
        return self.closed_size is not None and start < self.closed_size

    @property
    def has_closed_locked(self) -> bool:
        """Whether the journal has a closed state that a restart would restore. The caller holds `lock`."""
        return self.closed_size is not None or self.closed_content is not None

    def is_uploading_locked(self, generation: int) -> bool:
        """Whether this generation is still being uploaded. The caller holds `lock`."""
        return self.state is WriteState.UPLOADING and self.generation == generation

    @property
    def is_stored(self) -> bool:
        """Whether the service has these bytes under this name."""
        return self.state in (WriteState.CLEAN, WriteState.STORED)

    @property
    def size(self) -> int:
        if self.content is not None:
            return self.content.size
        return self.entry.size if self.entry is not None else 0

    @property
    def has_local_truth(self) -> bool:
        """Whether this inode is right even where a listing says otherwise."""
        return self.state is not WriteState.CLEAN or self.writers > 0 or self.local_only or self.entry is None


class Tombstone:
    """A name that was deleted (or renamed away) here, and that the service may still list.

    `entry` is what was deleted. It is None while nobody knows what is stored there, if anything. `after` are the
    inodes that must be stored before the delete (a rename deletes last). `below` are the stored files that were in
    a removed folder.

    When it may leave: once its delete and those of all names below it are done, by a listing that was asked for after
    that. Such a listing shows nothing under the name, or what others have put there since, or still the same after
    `evidence.LATE_DELETES`: then it is deleted once more, and after that it is shown. No earlier listing proves
    anything, whatever it shows.

    A name has one tombstone at most. That of a file hides a folder of the same name as well, if one was removed here
    before. What is below a removed folder has tombstones of its own as soon as the folder's name is used again.
    """

    def __init__(self, path: str, entry: Entry | None, *, is_dir: bool = False) -> None:
        self.path = path
        self.entry = entry
        self.is_dir = is_dir
        # Monotonic seconds. Only a listing asked for later shows what is stored, and what a removed folder holds.
        self.since: float | None = None
        # Monotonic seconds: the replay, or the last attempt. Only a listing asked for later tells what others have
        # stored under the name since.
        self.look_after = -math.inf
        self.after: set[Inode] = set()  # guarded by WorkQueue.lock
        self.below: list[Entry] = []
        self.bases: dict[str, Base] = {}  # by path, of those files of `below` that were uploaded from here
        self.done = False  # guarded by WorkQueue.lock; the service has acknowledged the delete
        self.done_at = math.inf  # monotonic seconds of that answer, or of the replay
        self.looks = (
            0  # how often listings did not agree yet (`PendingDeletes.look_later`); guarded by WorkQueue.lock
        )
        self.repeated = False  # its delete was acknowledged and not done, and has been asked for again
        self.refused_at = math.inf  # monotonic seconds; when the service first refused to delete it
        self.others_stay = False  # what has the name is others', or has something of theirs: it is not deleted
        self.base = Base(entry, uploaded=entry is None)  # of a file that takes the name again

    @property
    def is_known(self) -> bool:
        """Whether the ids of the entry and of everything below it are known."""
        return self.entry is not None and all(entry.id for entry in (self.entry, *self.below))

    def begin_again(self, now: float) -> None:
        """Record that the service has not, though it said so. `now` is monotonic seconds."""
        self.repeated, self.done, self.done_at, self.look_after = True, False, math.inf, now

    def finish(self, now: float) -> None:
        """Record that the service has deleted everything it names. `now` is monotonic seconds."""
        self.done, self.done_at = True, now


Node = Inode | Entry  # what a path leads to: an inode, or an entry that only a listing shows
