"""Waits that end early: the kernel reports a signal (fuse_interrupted(3)), or whoever waited has gone.

A wait looks between short sleeps, so that Ctrl-C ends a read within a moment. Threading: no state, no lock.
"""

from __future__ import annotations

from collections.abc import Callable

from cloudsimfs.errors import Cancelled

POLL = 0.25  # seconds between two looks whether a wait was interrupted

Interrupted = Callable[[], bool]


def never() -> bool:
    return False


def wait_for(
    done: Callable[[float], bool],
    interrupted: Interrupted,
    message: str,
    *,
    is_late: Callable[[], bool] = never,
    poll: float = POLL,
) -> bool:
    """Wait until `done` returns True, and return True; return False as soon as `is_late` returns True.

    `done(seconds)` waits at most that long and returns whether the wait is over, as `Event.wait` does. `is_late`
    knows the deadline, which may move. Raises what `done` raises, and Cancelled with `message` when `interrupted`
    returns True.
    """
    while not done(poll):
        if interrupted():
            raise Cancelled(message)
        if is_late():
            return False
    return True
