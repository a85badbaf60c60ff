"""Simulation runs: the list, logs and images, launching, and what a run can be told.

Called by `control`, for a mount or for a command without one; knows no file but through two small protocols.
Locks: `Runs._lock` and the other `_lock`s are leaves; no call is made under one.
"""
