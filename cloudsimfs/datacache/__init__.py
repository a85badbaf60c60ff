"""The bytes of files on this disk: sparse files, which of their ranges are present, the limit on all, and eviction.

Called by `vfs`, `writeback` and `uploader`; commands use `directory`, too. It fetches missing bytes through
`prefetch`.
Locks: `Content.lock`, one for each file and its fetcher, then `DataCache._lock` (the tables and the count of bytes).
Both come after `Inode.lock`, and are held over local disk I/O only. `SparseFile._filling` is a leaf.
"""
