"""The service's things as values: entries, simulations, what a launch asks for. Pure, no I/O."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cloudsimfs import paths


@dataclass(frozen=True, slots=True)
class Entry:
    """One file or folder of the storage (docs/service.md, "Fields", docs/service.md, "Storage entries").

    `id` 0 means "not known": a folder seen only as part of a file's path, or the root. `size` is in bytes, 0
    for folders. `mtime_ns` is nanoseconds since the epoch, None when the service did not say. Without `sized` it did
    not say the size either: 0 is no size to build on then, ask `Client.measure`.
    """

    id: int
    dirname: str
    name: str
    is_dir: bool
    size: int = 0
    mtime_ns: int | None = None
    sized: bool = True

    @property
    def path(self) -> str:
        return paths.join(self.dirname, self.name)

    @property
    def fingerprint(self) -> tuple[int, int, int]:
        """What pins an open handle to one state of the file (docs/architecture.md, invariant 5): id, bytes, ns."""
        return (self.id, self.size, self.mtime_ns or 0)


class RunStatus(enum.IntEnum):
    """docs/service.md, "States". A code the document does not know is kept as its number in `Simulation`."""

    COMPLETED = 10
    PENDING = 20
    RUNNING = 30
    STOPPING = 40
    STOPPED = 50
    ERROR = 60


class Signal(enum.Enum):
    """docs/service.md, "Endpoints", notes: the signal selects the behaviour."""

    HARD_STOP = "SIGINT"
    SOFT_STOP = "SIGTSTP"
    SYNC = "SIGQUIT"


@dataclass(frozen=True, slots=True)
class Image:
    """A run's picture: a name fit for a file, unique in its run, and where it is: a URL, or the picture itself as a
    `data:` URL or in base64. A URL may carry a signature: never log it.
    """

    name: str
    source: str = field(repr=False, compare=False)  # signed anew with every reply


@dataclass(frozen=True, slots=True)
class Simulation:
    """One run (docs/service.md, "Fields"). `raw` holds every member as the service sent it."""

    id: int
    status: int
    script: str
    cpu: int
    ram: str
    folder: str
    nopre: int | None = None
    mesh: str | None = None
    started: str = ""
    ended: str = ""
    output: str | None = None  # None: this call did not carry it
    images: tuple[Image, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict)

    @property
    def status_name(self) -> str:
        try:
            return RunStatus(self.status).name
        except ValueError:
            return f"UNKNOWN-{self.status}"

    @property
    def active(self) -> bool:
        return self.status in (RunStatus.PENDING, RunStatus.RUNNING, RunStatus.STOPPING)


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What a launch asks for (docs/service.md, "Fields"). `mesh` exists in v2 only."""

    cpu: str
    ram: str
    script: str
    folder: str
    nopre: int | None = None
    mesh: str | None = None


@dataclass(frozen=True, slots=True)
class Download:
    """Where one version of a file can be fetched. `url` carries its own signature: never log it."""

    url: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Stored:
    """What the store said of a finished upload. `stored_ns` is the store's clock (its Date header)."""

    etag: str | None = None
    stored_ns: int | None = None


@dataclass(frozen=True, slots=True)
class View:
    """What view-by-path says of one path. `children` are a folder's direct entries, None if not told."""

    entry: Entry
    children: list[Entry] | None = None
