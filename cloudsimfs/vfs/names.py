"""Names with a meaning of their own: those that never leave this machine, and those of conflict copies. Pure.

Also entries for names that no listing has shown yet.
"""

from __future__ import annotations

import itertools
import re
import socket
import time
from collections.abc import Iterator

from cloudsimfs import paths
from cloudsimfs.service.model import Entry

# Temporary files of editors and desktops: they stay here and are never uploaded (docs/architecture.md, "Namespace").
LOCAL_NAMES = re.compile(
    r"\..*\.sw.|4913|.*~|\.goutputstream-.*|\.fuse_hidden.*|\.~lock\..*#|\._.*|\.DS_Store|Thumbs\.db",
    re.DOTALL,
)
HIDDEN_PREFIX = ".fuse_hidden"  # libfuse's prefix for files that were unlinked while open


def is_local_name(name: str) -> bool:
    return LOCAL_NAMES.fullmatch(name) is not None


def conflict_names(path: str) -> Iterator[str]:
    """Names for a copy beside `path`, the plainest first."""
    directory, name = paths.split(path)
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname().partition(".")[0])[:40]
    mark = f".conflict-{host}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in itertools.count(1):
        ending = mark if number == 1 else f"{mark}-{number}"
        yield paths.join(directory, _shortened(name, len(ending)) + ending)


def _shortened(name: str, room: int) -> str:
    """The name, cut so that `room` more bytes fit."""
    encoded = name.encode("utf-8", "surrogateescape")[: paths.NAME_MAX - room]
    return encoded.decode("utf-8", "ignore") if len(encoded) < len(name.encode("utf-8", "surrogateescape")) else name


def unknown_folder(path: str) -> Entry:
    """The entry of a folder that the service may have. Its id is looked up when it is needed."""
    directory, name = paths.split(path)
    return Entry(0, directory, name, is_dir=True)


def unknown_file(path: str) -> Entry:
    """The entry of a file that was stored from here. No listing has shown its id yet."""
    directory, name = paths.split(path)
    return Entry(0, directory, name, is_dir=False)
