"""What the service stores and runs, as values: entries, simulations, launch requests. Pure, no I/O."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cloudsimfs import paths


@dataclass(frozen=True, slots=True)
class Entry:
    """One file or folder of the storage (docs/service.md, "Fields" and "Storage entries").

    `id` 0 means "not known": the root, or a folder that is known only from a file's path. `size` is in bytes, 0 for
    folders. `mtime_ns` is in nanoseconds since the epoch, None if the service did not say. If `sized` is False, the
    service did not say the size: `Client.fetch_size` gets it.
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
        """The path from the root of the storage, without a leading slash."""
        return paths.join(self.dirname, self.name)

    @property
    def fingerprint(self) -> tuple[int, int, int]:
        """Identifies one version of the file (docs/architecture.md, invariant 5a): id, bytes, nanoseconds."""
        return (self.id, self.size, self.mtime_ns or 0)


class RunStatus(enum.IntEnum):
    """The documented states (docs/service.md, "States"). `Simulation.status` may hold another number."""

    COMPLETED = 10
    PENDING = 20
    RUNNING = 30
    STOPPING = 40
    STOPPED = 50
    ERROR = 60


class Signal(enum.Enum):
    """The signal of a stop or sync call selects what it does (docs/service.md, "Notes")."""

    HARD_STOP = "SIGINT"
    SOFT_STOP = "SIGTSTP"
    SYNC = "SIGQUIT"


@dataclass(frozen=True, slots=True)
class Image:
    """An image of a run. `name` is a safe file name, unique in its run.

    `source` is a URL, or the image itself as a `data:` URL or in base64. A URL may carry a signature: never log it.
    """

    name: str
    source: str = field(repr=False, compare=False)  # every reply signs it anew


@dataclass(frozen=True, slots=True)
class Simulation:
    """One run (docs/service.md, "Fields"). `raw` has all members as the service sent them."""

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
    output: str | None = None  # None: the reply did not have it
    images: tuple[Image, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict)

    @property
    def status_name(self) -> str:
        """The state in capitals; UNKNOWN-<number> for an undocumented one."""
        try:
            return RunStatus(self.status).name
        except ValueError:
            return f"UNKNOWN-{self.status}"

    @property
    def active(self) -> bool:
        """Whether the run is pending, running or stopping."""
        return self.status in (RunStatus.PENDING, RunStatus.RUNNING, RunStatus.STOPPING)


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """The parameters of a launch (docs/service.md, "Fields"). `mesh` exists in v2 only."""

    cpu: str
    ram: str
    script: str
    folder: str
    nopre: int | None = None
    mesh: str | None = None


@dataclass(frozen=True, slots=True)
class Download:
    """A link to the bytes of a file. `url` carries its own signature: never log it."""

    url: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Stored:
    """The store's answer to an upload. `stored_ns` is in nanoseconds since the epoch, by its Date header."""

    etag: str | None = None
    stored_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """The direct entries of a folder. If not `complete`, a name that is missing may be there all the same."""

    entries: list[Entry]
    complete: bool = True


@dataclass(frozen=True, slots=True)
class View:
    """What the service has at one path. `children` are a folder's direct entries, None if it did not say."""

    entry: Entry
    children: list[Entry] | None = None
