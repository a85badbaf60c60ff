"""Files that grow, as logs do: whether a longer version begins with the bytes of the one before.

The service tells nothing of how two versions relate, but the object store's ETag of what came in one PUT is the MD5
of its bytes. So the added bytes are fetched, hashed together with what is cached, and only if that gives the ETag is
the cache taken over. Any other ETag proves nothing, and then everything is fetched anew.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

LEAST = 128 << 10  # bytes; shorter files are fetched anew, in one request
MOST_COMPARED = 4 << 20  # bytes; what was read of an old version and may be fetched of the new one to compare
LARGEST = 256 << 20  # bytes; hashing more takes longer than a reader should wait
MOST_ADDED = 64 << 20  # bytes; more is not worth holding in memory
_MD5 = re.compile(r'"?([0-9a-f]{32})"?')


def is_worth_trying(old_size: int, new_size: int) -> bool:
    """Whether a version of `old_size` bytes may be continued by one of `new_size`."""
    return 0 < old_size < new_size <= LARGEST and new_size - old_size <= MOST_ADDED


def proves(etag: str | None, blocks: Iterable[bytes]) -> bool:
    """Whether the blocks are the whole content that the ETag is of."""
    match = _MD5.fullmatch(etag or "")
    if match is None:
        return False
    digest = hashlib.md5(usedforsecurity=False)
    for block in blocks:
        digest.update(block)
    return digest.hexdigest() == match[1]
