"""The service's cache of what it shows a user (v2; docs/service.md, "Behaviour").

It hides what others, our runs and our own uploads have stored, for minutes. Whoever wants the truth deletes it first:
one call, shared by all who ask within a moment. v1 has no such cache: nothing here then costs a call.

Some accounts' listings may never lag. That is learnt from the listings that are made anyway: who only looks for news
then needs no such call. Who stakes a file on the answer makes it all the same.

Threading: `_deleting` is held over the call, so that a second caller finds the work done. `_learning` is a leaf, and
protects what is learnt.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence

from cloudsimfs.clock import Clock
from cloudsimfs.errors import NotOffered, ServiceError
from cloudsimfs.service.budget import Urgency

log = logging.getLogger(__name__)

MARGIN = 3.0  # seconds by which the time of a stored file may be wrong
SOON = 120.0  # seconds between two listings: what the service has cached lasts longer
ENOUGH = 5  # listings in a row that have shown at once what others have stored: they do not lag
REFUSED_PAUSE = 600.0  # seconds until a service that has refused to delete its cache is asked again


class ServerCache:
    """`call(urgency)` deletes it; it raises NotOffered if the account has none. `offered()` makes no call."""

    def __init__(self, clock: Clock, call: Callable[[Urgency], None], *, offered: Callable[[], bool]) -> None:
        self._clock = clock
        self._call = call
        self._offered = offered
        self._deleting = threading.Lock()
        self._pause_until = -math.inf  # monotonic seconds; readers do not ask until then
        # Monotonic seconds, from before the call: a listing asked for since shows what was stored until then.
        self.deleted_at = -math.inf
        self._learning = threading.Lock()
        self.lags: bool | None = None  # whether listings lag; None: not known yet
        self._prompt = 0  # listings in a row that did not
        self._uploaded_at = -math.inf  # monotonic seconds; our last upload, which nobody sees before a deletion
        self._hid_at = -math.inf  # the last deletion that has shown uploads of ours; a moment before it is of no use

    def delete(self, urgency: Urgency, *, since: float = math.inf) -> None:
        """Delete it, unless that was done after `since` (monotonic seconds). Raises ServiceError."""
        with self._deleting:
            if self.deleted_at >= since:
                return
            now = self._clock.monotonic()
            try:
                self._call(urgency)
            except NotOffered:
                log.debug("this account has no cache to delete")
                self._pause_until = now + REFUSED_PAUSE
            with self._learning:
                if self._uploaded_at > self.deleted_at:
                    self._hid_at = now
            self.deleted_at = now

    @property
    def hides(self) -> bool:
        """Whether a listing may lack what a deletion would show."""
        return self._offered() and self._clock.monotonic() >= self._pause_until

    def outdo(self, *, since: float, only_looks: bool = False) -> None:
        """The same for a listing, which is worth something without: who refuses is not asked for a while.

        `only_looks`: nothing is staked on it.
        """
        if only_looks and self.lags is False:
            return
        if not self.hides or self.deleted_at >= since:
            return
        try:
            self.delete(Urgency.NORMAL, since=since)
        except ServiceError as error:
            self._pause_until = self._clock.monotonic() + REFUSED_PAUSE
            log.warning("the service shows what it has cached, and does not delete its cache: %s", error)

    # -- whether that helps ------------------------------------------------------------------------------

    def upload_ended(self) -> None:
        """An upload of ours has ended, which listings need not show before the cache is deleted."""
        with self._learning:
            self._uploaded_at = self._clock.monotonic()

    def learn(self, stored: Sequence[float], before: float, after: float) -> None:
        """Learn from files that a listing shows and the last one of that folder did not.

        `stored`: when each was stored; `before`, `after`: when the listings were asked for. All in monotonic seconds.
        """
        with self._learning:
            if not stored or max(self._uploaded_at, self._hid_at) > min(before, self.deleted_at):
                return  # they may be ours
            if min(stored) < before - MARGIN:
                self._prompt = 0
                self.lags = True
            elif self.deleted_at < before and max(stored) > before + MARGIN and after < before + SOON:
                self._prompt += 1
                self.lags = False if self._prompt >= ENOUGH else self.lags
