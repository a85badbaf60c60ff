"""Directory listings: asking for them, keeping them in memory and on disk, and telling a walker from a person.

Called by the namespace (`vfs`), and by the mount for its first question; the only package that lists directories.
Locks: that of the flights (`singleflight`), then that of the cache; the one of the walks is a leaf.
"""
