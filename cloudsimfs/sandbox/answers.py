"""What API calls were answered, for faults that answer with something older.

Threading: the event loop only. Must never keep a large answer: listings of big trees are compared with nothing.
"""

from __future__ import annotations

from cloudsimfs.sandbox.faults import ActiveFaults
from cloudsimfs.sandbox.wire import Reply

_MOST = 1000  # calls whose first answer is kept
_LARGEST = 64 * 1024  # bytes of a body that is kept


class Answers:
    """The first answer of each call, and the last of each operation."""

    def __init__(self) -> None:
        self._first: dict[str, Reply] = {}  # by the whole call, which begins with the operation's name
        self._last: dict[str, Reply] = {}  # by operation

    def instead(self, call: str, reply: Reply, fired: ActiveFaults) -> Reply:
        """The reply that goes out: this one, or an older one if a fault says so."""
        operation = call.partition(" ")[0]
        first, last = self._first.get(call), self._last.get(operation)
        if reply.status == 200 and reply.length <= _LARGEST:
            if len(self._first) < _MOST:
                self._first.setdefault(call, _copy(reply))
            self._last[operation] = _copy(reply)
        older = (first if fired.get("stale") else None) or (last if fired.get("swapped") else None)
        return reply if older is None else _copy(older)


def _copy(reply: Reply) -> Reply:
    return Reply(reply.status, reply.body, reply.content_type)
