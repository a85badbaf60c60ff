"""An account's directory as a whole, without a mount: cleared, or made and removed again.

Threading: none of its own; the locks are lock files, between processes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from cloudsimfs.datacache.directory import STAMP, lock_directory, make_directory
from cloudsimfs.datacache.notes import unclaimed
from cloudsimfs.errors import ConfigError, Crashed, MountError, ServiceError
from cloudsimfs.host.disk import disk_usage
from cloudsimfs.host.files import lock
from cloudsimfs.journal.fitting import open_journal
from cloudsimfs.journal.journal import Journal
from cloudsimfs.journal.schema import JOURNAL


def clear(directory: Path) -> int:
    """Remove cached contents that the service has. Returns the bytes freed. Raises MountError if it is mounted."""
    if not (directory / "data").is_dir():
        return 0
    lock_fd = lock_directory(directory)
    try:
        data = directory / "data"
        with contextlib.closing(open_journal(directory)) as journal:
            keep = journal.backing_names()
        keep |= {STAMP.partition(".")[0], *unclaimed(data, keep)}
        freed = 0
        for file in sorted(data.iterdir()):  # a backing file goes before what is said of it
            if file.name.partition(".")[0] not in keep:
                freed += disk_usage(file)
                file.unlink()
        return freed
    finally:
        os.close(lock_fd)


@contextlib.contextmanager
def provisional(directory: Path, *, log_file: Path | None = None) -> Iterator[None]:
    """Make an account's directory, and remove it again if the block fails: a mistyped key or address leaves no trace.

    What was there before stays. A directory that holds anything of the user's stays, too. The block holds a shared
    lock on the directory, so that nothing is kept in one that is being removed. `log_file` is removed with the
    directory if its own directory had to be made, too.
    """
    made = [directory, *directory.parents, *([] if log_file is None else [log_file.parent, *log_file.parent.parents])]
    made = [folder for folder in made if not folder.exists()]
    lock_fd = _enter(directory)
    try:
        yield
    except (ConfigError, MountError, ServiceError) as error:
        if directory in made and not isinstance(error, Crashed) and _removed(directory, lock_fd):
            if log_file is not None and log_file.parent in made:
                log_file.unlink(missing_ok=True)
            for folder in made:
                with contextlib.suppress(OSError):  # another process has put something there
                    folder.rmdir()
        raise
    finally:
        os.close(lock_fd)


def _enter(directory: Path) -> int:
    """Open the directory with a shared lock, which lasts until the returned descriptor is closed."""
    while True:
        make_directory(directory)
        with contextlib.suppress(FileNotFoundError):  # another process has just removed it: try again
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            lock(fd, shared=True, wait=True)
            if os.path.samestat(os.fstat(fd), os.stat(directory)):
                return fd
            os.close(fd)


def _removed(directory: Path, lock_fd: int) -> bool:
    """Remove the directory if nothing is pending in it and no other process holds it. Returns whether it is gone."""
    try:
        lock(lock_fd)
    except BlockingIOError:
        return False
    with contextlib.closing(Journal(directory / JOURNAL)) as journal:
        if not journal.is_empty() or any(file.name != STAMP for file in (directory / "data").iterdir()):
            return False
    shutil.rmtree(directory, ignore_errors=True)
    return True
