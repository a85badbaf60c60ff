"""Files that grow, as logs do: whether a longer version begins with the bytes of the one before.

The service does not say how two versions relate. But the object store's ETag of an object that came in one PUT is the
MD5 of its bytes. So the added bytes are fetched and hashed together with the cached ones. Only if the hash is the new
version's ETag is the cache taken over. Any other kind of ETag proves nothing, and everything is fetched again.

Locks: none of its own. `Ancestry` is guarded by the newer version's Content.lock. The older version's Content.lock
is taken without it.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from cloudsimfs.datacache.sparsefile import SparseFile
from cloudsimfs.prefetch.fetcher import Fetcher, Flight
from cloudsimfs.prefetch.source import as_filesystem_error

if TYPE_CHECKING:
    from cloudsimfs.datacache.content import Content

MIN_ANCESTOR = 128 << 10  # bytes; a shorter file is fetched again, in one request
MAX_HASHED = 256 << 20  # bytes of a file; hashing more takes longer than a reader should wait
MAX_ADDED = 64 << 20  # bytes; more are not worth holding in memory
HASH_BLOCK = 1 << 20  # bytes hashed and copied at a time
_MD5 = re.compile(r'"?([0-9a-f]{32})"?')


class Ancestry:
    """What a version has from the one before it, `older`."""

    def __init__(self, older: Content | None) -> None:
        self.older = older  # None once it was looked at
        self.proved: int | None = None  # identity of the version that this one was found to begin with

    def look_locked(self, newer: SparseFile, fetcher: Fetcher) -> None:
        """Start a flight that fills `newer` from the older version, if that proves to be its beginning."""
        older, self.older = self.older, None
        if older is not None:
            end = newer.remote_end_locked()
            fetcher.launch_locked(0, end, lambda flight: self._take_over(flight, newer, fetcher, older))

    def _take_over(self, flight: Flight, newer: SparseFile, fetcher: Fetcher, older: Content) -> None:
        """Raises Stale if the newer version was replaced meanwhile, else a ServiceError or NoSpace."""
        size = older.size
        if not older.has(0, size) or not is_worth_trying(size, newer.size):
            return
        older.acquire()
        try:
            with as_filesystem_error(fetcher.source.entry):
                added = fetcher.source.read(size, newer.size)
            fetcher.reserve(flight, newer.size)
            if proves(fetcher.source.etag, itertools.chain(_blocks(older), [added])):
                for number, block in enumerate(_blocks(older)):
                    fetcher.arrive(flight, number * HASH_BLOCK, block)
                self.proved = older.identity  # before the last bytes arrive: their reader may ask for it
            fetcher.arrive(flight, size, added)
        finally:
            older.release()


def _blocks(older: Content) -> Iterator[bytes]:
    """All bytes of a version that is present. Ends early if the content is changed meanwhile."""
    for position in range(0, older.size, HASH_BLOCK):
        block = older.version_bytes(position, min(older.size, position + HASH_BLOCK))
        if block is None:
            return
        yield block


def is_worth_trying(old_size: int, new_size: int) -> bool:
    """Whether a version of `old_size` bytes may be the beginning of one of `new_size`."""
    return 0 < old_size < new_size <= MAX_HASHED and new_size - old_size <= MAX_ADDED


def proves(etag: str | None, blocks: Iterable[bytes]) -> bool:
    """Whether the blocks are the whole content that the ETag is of."""
    match = _MD5.fullmatch(etag or "")
    if match is None:
        return False
    digest = hashlib.md5(usedforsecurity=False)
    for block in blocks:
        digest.update(block)
    return digest.hexdigest() == match[1]
