"""One API call as a value, and the time limits that every call has. Pure, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Version = Literal["v1", "v2"]


@dataclass(frozen=True, slots=True)
class Multipart:
    """A multipart/form-data body: one text part and one file part (docs/service.md, "Endpoints")."""

    dirname: str
    basename: str
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Call:
    """A request to the API. `path` is relative to `{base_url}/api/{version}`.

    `subject` is what a 404 says is missing ("entry 17"); without one, a 404 means that the service has no such call.
    `once`: the call must never be sent twice, not even after a lost answer. `ack`: any body without errors is a
    success. `undocumented`: the service's document does not have the call, so after a 404 or 405 v1's is made.
    `runs`: the answer has runs with their logs, so it may be larger than others.
    """

    operation: str
    method: str
    path: str
    version: Version
    json: Any = None
    multipart: Multipart | None = None
    subject: str | None = None
    once: bool = False
    ack: bool = False
    undocumented: bool = False
    runs: bool = False

    @property
    def label(self) -> str:
        """How errors and logs name the call."""
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time limits in seconds. `total` is for one call with all its retries, and for the answer to an upload.

    It ends an answer that comes byte by byte, too (`service.deadline`).

    The bytes of an upload are under `read` alone. Those of a download are under `data`, which is shorter: a download
    can be resumed from where it stopped.
    """

    connect: float = 10.0
    read: float = 60.0
    data: float = 15.0
    total: float = 180.0
