"""Inodes, attributes and write states: what the tree knows of one file or folder.

An `Inode` exists for what is open or holds local truth (dirty, waiting for upload, made here); a clean file that
nobody has open is only an `Entry` in a listing. This module does no I/O.

Write states, all of them, and the only moves there are (`Inode.move` refuses any other):

    CLEAN --change--> DIRTY --close--> QUEUED --start--> UPLOADING --stored--> STORED --confirmed--> CLEAN
                        ^                ^ ^                |                    |
                        |                | +---- failed ----+                    |
                        |                +----------- damaged -------------------+
                        +-- change (from QUEUED, UPLOADING, STORED): generation + 1, an upload is called off

Locks: `Inode.lock` protects the inode's mutable fields and may be held over local disk I/O, never over a
service call. Order: Tree.lock > Inode.lock > Content.lock > WorkQueue.lock > Journal.lock.
"""

from __future__ import annotations

import enum
import math
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudsimfs.service.model import Entry

if TYPE_CHECKING:
    from cloudsimfs.datacache.content import Content

ST_BLOCK = 512  # bytes, the unit of st_blocks (stat(2))
NOBODY, ANYBODY = 0, -1  # besides the number of a handle: who may overwrite a closed state


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
    """What getattr answers. Times in nanoseconds since the epoch, sizes in bytes."""

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
    """None means "as the service and the mount say". Times in nanoseconds since the epoch."""

    ino: int | None = None
    perm: int | None = None
    uid: int | None = None
    gid: int | None = None
    mtime_ns: int | None = None
    atime_ns: int | None = None
    # the version the times belong to: a file that others replaced has its own times again
    version: tuple[int, int, int] | None = None


@dataclass(slots=True, eq=False)
class InodeState:
    """What of an inode may change, and is taken back when a step fails.

    Guarded by Inode.lock, but for the fields marked Tree.
    """

    path: str  # Tree
    attr: LocalAttr
    entry: Entry | None  # what the service had under this path when last seen; None: nothing
    unlinked: bool = False  # Tree
    replaced: bool = False  # Tree, and read without it: a listing has shown another version to an open reader's name
    content: Content | None = None  # None until first opened
    # How many bytes of `content` are the closed state that the journal speaks of, and must not change; None: that is
    # `closed_content`, or there is none.
    closed_size: int | None = None
    closed_by: int = NOBODY  # whose close(2) or fsync(2) that was, and who may thus take it back by writing on
    closed_content: Content | None = None  # the closed state while the next one is written into a copy of it
    since_ns: int = 0  # when it was first written to after the last close
    state: WriteState = WriteState.CLEAN
    generation: int = 0  # counts closed or changing contents
    committed: bool = False  # the journal has the present bytes as a closed state
    hides: Tombstone | None = None  # Tree; of a folder: the removed file that had its name, until that is settled
    pinned: bool = False  # the content is acquired for the open handles
    opens: int = 0  # Tree
    writers: int = 0  # Tree
    uploaded: bool = False  # an upload under this path has begun since `entry` was listed: there may be more than it
    based_at: float = math.inf  # monotonic seconds; since when `entry` is the base
    stored_ns: int | None = None  # the store's clock when the last generation was stored: theirs is newer
    stored_size: int = -1  # bytes of that generation
    stored_at: float = math.inf  # monotonic seconds of that, or of the replay
    in_doubt: bool = False  # an upload has begun since whose outcome is not known
    local_only: bool = False  # Tree; names that never leave this machine (`names.is_local_name`)


class Inode(InodeState):
    """A file or folder with local truth, or one that is open: its identity, around the state."""

    def __init__(self, path: str, *, is_dir: bool, entry: Entry | None, attr: LocalAttr) -> None:
        super().__init__(path, attr, entry)
        self.is_dir = is_dir
        self.lock = threading.RLock()
        # Held by who changes the bytes, before `lock` and longer: a copy is made before the first of them changes.
        self.writing = threading.Lock()

    def snapshot(self) -> Callable[[], None]:
        """Return a function that restores the state. The caller holds both locks until the step has ended."""
        before = [(name, getattr(self, name)) for name in InodeState.__slots__]

        def restore() -> None:
            for name, value in before:
                setattr(self, name, value)

        return restore

    def rebase(self, entry: Entry | None, *, uploaded: bool, at: float) -> None:
        """What the service has under the name from now (`at`, monotonic seconds) on. The caller holds `lock`.

        `uploaded`: it may have more than `entry`, from us.
        """
        self.entry, self.uploaded, self.based_at = entry, uploaded, at

    def transition(self, event: str) -> None:
        """Take the step of the table above. The caller holds `lock`."""
        try:
            self.state = TRANSITIONS[self.state, event]
        except KeyError:
            raise AssertionError(f"{self.path}: no {event!r} in state {self.state.name}") from None

    def change(self) -> bool:
        """About to change the bytes: enter DIRTY. True if that ends a closed state. The caller holds `lock`."""
        first = self.committed or self.state is not WriteState.DIRTY
        if first:
            self.generation += 1
            self.committed = False
        self.transition("change")
        return first

    def restore(self, row_state: str, size: int) -> None:
        """The closed state a journal row speaks of, at replay."""
        self.state = {"closed": WriteState.QUEUED, "stored": WriteState.STORED}[row_state]
        self.committed, self.closed_size = True, size

    @property
    def ino(self) -> int:
        """The number of an inode that was made here or opened: it has one."""
        assert self.attr.ino is not None
        return self.attr.ino

    def holds_closed(self, start: int) -> bool:
        """Whether bytes from `start` on belong to the closed state in the journal. The caller holds `lock`."""
        return self.closed_size is not None and start < self.closed_size

    @property
    def has_closed(self) -> bool:
        """Whether the journal has a closed state to go back to. The caller holds `lock`."""
        return self.closed_size is not None or self.closed_content is not None

    def is_uploading(self, generation: int) -> bool:
        """Whether this generation's upload is still the one under way. The caller holds `lock`."""
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
        """Whether the listing must not be believed over this inode."""
        return self.state is not WriteState.CLEAN or self.writers > 0 or self.local_only or self.entry is None


class Tombstone:
    """A tombstone: a name deleted (or renamed away) here that the service may still list.

    `entry` is what was deleted, None while only "whatever is stored there" is known. `after` are the inodes whose
    upload must be stored first (a rename deletes last). `below` are the stored files under a removed folder.
    """

    def __init__(self, path: str, entry: Entry | None, *, is_dir: bool = False) -> None:
        self.path = path
        self.entry = entry
        self.is_dir = is_dir
        # Monotonic seconds: only a listing asked for later knows what is stored (if `entry` is None).
        self.since: float | None = None
        self.after: set[Inode] = set()  # guarded by WorkQueue.lock
        self.below: list[Entry] = []
        self.done = False  # guarded by WorkQueue.lock; the service has acknowledged the delete
        self.done_at = math.inf  # monotonic seconds of that, or of the replay
        self.looks = 0  # how often what was uploaded there was looked for in vain; guarded by WorkQueue.lock
        self.refused_at = math.inf  # when the service first refused to delete it, monotonic seconds
        self.others_stay = False  # a folder's delete left it standing, with what others have put there

    @property
    def is_known(self) -> bool:
        """Whether the ids of all that it names are known."""
        return self.entry is not None and all(entry.id for entry in (self.entry, *self.below))

    def finish(self, now: float) -> None:
        """The service has nothing of it any more. `now` is monotonic seconds."""
        self.done, self.done_at = True, now


Node = Inode | Entry  # what a path leads to: an inode, or only what a listing shows
