"""Going on as another user, which root may do."""

from __future__ import annotations

import os
import pwd


def become(number: int) -> None:
    """Go on as that user, for good, with that user's home. Raises KeyError, and PermissionError if not root."""
    user = pwd.getpwuid(number)
    os.initgroups(user.pw_name, user.pw_gid)
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    for variable in [name for name in os.environ if name.startswith("XDG_")]:
        del os.environ[variable]
    os.environ |= {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}
