"""A run's pictures as bytes: behind a signed URL, or within the reply itself. Those of ended runs are kept on disk.

Threading: `_lock` protects what is kept in memory, a leaf; no lock is held during a transfer.
"""

from __future__ import annotations

import base64
import binascii
import re
import threading
from urllib.parse import unquote_to_bytes

from cloudsimfs.clock import Clock
from cloudsimfs.errors import LinkExpired, NotFound, Refused
from cloudsimfs.paths import is_safe_name
from cloudsimfs.runs.runs import Runs
from cloudsimfs.runs.store import RunStore
from cloudsimfs.service import Client, Download, Image, Simulation

LARGEST = 64 << 20  # bytes
KEPT = 64  # pictures of active runs in memory
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]{16,}={0,2}\s*")


class Images:
    """`ttl` in seconds: how long the picture of an active run is believed."""

    def __init__(self, client: Client, runs: Runs, store: RunStore, *, ttl: float, clock: Clock) -> None:
        self._client = client
        self._runs = runs
        self._store = store
        self._ttl = ttl
        self._clock = clock
        self._lock = threading.Lock()
        self._fresh: dict[tuple[int, str], tuple[float, bytes]] = {}  # since when (monotonic), and the bytes

    def names(self, run_id: int) -> list[str]:
        """The pictures there are; asks only if no reply so far could have told."""
        run = self._runs.get(run_id)
        if not run.images and "images" not in run.raw:
            self._runs.renew_log(run_id)
            run = self._runs.get(run_id)
        return [picture.name for picture in run.images]

    def linked(self, run_id: int, name: str) -> str | None:
        """The storage path, if the picture is a stored file."""
        source = self._find(self._runs.get(run_id), name).source
        return source.strip("/") if _is_path(source) else None

    def read(self, run_id: int, name: str) -> bytes:
        """Raises NotFound, Refused for what is no picture, or the ServiceError of the transfer."""
        run = self._runs.get(run_id)
        picture = self._find(run, name)
        kept = None if run.active else self._store.blob(run_id, f"image-{name}")
        if kept is not None:
            return kept
        with self._lock:
            at, data = self._fresh.get((run_id, name), (float("-inf"), b""))
        if self._clock.monotonic() - at < self._ttl:
            return data
        data = self._load(run_id, picture)
        if not run.active:
            self._store.save_blob(run_id, f"image-{name}", data)
        with self._lock:
            self._fresh.pop((run_id, name), None)
            self._fresh[run_id, name] = (self._clock.monotonic(), data)
            while len(self._fresh) > KEPT:
                del self._fresh[next(iter(self._fresh))]
        return data

    @staticmethod
    def _find(run: Simulation, name: str) -> Image:
        found = next((picture for picture in run.images if picture.name == name), None)
        if found is None:
            raise NotFound(f"run {run.id} has no picture {name}")
        return found

    def _load(self, run_id: int, picture: Image) -> bytes:
        if picture.source:
            try:
                return self._bytes_of(picture)
            except LinkExpired:
                pass
        self._runs.renew_log(run_id)  # its reply has a new link
        return self._bytes_of(self._find(self._runs.get(run_id), picture.name))

    def _bytes_of(self, picture: Image) -> bytes:
        source = picture.source
        if not source.startswith(("http://", "https://")):
            return _decoded(picture)
        data = bytearray()
        with self._client.fetch(Download(source)) as fetched:
            for block in fetched.blocks():
                data += block
                if len(data) > LARGEST:
                    raise Refused(f"{picture.name}: larger than {LARGEST >> 20} MiB; that is no picture")
        return bytes(data)


def _decoded(picture: Image) -> bytes:
    """A `data:` URL (RFC 2397), or bare base64."""
    head, comma, body = picture.source.partition(",") if picture.source.startswith("data:") else ("", "", "")
    if comma and not head.endswith(";base64"):
        return unquote_to_bytes(body)
    try:
        if comma or _BASE64.fullmatch(picture.source):
            return base64.b64decode("".join((body or picture.source).split()), validate=True)
    except (binascii.Error, ValueError):
        pass
    raise Refused(f"{picture.name}: the service sent neither a link nor a picture")


def _is_path(source: str) -> bool:
    if source.startswith(("http://", "https://", "data:")) or _BASE64.fullmatch(source):
        return False
    return "." in source and all(map(is_safe_name, source.strip("/").split("/")))
