"""The record of everything that is not yet on the service, in SQLite (`database`, `schema`).

The order of the steps of one write, which makes `close()` a promise (docs/architecture.md, invariant 1):

    1  bytes in the backing file             (Content.write)
    2  row committed                         (Journal.save_file, from flush)
    3  close() returns
    4  file, directory and row fsynced       (at once for fsync)
    5  upload of that generation             (Uploader)
    6  marked stored, if the generation is unchanged
    7  a listing confirms it: row deleted    (vfs.settle.Settlement)
    8  the backing file may be evicted

What is written after 2 must not touch the bytes of that row, which is all there is of the closed state until 5:

    appended            the same backing file; the row's size says where the closed state ends
    anything else       the next generation begins in a copy of its own (`Handles`), and the row keeps the old file

The copy costs nothing where the disk can share blocks (btrfs, XFS), else about a second per GiB, once, and only for a
file that is rewritten in place before its last state was stored and listed. An undo log of the overwritten ranges
would be cheaper, but its bytes would have to be on the disk before every write to be right after a power loss.
fsync(2) is not a close: a later write overwrites the synced bytes, as on any disk, and so does a write through a
duplicate of a descriptor that was closed. What was written since the last close is a `draft`: the next
mount restores the closed state, if there is one, and `recover` deals with the draft.

Beside each backing file a note says what its row says (`notes`), and the stamp of the data directory says which
journal belongs to it (`stamp`): the bytes outlive the journal.

Threading: any thread may save and read; the lock, the last in the order, is the database's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from cloudsimfs.datacache.state import ContentState, pack, pack_bytes
from cloudsimfs.errors import CloudsimfsError, MountError
from cloudsimfs.host.files import make_private
from cloudsimfs.inode import Base, LocalAttr, Sent
from cloudsimfs.journal.database import Database
from cloudsimfs.journal.notes import Notes
from cloudsimfs.journal.proofs import Proofs, Proved
from cloudsimfs.journal.rows import (
    DraftRow,
    FileRow,
    Kept,
    LaunchRow,
    TombstoneRow,
    draft_row,
    file_row,
    pack_sent,
    unpack_sent,
    unpack_version,
)
from cloudsimfs.journal.schema import DRAFT_BASES, DRAFTS, EVERYTHING, FILES, SCHEMA, SCHEMA_VERSION, SENT
from cloudsimfs.journal.stamp import Stamps
from cloudsimfs.journal.tombstones import Tombstones
from cloudsimfs.service.model import LaunchRequest


class Journal:
    """Open (and create, 0600) the journal at `path`. The folder `data` beside it has the backing files.

    Raises Misfit if it does not belong to them, else MountError if it cannot be used. What saves raises NoSpace, or
    FsError if it cannot be written for another reason.
    """

    def __init__(self, path: Path) -> None:
        self._db = Database(path, SCHEMA, SCHEMA_VERSION)
        try:
            data = path.parent / "data"
            make_private(data)
            self._stamps = Stamps(path, data, self._db)
            self._notes = Notes(data, self._db)
            self._proofs = Proofs(self._db)
            self._tombstones = Tombstones(self._db)
            self._notes.load(self.files(), self.drafts())
        except (CloudsimfsError, OSError) as error:
            self._db.close()
            raise error if isinstance(error, MountError) else MountError(f"{path}: {error}") from error

    def keep_up(self) -> None:
        """From now on this is the journal of a mount: its notes say what the rows say, and its stamp is kept."""
        self._notes.refresh(self.files(), self.drafts())
        self._stamps.begin()

    def close(self) -> None:
        self._db.close()

    def is_empty(self) -> bool:
        """Whether the journal records nothing that exists only here."""
        return not (self.files() or self.drafts() or self.folders() or self.tombstones() or self.launches())

    def transaction(self) -> AbstractContextManager[None]:
        """Everything this thread saves inside is recorded, or nothing is: `on_rollback` takes back the rest. Nests.

        The lock is held at the end only.
        """
        return self._db.transaction()

    def on_rollback(self, act: Callable[[], object]) -> None:
        """Call `act` if this thread's transaction fails, the last `act` first. It must not fail itself."""
        self._db.on_rollback(act)

    def on_commit(self, act: Callable[[], object]) -> None:
        """Call `act` once this thread's transaction is committed; at once without one. For what cannot be undone."""
        self._db.on_commit(act)

    def sync(self) -> None:
        """fsync what was committed so far (step 4)."""
        self._stamps.sync()

    # -- files ----------------------------------------------------------------------------------------

    def save_file(self, row: FileRow, fsync: int | None = None) -> None:
        """Record a closed state. It replaces the last one and the draft of what was written since.

        `fsync` is the round that has its bytes; None: they are those of the last row, or were fsynced.
        """
        with self.transaction():
            if fsync is not None and row.bytes.needs_file:
                self._proofs.awaits(row.ino, fsync, row.bytes)
            elif fsync is not None:
                self._proofs.settle(row.ino)
            # a rename over another unsaved file replaces that one's row
            self._db.run("DELETE FROM file WHERE path = ? AND ino <> ?", row.path, row.ino)
            self._db.run("DELETE FROM draft WHERE ino = ? AND NOT kept", row.ino)
            self._db.run(
                "INSERT OR REPLACE INTO file VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
                row.ino,
                row.path,
                row.state,
                row.generation,
                row.uploaded,
                pack(row.base),
                row.stored_ns,
                *pack_bytes(row.bytes),
            )
            self._save_sent(row.ino, row.sent)
            self._notes.closed(row)

    def save_draft(self, row: DraftRow, *, closed: bool, fsync: int | None = None) -> None:
        """Record what is being written. `closed`: the closed state stays; without it, its bytes are gone.

        `fsync` is the round that has what the row says is present; None: the row promises nothing.
        """
        with self.transaction():
            self._db.run("DELETE FROM draft WHERE ino = ? AND NOT kept", row.ino)
            if not closed:
                self._db.run("DELETE FROM file WHERE ino = ?", row.ino)
                if fsync is not None:
                    self._proofs.awaits(row.ino, fsync, row.bytes)
            self._db.run(
                "INSERT INTO draft VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
                row.ino,
                row.path,
                row.generation,
                row.uploaded,
                pack(row.base),
                row.since_ns,
                row.kept,
                *pack_bytes(row.bytes),
            )
            if row.sent and not row.kept:
                self._db.run("INSERT INTO draft_base VALUES (?,?,?)", row.ino, row.stored_ns, pack_sent(row.sent))
            self._notes.draft(row, closed=closed)

    def move_file(self, ino: int, path: str, base: Base) -> None:
        """Record a closed state's new name, under which it is to be uploaded."""
        with self.transaction():
            self._db.run("DELETE FROM file WHERE path = ? AND ino <> ?", path, ino)
            self._db.run(
                "UPDATE file SET path = ?, state = 'closed', base = ?, uploaded = ?, stored_ns = ? WHERE ino = ?",
                path,
                pack(base.entry),
                base.uploaded,
                base.stored_ns,
                ino,
            )
            self._save_sent(ino, base.sent)
            self._notes.moved(ino, path)

    def mark_uploaded(self, ino: int, sent: Iterable[Sent]) -> None:
        """Record that an upload of the file may have arrived; `sent` are all those since its base was listed."""
        with self.transaction():
            self._db.run("UPDATE file SET uploaded = 1 WHERE ino = ?", ino)
            self._save_sent(ino, sent)

    def _save_sent(self, ino: int, sent: Iterable[Sent]) -> None:
        self._db.run("DELETE FROM sent WHERE ino = ?", ino)
        for upload in sent:
            answered = upload.stored_ns or int(upload.answered)
            self._db.run("INSERT INTO sent VALUES (?,?,?,?)", ino, upload.generation, upload.size, answered)

    def drop_file(self, ino: int) -> None:
        """Forget a file: the service has all of it, or it is removed."""
        with self.transaction():
            self._db.run("DELETE FROM file WHERE ino = ?", ino)
            self._db.run("DELETE FROM draft WHERE ino = ? AND NOT kept", ino)
            self._notes.dropped(ino)

    def files(self) -> list[FileRow]:
        sent: dict[int, tuple[Sent, ...]] = {}
        for ino, generation, size, answered in self._db.rows(SENT):
            stored_ns = answered if answered > 1 else None
            sent[ino] = (*sent.get(ino, ()), Sent(generation, size, bool(answered), stored_ns))
        rows = [file_row(values) for values in self._db.rows(FILES)]
        return [replace(row, sent=sent.get(row.ino, ())) for row in rows]

    def drafts(self) -> list[DraftRow]:
        rows = [draft_row(values) for values in self._db.rows(DRAFTS)]
        based = {ino: (stored_ns, unpack_sent(sent)) for ino, stored_ns, sent in self._db.rows(DRAFT_BASES)}
        return [
            row
            if row.kept or row.ino not in based
            else replace(row, stored_ns=based[row.ino][0], sent=based[row.ino][1])
            for row in rows
        ]

    def backing_names(self) -> set[str]:
        """The backing files that rows name."""
        files, drafts = self.files(), self.drafts()
        rows = {row.bytes.backing for row in files} | {row.bytes.backing for row in drafts}
        return rows | self._proofs.backing_names()

    def keep_draft(self, row: DraftRow, held: ContentState) -> None:
        """Keep a draft beside the names: the daemon that wrote it died. `held`: where its bytes are from now on."""
        with self.transaction():
            self._db.run(
                "UPDATE draft SET kept = 1, backing = ?, size = ?, source = ?, etag = ?, remote_end = ?, present = ? "
                "WHERE ino = ? AND NOT kept",
                *pack_bytes(held),
                row.ino,
            )
            self._notes.kept(replace(row, kept=Kept.DRAFT, bytes=held), closed=True)

    def drop_draft(self, ino: int) -> None:
        with self.transaction():
            self._db.run("DELETE FROM draft WHERE ino = ? AND NOT kept", ino)
            self._notes.draft_dropped(ino)

    def drop_kept(self, backing: str) -> None:
        with self.transaction():
            self._db.run("DELETE FROM draft WHERE backing = ? AND kept", backing)
            self._notes.kept_dropped(backing)

    def accept_refused(self, path: str) -> None:
        """Note that the user has dealt with the files of this name that cannot be stored. They stay kept."""
        self._db.run("UPDATE draft SET kept = ? WHERE path = ? AND kept = ?", Kept.DRAFT, path, Kept.REFUSED)

    # -- bytes that may not be on the disk yet: see `proofs` ---------------------------------------------------

    def round_ended(self, number: int) -> None:
        """fsync what was committed so far (step 4), with the word that this round has put all bytes on the disk."""
        self._proofs.ended(number)
        self.sync()

    def awaited_rounds(self) -> dict[int, int]:
        """The rounds of fsync that have the bytes of files, by inode number."""
        return self._proofs.awaited()

    def doubted(self) -> dict[int, Proved | None]:
        """Files, by inode number, whose bytes a power loss may have taken; with the last state that it has not."""
        return self._proofs.doubted()

    def settle_doubt(self, ino: int) -> None:
        """What the rows of that file say is on the disk, or known not to be."""
        self._proofs.settle(ino)

    # -- folders and tombstones -----------------------------------------------------------------------

    def save_folder(self, path: str) -> None:
        self._db.run("INSERT OR REPLACE INTO folder VALUES (?)", path)

    def drop_folder(self, path: str) -> None:
        self._db.run("DELETE FROM folder WHERE path = ?", path)

    def folders(self) -> list[str]:
        return [path for (path,) in self._db.rows("SELECT path FROM folder ORDER BY path")]

    def save_tombstone(self, row: TombstoneRow) -> None:
        self._tombstones.save(row)

    def drop_tombstone(self, path: str) -> None:
        self._tombstones.drop(path)

    def tombstones(self) -> list[TombstoneRow]:
        return self._tombstones.rows()

    # -- launches, as older versions kept them here: see `runs.book` ----------------------------------------

    def drop_launch(self, row: int) -> None:
        self._db.run("DELETE FROM launch WHERE id = ?", row)

    def launches(self) -> list[LaunchRow]:
        rows = self._db.rows("SELECT id, request, token, known, run FROM launch ORDER BY id")
        return [
            LaunchRow(row, LaunchRequest(*json.loads(request)), token, frozenset(json.loads(known)), run)
            for row, request, token, known, run in rows
        ]

    # -- handing everything to another key: see `adoption` ------------------------------------------------

    def begin_handover(self, handover: str, target: str) -> None:
        self._db.run("INSERT INTO handover VALUES (?,?)", handover, target)

    def handovers(self) -> list[tuple[str, str]]:
        """The id and the target directory of the handover that has begun; empty without one."""
        return [(handover, target) for handover, target in self._db.rows("SELECT id, target FROM handover")]

    def drop_handover(self) -> None:
        """Forget the handover: it did not happen."""
        self._db.run("DELETE FROM handover")

    def save_adopted(self, handover: str) -> None:
        self._db.run("INSERT INTO adopted VALUES (?)", handover)

    def clear(self) -> None:
        """Forget everything: it belongs to another key now."""
        names = self.backing_names()
        with self.transaction():
            self._notes.cleared(names)
            for table in EVERYTHING:
                self._db.run(f"DELETE FROM {table}")

    # -- attributes -----------------------------------------------------------------------------------

    def save_attr(self, path: str, attr: LocalAttr) -> None:
        version = None if attr.version is None else json.dumps(attr.version)
        self._db.run(
            "INSERT OR REPLACE INTO attr VALUES (?,?,?,?,?,?,?,?)",
            *(path, attr.ino, attr.perm, attr.uid, attr.gid, attr.mtime_ns, attr.atime_ns, version),
        )

    def drop_attr(self, path: str) -> None:
        self._db.run("DELETE FROM attr WHERE path = ?", path)

    def attrs(self) -> dict[str, LocalAttr]:
        rows = self._db.rows("SELECT * FROM attr")
        return {
            path: LocalAttr(ino, perm, uid, gid, mtime_ns, atime_ns, unpack_version(version))
            for path, ino, perm, uid, gid, mtime_ns, atime_ns, version in rows
        }
