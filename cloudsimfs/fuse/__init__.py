"""The kernel's side: the FUSE binding, the kernel's page and name cache, and opens that only show a preview.

Called by `operations`, by the mount and, for the kernel's cache, by `control`; `binding` alone imports the library.
Locks: `KernelCache._changed` is a leaf.
"""
