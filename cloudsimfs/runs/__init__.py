"""Simulation runs: the list, logs and images, launching, and commands to a run.

Called by `control`, for a mount or for a command without one. It reaches files through two small protocols only
(`launch.Storage`, `list.Watcher`). `account` builds all of it.
Locks: `RunList._lock`, then that of the log cache; the other `_lock`s are leaves. No call is made under one.
"""
