"""Whether a directory is the user's alone: others can neither read it nor put another one in its place.

Nothing here makes a directory. Threading: none of its own.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

_IDENTITY = ["0", "0", "4294967295"]  # user_namespaces(7): the map of the first user namespace
_OVERFLOW = 65534  # how users that a namespace does not have are shown


def seclude(directory: Path) -> None:
    """Make an existing directory of the user's 0700. Raises PermissionError, with the reason, if that is not enough:

    it is a link, or another user's, or others can write to one above it (a sticky one, as /tmp, may be written to).
    """
    found = os.lstat(directory)
    if stat.S_ISLNK(found.st_mode):
        raise PermissionError(f"{directory}: is a link; name the directory itself")
    if not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{directory}: is no directory; move it away")
    if found.st_uid != os.geteuid():
        raise PermissionError(f"{directory}: belongs to another user ({found.st_uid}); name one of your own")
    for above in (*directory.parents, *Path(os.path.realpath(directory)).parents):
        _check_above(above)
    if stat.S_IMODE(found.st_mode) & 0o077:
        os.chmod(directory, 0o700)


def _check_above(directory: Path) -> None:
    found = os.lstat(directory)
    if not (found.st_uid in (0, os.geteuid()) or (found.st_uid == _OVERFLOW and _in_namespace())):
        raise PermissionError(f"{directory}: belongs to another user ({found.st_uid}), who can replace what is in it")
    if stat.S_ISLNK(found.st_mode) or found.st_mode & stat.S_ISVTX:
        return
    if found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _is_ours_alone(found.st_gid)):
        raise PermissionError(f"{directory}: others can write to it; run: chmod go-w {directory}")


def _is_ours_alone(group: int) -> bool:
    """Whether nobody but the user is in a group: many systems give each user one, and an umask of 002."""
    if group == 0:
        return True  # root's: may write everywhere anyway
    try:
        user = pwd.getpwuid(os.geteuid())
        return user.pw_gid == group and set(grp.getgrgid(group).gr_mem) <= {user.pw_name}
    except KeyError:
        return False


def _in_namespace() -> bool:
    try:
        return Path("/proc/self/uid_map").read_text().split() != _IDENTITY
    except OSError:
        return False
