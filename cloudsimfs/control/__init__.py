"""The virtual folders in the mount's root: `.simulations/` and `.cloudsimfs/`, and what they say of the mount.

Called by `operations`, and by commands that need the files of `.simulations/` without a mount.
Locks: `Control._lock` (open virtual files) and `Simulations._lock` are leaves.
"""
