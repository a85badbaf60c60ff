"""The kernel's side: the FUSE binding, errors as errnos, the kernel's page and name cache, and previews.

Called by `operations`, `control` and the mount, and by `doctor`. Only `binding` imports the FUSE library.
Locks: `KernelCache._changed` and `KernelCache._lock` are leaves.
"""
