"""An account's directory as a whole, without a mount: cleared, or made and removed again.

Threading: none of its own; the locks are lock files, between processes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from cloudsimfs.datacache.directory import lock_directory, make_directory
from cloudsimfs.errors import ConfigError, Crashed, MountError, ServiceError
from cloudsimfs.host.disk import disk_usage
from cloudsimfs.host.files import lock
from cloudsimfs.journal.journal import Journal


def clear(directory: Path) -> int:
    """Remove cached contents that the service has. Returns the bytes freed. Raises MountError if it is mounted."""
    if not (directory / "data").is_dir():
        return 0
    held = lock_directory(directory)
    try:
        journal = Journal(directory / "journal.db")
        keep = {row.bytes.backing for row in journal.files()} | {row.bytes.backing for row in journal.drafts()}
        journal.close()
        freed = 0
        for file in (directory / "data").iterdir():
            if file.name.partition(".")[0] not in keep:
                freed += disk_usage(file)
                file.unlink()
        return freed
    finally:
        os.close(held)


@contextlib.contextmanager
def provisional(directory: Path, *, log_file: Path | None = None) -> Iterator[None]:
    """Make an account's directory, and remove it again if the block fails: a mistyped key or address leaves no trace.

    What was there before stays, and so does a directory that holds anything of the user's. The block holds a shared
    lock on the directory, so that no launch is recorded in one that is being removed. `log_file` is removed with the
    directory if its own directory had to be made, too.
    """
    made = [directory, *directory.parents, *([] if log_file is None else [log_file.parent, *log_file.parent.parents])]
    made = [each for each in made if not each.exists()]
    held = _enter(directory)
    try:
        yield
    except (ConfigError, MountError, ServiceError) as error:
        if directory in made and not isinstance(error, Crashed) and _removed(directory, held):
            if log_file is not None and log_file.parent in made:
                log_file.unlink(missing_ok=True)
            for each in made:
                with contextlib.suppress(OSError):  # another process has put something there
                    each.rmdir()
        raise
    finally:
        os.close(held)


def _enter(directory: Path) -> int:
    """A descriptor of the directory that holds a shared lock until it is closed."""
    while True:
        make_directory(directory)
        with contextlib.suppress(FileNotFoundError):  # it was just removed: once more
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            lock(fd, shared=True, wait=True)
            if os.path.samestat(os.fstat(fd), os.stat(directory)):
                return fd
            os.close(fd)


def _removed(directory: Path, held: int) -> bool:
    """Remove the directory if nothing waits in it and nobody else has entered it. Returns whether it is gone."""
    try:
        lock(held)
    except BlockingIOError:
        return False
    with contextlib.closing(Journal(directory / "journal.db")) as journal:
        if not journal.is_empty() or any((directory / "data").glob("*")):
            return False
    shutil.rmtree(directory, ignore_errors=True)
    return True
