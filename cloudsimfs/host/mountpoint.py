"""Mount points: whether one is usable, or a dead mount, and how to unmount it. Knows nothing of the service."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Literal, NamedTuple

from cloudsimfs.errors import MountError

MountState = Literal["ok", "dead", "hung"]

FS_TYPE = "fuse.cloudsimfs"
UNMOUNT_TIMEOUT = 30.0  # seconds
ANSWER_TIMEOUT = 5.0  # seconds a mount may take to answer
DEAD = (errno.ENOTCONN, errno.ECONNABORTED)
"""What a mount answers whose daemon died; the latter only right after the death."""


def prepare(mountpoint: Path) -> None:
    """Make sure `mountpoint` is an empty directory that nothing is mounted on; clean up a dead mount there.

    Raises MountError with one clear line.
    """
    try:
        names = os.listdir(mountpoint)
    except FileNotFoundError:
        raise MountError(f"{mountpoint}: no such directory; create it first: mkdir {mountpoint}") from None
    except NotADirectoryError:
        raise MountError(f"{mountpoint}: not a directory") from None
    except PermissionError:
        raise MountError(f"{mountpoint}: you may not read this directory") from None
    except OSError as error:
        if error.errno not in DEAD:
            raise MountError(f"{mountpoint}: {error.strerror}") from None
        # "Transport endpoint is not connected": the daemon of an earlier mount died
        unmount(mountpoint, lazy=True)
        prepare(mountpoint)
        return
    kind = mount_type(mountpoint)
    if kind == FS_TYPE:
        raise MountError(f"{mountpoint}: already mounted; `cloudsimfs umount {mountpoint}` unmounts it")
    if kind is not None:
        what = "the root of this machine's files" if str(mountpoint) == "/" else f"a {kind} is mounted there"
        raise MountError(f"{mountpoint}: {what}; mount on an empty directory: mkdir ~/cloud")
    if names:
        raise MountError(f"{mountpoint}: not empty ({names[0]!r} is in it); mount on an empty directory")


def mount_type(mountpoint: Path) -> str | None:
    """The type of the mount exactly there; None if there is none. Asks no filesystem, which might hang."""
    wanted = os.path.realpath(mountpoint.parent) + "/" + mountpoint.name if mountpoint.name else str(mountpoint)
    kind = None
    for mount in _mount_table():
        if mount.place in (wanted, str(mountpoint)):
            kind = mount.type  # the last one lies on top
    return kind


def all_mounts() -> list[Path]:
    """Where this filesystem is mounted, as far as we can see. Asks no filesystem, which might hang."""
    return [Path(mount.place) for mount in _mount_table() if mount.type == FS_TYPE]


def our_mounts() -> list[Path]:
    """The mounts of this filesystem that this user has made."""
    user = f"user_id={os.getuid()}"
    return [Path(mount.place) for mount in _mount_table() if mount.type == FS_TYPE and user in mount.options]


class _Mount(NamedTuple):
    place: str
    type: str
    options: list[str]


def _mount_table() -> list[_Mount]:
    """All mounts this process can see, those that lie on top of others after them (proc_pid_mounts(5))."""
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
        rows = [line.split() for line in mounts]
    return [_Mount(_unescape(place), kind, options.split(",")) for _, place, kind, options, *_ in rows]


def state(mountpoint: Path) -> MountState:
    """Whether a daemon serves the mount. Another user's mount that lets nobody in is `ok`."""
    answer: list[MountState] = []

    def look() -> None:
        try:
            os.statvfs(mountpoint)  # the kernel has no answer of its own to this, and ours costs no API call
        except OSError as error:
            answer.append("dead" if error.errno in DEAD else "ok")
        else:
            answer.append("ok")

    looking = threading.Thread(target=look, daemon=True)  # a hung mount blocks the thread until the mount is gone
    looking.start()
    looking.join(ANSWER_TIMEOUT)
    return answer[0] if answer else "hung"


def unmount(mountpoint: Path, *, lazy: bool = False) -> None:
    """Unmount as the user. Raises MountError with the reason."""
    program = shutil.which("fusermount3") or shutil.which("fusermount")
    if program is None:
        raise MountError("fusermount3 is missing; install the package fuse3")
    name = os.path.basename(program)
    command = [program, "-u", *(["-z"] if lazy else []), "--", str(mountpoint)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=UNMOUNT_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise MountError(f"{mountpoint}: could not be unmounted in time; try --lazy") from None
    if done.returncode:
        reason = "; ".join(done.stderr.splitlines()) or f"{name} failed"
        for known in (f"{name}: ", f"failed to unmount {mountpoint}: "):  # our line names both
            reason = reason.removeprefix(known)
        hint = f"; `fuser -vm {mountpoint}` names what uses it: close that, or use --lazy" if "busy" in reason else ""
        raise MountError(f"{mountpoint}: {reason}{hint}")


def _unescape(field: str) -> str:
    """A field of /proc/mounts: white space and backslashes come as octal escapes (proc_pid_mounts(5))."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
