"""API calls: each one under the budget, with retries and redirects, its reply turned into a value or an error.

Thread-safe without a lock: `outage` and `clock_skew` are single assignments, and the last one holds. The key goes to
the API's own origin only. A call marked `once` is sent at most once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from cloudsimfs.clock import Clock
from cloudsimfs.concurrency.waiting import place_to_wait
from cloudsimfs.errors import (
    BudgetSpent,
    LaunchUnresolved,
    Refused,
    ServerFault,
    ServiceError,
    TimedOut,
    Unexplained,
    Unreachable,
)
from cloudsimfs.service import failures
from cloudsimfs.service.answers import MAX_ANSWER, MAX_LISTING, MAX_REFUSAL, MAX_RUNS, Element
from cloudsimfs.service.budget import Budget, Urgency
from cloudsimfs.service.call import Call, Timeouts
from cloudsimfs.service.endpoint import Endpoint
from cloudsimfs.service.retry import Failed, Retrier
from cloudsimfs.service.transport import MAX_REDIRECTS, HttpTransport, Reply, redirect_target

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outage:
    """The service does not answer. `since` is in wall seconds; `text` says how the last call failed."""

    since: float
    text: str


class ApiCaller:
    """Makes API calls. Every wait ends when the `stop` event of the retrier and the budget is set."""

    def __init__(
        self,
        http: HttpTransport,
        budget: Budget,
        retrier: Retrier,
        clock: Clock,
        timeouts: Timeouts,
        endpoint: Endpoint,
    ) -> None:
        self._http = http
        self._budget = budget
        self._retrier = retrier
        self._clock = clock
        self._timeouts = timeouts
        self._endpoint = endpoint
        self.clock_skew: float | None = None  # seconds by which the service's clock was ahead at its last reply
        self.outage: Outage | None = None

    def call(self, call: Call, urgency: Urgency, element: Element | None = None) -> Any:
        """Return the JSON value of the reply with its envelope; None for an empty reply. Raises ServiceError.

        With `element`, the answer is a list without pages: it is read while it comes, and what `element` returns for
        each element is kept.
        """
        self._check_online(call)

        def attempt(deadline: float) -> Any:
            with self._open(call, urgency, deadline) as reply:
                if not 200 <= reply.status < 300:
                    raise self._failure(call, reply, reply.refusal())
                return self._value(call, reply, element)

        return self._run(call, attempt)

    def open(self, call: Call, urgency: Urgency) -> Reply | str:
        """Return the open reply of a call whose body is a file, or the link it redirects to. Raises ServiceError."""
        self._check_online(call)

        def attempt(deadline: float) -> Reply | str:
            reply = self._send(call, self._endpoint.url(call), urgency, deadline)
            if reply.redirect is not None:
                reply.close()
                return redirect_target(call.label, self._endpoint.url(call), reply.redirect)
            if reply.status == 200:
                return reply
            with reply:
                raise self._failure(call, reply, reply.error_content())

        return self._run(call, attempt)

    def _run(self, call: Call, attempt: Callable[[float], T]) -> T:
        try:
            with place_to_wait():
                result = self._retrier.run(call.label, self._timeouts.total, attempt, once=call.once)
        except Failed as failed:
            self._note(failed.error)
            raise self._final(call, failed) from None
        self.outage = None
        return result

    def _note(self, error: ServiceError) -> None:
        """Note whether the service answers. Its own errors are answers; a call that was not sent proves nothing."""
        if isinstance(error, (Unreachable, TimedOut, ServerFault)):
            self.outage = Outage(self.outage.since if self.outage else self._clock.now(), str(error))
        elif not isinstance(error, BudgetSpent):
            self.outage = None

    def _check_online(self, call: Call) -> None:
        if self._endpoint.offline:
            raise Unreachable(f"{call.label}: not sent, offline")

    def _final(self, call: Call, failed: Failed) -> Exception:
        if call.once and failed.sent:
            return LaunchUnresolved(f"{call.label}: it may have started a run, the answer is lost ({failed.error})")
        return failed.error

    def _value(self, call: Call, reply: Reply, element: Element | None) -> Any:
        try:
            if element is not None:
                return failures.decode_elements(call, reply.headers, reply.decoded(MAX_LISTING), element)
            return failures.decode(call, reply.headers, reply.content(MAX_RUNS if call.runs else MAX_ANSWER))
        except ServerFault as error:
            raise Failed(error, again=True) from None
        except BudgetSpent as error:
            raise self._over_limit(reply, error) from None
        except Unexplained as error:
            raise Failed(error, again=False) from None

    def _failure(self, call: Call, reply: Reply, content: bytearray) -> Failed:
        error = failures.failure(call, reply.status, reply.headers, content)
        if isinstance(error, BudgetSpent):
            return self._over_limit(reply, error)
        pause = failures.retry_after(reply.headers, self._clock.now())
        again = (reply.status >= 500 and reply.status != 501) or reply.status == 408
        cut = len(content) >= MAX_REFUSAL  # who knows what the rest says
        sent = cut or failures.is_open(error, reply.status, reply.headers, content)
        return Failed(error, again=again, sent=sent, pause=pause)

    def _over_limit(self, reply: Reply, error: BudgetSpent) -> Failed:
        retry_after = failures.retry_after(reply.headers, self._clock.now())
        wait = self._budget.refused(retry_after)
        spent = BudgetSpent(f"{error}; again in {wait:.0f} s", retry_after=wait)
        return Failed(spent, again=retry_after is not None, sent=False, pause=retry_after)

    def _open(self, call: Call, urgency: Urgency, deadline: float) -> Reply:
        """Send the call and follow redirects within the API's own origin."""
        url = self._endpoint.url(call)
        for _ in range(MAX_REDIRECTS + 1):
            reply = self._send(call, url, urgency, deadline)
            if reply.redirect is None or call.once:
                return reply
            reply.close()
            url = self._next_hop(call, reply.status, redirect_target(call.label, url, reply.redirect))
        raise Failed(Refused(f"{call.label}: more than {MAX_REDIRECTS} redirects"), again=False)

    def _next_hop(self, call: Call, status: int, url: str) -> str:
        if not self._endpoint.is_same_origin(url):
            error = Refused(
                f"{call.label}: redirected to another host, where the key must not go; check the base URL"
            )
            raise Failed(error, again=False)
        if call.method != "GET" and status not in (307, 308):
            error = Refused(f"{call.label}: redirected with HTTP {status}; check the base URL")
            raise Failed(error, again=False)
        return url

    def _send(self, call: Call, url: str, urgency: Urgency, deadline: float) -> Reply:
        limit = None if urgency is Urgency.BACKGROUND else deadline
        try:
            ticket = self._budget.acquire(urgency, limit)
        except BudgetSpent as error:
            raise BudgetSpent(f"{call.label}: not sent, {error}", retry_after=error.retry_after) from None
        if limit is None:
            deadline = max(deadline, self._clock.monotonic() + self._timeouts.connect + self._timeouts.read)
        try:
            reply = self._http.send(
                call.label,
                call.method,
                url,
                self._endpoint.headers(call),
                deadline=deadline,
                fresh=call.once,
                **self._content(call),
            )
        except Failed as failed:
            if failed.sent:
                self._budget.settle(ticket)
            else:
                self._budget.cancel(ticket)
            raise
        self._budget.settle(ticket, reply.headers, served=200 <= reply.status < 300)
        self.clock_skew = failures.ahead(reply.headers, self._clock.now())
        log.debug("%s (%s): HTTP %d", call.label, call.version, reply.status)
        return reply

    def _content(self, call: Call) -> dict[str, Any]:
        content: dict[str, Any] = {}
        if call.json is not None:
            content["json"] = call.json
        if call.multipart is not None:
            part = call.multipart
            content["data"] = {"dirname": part.dirname}
            content["files"] = {"basename": (part.basename, part.content, "application/octet-stream")}
        if query := self._endpoint.query(call):
            content["params"] = query
        return content
