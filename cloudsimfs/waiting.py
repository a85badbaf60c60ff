"""What may cut a wait short: the kernel tells of a signal (fuse_interrupted(3)), or whoever waited has gone.

Pure. A wait asks between short sleeps, so that Ctrl-C ends a read within a moment.
"""

from __future__ import annotations

from collections.abc import Callable

Interrupted = Callable[[], bool]


def never() -> bool:
    return False
