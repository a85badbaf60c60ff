"""Waits that end early: the kernel reports a signal (fuse_interrupted(3)), or whoever waited has gone.

A wait looks between short sleeps, so that Ctrl-C ends a read within a moment.

The threads that answer the kernel are bounded in number. Only a part of them may wait for the network at a time; the
others answer what is known, however many programs wait. A thread that waits for the network, or makes a call itself,
holds one of the places. Threading: the places are a semaphore; whether a thread needs one is its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cloudsimfs.errors import Cancelled, TryAgain

POLL = 0.25  # seconds between two looks whether a wait was interrupted
PLACES = 384  # threads of the bounded ones that wait at the same time

Interrupted = Callable[[], bool]


def never() -> bool:
    return False


_free = threading.Semaphore(PLACES)
_thread = threading.local()  # .waits: whether this thread, one of the bounded ones, holds a place


def bound_this_thread() -> None:
    """From now on this thread waits only where there is a place."""
    _thread.waits = False


@contextmanager
def place_to_wait() -> Iterator[None]:
    """Hold a place, if this thread needs one and has none yet. Raises TryAgain if all are taken."""
    if getattr(_thread, "waits", True):
        yield
        return
    if not _free.acquire(blocking=False):
        raise TryAgain(f"{PLACES} programs wait for the service already: try again when it answers")
    _thread.waits = True
    try:
        yield
    finally:
        _thread.waits = False
        _free.release()


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
    returns True; TryAgain if too many threads wait already.
    """
    with place_to_wait():
        while not done(poll):
            if interrupted():
                raise Cancelled(message)
            if is_late():
                return False
        return True
