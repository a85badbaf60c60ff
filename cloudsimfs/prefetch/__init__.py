"""Fetching a version's bytes from the service: ranges, read-ahead, and requests that are split, shared and given up.

Only the data cache calls it. A fetcher fills the data cache's sparse files through a protocol (`fetcher.Target`).
Locks: a fetcher uses the lock of its target, which is `Content.lock`. `FetchPool._lock` and `Source._lock` are
leaves.
"""
