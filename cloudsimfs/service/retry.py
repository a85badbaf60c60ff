"""Retries: how often, how long and with which pauses an attempt is repeated.

`Retry` is the policy, `Retrier` follows it. Thread-safe: no state of its own. Never repeats an attempt that its
caller did not mark as repeatable.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cloudsimfs.clock import Clock
from cloudsimfs.concurrency import backoff
from cloudsimfs.errors import Cancelled, ServiceError

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retry:
    """A policy: at most `attempts` in all, with pauses of full jitter up to `base`, doubled each time, up to `cap`.

    `base` and `cap` are in seconds.
    """

    attempts: int = 4
    base: float = 0.5
    cap: float = 20.0


class Failed(Exception):
    """One attempt failed with `error`.

    `again`: the same attempt may succeed later. `sent`: the request may have reached the service. `pause`: the
    seconds that the service said to wait, None if it did not.
    """

    def __init__(self, error: ServiceError, *, again: bool, sent: bool = True, pause: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.again = again
        self.sent = sent
        self.pause = pause


class Retrier:
    """Runs attempts under one policy. Setting `stop` ends every pause with Cancelled."""

    def __init__(self, policy: Retry, clock: Clock, stop: threading.Event) -> None:
        self._policy = policy
        self._clock = clock
        self._stop = stop

    def run(self, label: str, total: float, attempt: Callable[[float], T], *, once: bool = False) -> T:
        """Return the result of `attempt(deadline)`, repeated while it raises Failed with `again`.

        `total` is in seconds, for all attempts and pauses. With `once` there is one attempt, whatever happens.
        Raises the last Failed, or Cancelled.
        """
        deadline = self._clock.monotonic() + total
        number = 0
        while True:
            number += 1
            self.check(label)
            try:
                return attempt(deadline)
            except Failed as failed:
                pause = self._pause(failed, number)
                if (
                    once
                    or not failed.again
                    or number >= self._policy.attempts
                    or self._clock.monotonic() + pause > deadline
                ):
                    raise
                log.debug("%s: attempt %d failed, again in %.1f s: %s", label, number, pause, failed.error)
            self.wait(label, pause)

    def _pause(self, failed: Failed, number: int) -> float:
        jitter = backoff.pause(number, first=self._policy.base, longest=self._policy.cap, least=0.0)
        return jitter if failed.pause is None else failed.pause + jitter / 4

    def wait(self, label: str, seconds: float) -> None:
        """Wait `seconds`. Raises Cancelled when the client is stopped meanwhile."""
        self._clock.wait(self._stop, seconds)
        self.check(label)

    def check(self, label: str) -> None:
        """Raises Cancelled if the client is stopped."""
        if self._stop.is_set():
            raise Cancelled(f"{label}: stopped")
