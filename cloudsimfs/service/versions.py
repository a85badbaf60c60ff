"""API v1 or v2: which of them the account has, and v1's call where this v2 has not the one that is wanted.

`auto` is found out by one call at the first use. What v2 answers with 404 or 405 is remembered, so that each detour
is paid once.

Threading: `_probing` is held during the one call that finds the version out: nobody can go on without it. The set of
what v2 lacks only ever grows, and needs no lock.
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

PROBE_AGAIN = 600.0  # seconds until v2 is asked for again after an answer that proved nothing; doubled each time

T = TypeVar("T")


class Versions:
    def __init__(self, api: Literal["auto", "v1", "v2"], caller: ApiCaller, clock: Clock) -> None:
        self._caller = caller
        self._clock = clock
        self._probing = threading.Lock()
        self._version: Version | None = None if api == "auto" else api
        self._probe_at: float | None = None  # monotonic seconds; the version is a guess until looked at again then
        self._probe_pause = PROBE_AGAIN
        self._probed: Any = None  # the reply that found v2 out
        self._absent: set[str] = set()  # operations this service's v2 has not; only ever grows

    # -- which one ----------------------------------------------------------------------------------------

    def in_use(self, urgency: Urgency) -> Version:
        """With `auto` the first look costs one call, which may raise."""
        if self._version is None:
            with self._probing:
                if self._version is None:
                    self._version = self._probe(urgency)
        elif self._probe_is_due() and self._probing.acquire(blocking=False):  # the others go on with the guess
            try:
                if self._probe_is_due():
                    self._version = self._probe(urgency)
            except ServiceError as error:
                log.debug("whether there is API v2 is still not known: %s", error)
            finally:
                self._probing.release()
        return self._version

    def _probe_is_due(self) -> bool:
        return self._probe_at is not None and self._clock.monotonic() >= self._probe_at

    def _probe(self, urgency: Urgency) -> Version:
        """v2 if the account is enabled for it. A bad key ends in v1 too, whose first call then says so.

        So does a failure without a reason; it may pass, and so v2 is asked for again later.
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
        """The reply to the call that found v2 out, for the first who asks the same; else None."""
        probed, self._probed = self._probed, None
        return probed

    # -- what this v2 has not -------------------------------------------------------------------------------

    def has_v2(self, operation: str, urgency: Urgency) -> bool:
        """Whether the operation is to be asked of v2."""
        return self.in_use(urgency) == "v2" and not self.lacks(operation)

    def lacks(self, operation: str) -> bool:
        return operation in self._absent

    def note_lacking(self, operations: Iterable[str]) -> None:
        self._absent.update(operations)

    def fall_back(self, operation: str, error: Exception, instead: Callable[[], T]) -> T:
        """What v1 says (`instead`) where v2 answered 404 or 405.

        A 404 that names an id may mean the id: only if v1 knows it, the call was what v2 did not know.
        """
        if isinstance(error, NotOffered):
            self._absent.add(operation)
        result = instead()
        self._absent.add(operation)
        return result

    # -- calls that both have -----------------------------------------------------------------------------

    def either(self, two: Call, one: Call, urgency: Urgency) -> tuple[Call, Any]:
        """The call of the version in use, and its reply."""
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
        """Make either of two calls whose answer says no more than that it is done."""
        check_done(*self.either(two, one, urgency))


def check_done(call: Call, reply: Any) -> None:
    """Raises Refused if that is what the answer says."""
    if parsing.unwrap(reply) is False:
        raise Refused(f"{call.label}: the service answered false")
