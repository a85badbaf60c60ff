"""The bytes of files on this disk: sparse files, which of their ranges are there, a limit on all, and eviction.

Called by the namespace and by uploads; fetches what is missing through `prefetch`.
Locks: `Content.lock`, one a file, before `DataCache._lock` (the tables and the count of bytes); disk I/O only.
"""
