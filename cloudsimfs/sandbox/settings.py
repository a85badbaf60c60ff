"""The sandbox's switches and its clock.

Settings are read at each use, so a test may change them while the service runs. Threading: reads and writes of
single attributes only.
"""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(slots=True)
class Settings:
    """How the service behaves. Times are seconds of the sandbox clock, or real ones where it says so; 0: no limit."""

    cache_seconds: float = 180.0  # how long a v2 upload may be missing in listings (docs/service.md, "Behaviour")
    caches_listings: bool = True  # v2 shows a folder as it was listed first, for so long; deletes show at once
    listing_lag: float = 0.0  # the same for v1 uploads and saved results, which a cache deletion does not show
    delete_lag: float = 0.0  # how long listings show a deleted file
    link_seconds: float = 900.0  # how long a signed URL is valid
    link_lag: float = 0.0  # how long after an upload its download link is null
    millis: bool = False  # timeCreated with milliseconds
    page_size: int = 50
    one_kind: bool = False  # refuse an upload that would make a name a file and a folder
    v2_enabled: bool = True
    hourly_limit: int = 500
    daily_limit: int = 0
    limit_headers: bool = True
    pending_seconds: float = 0.5  # real seconds between launch and start
    latency: float = 0.0  # real seconds added to every request
    bandwidth: float = 0.0  # bytes per real second and connection
    direct_limit: int = 2_000_000  # bytes; direct uploads must be smaller (docs/service.md, "Limits")
    cpus: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 96)
    rams: tuple[str, ...] = ("standard", "highmem", "highcore")
    scripts: tuple[str, ...] = ("heat2d-1.0", "openFoam-v2406", "calculix-2.21")


class Clock:
    """Wall time plus an offset that tests move forward."""

    def __init__(self) -> None:
        self._offset = 0.0

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time() + self._offset

    def advance(self, seconds: float) -> None:
        self._offset += seconds


def iso_time(seconds: float, *, millis: bool = False) -> str:
    """`2026-09-24T10:00:00Z`, as storage entries carry it."""
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{text}.{int(seconds * 1000) % 1000:03d}Z" if millis else f"{text}Z"


def sql_time(seconds: float | None) -> str:
    """`2026-09-24 10:00:00`, as simulations carry it; empty for "not yet"."""
    return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
