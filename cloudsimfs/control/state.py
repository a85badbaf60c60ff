"""`.cloudsimfs/`: the table of its files, through which commands talk to a mount.

Threading: none of its own.
"""

from __future__ import annotations

from dataclasses import asdict

from cloudsimfs.control.metrics import prometheus
from cloudsimfs.control.mounted import COMMAND_BOUND, MountedCaches, MountedStorage
from cloudsimfs.control.status import Report
from cloudsimfs.control.virtual import File, Folder, Node, as_json, text
from cloudsimfs.errors import NotFound
from cloudsimfs.vfs.recovery import Recovery

STATE = ".cloudsimfs"


class MountState:
    """The files that show the state of a mount, and those that change it."""

    def __init__(self, report: Report, recovery: Recovery, storage: MountedStorage, caches: MountedCaches) -> None:
        files: dict[str, File] = {
            "status": text(report.status_text),
            "status.json": text(lambda: as_json(report.status())),
            "pending": text(report.pending_text),
            "metrics": text(lambda: prometheus(report.status())),
            "recover": File(write=lambda command: recovery.command(command, bound=COMMAND_BOUND)),
            "recover.json": text(lambda: as_json([asdict(draft) for draft in recovery.drafts()])),
            "refresh": File(write=lambda path: caches.refresh(storage.storage_path(path))),
            "flush": File(write=lambda _: storage.flush()),
        }
        self._table: dict[str, Node] = {"": Folder(lambda: list(files)), **files}

    def node(self, path: str) -> Node:
        """What is at a path below `.cloudsimfs/`. Raises NotFound."""
        try:
            return self._table[path]
        except KeyError:
            raise NotFound(f"/{STATE}/{path}") from None
