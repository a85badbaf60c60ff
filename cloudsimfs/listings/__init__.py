"""Directory listings: fetching them, keeping them in memory and on disk, and telling a tree walker from a person.

Called by the namespace (`vfs`), and by the mount for its first call; no other package lists directories.
Locks: that of the flights (`singleflight`), then that of the cache; the one of the walks is a leaf.
"""
