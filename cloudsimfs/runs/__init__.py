"""Simulation runs: the list, logs and images, launching, and commands to a run.

Called by `control`, for a mount or for a command without one. It reaches files only through two small protocols
(`launch.Storage`, `list.Watcher`). `account` builds all of it.
Locks: `RunList._lock` comes before `LogCache._lock`, `SingleFlight._lock` before `LaunchOptions._lock`; the others
are leaves. No call is made under one.
"""
