"""Finding a mount that runs: the one above a path, or the one at hand. Its state is what its `.cloudsimfs/` says."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import click

from cloudsimfs.control.simulations import SIMULATIONS
from cloudsimfs.control.state import STATE
from cloudsimfs.errors import MountError
from cloudsimfs.host import mountpoint


def mount_of(path: Path) -> Path:
    """The mount point above a path. Raises MountError."""
    for top in [path.absolute(), *path.absolute().parents]:
        if mountpoint.mount_type(top) == mountpoint.FS_TYPE:
            return top
    raise MountError(f"{path}: not inside a cloudsimfs mount")


def mount_at_hand(how: str = "name one") -> Path | None:
    """The mount around the current directory, else the only one that answers and lets us in, else None.

    Raises MountError if there are several; `how` says how to choose.
    """
    with contextlib.suppress(MountError, FileNotFoundError):
        return mount_of(Path.cwd())
    mounts = [top for top in mountpoint.all_mounts() if mountpoint.state(top) == "ok" and _lets_us_in(top)]
    if len(mounts) > 1:
        raise MountError(f"several mounts ({', '.join(map(str, mounts))}): {how}")
    return mounts[0] if mounts else None


def _lets_us_in(top: Path) -> bool:
    return os.access(top / SIMULATIONS / "README", os.R_OK)


def mount_meant(path: Path | None) -> Path:
    """The mount around `path`; without a path the one at hand. Raises MountError if there is none, or it is dead."""
    if path is not None:
        meant: Path | None = mount_of(path)
        dead = [top for top in [meant] if top and mountpoint.state(top) == "dead"]
    else:
        meant, dead = mount_at_hand(), dead_mounts()
    if dead and meant in (None, *dead):
        raise MountError("; ".join(map(_how_dead, dead)))
    if meant is None:
        raise MountError("no cloudsimfs is mounted here; `cloudsimfs mount MOUNTPOINT` mounts one")
    for top in dead:
        click.echo(f"note: {_how_dead(top)}", err=True)
    return meant


def dead_mounts() -> list[Path]:
    """This user's mounts whose daemon died."""
    return [top for top in mountpoint.our_mounts() if mountpoint.state(top) == "dead"]


def _how_dead(top: Path) -> str:
    return (
        f"{top}: its daemon died: `cloudsimfs mount {top}` mounts it again, nothing that was closed is lost; "
        f"`cloudsimfs umount {top}` removes what is left of it"
    )


def read_status(directory: Path) -> dict[str, Any]:
    status = json.loads((directory / STATE / "status.json").read_text())
    assert isinstance(status, dict)
    return status
