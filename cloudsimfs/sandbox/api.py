"""What v1 and v2 share: routes, requests, refusals and the call limits.

Threading: the event loop only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cloudsimfs.sandbox.settings import Clock, Settings

HOUR, DAY = 3600, 86400  # seconds


class Refusal(Exception):
    """A call fails. `status` is v1's; `message` is for both versions."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = dict(headers or {})


NUMBER = r"\d{1,18}"
"""A number in a path, as a regular expression. Longer ones are of no call: Python refuses those of 4,300 digits."""


@dataclass(frozen=True, slots=True)
class Redirect:
    """The answer is a redirect to `url`."""

    url: str


@dataclass(slots=True)
class ApiRequest:
    """One call: the parts of its path, and its parameters with the form parts of a direct upload."""

    match: Mapping[str, str]
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> int:
        return int(self.match["id"])

    def text(self, name: str) -> str:
        """A required text parameter. Raises Refusal."""
        value = self.data.get(name)
        if not isinstance(value, str):
            raise Refusal(400, f"{name} is required and must be a string")
        return value


@dataclass(frozen=True, slots=True)
class Route:
    """`path` is below `/api/v1` or `/api/v2`. The handler returns a JSON value or a Redirect."""

    method: str
    path: str
    operation: str
    handler: Callable[[ApiRequest], Any]


class Limits:
    """The call budget of the account (docs/service.md, "Limits").

    Hours and days are counted from the start of the sandbox, so that none ends in the middle of a short test.
    """

    def __init__(self, clock: Clock, settings: Settings) -> None:
        self._clock = clock
        self._settings = settings
        self._started = clock.now()
        self._hour = self._day = 0
        self.hourly_used = self.daily_used = 0

    def count(self) -> None:
        """Count one call. Raises Refusal if none is left."""
        now = int(self._clock.now() - self._started)
        if now // HOUR != self._hour:
            self._hour, self.hourly_used = now // HOUR, 0
        if now // DAY != self._day:
            self._day, self.daily_used = now // DAY, 0
        limits = (
            (self._settings.hourly_limit, self.hourly_used, HOUR),
            (self._settings.daily_limit, self.daily_used, DAY),
        )
        for limit, used, span in limits:
            if limit and used >= limit:
                raise Refusal(429, "Rate limit exceeded.", {"Retry-After": str(span - now % span)})
        self.hourly_used += 1
        self.daily_used += 1

    def headers(self) -> dict[str, str]:
        if not self._settings.limit_headers:
            return {}
        return {
            "x-ratelimit-hourly-limit": str(self._settings.hourly_limit),
            "x-ratelimit-hourly-used": str(self.hourly_used),
            "x-ratelimit-daily-limit": str(self._settings.daily_limit),
            "x-ratelimit-daily-used": str(self.daily_used),
        }
