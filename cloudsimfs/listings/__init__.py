"""Directory listings: fetching them, keeping them in memory and on disk, and recognising tree walkers.

Called by `vfs`, `uploader`, `control`, and by the mount for its first call. In a mount, no other package lists
directories.
Locks: `SingleFlight._lock`, then `ListingCache._lock`, then `Holds._lock`. Those of `Walks` and `ListingStore` are
leaves.
"""
