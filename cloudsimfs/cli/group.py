"""The group that all commands belong to. A failure is one line on stderr; the exit status says whose fault it is."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import click

from cloudsimfs import __version__
from cloudsimfs.config import mountoptions
from cloudsimfs.config.settings import split_options
from cloudsimfs.errors import CloudsimfsError, ConfigError
from cloudsimfs.host import mountpoint
from cloudsimfs.redact import redact
from cloudsimfs.text import printable

FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130

EPILOG = """\
\b
Examples:
  cloudsimfs login --url https://service.example     once: checks the key and keeps it
  cloudsimfs mount ~/cloud
  cp -r case1 ~/cloud
  cloudsimfs status ~/cloud
  cloudsimfs umount ~/cloud
  cloudsimfs doctor                                  what is wrong, and how to fix it

Exit status: 0 success; 1 failure, with the reason on stderr; 2 the command line, an environment variable or the
profile is wrong, and nothing was done; 130 interrupted. A command with other codes lists them in its help.

A setting comes from its option, else from CLOUDSIMFS_<OPTION> in the environment, else from
~/.config/cloudsimfs/config.toml. `cloudsimfs config show` shows them all. NO_COLOR turns colours off.
"""


@contextlib.contextmanager
def one_line(context: click.Context) -> Iterator[None]:
    """Turn errors of this package, of click and of the system into one line and an exit status."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except (KeyboardInterrupt, click.Abort):
        click.echo(err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    except click.UsageError as error:
        command = (error.ctx or context).command_path
        raise _Failure(f"{error.format_message().rstrip('.')}; see {command} --help", WRONG_USE) from error
    except ConfigError as error:
        raise _Failure(str(error), WRONG_USE) from error
    except CloudsimfsError as error:
        raise _Failure(str(error), FAILED) from error
    except BrokenPipeError:
        raise  # click handles it: the reader of our output has gone
    except OSError as error:
        place = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes)) else ""
        dead = "; its daemon died: mount it again, nothing that was closed is lost"
        remedy = dead if error.errno in mountpoint.DEAD else ""
        raise _Failure(f"{place}{error.strerror or error}{remedy}", FAILED) from error


class _Failure(click.ClickException):
    """One line, and the exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(printable(redact(" ".join(message.split()))))
        self.exit_code = status  # type: ignore[misc]  # click reads it from the instance


class _Group(click.Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with one_line(ctx):
            return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # mount.fuse3(8) calls what it mounts by its type: `cloudsimfs SOURCE DIRECTORY -o OPTIONS`
        if len(args) == 4 and args[2] == "-o" and args[0] not in self.commands:
            source, directory, _, words = args
            args = ["mount", directory, "-o", mountoptions.with_source(source, split_options(words))]
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with one_line(ctx):
            return super().invoke(ctx)


@click.group(cls=_Group, context_settings={"show_default": True, "max_content_width": 100}, epilog=EPILOG)
@click.version_option(__version__, prog_name="cloudsimfs")
@click.pass_context
def main(context: click.Context) -> None:
    """Mount a cloud simulation service as a drive, and drive its runs through files."""
    if os.environ.get("NO_COLOR"):
        context.color = False
