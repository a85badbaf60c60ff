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


def check(mountpoint: Path) -> None:
    """Make sure that `mountpoint` is an empty directory that nothing is mounted on, or only a dead mount of ours.

    Raises MountError with one clear line. Changes nothing: `clear` unmounts the dead mount.
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
        if not is_ours(mountpoint):  # root could unmount it, and must not by itself
            raise MountError(f"{mountpoint}: a dead mount that is not yours; mount on another directory") from None
        return
    kind = mount_type(mountpoint)
    if kind == FS_TYPE:
        raise MountError(f"{mountpoint}: already mounted; `cloudsimfs umount {mountpoint}` unmounts it")
    if kind is not None:
        what = "the root of this machine's files" if str(mountpoint) == "/" else f"a {kind} is mounted there"
        raise MountError(f"{mountpoint}: {what}; mount on an empty directory: mkdir ~/cloud")
    if names:
        raise MountError(f"{mountpoint}: not empty ({names[0]!r} is in it); mount on an empty directory")


def clear(mountpoint: Path) -> None:
    """Unmount a dead mount of ours. Raises MountError if another mount cannot be made there then.

    To be called last: while the dead mount is there, no program writes into the directory below it by mistake.
    """
    if is_ours(mountpoint) and state(mountpoint) == "dead":
        unmount(mountpoint, lazy=True)
    check(mountpoint)


def mount_type(mountpoint: Path) -> str | None:
    """The type of the mount exactly there; None if there is none. Asks no filesystem, which might hang."""
    mount = _mount_at(mountpoint)
    return mount.type if mount is not None else None


def owner(mountpoint: Path) -> int | None:
    """The number of the user who has mounted this filesystem exactly there; None if it is not mounted there."""
    mount = _mount_at(mountpoint)
    return mount.user if mount is not None and mount.type == FS_TYPE else None


def is_ours(mountpoint: Path) -> bool:
    """Whether this user has mounted this filesystem exactly there. What others have mounted may be a trap."""
    return owner(mountpoint) == os.getuid()


def our_mounts() -> list[Path]:
    """The mounts of this filesystem that this user has made. Asks no filesystem, which might hang."""
    return [Path(mount.place) for mount in _mounts() if mount.type == FS_TYPE and mount.user == os.getuid()]


class _Mount(NamedTuple):
    place: str
    type: str
    user: int | None  # who made it; fusermount3 and the kernel let nobody choose another


def _mount_at(mountpoint: Path) -> _Mount | None:
    wanted = os.path.realpath(mountpoint.parent) + "/" + mountpoint.name if mountpoint.name else str(mountpoint)
    found = None
    for mount in _mounts():
        if mount.place in (wanted, str(mountpoint)):
            found = mount
    return found


def _mounts() -> list[_Mount]:
    """What this process can see, without mounts that others lie on (proc_pid_mountinfo(5))."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
        rows = [line.rstrip("\n").split(" ") for line in mounts]
    on_top = {}
    for row in rows:
        place, kind = _unescape(row[4]), row[row.index("-", 6) + 1]
        users = [option.removeprefix("user_id=") for option in row[-1].split(",") if option.startswith("user_id=")]
        on_top[place] = _Mount(place, kind, int(users[0]) if users else None)
    return list(on_top.values())


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
    """A field of /proc/self/mountinfo: white space and backslashes come as octal escapes (proc_pid_mounts(5))."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
