"""What the journal is told of an inode's bytes. The caller holds the inode's lock."""

from __future__ import annotations

from cloudsimfs.inode import Inode
from cloudsimfs.journal.rows import DraftRow, FileRow


def file_row(inode: Inode, state: str) -> FileRow:
    """What the journal is to know of the bytes as they are, "closed" or "stored"."""
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
    )


def draft_row(inode: Inode, since_ns: int, *, kept: bool = False) -> DraftRow:
    """Where the bytes are that are no closed state, written since `since_ns`."""
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
    )
