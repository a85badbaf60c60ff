"""The machine: its disk, its mount table, its log files, and being a daemon on it.

Called by whoever needs the machine, from the caches up to the command line; knows no service and no file of a mount.
Locks: none; lock files are `flock(2)`s between processes.
"""
