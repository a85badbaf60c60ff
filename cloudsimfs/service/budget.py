"""The account's API calls: how many are left, who may use them, and when the next ones come.

Owns the count. Thread-safe; the lock is a leaf and is never held while waiting. Never makes a call itself.

The service does not say when its hour ends (docs/service.md, "Limits"). These rules find it out:

- The count that the service reports is right; calls sent since then are added to it.
- A new hour has begun when a call sent after the last report gets a smaller count. From then on the end of the hour
  is known: it is one period after that reply.
- Until then the guess is the top of the clock hour (for the day: UTC midnight). At that time, and every five minutes
  while no call is left, one single call is sent as a probe.
- A reported count older than a whole period is dropped. Without reports, the client's own count and the clock hour
  apply.
- Other programs use the account, too. After a pause the first call goes alone, for a second at most: its reply has
  the count of all, and so many calls at once do not use up the reserve of others.
- Retry-After overrides all of this, until the end of the hour at most, or until a call sent later is served.
- Launch, stop and sync do not wait that long: every five minutes one is sent as a probe, whatever has been said.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from cloudsimfs.clock import Clock, ForwardClock
from cloudsimfs.errors import BudgetSpent, Cancelled

HOUR = 3600.0  # seconds
DAY = 86400.0  # seconds
CONTROL_RESERVE = 5  # calls kept for Urgency.CONTROL; at most a tenth of the limit
_PROBE_INTERVAL = 300.0  # seconds between probes of whether a new period has begun
_REFUSAL_PAUSE = 60.0  # seconds without calls after a refusal that named no time
_OLD_REPORT = 10.0  # seconds after which others may have used many calls
_ALONE = 1.0  # seconds that other calls wait for the first one's report, at most
_POLL = 0.02  # seconds between looks whether it has come
_RECHECK_INTERVAL = 5.0  # seconds that a waiter sleeps at most before it checks the budget again


class Urgency(enum.Enum):
    """How a call behaves when the budget is used up.

    BACKGROUND waits, NORMAL fails at once, CONTROL (launch, stop, sync) may use the reserve.
    """

    BACKGROUND = "background"
    NORMAL = "normal"
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class BudgetState:
    """The budget at one moment. Times are wall seconds.

    `limit` None means "unlimited" if `limit_known` is True, else "not reported yet". `remaining` leaves out the
    reserve. `window_known` is False while `resets_at` is a guess. `calls` counts every call this client ever sent.
    """

    limit: int | None
    used: int
    remaining: int | None
    reserve: int
    resets_at: float
    window_known: bool
    daily_limit: int | None
    daily_used: int
    waiting: int
    calls: int
    limit_known: bool


@dataclass(frozen=True, slots=True)
class Ticket:
    """Permission to send one call. `serial` tells whether it was sent before or after a report."""

    serial: int


class _Window:
    """One period's count. Not thread-safe: guarded by Budget._lock."""

    def __init__(self, name: str, period: float, setting: int | None, now: float) -> None:
        self.name = name
        self.period = period
        self._setting = setting
        self._reported_limit: int | None = None  # None: never reported; 0: unlimited
        self._reported_at: float | None = None  # when `_reported` came; None: never, or too long ago
        self._reported_serial = 0  # calls up to this serial may be older than the last report
        self._last_serial = 0  # calls up to this serial were sent before the period began, or may have been
        self._reported = 0  # calls used, by the last report
        self._unreported = 0  # calls sent since the last report
        self.ends = now - now % period + period
        self.known = False  # whether `ends` was observed rather than guessed
        self._probe_at: float | None = None  # None: the next probe is not planned yet

    @property
    def limit(self) -> int | None:
        limits = [limit for limit in (self._reported_limit, self._setting) if limit]
        return min(limits) if limits else None

    @property
    def limit_known(self) -> bool:
        return self._reported_limit is not None or self.limit is not None

    @property
    def used(self) -> int:
        return self._reported + self._unreported

    @property
    def reserve(self) -> int:
        return min(CONTROL_RESERVE, (self.limit or 0) // 10)

    def roll(self, now: float, newest: int) -> None:
        """Begin a new period if the old one is over; `newest` is the serial given out last."""
        stale = self._reported_at is None or now - self._reported_at >= self.period
        if self._reported_at is not None and stale and not self.known:
            self._reported = self._unreported = 0
            self._reported_at = None
        if now < self.ends:
            return
        if self.known or stale:
            self._reported = self._unreported = 0
        else:
            self._probe_at = now
        self._last_serial = newest
        self.ends += (1 + (now - self.ends) // self.period) * self.period

    def count(self) -> None:
        self._unreported += 1

    def report(self, limit: int | None, used: int | None, serial: int, newest: int, now: float) -> None:
        """Note what the reply to call `serial` reported; `newest` is the serial given out last."""
        if limit is not None:
            self._reported_limit = limit
        if used is None or serial <= self._last_serial:  # its count may be that of the period before
            self.count()
            return
        is_new_period = used < self._reported and serial > self._reported_serial
        if is_new_period:
            self.ends, self.known = now + self.period, True
        if is_new_period or used >= self._reported:
            self._reported, self._unreported = used, 0
            self._reported_at, self._reported_serial = now, newest
            self._probe_at = None

    def may_be_behind(self, now: float) -> bool:
        """Whether others may have used many calls since the last report."""
        return self._reported_at is not None and self.limit is not None and now - self._reported_at > _OLD_REPORT

    def available(self, in_flight: int, reserve: int) -> float:
        """The calls that may still be sent; infinite without a limit."""
        return float("inf") if self.limit is None else self.limit - self.used - in_flight - reserve

    def take_probe(self, in_flight: int, now: float, *, control: bool) -> bool:
        """Whether one call may be sent although none is left, to find out whether a new period has begun."""
        if self._reported_at is None or (self.known and not control):
            return False
        if self._probe_at is None:
            wait = _PROBE_INTERVAL if self.available(in_flight, 0) <= 0 else self.period
            self._probe_at = min(self.ends, now + wait)
        if now < self._probe_at or in_flight:
            return False
        self._probe_at = min(self.ends, now + _PROBE_INTERVAL)
        return True

    def next_chance(self, now: float, *, control: bool) -> float:
        """When a call may go again: at the end of the period, or at the next probe."""
        if self._probe_at is None or (self.known and not control):
            return max(now, self.ends)
        return max(now, min(self.ends, self._probe_at))

    def reset(self) -> None:
        self._reported = self._unreported = 0


class Budget:
    """The calls of one account. Without `calls_per_hour` they are unlimited until the service reports a limit."""

    def __init__(self, clock: Clock, stop: threading.Event, calls_per_hour: int | None = None) -> None:
        self._clock = clock
        self._stop = stop
        self._lock = threading.Lock()  # leaf; guards everything below
        self._time = ForwardClock(clock)
        now = self._time.now()
        self._hour = _Window("hour", HOUR, calls_per_hour, now)
        self._day = _Window("day", DAY, None, now)
        self._blocked_until = 0.0  # end of a Retry-After
        self._blocked_serial = 0  # the calls up to this one were sent before it came
        self._block_probe_at = 0.0  # when one call for control may be sent in spite of it
        self._block_ends_hour = False  # whether the hour was used up when it came: its end is the hour's
        self._serial = 0
        self._in_flight = 0
        self._alone_until = 0.0  # until then the call that is under way goes alone, if it has no reply before
        self._waiting = 0
        self._calls = 0

    def acquire(self, urgency: Urgency, deadline: float | None = None) -> Ticket:
        """Permission to send one call. Return every ticket with `settle` or `cancel`.

        `deadline` is in seconds of the clock's monotonic scale. Every caller waits for a Retry-After that ends
        before it; only BACKGROUND waits for a new hour. Raises BudgetSpent, or Cancelled when the client is stopped.
        """
        while True:
            with self._lock:
                may_wait = urgency is Urgency.BACKGROUND or deadline is not None
                ticket, until, blocked = self._try_locked(urgency, may_wait=may_wait)
                now = self._time.now()
            if ticket is not None:
                return ticket
            left = None if deadline is None else deadline - self._clock.monotonic()
            if urgency is not Urgency.BACKGROUND and not blocked:
                raise self._spent(until - now)
            if (left is not None and until - now > left) or (left is None and urgency is not Urgency.BACKGROUND):
                raise self._spent(until - now)
            self._wait(until - now)

    def _wait(self, seconds: float) -> None:
        with self._lock:
            self._waiting += 1
        try:
            stopped = self._clock.wait(self._stop, min(max(seconds, 0.01), _RECHECK_INTERVAL))
        finally:
            with self._lock:
                self._waiting -= 1
        if stopped:
            raise Cancelled("stopped while waiting for API calls to be available")

    def _try_locked(self, urgency: Urgency, *, may_wait: bool) -> tuple[Ticket | None, float, bool]:
        """(ticket or None, when to try again, whether a Retry-After or a call that goes alone is the reason)."""
        now = self._time.now()
        self._roll_locked(now)
        control = urgency is Urgency.CONTROL
        if now < self._blocked_until and not (control and self._take_block_probe_locked(now)):
            until = min(self._blocked_until, self._block_probe_at) if control else self._blocked_until
            return None, max(now, until), True
        if self._hour.may_be_behind(now):
            if not self._in_flight:
                self._alone_until = now + _ALONE
            elif may_wait and now < self._alone_until:
                return None, now + _POLL, True
        for window in (self._hour, self._day):
            reserve = 0 if control else window.reserve
            spent = window.available(self._in_flight, reserve) < 1
            if spent and not window.take_probe(self._in_flight, now, control=control):
                return None, window.next_chance(now, control=control), False
        self._serial += 1
        self._in_flight += 1
        self._calls += 1
        return Ticket(self._serial), now, False

    def _roll_locked(self, now: float) -> None:
        self._hour.roll(now, self._serial)
        self._day.roll(now, self._serial)
        if self._block_ends_hour and now >= self._blocked_until:
            self._block_ends_hour = False
            self._hour.reset()

    def _take_block_probe_locked(self, now: float) -> bool:
        if now < self._block_probe_at or self._in_flight:
            return False
        self._block_probe_at = now + _PROBE_INTERVAL
        return True

    def settle(self, ticket: Ticket, headers: Mapping[str, str] | None = None, *, served: bool = False) -> None:
        """Return the ticket of a call that was sent. `headers` are those of its reply (docs/service.md, "Limits").

        `served`: the service did what was asked, so it refuses calls no more.
        """
        reply = headers or {}
        with self._lock:
            now = self._time.now()
            self._in_flight -= 1
            if served and ticket.serial > self._blocked_serial:
                self._blocked_until = min(self._blocked_until, now)
            for window, name in ((self._hour, "hourly"), (self._day, "daily")):
                limit = _number(reply.get(f"x-ratelimit-{name}-limit"))
                used = _number(reply.get(f"x-ratelimit-{name}-used"))
                window.report(limit, used, ticket.serial, self._serial, now)

    def cancel(self, ticket: Ticket) -> None:
        """Return the ticket of a call that never left this machine."""
        del ticket
        with self._lock:
            self._in_flight -= 1
            self._calls -= 1

    def refused(self, retry_after: float | None) -> float:
        """Note that the service refused a call over its limit. Returns the seconds until the next may succeed."""
        with self._lock:
            now = self._time.now()
            self._roll_locked(now)
            if retry_after is not None:
                self._block_locked(now, min(retry_after, self._hour.ends - now))
                self._block_ends_hour = self._hour.limit is not None and self._hour.used >= self._hour.limit
            elif self._hour.available(0, 0) < 1:
                return self._hour.next_chance(now, control=False) - now
            else:
                self._block_locked(now, _REFUSAL_PAUSE)
            return self._blocked_until - now

    def _block_locked(self, now: float, seconds: float) -> None:
        if now >= self._blocked_until:
            self._block_probe_at = now + _PROBE_INTERVAL
        self._blocked_until = max(self._blocked_until, now + seconds)
        self._blocked_serial = self._serial

    def snapshot(self) -> BudgetState:
        """The budget now."""
        with self._lock:
            now = self._time.now()
            self._roll_locked(now)
            used = self._hour.used + self._in_flight
            available = self._hour.available(self._in_flight, self._hour.reserve)
            blocked = now < self._blocked_until
            remaining = None if self._hour.limit is None else max(0, int(available))
            return BudgetState(
                limit=self._hour.limit,
                used=used,
                remaining=0 if blocked else remaining,
                reserve=self._hour.reserve,
                resets_at=self._time.shown(self._blocked_until if blocked else self._hour.ends),
                window_known=blocked or self._hour.known,
                daily_limit=self._day.limit,
                daily_used=self._day.used,
                waiting=self._waiting,
                calls=self._calls,
                limit_known=self._hour.limit_known,
            )

    def stretch(self, most: float) -> float:
        """Factor applied to TTLs as the budget runs out: 1 down to half of the hour's calls, then up to `most`."""
        state = self.snapshot()
        if not state.limit or state.remaining is None:
            return 1.0
        left = state.remaining / state.limit
        return 1.0 if left >= 0.5 else 1.0 + (most - 1.0) * (1.0 - 2.0 * left)

    def pace(self, share: float) -> float:
        """Seconds between calls with which the `share` (0 to 1) of the calls left lasts until the hour ends."""
        state = self.snapshot()
        if state.remaining is None:
            return 0.0
        left = min(HOUR, max(0.0, state.resets_at - self._clock.now()))
        return left / max(1.0, share * state.remaining)

    def _spent(self, seconds: float) -> BudgetSpent:
        with self._lock:
            now = self._time.now()
            blocked = now < self._blocked_until
            day = not blocked and self._day.available(self._in_flight, self._day.reserve) < 1
            window = self._day if day else self._hour
            ends = self._blocked_until if blocked else window.ends
            limit, used, known = window.limit, window.used, blocked or window.known
            when = time.strftime("%H:%M:%S", time.localtime(self._time.shown(ends)))
        minutes = max(0.0, ends - now) / 60
        count = f"{used} of {limit} API calls of this {window.name} are used" if limit else "too many API calls"
        text = f"{count}; new ones {'' if known else 'probably '}at {when} (in {minutes:.0f} min)"
        return BudgetSpent(text, retry_after=max(0.0, seconds))


def _number(value: str | None) -> int | None:
    value = (value or "").strip()
    return int(value) if value.isascii() and value.isdigit() and len(value) < 19 else None
