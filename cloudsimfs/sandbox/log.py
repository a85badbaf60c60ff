"""The request log: what was asked of the service, call by call, under operation names shared by v1 and v2.

Threading: one lock; a call is entered on arrival, so whoever has an answer finds its call here. Must never
hold a query string or a key.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class Call:
    """One request. `status` is 0 while unanswered (and for good if the connection was reset)."""

    time: float  # sandbox clock, seconds
    method: str
    path: str
    operation: str
    version: int  # 1 or 2; 0 for object transfers
    subject: str = ""  # the storage path it is about, where known
    status: int = 0
    bytes: int = 0  # body bytes sent (GET) or received (PUT)
    range: str = ""  # the Range header of an object-get

    @property
    def is_api(self) -> bool:
        return self.version != 0


class CallLog:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: list[Call] = []  # guarded by: _changed

    def add(self, call: Call) -> Call:
        with self._changed:
            self._calls.append(call)
            self._changed.notify_all()
        return call

    def finish(self, call: Call, status: int) -> None:
        with self._changed:
            call.status = status
            self._changed.notify_all()

    def entries(self, operation: str | None = None) -> list[Call]:
        with self._changed:
            return [call for call in self._calls if operation in (None, call.operation)]

    def counts(self) -> Counter[str]:
        """Requests by operation name, API calls and object transfers alike."""
        return Counter(call.operation for call in self.entries())

    def api_count(self) -> int:
        return sum(call.is_api for call in self.entries())

    def reset(self) -> None:
        with self._changed:
            self._calls.clear()

    def wait(self, condition: Callable[[list[Call]], bool], timeout: float = 60.0) -> bool:
        """Wait until `condition` holds for the log; False after `timeout` real seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: condition(self._calls), timeout)

    def as_json(self) -> dict[str, Any]:
        entries = self.entries()
        return {
            "api_count": sum(call.is_api for call in entries),
            "counts": dict(Counter(call.operation for call in entries)),
            "calls": [asdict(call) for call in entries],
        }
