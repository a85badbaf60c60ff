"""The account's API calls: how many are left, who may have them, and when there are new ones.

Owns the count. Thread-safe; the lock is a leaf and is never held while waiting. Never makes a call itself.

The rule for the hour, since the service does not say when its hour turns: the count it reports is the truth.
It turned when a call sent after the last report is told a smaller count; from then on the window is known (it
ends one period after that reply). Before, the top of the clock hour (UTC midnight for the day) is the guess:
then, and every five minutes while nothing is left, one single call is let through to find out. A reported
count older than a whole period is void. Without reports our own count and the clock hour apply. Retry-After
wins over all.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from cloudsimfs.clock import Clock, ForwardClock
from cloudsimfs.errors import BudgetSpent, Cancelled

HOUR = 3600.0
DAY = 86400.0
RESERVE = 5  # calls kept for Urgency.CONTROL, at most a tenth of the limit
_PROBE = 300.0  # seconds between single calls that find out whether the hour turned
_BLOCK = 60.0  # seconds nothing is sent after a refusal that named no time
_SLICE = 5.0  # seconds; the longest a waiter sleeps without looking again


class Urgency(enum.Enum):
    """Who asks. BACKGROUND may wait, NORMAL is told at once, CONTROL (launch, stop, sync) has the reserve."""

    BACKGROUND = "background"
    NORMAL = "normal"
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class BudgetState:
    """What is known of the budget now. Times are wall seconds.

    A limit of None: with `limit_known` there is none, without it nobody has told yet. `remaining` does not count the
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
    """Leave to send one call; `serial` orders it against the reports already seen."""

    serial: int


