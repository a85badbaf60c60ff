"""The namespace: listings with local changes on top, open files, and every step that changes a name or a byte.

Called by `operations` for the kernel and by `uploader` for the service; knows neither FUSE nor HTTP.
Locks: `Tree.lock` is the first of the order in docs/architecture.md, "Locks".
"""
