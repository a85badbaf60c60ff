"""API calls: the key in the header its version wants, the budget, retries, redirects, and what replies mean.

Thread-safe. The key goes to the API's own origin only; a call marked `once` is sent at most once.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

from cloudsimfs.clock import Clock
from cloudsimfs.errors import (
    BudgetSpent,
    ConfigError,
    LaunchUnresolved,
    Refused,
    ServerFault,
    ServiceError,
    TimedOut,
    Unexplained,
    Unreachable,
)
from cloudsimfs.service import failures
from cloudsimfs.service.budget import Budget, Urgency
from cloudsimfs.service.call import Call, Timeouts
from cloudsimfs.service.parsing import Hook
from cloudsimfs.service.retry import Failed, Retrier
from cloudsimfs.service.transport import HOPS, HttpTransport, Reply

log = logging.getLogger(__name__)

T = TypeVar("T")

_VERSIONED = re.compile(r"/api(/v[12])?$")


def origin(url: str) -> tuple[str, str, int | None]:
    """(scheme, host, port) of a URL: what must be equal for the key to go there. Raises ValueError."""
    parts = urlsplit(url)
    default = {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or default


def check_base_url(base_url: str) -> str:
    """`base_url` without a trailing slash, or the `/api/v1` that many paste with it. Raises ConfigError."""
    try:
        parts = urlsplit(base_url.strip())
        scheme, host, _ = origin(base_url.strip())
    except ValueError:
        raise ConfigError("base URL: it should look like https://host.example") from None
    if parts.username is not None or parts.query or parts.fragment:
        raise ConfigError("base URL: it may hold no user, query or fragment")
    if scheme not in ("http", "https") or not host:
        raise ConfigError(f"base URL {base_url!r}: it should look like https://host.example")
    if scheme == "http" and host not in ("localhost", "::1") and not host.startswith("127."):
        _warn_unencrypted(base_url)
    return _VERSIONED.sub("", base_url.strip().rstrip("/"))


@functools.cache
def _warn_unencrypted(base_url: str) -> None:
    """Once: an address is checked wherever it comes in."""
    log.warning("base URL %s: the key is sent unencrypted; use https", base_url)


def joined(label: str, url: str, location: str) -> str:
    """Where a redirect leads. Raises Refused if that is no URL at all."""
    try:
        return urljoin(url, location)
    except ValueError:
        raise Refused(f"{label}: redirected to what is not a URL") from None


@dataclass(frozen=True, slots=True)
class Outage:
    """The service does not answer: since when, in wall seconds, and how the last call failed."""

    since: float
    text: str


class ApiCaller:
    """Makes API calls. All its waits end when `stop` of the retrier and the budget is set."""

    def __init__(
        self,
        http: HttpTransport,
        budget: Budget,
        retrier: Retrier,
        clock: Clock,
        timeouts: Timeouts,
        *,
        base_url: str,
        key: str,
        key_in_query: bool,
        offline: bool,
    ) -> None:
        self._http = http
        self._budget = budget
        self._retrier = retrier
        self._clock = clock
        self._timeouts = timeouts
        self._base_url = base_url
        self._origin = origin(base_url)
        self._key = key
        self._key_in_query = key_in_query
        self._offline = offline
        self.clock_skew: float | None = None  # seconds the service's clock is ahead of ours, at its last reply
        self.outage: Outage | None = None

    def call(self, call: Call, urgency: Urgency, hook: Hook | None = None) -> Any:
        """The JSON value of the reply, envelope included; None for an empty one. Raises ServiceError.

        `hook` replaces each JSON object while it is read.
        """

        self._check_online(call)

        def attempt(deadline: float) -> Any:
            with self._open(call, urgency, deadline) as reply:
                content = reply.content(deadline)
                return self._understood(call, reply, content, hook)

        return self._run(call, attempt)

    def open(self, call: Call, urgency: Urgency) -> Reply | str:
        """The open reply of a call whose body is a file, or the link it redirects to. Raises ServiceError."""
        self._check_online(call)

        def attempt(deadline: float) -> Reply | str:
            reply = self._send(call, self._url(call), urgency, deadline)
            if reply.redirect is not None:
                reply.close()
                return joined(call.label, self._url(call), reply.redirect)
            if reply.status == 200:
                return reply
            with reply:
                raise self._failure(call, reply, reply.error_content())

        return self._run(call, attempt)

    def _run(self, call: Call, attempt: Callable[[float], T]) -> T:
        try:
            found = self._retrier.run(call.label, self._timeouts.total, attempt, once=call.once)
        except Failed as failed:
            self._note(failed.error)
            raise self._final(call, failed) from None
        self.outage = None
        return found

    def _note(self, error: ServiceError) -> None:
        """An error that the service itself has told is an answer, too; what was not sent says nothing."""
        if isinstance(error, (Unreachable, TimedOut, ServerFault)):
            self.outage = Outage(self.outage.since if self.outage else self._clock.now(), str(error))
        elif not isinstance(error, BudgetSpent):
            self.outage = None

    def _check_online(self, call: Call) -> None:
        if self._offline:
            raise Unreachable(f"{call.label}: not asked, offline")

    def _final(self, call: Call, failed: Failed) -> Exception:
        if call.once and failed.sent:
            return LaunchUnresolved(f"{call.label}: it may have started a run, the answer is lost ({failed.error})")
        return failed.error

    def _understood(self, call: Call, reply: Reply, content: bytearray, hook: Hook | None) -> Any:
        if not 200 <= reply.status < 300:
            raise self._failure(call, reply, content)
        try:
            return failures.decode(call, reply.headers, content, hook)
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
        sent = failures.is_open(error, reply.status, reply.headers, content)
        return Failed(error, again=again, sent=sent, pause=pause)

    def _over_limit(self, reply: Reply, error: BudgetSpent) -> Failed:
        told = failures.retry_after(reply.headers, self._clock.now())
        wait = self._budget.refused(told)
        spent = BudgetSpent(f"{error}; again in {wait:.0f} s", retry_after=wait)
        return Failed(spent, again=told is not None, sent=False, pause=told)

    def _open(self, call: Call, urgency: Urgency, deadline: float) -> Reply:
        """The reply after following redirects within the API's own origin."""
        url = self._url(call)
        for _ in range(HOPS + 1):
            reply = self._send(call, url, urgency, deadline)
            if reply.redirect is None or call.once:
                return reply
            reply.close()
            url = self._next_hop(call, reply.status, joined(call.label, url, reply.redirect))
        raise Failed(Refused(f"{call.label}: more than {HOPS} redirects"), again=False)

    def _next_hop(self, call: Call, status: int, url: str) -> str:
        try:
            same = origin(url) == self._origin
        except ValueError:
            same = False
        if not same:
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
                self._headers(call),
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
        self._budget.settle(ticket, reply.headers)
        self.clock_skew = failures.ahead(reply.headers, self._clock.now())
        log.debug("%s (%s): HTTP %d", call.label, call.version, reply.status)
        return reply

    def _url(self, call: Call) -> str:
        return f"{self._base_url}/api/{call.version}{call.path}"

    def _headers(self, call: Call) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        if call.version == "v2":
            headers["X-API-key"] = self._key
        elif not self._key_in_query:
            headers["api-key"] = self._key
        return headers

    def _content(self, call: Call) -> dict[str, Any]:
        content: dict[str, Any] = {}
        if call.json is not None:
            content["json"] = call.json
        if call.multipart is not None:
            part = call.multipart
            content["data"] = {"dirname": part.dirname}
            content["files"] = {"basename": (part.basename, part.content, "application/octet-stream")}
        if self._key_in_query and call.version == "v1":
            content["params"] = {"api_key": self._key}
        return content
