"""A run's images as bytes: behind a signed URL, or within the reply itself. Those of ended runs are kept on disk.

Threading: `_lock` protects the images in memory, a leaf; no lock is held during a transfer.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import threading
from urllib.parse import unquote_to_bytes

from cloudsimfs.clock import Clock
from cloudsimfs.errors import LinkExpired, NotFound, Refused
from cloudsimfs.paths import is_safe_name
from cloudsimfs.runs.list import RunList
from cloudsimfs.runs.store import RunStore
from cloudsimfs.service import Client, Download, Image, Simulation

LARGEST_IMAGE = 64 << 20  # bytes
IMAGES_IN_MEMORY = 64
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]{16,}+={0,2}+\s*+")  # possessive: nothing is looked at twice


class Images:
    """`ttl` in seconds: how long the image of an active run is believed."""

    def __init__(self, client: Client, runs: RunList, store: RunStore, *, ttl: float, clock: Clock) -> None:
        self._client = client
        self._runs = runs
        self._store = store
        self._ttl = ttl
        self._clock = clock
        self._lock = threading.Lock()
        self._fetched: dict[tuple[int, str], tuple[float, bytes]] = {}  # when (monotonic seconds), and the bytes

    def names(self, run_id: int) -> list[str]:
        """The names of the images; makes a call only if no reply so far could have listed them."""
        run = self._runs.get(run_id)
        if not run.images and "images" not in run.raw:
            self._runs.fetch_run(run_id)
            run = self._runs.get(run_id)
        return [image.name for image in run.images]

    def linked(self, run_id: int, name: str) -> str | None:
        """The storage path, if the image is a stored file."""
        source = self._find(self._runs.get(run_id), name).source
        return source.strip("/") if _is_path(source) else None

    def read(self, run_id: int, name: str) -> bytes:
        """Raises NotFound, Refused for what is no image, or the ServiceError of the transfer."""
        run = self._runs.get(run_id)
        image = self._find(run, name)
        stored = None if run.active else self._store.blob(run_id, f"image-{name}")
        if stored is not None:
            return stored
        with self._lock:
            fetched_at, data = self._fetched.get((run_id, name), (-math.inf, b""))
        if self._clock.monotonic() - fetched_at < self._ttl:
            return data
        data = self._load(run_id, image)
        if not run.active:
            self._store.save_blob(run_id, f"image-{name}", data)
        with self._lock:
            self._fetched.pop((run_id, name), None)
            self._fetched[run_id, name] = (self._clock.monotonic(), data)
            while len(self._fetched) > IMAGES_IN_MEMORY:
                del self._fetched[next(iter(self._fetched))]
        return data

    @staticmethod
    def _find(run: Simulation, name: str) -> Image:
        image = next((image for image in run.images if image.name == name), None)
        if image is None:
            raise NotFound(f"run {run.id} has no image {name}")
        return image

    def _load(self, run_id: int, image: Image) -> bytes:
        if image.source:
            try:
                return self._bytes_of(image)
            except LinkExpired:
                pass
        self._runs.fetch_run(run_id)  # its reply brings a new link
        return self._bytes_of(self._find(self._runs.get(run_id), image.name))

    def _bytes_of(self, image: Image) -> bytes:
        source = image.source
        if not source.startswith(("http://", "https://")):
            return _decoded(image)
        data = bytearray()
        with self._client.fetch(Download(source)) as fetched:
            for block in fetched.blocks():
                data += block
                if len(data) > LARGEST_IMAGE:
                    raise Refused(f"{image.name}: larger than {LARGEST_IMAGE >> 20} MiB; that is no image")
        return bytes(data)


def _decoded(image: Image) -> bytes:
    """A `data:` URL (RFC 2397), or bare base64."""
    head, comma, body = image.source.partition(",") if image.source.startswith("data:") else ("", "", "")
    if comma and not head.endswith(";base64"):
        return unquote_to_bytes(body)
    try:
        if comma or _BASE64.fullmatch(image.source):
            return base64.b64decode("".join((body or image.source).split()), validate=True)
    except (binascii.Error, ValueError):
        pass
    raise Refused(f"{image.name}: the service sent neither a link nor an image")


def _is_path(source: str) -> bool:
    if source.startswith(("http://", "https://", "data:")) or _BASE64.fullmatch(source):
        return False
    return "." in source and all(map(is_safe_name, source.strip("/").split("/")))
