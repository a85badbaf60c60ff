"""Names with a meaning of our own: those that never leave this machine, those of conflict copies, and names that no
listing has shown yet. Pure.
"""

from __future__ import annotations

import itertools
import re
import socket
import time
from collections.abc import Iterator

from cloudsimfs import paths
from cloudsimfs.service.model import Entry

# Names that editors and desktops drop: they stay here and are never uploaded (docs/architecture.md, "Namespace").
LOCAL_NAMES = re.compile(
    r"\..*\.sw.|4913|.*~|\.goutputstream-.*|\.fuse_hidden.*|\.~lock\..*#|\._.*|\.DS_Store|Thumbs\.db",
    re.DOTALL,
)
HIDDEN_PREFIX = ".fuse_hidden"  # libfuse's name for what was unlinked while open


def is_local_name(name: str) -> bool:
    return LOCAL_NAMES.fullmatch(name) is not None


def conflict_names(path: str) -> Iterator[str]:
    """What a copy beside `path` may be called, the plainest first."""
    directory, name = paths.split(path)
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname().partition(".")[0])[:40]
    mark = f".conflict-{host}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in itertools.count(1):
        ending = mark if number == 1 else f"{mark}-{number}"
        yield paths.join(directory, _shortened(name, len(ending)) + ending)


def _shortened(name: str, room: int) -> str:
    """A name that leaves room for so many more bytes."""
    encoded = name.encode("utf-8", "surrogateescape")[: paths.NAME_MAX - room]
    return encoded.decode("utf-8", "ignore") if len(encoded) < len(name.encode("utf-8", "surrogateescape")) else name


def unknown_folder(path: str) -> Entry:
    """A folder that the service may have; its id is found when it is needed."""
    directory, name = paths.split(path)
    return Entry(0, directory, name, is_dir=True)


def unknown_file(path: str) -> Entry:
    """A file stored here, whose id no listing has told yet."""
    directory, name = paths.split(path)
    return Entry(0, directory, name, is_dir=False)
