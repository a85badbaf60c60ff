"""The commands, one module for each kind. The only package that imports click; importing it registers them all.

Called by the entry points only.
Locks: none.
"""

from cloudsimfs.cli import account, cache, completion, doctor, installing, mounting, recover, runs, sandbox, status
from cloudsimfs.cli.group import main

__all__ = [
    "account",
    "cache",
    "completion",
    "doctor",
    "installing",
    "main",
    "mounting",
    "recover",
    "runs",
    "sandbox",
    "status",
]
