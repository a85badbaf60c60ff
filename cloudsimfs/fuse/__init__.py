"""The kernel's side: the FUSE binding, the kernel's page and name cache, and who asks only to show a preview.

Called by `operations` and by the mount; `binding` alone imports the library.
Locks: `KernelCache` has one of its own, a leaf.
"""
