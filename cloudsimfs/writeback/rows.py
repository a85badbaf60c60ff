"""The journal's rows for an inode's bytes. The caller holds the inode's lock."""

from __future__ import annotations

from cloudsimfs.inode import Inode
from cloudsimfs.journal.rows import DraftRow, FileRow, Kept


def file_row(inode: Inode, state: str) -> FileRow:
    """The row for the bytes as they are now, in state "closed" or "stored"."""
    assert inode.content is not None
    return FileRow(
        ino=inode.ino,
        path=inode.path,
        state=state,
        generation=inode.generation,
        uploaded=inode.uploaded,
        base=inode.entry,
        stored_ns=inode.stored_ns,
        bytes=inode.content.describe(),
        sent=inode.sent,
    )


def draft_row(inode: Inode, since_ns: int, *, kept: Kept = Kept.NO) -> DraftRow:
    """The row of a draft: bytes that are not a closed state, written since `since_ns` (ns since the epoch)."""
    assert inode.content is not None
    return DraftRow(
        ino=inode.ino,
        path=inode.path,
        generation=inode.generation,
        uploaded=inode.uploaded,
        base=inode.entry,
        since_ns=since_ns,
        kept=kept,
        bytes=inode.content.describe(),
        stored_ns=inode.stored_ns,
        sent=inode.sent,
    )
