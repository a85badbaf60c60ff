"""The bytes of stored versions: each in a file of its own; small ones that no PUT brought stay in memory.

Threading: any thread; a Blob never changes. Must never use a file name twice in one directory.
"""

from __future__ import annotations

import hashlib
import itertools
import shutil
from dataclasses import dataclass
from pathlib import Path

MAX_IN_MEMORY = 64 * 1024  # bytes of an object that is kept without a file


@dataclass(frozen=True, slots=True)
class Blob:
    """The bytes of one stored version, in memory or in a file. `etag` is quoted, strong."""

    size: int
    etag: str
    data: bytes | None = None
    file: Path | None = None
    zeros: bool = False  # a sparse file

    def read(self) -> bytes:
        if self.data is not None:
            return self.data
        assert self.file is not None
        return self.file.read_bytes()


class Blobs:
    """Makes blobs in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        used = [int(file.name) for file in directory.iterdir() if file.name.isdecimal()]
        self._versions = itertools.count(max(used, default=0) + 1)

    def new_file(self) -> Path:
        """A new path for the bytes of one version. The caller makes a Blob of it or unlinks it."""
        return self._directory / f"{next(self._versions):08d}"

    def make(self, data: bytes | Path) -> Blob:
        """A blob with these bytes, or with a copy of a local file."""
        if isinstance(data, bytes) and len(data) <= MAX_IN_MEMORY:
            return Blob(len(data), etag_of(data), data=data)
        file = self.new_file()
        if isinstance(data, bytes):
            file.write_bytes(data)
        else:
            shutil.copyfile(data, file)
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "md5").hexdigest()
        return Blob(file.stat().st_size, f'"{digest}"', file=file)

    def sparse(self, size: int) -> Blob:
        """A blob of `size` zero bytes that take no disk space."""
        file = self.new_file()
        with file.open("wb") as stream:
            stream.truncate(size)
        return Blob(size, etag_of(f"sparse {file.name} {size}".encode()), file=file, zeros=True)


def etag_of(data: bytes) -> str:
    """The quoted MD5, as object stores make it for one PUT."""
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
