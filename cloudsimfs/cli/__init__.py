"""The commands, one module for each kind. The only package that imports click; importing it registers them all."""

from cloudsimfs.cli import account, completion, doctor, installing, mounting, recover, runs, sandbox, state
from cloudsimfs.cli.base import main

__all__ = ["account", "completion", "doctor", "installing", "main", "mounting", "recover", "runs", "sandbox", "state"]
