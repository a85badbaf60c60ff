"""Finding a mount that runs: the one above a path, or the one at hand. Its state is what its `.cloudsimfs/` says."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
from pathlib import Path
from typing import Any

import click

from cloudsimfs.control.state import STATE
from cloudsimfs.errors import MountError
from cloudsimfs.host import mountpoint


def mount_of(path: Path) -> Path:
    """The mount point above a path. Raises MountError, also if another user has mounted it."""
    for top in [path.absolute(), *path.absolute().parents]:
        user = mountpoint.owner(top)
        if user is not None:
            check_owner(top, user)
            return top
    raise MountError(f"{path}: not inside a cloudsimfs mount")


def check_owner(top: Path, user: int) -> None:
    """Raises MountError if the mount at `top` is another user's: what it says is not to be believed."""
    if user != os.getuid():
        raise MountError(f"{top}: mounted by another user ({_user_name(user)}); only that user's commands work there")


def _user_name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def mount_at_hand(how: str = "name one") -> Path | None:
    """The mount around the current directory, else our only one that answers, else None.

    Raises MountError if there are several; `how` says how to choose.
    """
    with contextlib.suppress(MountError, FileNotFoundError):
        return mount_of(Path.cwd())
    mounts = [top for top in mountpoint.our_mounts() if mountpoint.state(top) == "ok"]
    if len(mounts) > 1:
        raise MountError(f"several mounts ({', '.join(map(str, mounts))}): {how}")
    return mounts[0] if mounts else None


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
    """The status of a mount of ours. Raises MountError if it is served by another user's process, and OSError."""
    status = json.loads((directory / STATE / "status.json").read_text())
    assert isinstance(status, dict)
    user = _user_of(status["pid"])
    if user not in (None, os.getuid()):
        raise MountError(f"{directory}: process {status['pid']} of another user serves it; its word is not taken")
    return status


def _user_of(pid: int) -> int | None:
    """The user a process runs as; None if it is not seen from here. proc_pid_status(5)"""
    try:
        text = Path(f"/proc/{int(pid)}/status").read_text(errors="replace")
    except OSError:
        return None
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Uid:"))
