"""The machine: its disk, its mount table, its log files, and being a daemon on it.

Used by every package that needs the machine, from the caches up to the command line. Knows neither the service nor
the files of a mount.
Locks: none; lock files are `flock(2)`s between processes.
"""
