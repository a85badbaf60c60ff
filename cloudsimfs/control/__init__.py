"""The virtual folders in the mount's root: the files of `.simulations/` and `.cloudsimfs/`, and what they do.

Called by `operations`, and by commands that use the files of `.simulations/` without a mount.
Locks: `Simulations._lock` and that of the table of open virtual files (`HandleTable`) are leaves.
"""