class _Window:
    """One period's count. Not thread-safe: guarded by Budget._lock."""

    def __init__(self, name: str, period: float, setting: int | None, now: float) -> None:
        self.name = name
        self.period = period
        self._setting = setting
        self._told_limit: int | None = None  # None: never reported; 0: unlimited
        self._invalidated_at: float | None = None
        self._told_serial = 0  # calls up to this serial may be older than the last report
        self._told = 0
        self._unreported = 0
        self.ends = now - now % period + period
        self.known = False  # whether `ends` was observed rather than guessed
        self._probe_at: float | None = None

    @property
    def limit(self) -> int | None:
        limits = [each for each in (self._told_limit, self._setting) if each]
        return min(limits) if limits else None

    @property
    def limit_known(self) -> bool:
        return self._told_limit is not None or self.limit is not None

    @property
    def used(self) -> int:
        return self._told + self._unreported

    @property
    def reserve(self) -> int:
        return min(RESERVE, (self.limit or 0) // 10)

    def roll(self, now: float) -> None:
        """Start a new period if it is due."""
        stale = self._invalidated_at is None or now - self._invalidated_at >= self.period
        if self._invalidated_at is not None and stale and not self.known:
            self._told = self._unreported = 0
            self._invalidated_at = None
        if now < self.ends:
            return
        if self.known or stale:
            self._told = self._unreported = 0
        else:
            self._probe_at = now
        self.ends += (1 + (now - self.ends) // self.period) * self.period

    def count(self) -> None:
        self._unreported += 1

    def report(self, limit: int | None, used: int | None, serial: int, newest: int, now: float) -> None:
        """Take over what a reply to call number `serial` said; `newest` is the last number given out."""
        if limit is not None:
            self._told_limit = limit
        if used is None:
            self.count()
            return
        turned = used < self._told and serial > self._told_serial
        if turned:
            self.ends, self.known = now + self.period, True
        if turned or used >= self._told:
            self._told, self._unreported = used, 0
            self._invalidated_at, self._told_serial = now, newest
            self._probe_at = None

    def room(self, in_flight: int, keep: int) -> float:
        return float("inf") if self.limit is None else self.limit - self.used - in_flight - keep

    def probe(self, in_flight: int, now: float) -> bool:
        """Whether one call may go although nothing is left, to see whether the period turned."""
        if self._invalidated_at is None or self.known:
            return False
        if self._probe_at is None:
            wait = _PROBE if self.room(in_flight, 0) <= 0 else self.period
            self._probe_at = min(self.ends, now + wait)
        if now < self._probe_at or in_flight:
            return False
        self._probe_at = min(self.ends, now + _PROBE)
        return True

    def next_look(self, now: float) -> float:
        return max(now, self.ends if self._probe_at is None else min(self.ends, self._probe_at))

    def renew(self) -> None:
        self._told = self._unreported = 0


class Budget:
    """The calls of one account. `calls_per_hour` None: unlimited until the service reports a limit."""

    def __init__(self, clock: Clock, stop: threading.Event, calls_per_hour: int | None = None) -> None:
        self._clock = clock
        self._stop = stop
        self._lock = threading.Lock()  # leaf; guards everything below
        self._time = ForwardClock(clock)
        now = self._time.now()
        self._hour = _Window("hour", HOUR, calls_per_hour, now)
        self._day = _Window("day", DAY, None, now)
        self._blocked_until = 0.0
        self._blocked_spent = False
        self._serial = 0
        self._in_flight = 0
        self._waiting = 0
        self._calls = 0

    def acquire(self, urgency: Urgency, deadline: float | None = None) -> Ticket:
        """Leave to send one call; every ticket is given back with `settle` or `cancel`.

        `deadline` is on the clock's monotonic scale (seconds). A Retry-After that ends before it is waited
        for by all; a spent hour only by BACKGROUND. Raises BudgetSpent, or Cancelled when the client is
        stopped.
        """
        while True:
            with self._lock:
                ticket, until, blocked = self._try_locked(urgency)
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
            stopped = self._clock.wait(self._stop, min(max(seconds, 0.01), _SLICE))
        finally:
            with self._lock:
                self._waiting -= 1
        if stopped:
            raise Cancelled("stopped while waiting for API calls to be available")

    def _try_locked(self, urgency: Urgency) -> tuple[Ticket | None, float, bool]:
        """(ticket or None, when to look again, whether a Retry-After is the reason)."""
        now = self._time.now()
        self._roll_locked(now)
        if now < self._blocked_until:
            return None, self._blocked_until, True
        for window in (self._hour, self._day):
            keep = 0 if urgency is Urgency.CONTROL else window.reserve
            if window.room(self._in_flight, keep) < 1 and not window.probe(self._in_flight, now):
                return None, window.next_look(now), False
        self._serial += 1
        self._in_flight += 1
        self._calls += 1
        return Ticket(self._serial), now, False

    def _roll_locked(self, now: float) -> None:
        self._hour.roll(now)
        self._day.roll(now)
        if self._blocked_spent and now >= self._blocked_until:
            self._blocked_spent = False
            self._hour.renew()

    def settle(self, ticket: Ticket, headers: Mapping[str, str] | None = None) -> None:
        """The call was sent; `headers` are its reply's (docs/service.md, "Limits"), None if there was none."""
        told = headers or {}
        with self._lock:
            now = self._time.now()
            self._in_flight -= 1
            for window, name in ((self._hour, "hourly"), (self._day, "daily")):
                limit = _number(told.get(f"x-ratelimit-{name}-limit"))
                used = _number(told.get(f"x-ratelimit-{name}-used"))
                window.report(limit, used, ticket.serial, self._serial, now)

    def cancel(self, ticket: Ticket) -> None:
        """The call never left this machine."""
        del ticket
        with self._lock:
            self._in_flight -= 1
            self._calls -= 1

    def refused(self, retry_after: float | None) -> float:
        """The service itself says the limit is reached. The seconds until it is worth asking again."""
        with self._lock:
            now = self._time.now()
            if retry_after is not None:
                self._blocked_until = max(self._blocked_until, now + retry_after)
                self._blocked_spent = self._hour.limit is not None and self._hour.used >= self._hour.limit
            elif self._hour.room(0, 0) < 1:
                return self._hour.next_look(now) - now
            else:
                self._blocked_until = max(self._blocked_until, now + _BLOCK)
            return self._blocked_until - now

    def snapshot(self) -> BudgetState:
        with self._lock:
            now = self._time.now()
            self._roll_locked(now)
            used = self._hour.used + self._in_flight
            room = self._hour.room(self._in_flight, self._hour.reserve)
            blocked = now < self._blocked_until
            remaining = None if self._hour.limit is None else max(0, int(room))
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
        """What looks are stretched by: 1 while at least half of the hour's calls are left, up to `most` at none."""
        state = self.snapshot()
        if not state.limit or state.remaining is None:
            return 1.0
        left = state.remaining / state.limit
        return 1.0 if left >= 0.5 else 1.0 + (most - 1.0) * (1.0 - 2.0 * left)

    def pace(self, share: float) -> float:
        """Seconds between calls that make `share` of what is left last until the hour turns."""
        state = self.snapshot()
        if state.remaining is None:
            return 0.0
        left = min(HOUR, max(0.0, state.resets_at - self._clock.now()))
        return left / max(1.0, share * state.remaining)

    def _spent(self, seconds: float) -> BudgetSpent:
        with self._lock:
            now = self._time.now()
            blocked = now < self._blocked_until
            day = not blocked and self._day.room(self._in_flight, self._day.reserve) < 1
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
