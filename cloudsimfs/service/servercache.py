"""The service's cache of what it shows a user (v2; docs/service.md, "Behaviour").

It hides what others, our runs and our own uploads have stored, for minutes. Whoever wants the truth deletes it first:
one call, shared by all who ask within a moment. v1 has no such cache: nothing here then costs a call.

Threading: `_deleting` is held over the call, so that a second caller finds the work done.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable

from cloudsimfs.clock import Clock
from cloudsimfs.errors import NotOffered, ServiceError
from cloudsimfs.service.budget import Urgency

log = logging.getLogger(__name__)

REFUSED_PAUSE = 600.0  # seconds until a service that has refused to delete its cache is asked again


class ServerCache:
    """`call(urgency)` deletes it; it raises NotOffered if the account has none."""

    def __init__(self, clock: Clock, call: Callable[[Urgency], None]) -> None:
        self._clock = clock
        self._call = call
        self._deleting = threading.Lock()
        self._pause_until = -math.inf  # monotonic seconds; readers do not ask until then
        # Monotonic seconds, from before the call: a listing asked for since shows what was stored until then.
        self.deleted_at = -math.inf

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
            self.deleted_at = now

    def outdo(self, *, since: float) -> None:
        """The same for a listing, which is worth something without: who refuses is not asked for a while."""
        if self._clock.monotonic() < self._pause_until or self.deleted_at >= since:
            return
        try:
            self.delete(Urgency.NORMAL, since=since)
        except ServiceError as error:
            self._pause_until = self._clock.monotonic() + REFUSED_PAUSE
            log.warning("the service shows what it has cached, and does not delete its cache: %s", error)
