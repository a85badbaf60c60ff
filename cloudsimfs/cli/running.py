"""Talking to a running mount through its `.cloudsimfs/` files."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import click

from cloudsimfs import mountpoint
from cloudsimfs.control import STATE
from cloudsimfs.errors import MountError


def mount_of(path: Path) -> Path:
    """The mount point above a path. Raises MountError."""
    for top in [path.absolute(), *path.absolute().parents]:
        if mountpoint.mount_type(top) == mountpoint.FS_TYPE:
            return top
    raise MountError(f"{path}: not inside a cloudsimfs mount")


def read_status(directory: Path) -> dict[str, Any]:
    found = json.loads((directory / STATE / "status.json").read_text())
    assert isinstance(found, dict)
    return found


def drain(directory: Path) -> bool:
    """Have everything uploaded, showing how far it is. Raises MountError with what remains.

    False if a file is still open for writing.
    """
    flush = directory / STATE / "flush"
    pending = read_status(directory)["pending"]
    with click.progressbar(length=len(pending), label="uploading", hidden=not pending) as bar:
        while True:
            try:
                flush.write_text("1")
                bar.update(len(pending) - bar.pos)
                return True
            except TimeoutError:
                bar.update(max(0, len(pending) - len(read_status(directory)["pending"]) - bar.pos))
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EROFS:
                    return True  # nothing is written through this mount
                if error.errno != errno.EBUSY:
                    raise
                return False
    left = read_status(directory)["pending"]
    reason = next((job["error"] for job in left if job["error"]), "unknown reason")
    raise MountError(
        f"{len(left)} operations are not on the service yet: {reason}. They are safe in "
        f"{read_status(directory)['cache']['directory']}; --no-wait unmounts now, and the next mount goes on"
    )
