"""How long to wait before something that failed is tried again: twice as long each time, with jitter.

Thread-safe: no state of its own but the random numbers'. Asks no clock; the caller waits.
"""

from __future__ import annotations

import math
import random

_MOST_DOUBLINGS = 30  # days of failures must not end in an overflow


def ceiling(failures: int, *, first: float, longest: float = math.inf) -> float:
    """The longest pause in seconds after `failures` in a row: `first`, doubled each time, up to `longest`."""
    return min(longest, first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))


def pause(failures: int, *, first: float, longest: float = math.inf, least: float = 0.5) -> float:
    """Seconds to wait: a random share of the ceiling, from `least` up, so that those who failed together do not all
    come back together.
    """
    return ceiling(failures, first=first, longest=longest) * random.uniform(least, 1.0)
