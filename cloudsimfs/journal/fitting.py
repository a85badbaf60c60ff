"""A journal that does not fit its data directory: it is set aside, and the files stay.

    journal.db.set-aside-<time>     with its -wal, if there was one; for the user to look at or remove

Called by who holds the directory's lock. Threading: none of its own.
"""

from __future__ import annotations

import itertools
import logging
import time
from pathlib import Path

from cloudsimfs.errors import MountError
from cloudsimfs.host.disk import disk_failure
from cloudsimfs.journal import stamp
from cloudsimfs.journal.database import Misfit
from cloudsimfs.journal.journal import Journal
from cloudsimfs.journal.schema import JOURNAL

log = logging.getLogger(__name__)

ASIDE = f"{JOURNAL}.set-aside-"


def open_journal(directory: Path) -> Journal:
    """The journal of a directory, or a new one if there is none that fits. Raises MountError."""
    path = directory / JOURNAL
    data = directory / "data"
    try:
        if not path.exists() and stamp.is_stamped(data):
            raise Misfit(path, "it is missing")
        return Journal(path)
    except Misfit as misfit:
        try:
            aside = _set_aside(directory)
            stamp.remove(data)
        except OSError as error:
            raise MountError(f"{path} cannot be set aside: {disk_failure(error)}") from error
        log.error(
            "%s does not fit the files beside it (%s)%s: `cloudsimfs recover` lists the files that were not stored",
            path,
            misfit.reason,
            f", and was set aside as {aside.name}" if aside is not None else "",
        )
    return Journal(path)


def _set_aside(directory: Path) -> Path | None:
    """Rename the journal and what belongs to it. Returns its new name, None if there was nothing. Raises OSError."""
    when = time.strftime("%Y%m%d-%H%M%S")
    names = itertools.chain([f"{ASIDE}{when}"], (f"{ASIDE}{when}-{number}" for number in itertools.count(2)))
    aside = next(name for name in names if not any(directory.glob(f"{name}*")))
    moved = None
    for suffix in ("", "-wal", "-shm"):
        file = directory / f"{JOURNAL}{suffix}"
        if file.exists():
            moved = file.rename(directory / f"{aside}{suffix}")
    return moved and directory / aside


def set_aside(directory: Path) -> list[Path]:
    """The journals that were set aside, and are still there."""
    return sorted(file for file in directory.glob(f"{ASIDE}*") if not file.name.endswith(("-wal", "-shm")))
