"""Which journal belongs to a data directory, and how far it has come: a file in that directory.

The journal has an id and a count. The count grows when a mount begins and with each fsync, and is stamped after it is
committed. So a journal that is behind its stamp has lost something: it is a copy of another time, or its write-ahead
log is missing. After a crash of the machine only what was fsynced counts.

Threading: a stamp is one write(2). If an earlier one overtakes a later one, it only claims less.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from cloudsimfs.datacache.directory import STAMP
from cloudsimfs.datacache.rangelog import boot_id
from cloudsimfs.errors import CloudsimfsError
from cloudsimfs.host.files import open_private
from cloudsimfs.journal.database import Database, Misfit
from cloudsimfs.journal.schema import IDENTITY

log = logging.getLogger(__name__)

LENGTH = 256  # bytes; each stamp covers the last one


@dataclass(frozen=True, slots=True)
class Stamp:
    journal: str  # its id
    count: int  # it was committed with this count, in the boot
    boot: str
    synced: int  # it was fsynced with this count


@dataclass(frozen=True, slots=True)
class Identity:
    """What a journal says of itself."""

    id: str
    count: int


class Stamps:
    """Keeps the journal `path` and the stamp in the folder `data` in step. Raises Misfit, or as `Database.run`."""

    def __init__(self, path: Path, data: Path, db: Database) -> None:
        self._data = data
        self._db = db
        found, last = [Identity(*row) for row in db.rows(IDENTITY)], read(data)
        reason = misfit(found[0] if found else None, last)
        if reason:
            raise Misfit(path, reason)
        if not found:  # a new journal, or one of before there were stamps
            found = [Identity(secrets.token_hex(12), 0)]
            db.run("INSERT INTO identity VALUES (?,?)", found[0].id, found[0].count)
        self._identity = found[0]
        self._synced = 0 if last is None else last.synced
        self._counts: Iterator[int] | None = None  # the next ones, once a mount keeps the stamp

    def begin(self) -> None:
        """Keep the stamp from now on."""
        self._counts = itertools.count(self._identity.count + 1)
        try:
            self._stamp(self._count(self._counts))
        except CloudsimfsError as error:
            log.warning("the journal is not stamped: %s", error)
            self._counts = None

    def sync(self) -> None:
        """fsync what was committed so far."""
        count = None if self._counts is None else self._count(self._counts)
        self._db.sync()
        if count is not None:
            self._synced = count
            self._stamp(count)

    def _count(self, counts: Iterator[int]) -> int:
        count = next(counts)
        self._db.run("UPDATE identity SET count = max(count, ?)", count)
        return count

    def _stamp(self, count: int) -> None:
        try:
            write(self._data, Stamp(self._identity.id, count, boot_id(), self._synced))
        except OSError as error:
            log.warning("the journal's stamp cannot be written: %s", error.strerror)


def read(data: Path) -> Stamp | None:
    """The stamp in the folder `data`; None if there is none that can be read."""
    try:
        return Stamp(**json.loads((data / STAMP).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def write(data: Path, stamp: Stamp) -> None:
    """Raises OSError."""
    fd = open_private(data / STAMP, os.O_WRONLY)
    try:
        os.write(fd, json.dumps(asdict(stamp)).ljust(LENGTH).encode())
    finally:
        os.close(fd)


def is_stamped(data: Path) -> bool:
    """Whether the folder `data` has had a journal of a mount."""
    return read(data) is not None


def remove(data: Path) -> None:
    """Have any journal fit. Raises OSError."""
    (data / STAMP).unlink(missing_ok=True)


def misfit(identity: Identity | None, stamp: Stamp | None) -> str:
    """Why a journal does not belong to the data directory with this stamp; empty if it may."""
    if stamp is None:
        return ""
    if identity is None:
        return "it is not the journal of these files"
    if identity.id != stamp.journal:
        return "it is the journal of other files"
    if identity.count < (stamp.count if stamp.boot == boot_id() != "" else stamp.synced):
        return "it is older than the files; its write-ahead log may be missing"
    return ""
