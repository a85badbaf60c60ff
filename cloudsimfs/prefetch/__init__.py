"""Fetching a version's bytes from the service: ranges, read-ahead, and requests that are split, shared and given up.

Only the data cache calls it. A fetcher fills the data cache's sparse files through a protocol (`fetcher.Target`).
Locks: fetchers use their target's lock (Content.lock). The locks of the pool and of a source are leaves below it.
"""
