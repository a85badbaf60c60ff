"""The machine: its disk, its mount table, its log files, and running as a daemon on it.

Called by every package that needs the machine, from the caches up to the command line. It knows neither the service
nor the files of a mount.
Locks: none; lock files are `flock(2)`s between processes.
"""
