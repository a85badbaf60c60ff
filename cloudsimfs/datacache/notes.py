"""The note on a backing file: what the journal's row says of it, for the day when the journal cannot say it.

It is an extended attribute of the file, so one system call writes it, and an fsync of the file has it on the disk,
too. Where that cannot be (a filesystem without such attributes, a note that is too long, a file that is not there
yet), it is a file `data/<name>.note`, which from then on is the note. Each line is a JSON list:

    ["closed", path, generation, time, ...]     the row of a closed state (`state`)
    ["stored", path, generation, time, ...]     the same, and the service has acknowledged it
    ["draft", path, generation, time, ...]      what is being written; the file holds no closed state
    ["appended", path, generation, time, ...]   what is being written behind the closed state of an earlier line
    ["moved", path]                             renamed
    ["gone"]                                    these bytes are unwanted, or they are somewhere else, too

A row is authority: a note only counts where no row names the file, or where it tells of a later closed state than the
row. A file without row or note may hold anything, so it is kept, unless a log says that all in it are a version's
bytes (`rangelog`).

Threading: none of its own; whoever saves the row holds the inode's lock.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cloudsimfs.datacache import rangelog
from cloudsimfs.datacache.directory import LOCAL, NOTE, STAMP, is_version_key, log_of
from cloudsimfs.datacache.state import ContentState, pack_bytes, unpack_bytes
from cloudsimfs.host.disk import copy_file, data_parts
from cloudsimfs.host.files import open_private, replace_file

ATTRIBUTE = "user.cloudsimfs"


@dataclass(frozen=True, slots=True)
class State:
    """One state of a file. `since_ns`: when the line was written, ns since the epoch; 0: it is not written yet."""

    word: str
    path: str
    generation: int
    bytes: ContentState
    since_ns: int = 0

    def same_as(self, other: State | None) -> bool:
        return other is not None and replace(self, since_ns=0) == replace(other, since_ns=0)


@dataclass(slots=True)
class Note:
    """What a note says. A file without a note, or with one that cannot be read, has neither state and is not gone."""

    closed: State | None = None
    draft: State | None = None
    is_gone: bool = False


def note_of(backing: Path) -> Path:
    return log_of(backing, NOTE)


# -- writing: raises OSError. `backing` is a path as text: this is on the way of each close(2) -----------------------


def add(backing: str, state: State) -> None:
    _write(backing, _bytes(_line(state)), resets=state.word != "appended")


def move(backing: str, path: str) -> None:
    _write(backing, _bytes(["moved", path]), resets=False)


def give_up(backing: str) -> int:
    """Note that nobody needs these bytes. Returns the note's length before, for `cut`."""
    before = len(_text(backing))
    _write(backing, _bytes(["gone"]), resets=False)
    return before


def copy_backing(data: Path, name: str, size: int) -> str:
    """Copy the first `size` bytes of a backing file to a new one, which is unwanted until a row names it.

    Returns its name. Raises OSError.
    """
    copy = secrets.token_hex(12)
    give_up(str(data / copy))
    copy_file(data / name, data / copy, size)
    return copy


def cut(backing: str, length: int) -> None:
    """Take back what was appended since the note had this length."""
    if _is_beside(backing):
        os.truncate(_beside(backing), length)
    else:
        os.setxattr(backing, ATTRIBUTE, os.getxattr(backing, ATTRIBUTE)[:length])


def rewrite(backing: str, states: Iterable[State]) -> None:
    """Have the note say this and nothing else, in one step."""
    text = b"".join(_bytes(_line(state)) for state in states)
    if _is_beside(backing) or not _set(backing, text):
        replace_file(Path(_beside(backing)), text)


def _beside(backing: str | Path) -> str:
    return f"{backing}.{NOTE}"


def _is_beside(backing: str) -> bool:
    return os.access(_beside(backing), os.F_OK)


def _line(state: State) -> list[object]:
    since_ns = state.since_ns or time.time_ns()
    return [state.word, state.path, state.generation, since_ns, *pack_bytes(state.bytes)]


