"""The notes beside the backing files, kept in step with the journal's rows (`datacache.notes`).

A row leads, and its note follows: a note is written when the row is committed, and bytes are given up in the note
before their row goes. So a daemon that dies in between leaves a row, which the next one goes by (`refresh`). A note
that cannot be written costs nothing as long as the journal is there: that is only logged.

Threading: callers hold the inode's lock, or are alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from cloudsimfs.datacache import notes
from cloudsimfs.datacache.notes import State
from cloudsimfs.journal.database import Database
from cloudsimfs.journal.rows import DraftRow, FileRow, Kept

log = logging.getLogger(__name__)

MOST_LINES = 64  # of one note; then the next closed state begins it anew

_Held = tuple[str | None, str | None]  # the backing files of an inode's closed state and of its draft


class Notes:
    """The notes in the folder `data`. Everything but `refresh` is called inside a transaction of `db`."""

    def __init__(self, data: Path, db: Database) -> None:
        self._data = str(data)
        self._db = db
        self._held: dict[int, _Held] = {}  # by inode number; as the rows have it
        self._lines: dict[str, int] = {}  # by backing file; how many were appended

    def load(self, files: Iterable[FileRow], drafts: Iterable[DraftRow]) -> None:
        """Take what the rows say, when the journal is opened."""
        for file in files:
            self._held[file.ino] = (file.bytes.backing, None)
        for draft in drafts:
            if not draft.kept:
                self._held[draft.ino] = (self._of(draft.ino)[0], draft.bytes.backing)

    def refresh(self, files: Iterable[FileRow], drafts: Iterable[DraftRow]) -> None:
        """Have each note say what its rows say: an earlier daemon may have died in between, or kept no notes."""
        wanted: dict[str, list[State]] = {}
        for file in files:
            wanted[file.bytes.backing] = [_of_file(file)]
        for draft in drafts:
            states = wanted.setdefault(draft.bytes.backing, [])
            states.append(_of_draft(draft, appended=bool(states)))
        for name, states in wanted.items():
            said = notes.read(Path(self._path(name)))
            known = [state for state in (said.closed, said.draft) if state is not None]
            if not (len(known) == len(states) and all(map(State.same_as, states, known))):
                self._write(name, partial(notes.rewrite, self._path(name), states))

    # -- with each change of a row -----------------------------------------------------------------------------

    def closed(self, row: FileRow) -> None:
        """A closed or stored state: it is all there is of the file."""
        self._hold(row.ino, (row.bytes.backing, None))
        self._say_later(row.ino, _of_file(row))

    def draft(self, row: DraftRow, *, closed: bool) -> None:
        """`closed`: the closed state stays."""
        if row.kept:
            self.kept(row, closed=closed)
            return
        before = self._of(row.ino)[0] if closed else None
        self._hold(row.ino, (before, row.bytes.backing))
        self._say_later(row.ino, _of_draft(row, appended=before == row.bytes.backing))

    def kept(self, row: DraftRow, *, closed: bool) -> None:
        """The draft goes beside the names, with these bytes."""
        self._hold(row.ino, (self._of(row.ino)[0] if closed else None, None), spare=row.bytes.backing)
        self._db.on_commit(lambda: self._say(_of_draft(row, appended=False)))

    def moved(self, ino: int, path: str) -> None:
        name = self._of(ino)[0]
        if name is not None:
            self._db.on_commit(lambda: self._write(name, partial(notes.move, self._path(name), path)))

    def draft_dropped(self, ino: int) -> None:
        self._hold(ino, (self._of(ino)[0], None))

    def dropped(self, ino: int) -> None:
        self._hold(ino, (None, None))

    def kept_dropped(self, name: str) -> None:
        """A draft beside the names is not wanted any more, unless its bytes have become a file's."""
        if not any(name in held for held in self._held.values()):
            self._give_up(name)

    def cleared(self, names: Iterable[str]) -> None:
        """All rows go; they name these backing files."""
        for name in names:
            self._give_up(name)
        self._held.clear()

    def _path(self, name: str) -> str:
        return f"{self._data}/{name}"

    def _of(self, ino: int) -> _Held:
        return self._held.get(ino, (None, None))

    def _hold(self, ino: int, now: _Held, *, spare: str = "") -> None:
        """From now on the inode has these backing files. It gives up the others, but for `spare`."""
        before = self._of(ino)
        for name in {*before} - {*now, spare, None}:
            assert name is not None
            self._give_up(name)
        self._set(ino, now)
        self._db.on_rollback(lambda: self._set(ino, before))

    def _set(self, ino: int, held: _Held) -> None:
        if held == (None, None):
            self._held.pop(ino, None)
        else:
            self._held[ino] = held

    def _give_up(self, name: str) -> None:
        def give_up() -> None:
            length = notes.give_up(self._path(name))
            self._db.on_rollback(lambda: self._write(name, partial(notes.cut, self._path(name), length)))

        self._write(name, give_up)
        self._lines.pop(name, None)

    def _say_later(self, ino: int, state: State) -> None:
        """Once the row is committed, unless the same transaction has dropped it again."""
        self._db.on_commit(lambda: self._say(state) if state.bytes.backing in self._of(ino) else None)

    def _say(self, state: State) -> None:
        name = state.bytes.backing
        lines = self._lines[name] = self._lines.get(name, 0) + 1
        if lines > MOST_LINES and state.word == "closed":
            self._lines[name] = 0
            self._write(name, partial(notes.rewrite, self._path(name), [state]))
        else:
            self._write(name, partial(notes.add, self._path(name), state))

    def _write(self, name: str, write: Callable[[], None]) -> None:
        try:
            write()
        except FileNotFoundError:
            pass  # the file was removed with its note
        except OSError as error:
            log.warning("the note of %s cannot be written: %s", name, error.strerror)


def _of_file(row: FileRow) -> State:
    return State(row.state, row.path, row.generation, row.bytes)


def _of_draft(row: DraftRow, *, appended: bool) -> State:
    word = "closed" if row.kept is Kept.FOUND_CLOSED else "appended" if appended else "draft"
    return State(word, row.path, row.generation, row.bytes)
