"""API v1 or v2: which one the account has, and v1's call where this service's v2 lacks one.

With `auto`, one call at the first use finds out the version. Calls that v2 answers with 404 or 405 are remembered, so
that each of them is tried once.

Threading: the lock `_probing` is held during the call that finds out the version, since no other call can be made
without it. The set of calls that v2 lacks only grows, and needs no lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar

from cloudsimfs.clock import Clock
from cloudsimfs.errors import KeyRefused, NoSuchEntry, NotOffered, Refused, ServiceError, VersionNotEnabled
from cloudsimfs.service import parsing, v2
from cloudsimfs.service.budget import Urgency
from cloudsimfs.service.call import Call, Version
from cloudsimfs.service.caller import ApiCaller

log = logging.getLogger(__name__)

FIRST_PROBE_PAUSE = 600.0  # seconds until the next probe for v2, after one that proved nothing; doubled each time

T = TypeVar("T")


class Versions:
    """Which API version each operation goes to."""

    def __init__(self, api: Literal["auto", "v1", "v2"], caller: ApiCaller, clock: Clock) -> None:
        self._caller = caller
        self._clock = clock
        self._probing = threading.Lock()
        self._version: Version | None = None if api == "auto" else api
        self._mixes = api == "auto"  # v1's call may be made where it is better
        self._probe_at: float | None = None  # monotonic seconds of the next probe; None: none is planned
        self._probe_pause = FIRST_PROBE_PAUSE
        self._probed: Any = None  # the reply by which v2 was found
        self._absent: set[str] = set()  # operations that this service's v2 lacks; only grows

    # -- the version in use ----------------------------------------------------------------------------------------

    def in_use(self, urgency: Urgency) -> Version:
        """The API version. With `auto`, the first call of this method makes an API call, which may raise."""
        if self._version is None:
            with self._probing:
                if self._version is None:
                    self._version = self._probe(urgency)
        elif self._probe_is_due() and self._probing.acquire(blocking=False):  # other threads go on with the guess
            try:
                if self._probe_is_due():
                    self._version = self._probe(urgency)
            except ServiceError as error:
                log.debug("the probe for API v2 failed: %s", error)
            finally:
                self._probing.release()
        return self._version

    @property
    def known(self) -> Version | None:
        """The API version as far as it is known; makes no call."""
        return self._version

    def _probe_is_due(self) -> bool:
        return self._probe_at is not None and self._clock.monotonic() >= self._probe_at

    def _probe(self, urgency: Urgency) -> Version:
        """Return v2 if the account has it, else v1.

        With a bad key the result is v1: its first call then reports the key. After a refusal that may pass, the
        result is v1 too, and v2 is probed again later.
        """
        self._probe_at = self._clock.monotonic() + self._probe_pause
        self._probe_pause *= 2
        try:
            self._probed = self._caller.call(v2.cpu_values(), urgency)
        except (VersionNotEnabled, NotOffered, NoSuchEntry):
            self._probe_at = None
            return "v1"
        except (KeyRefused, Refused):
            return "v1"
        self._probe_at = None
        return "v2"

    def take_probed(self) -> Any:
        """The reply to the probe, once: it answers the first `cpu_values` without another call. Else None."""
        reply, self._probed = self._probed, None
        return reply

    # -- what this v2 lacks --------------------------------------------------------------------------------

    def has_v2(self, operation: str, urgency: Urgency) -> bool:
        """Whether the operation goes to v2."""
        return self.in_use(urgency) == "v2" and not self.lacks(operation)

    def lacks(self, operation: str) -> bool:
        return operation in self._absent

    def note_lacking(self, operations: Iterable[str]) -> None:
        self._absent.update(operations)

    def fall_back(self, operation: str, error: Exception, instead: Callable[[], T]) -> T:
        """Return the result of v1's call (`instead`), after v2 answered with 404 or 405.

        A 404 may mean that the entry is missing. Only if v1 finds the entry does v2 lack the call.
        """
        if isinstance(error, NotOffered):
            self._absent.add(operation)
        result = instead()
        self._absent.add(operation)
        return result

    def if_better(self, operation: str, call_v1: Callable[[], T]) -> T | None:
        """The result of v1's call, which is better than v2's. None if it may not be made, or is not offered."""
        if not self._mixes or self.lacks(operation):
            return None
        try:
            return call_v1()
        except (NotOffered, KeyRefused, Refused):
            self._absent.add(operation)
        except NoSuchEntry:
            log.debug("%s: v1 does not know an entry that v2 knows", operation)
        return None

    # -- calls that both have -----------------------------------------------------------------------------

    def either(self, two: Call, one: Call, urgency: Urgency) -> tuple[Call, Any]:
        """Make the call of the version in use. Returns the call that was answered, and its reply."""
        if not self.has_v2(two.operation, urgency):
            return one, self._caller.call(one, urgency)
        try:
            return two, self._caller.call(two, urgency)
        except (NotOffered, NoSuchEntry) as error:
            if not two.undocumented:
                raise
            reply = self.fall_back(two.operation, error, lambda: self._caller.call(one, urgency))
            return one, reply

    def acknowledged(self, two: Call, one: Call, urgency: Urgency) -> None:
        """Make either of two calls whose answer only says that it was done. Raises Refused if it was not."""
        check_done(*self.either(two, one, urgency))


def check_done(call: Call, reply: Any) -> None:
    """Raises Refused if the answer is `false`."""
    if parsing.unwrap(reply) is False:
        raise Refused(f"{call.label}: the service answered false")
