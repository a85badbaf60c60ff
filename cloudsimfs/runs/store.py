"""What is known of runs, on disk: the list, the options of a launch, whole logs and images of ended runs.

All of it may be lost without harm: it spares calls, and serves while the service cannot be asked. Threading: none
of its own; files are replaced atomically, so that a mount and commands beside it may share the directory.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from cloudsimfs.host.files import make_private, replace_file
from cloudsimfs.service import Image, Simulation

log = logging.getLogger(__name__)

BLOB_SPACE = 256 << 20  # bytes of logs and images; those unread for the longest time go first
PRIVATE = ("vnc_url",)  # personal: neither shown nor stored (docs/service.md, "Fields")
OWN_FILES = ("output", "logs")  # fields that are shown as files of their own
_FIELDS = [field.name for field in fields(Simulation) if field.name != "output"]


class RunStore:
    """Files below `directory`, which is created when the first one is saved."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    # -- small things, as JSON -------------------------------------------------------------------------

    def save_runs(self, whole_at: float, runs: Iterable[Simulation]) -> None:
        """`whole_at`: when all pages of the list were last fetched, wall seconds."""
        self._save_json("runs.json", [whole_at, [{name: getattr(run, name) for name in _FIELDS} for run in runs]])

    def runs(self) -> tuple[float, list[Simulation]] | None:
        """What was saved last; None if nothing ever was."""
        try:
            whole_at, runs = self._json("runs.json")
            return float(whole_at), [_simulation(values) for values in runs]
        except (TypeError, ValueError, KeyError, AttributeError):
            return None  # also if another version saved it

    def save_options(self, name: str, at: float, values: tuple[str, ...]) -> None:
        """`at` is wall seconds."""
        self._save_json(f"{name}.json", [at, list(values)])

    def options(self, name: str) -> tuple[float, tuple[str, ...]] | None:
        try:
            at, values = self._json(f"{name}.json")
            return float(at), tuple(map(str, values))
        except (TypeError, ValueError):
            return None

    def save_launched(self, text: str) -> None:
        self._save("launched", text.encode("utf-8", "replace"))

    def launched(self) -> str:
        return (self.load("launched") or b"").decode("utf-8", "replace")

    # -- logs and images of ended runs -----------------------------------------------------------------

    def save_blob(self, run_id: int, name: str, data: bytes) -> None:
        self._save(f"{run_id}-{name}", data)
        self._make_room()

    def blob(self, run_id: int, name: str) -> bytes | None:
        data = self.load(f"{run_id}-{name}")
        if data is not None:
            with contextlib.suppress(OSError):
                os.utime(self._directory / f"{run_id}-{name}")  # mark it as read now
        return data

    def _make_room(self) -> None:
        with contextlib.suppress(OSError):
            blobs = [(blob.stat(), blob) for blob in self._directory.glob("[0-9]*-*")]
            total = sum(status.st_size for status, _ in blobs)
            for status, blob in sorted(blobs, key=lambda item: item[0].st_mtime):
                if total <= BLOB_SPACE:
                    return
                blob.unlink()
                total -= status.st_size

    # -- files -----------------------------------------------------------------------------------------

    def load(self, name: str) -> bytes | None:
        try:
            return (self._directory / name).read_bytes()
        except OSError:
            return None

    def _json(self, name: str) -> Any:
        try:
            return json.loads(self.load(name) or b"null")
        except ValueError:
            return None

    def _save_json(self, name: str, value: object) -> None:
        self._save(name, json.dumps(value, default=asdict).encode())

    def _save(self, name: str, data: bytes) -> None:
        try:
            make_private(self._directory)
            replace_file(self._directory / name, data)
        except OSError as error:
            log.info("%s: not saved: %s", name, error)


def _simulation(values: dict[str, Any]) -> Simulation:
    images = tuple(Image(**fields) for fields in values["images"])
    return Simulation(**{**values, "images": images}, output=None)


def public(run: Simulation) -> dict[str, object]:
    """Every field the service sent, except the personal ones and those that are files of their own."""
    shown = {name: value for name, value in run.raw.items() if name not in (*PRIVATE, *OWN_FILES)}
    if "images" in shown:  # their links are signed
        shown["images"] = [image.name for image in run.images]
    return shown
