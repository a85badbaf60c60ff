"""The commands, one module for each kind. The only package that imports click; importing it registers them all."""

from cloudsimfs.cli import mounting, recover, sandbox, state
from cloudsimfs.cli.base import main

__all__ = ["main", "mounting", "recover", "sandbox", "state"]
