"""When folders are listed again in which others have just stored something, or will.

Threading: none of its own; guarded by its owner's lock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

# Seconds after which a folder is listed again, if somebody looks: others were just seen to write there, or will be.
RESULTS_LOOKS = (2.0, 8.0, 18.0, 61.0, 150.0, 300.0)
SAVED_LOOKS = (0.0, *RESULTS_LOOKS[1:])  # after the end of a run: the results are there
REFRESH_LOOKS = (0.0, 5.0, 20.0)
LOOKS_END = 60.0  # seconds after the last of these
NEVER = -math.inf


class Looks:
    """When the folders below one are listed again: less and less often, and no more once something has come and then
    nothing. Times in monotonic seconds. Guarded by its owner's lock.
    """

    def __init__(self, begun_at: float, times: Sequence[float]) -> None:
        self._times = [begun_at + seconds for seconds in times]
        self.end = self._times[-1] + LOOKS_END
        self._news: dict[str, float] = {}  # by folder: the look that has last shown something new
        self._settled: dict[str, float] = {}  # and the one after that, which has not

    def due(self, path: str, now: float) -> float:
        """The last look at a folder that is due; NEVER: none is yet."""
        due = max((time for time in self._times if time <= now), default=NEVER)
        return min(due, self._settled.get(path, math.inf))

    def seen(self, path: str, asked_at: float, *, changed: bool) -> None:
        """A folder was listed."""
        look = self.due(path, asked_at)
        if changed:
            self._news[path] = look
        elif look > self._news.get(path, math.inf):
            self._settled[path] = look
