"""The namespace: listings with what was done here on top, open files, and every step that changes a name or a byte.

Called by `operations` for the kernel and by `uploader` for the service; knows neither FUSE nor HTTP.
Locks: `Tree.lock` > `Inode.lock` > `Content.lock` > `WorkQueue.lock` > `Journal.lock`.
"""