def _bytes(line: list[object]) -> bytes:
    return f"\n{json.dumps(line)}\n".encode()  # the first newline ends a line that a full disk has cut


def _write(backing: str, line: bytes, *, resets: bool) -> None:
    """Add a line. `resets`: it says all there is to say, so that those before it may go."""
    if _is_beside(backing):
        _append(backing, line)
    elif not _set(backing, line if resets else _text(backing) + line):
        _append(backing, line if resets else _text(backing) + line)


def _append(backing: str, lines: bytes) -> None:
    fd = open_private(Path(_beside(backing)), os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, lines)
    finally:
        os.close(fd)


def _set(backing: str, text: bytes) -> bool:
    """Set the attribute. False if that cannot be, for whatever reason."""
    try:
        os.setxattr(backing, ATTRIBUTE, text)
    except OSError:
        return False
    return True


# -- reading ---------------------------------------------------------------------------------------------------


def read(backing: Path) -> Note:
    """What the note says. Lines that cannot be read are passed over."""
    note = Note()
    for line in filter(None, _text(backing).split(b"\n")):
        try:
            word, *values = json.loads(line)
            _take(note, word, values)
        except (ValueError, TypeError):
            continue
    return note


def _text(backing: str | Path) -> bytes:
    """All lines; nothing if there is no note."""
    with suppress(OSError):
        return Path(_beside(backing)).read_bytes()
    try:
        return os.getxattr(backing, ATTRIBUTE)
    except OSError:
        return b""


def _take(note: Note, word: str, values: list[Any]) -> None:
    """Add a line to what the note says. Raises ValueError or TypeError if it cannot be read."""
    if word == "gone":
        note.closed, note.draft, note.is_gone = None, None, True
    elif word == "moved":
        (path,) = values
        note.closed = note.closed and replace(note.closed, path=str(path))
        note.draft = note.draft and replace(note.draft, path=str(path))
    else:
        state = _state(word, *values)
        note.is_gone = False
        if word in ("closed", "stored"):
            note.closed, note.draft = state, None
        else:
            note.closed, note.draft = note.closed if word == "appended" else None, state


def _state(word: str, path: str, generation: int, since_ns: int, *held: Any) -> State:
    return State(word, path, generation, unpack_bytes(*held), since_ns)


# -- what nobody else knows ------------------------------------------------------------------------------------


def unclaimed(data: Path, named: Collection[str]) -> Iterator[str]:
    """The backing files in the folder `data` that may hold the only copy of something, though no row names them.

    `named` are those that rows name. Left out are files known to be a version's cache, unwanted, or empty.
    """
    with os.scandir(data) as files:
        names = {file.name for file in files if file.is_file(follow_symlinks=False)}
    logs: dict[str, set[str]] = {}
    for name in names:
        backing, _, key = name.partition(".")
        logs.setdefault(backing, set()).add(key)
    for name in sorted(name for name in names if "." not in name and name not in named):
        note = read(data / name)
        is_clean = any(map(is_version_key, logs[name])) or _was_never_written(data / name, logs[name], note)
        if note.is_gone or (is_clean and (note.closed is None or note.closed.word == "stored") and not note.draft):
            continue
        if note.closed is not None or _has_data(data / name):
            yield name


def _was_never_written(backing: Path, logs: Collection[str], note: Note) -> bool:
    """Whether a version's bytes were about to be changed, and were not: the note of a change comes before it.

    After a crash of the machine the note may be missing. Without the stamp the files may be of a version of this
    package that wrote no notes.
    """
    if LOCAL not in logs or note != Note() or not backing.with_name(STAMP).exists():
        return False
    record = rangelog.load(log_of(backing, LOCAL))
    return record is not None and record.clean


def _has_data(file: Path) -> bool:
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return any(True for _ in data_parts(fd, os.fstat(fd).st_size))
    finally:
        os.close(fd)
