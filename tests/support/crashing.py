"""A mount whose daemon kills itself just after one step: `python crashing.py POINT[:N] cloudsimfs mount ...`.

POINT is a row of the table below, N the time it is reached (the first if left out). The product knows nothing of
this: the function that makes the step is wrapped before the command line starts, and the daemon is forked from here.
"""

from __future__ import annotations

import functools
import itertools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from cloudsimfs.datacache.cache import DataCache
from cloudsimfs.datacache.content import Content
from cloudsimfs.datacache.rangelog import RangeLog
from cloudsimfs.inode import Tombstone
from cloudsimfs.journal.journal import Journal
from cloudsimfs.journal.notes import Notes
from cloudsimfs.operations import Operations
from cloudsimfs.service import Client
from cloudsimfs.vfs.adoption import Handover
from cloudsimfs.vfs.settle import Settlement
from cloudsimfs.writeback import fsyncer
from cloudsimfs.writeback.fsyncer import Fsyncer
from cloudsimfs.writeback.uploads import Writeback

PERIOD = 0.2  # seconds between rounds of fsync: some points come only with the next


def always(*_: Any, **__: Any) -> bool:
    return True


# The step's name, the function that makes it, and which of its calls count; by the numbers of journal.py.
POINTS: dict[str, tuple[type, str, Callable[..., bool]]] = {
    "1-written": (Content, "write", always),
    "2-committed": (Writeback, "commit_locked", lambda _, inode, **__: inode.committed),
    "3-closed": (Operations, "release", always),
    "4-synced": (Fsyncer, "sync", always),
    "5-uploaded": (Client, "upload", always),
    "6-stored": (Journal, "save_file", lambda _, row, **__: row.state == "stored"),
    "7-confirmed": (Settlement, "_retire", lambda _, item, __: not isinstance(item, Tombstone) and not item.is_dir),
    "8-evicted": (DataCache, "_evict", always),
    "bytes-dropped": (Content, "drop", always),
    "log-begun": (RangeLog, "open", always),
    "note-written": (Notes, "_say", always),
    "bytes-given-up": (Notes, "_give_up", always),
    "copied": (DataCache, "copy_of", always),
    "made-local": (DataCache, "unshare", always),
    "unlinked": (Operations, "unlink", always),
    "folder-removed": (Operations, "rmdir", always),
    "renamed": (Operations, "rename", always),
    "deleted": (Client, "delete", always),
    "delete-kept": (Journal, "save_tombstone", lambda _, row: row.done),
    "tombstone-dropped": (Journal, "drop_tombstone", always),
    "tombstone-retired": (Settlement, "_retire", lambda _, item, __: isinstance(item, Tombstone)),
    "service-told": (Client, "delete_cache", always),
    "handover-1-recorded": (Handover, "record", always),
    "handover-2-linked": (Handover, "link", always),
    "handover-3-almost": (Journal, "save_adopted", always),
    "handover-3-adopted": (Handover, "save", always),
    "handover-4-emptied": (Journal, "clear", always),
}


def arm(point: str, at: int) -> None:
    """Have this process killed after the function of `point` was called for the `at`-th time."""
    owner, name, counts = POINTS[point]
    step = getattr(owner, name)
    calls = itertools.count(1)

    @functools.wraps(step)
    def deadly(*args: Any, **kwargs: Any) -> Any:
        result = step(*args, **kwargs)
        if counts(*args, **kwargs) and next(calls) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, deadly)
    fsyncer.PERIOD = PERIOD


def main() -> None:
    from cloudsimfs.cli import main as command_line

    point, _, at = sys.argv[1].partition(":")
    arm(point, int(at or 1))
    sys.argv[1:] = sys.argv[3:]
    command_line(prog_name="cloudsimfs")


if __name__ == "__main__":
    main()
