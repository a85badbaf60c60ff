"""Fetching a version's bytes from the service: ranges, read-ahead, requests that are split, shared and given up.

Called by the data cache alone, whose contents are the targets.
Locks: a fetcher uses its target's `Content.lock`; the pool's own lock is a leaf.
"""
