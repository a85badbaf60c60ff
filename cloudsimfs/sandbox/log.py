"""The request log: each request to the service, under operation names that v1 and v2 share.

Threading: one lock. A request is added on arrival, so a client that has its answer finds it here. Must never
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
    """One request. `status` is 0 until it is answered, and stays 0 if the connection was reset."""

    time: float  # sandbox clock, seconds
    method: str
    path: str
    operation: str
    version: int  # 1 or 2; 0 for object transfers
    subject: str = ""  # the storage path of the request, if it has one
    status: int = 0
    bytes: int = 0  # body bytes sent (GET) or received (PUT)
    range: str = ""  # the Range header of an object-get

    @property
    def is_api(self) -> bool:
        return self.version != 0


class CallLog:
    """All requests since the start or the last `reset`, oldest first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: list[Call] = []  # guarded by _changed

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
        """The requests of one operation, or all."""
        with self._changed:
            return [call for call in self._calls if operation in (None, call.operation)]

    def counts(self) -> Counter[str]:
        """The number of requests by operation name, object transfers included."""
        return Counter(call.operation for call in self.entries())

    def api_count(self) -> int:
        """The number of API calls; object transfers are none."""
        return sum(call.is_api for call in self.entries())

    def reset(self) -> None:
        with self._changed:
            self._calls.clear()

    def wait(self, condition: Callable[[list[Call]], bool], timeout: float = 60.0) -> bool:
        """Wait until `condition` is true for the log. False after `timeout` real seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: condition(self._calls), timeout)

    def as_json(self) -> dict[str, Any]:
        entries = self.entries()
        return {
            "api_count": sum(call.is_api for call in entries),
            "counts": dict(Counter(call.operation for call in entries)),
            "calls": [asdict(call) for call in entries],
        }
