"""The group all commands hang on. Every failure is one line on stderr and a status of 1."""

from __future__ import annotations

from typing import Any

import click

from cloudsimfs import __version__
from cloudsimfs.errors import CloudsimfsError
from cloudsimfs.service.redact import redact


class _Group(click.Group):
    """Turns this package's errors into click's: one line, exit status 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CloudsimfsError as error:
            raise click.ClickException(redact(str(error))) from error


@click.group(cls=_Group, context_settings={"auto_envvar_prefix": "CLOUDSIMFS", "show_default": True})
@click.version_option(__version__, prog_name="cloudsimfs")
def main() -> None:
    """Mount a cloud simulation service as a drive, and drive its runs through files."""
