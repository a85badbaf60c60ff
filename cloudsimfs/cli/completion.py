"""`completion`: the script with which a shell completes our commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from cloudsimfs.cli.group import main

EPILOG = """\
\b
To load it in every new shell:
  cloudsimfs completion bash > ~/.local/share/bash-completion/completions/cloudsimfs
  cloudsimfs completion zsh  > a directory of your $fpath, as _cloudsimfs
  cloudsimfs completion fish > ~/.config/fish/completions/cloudsimfs.fish
"""


@main.command(epilog=EPILOG)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL: bash, zsh or fish."""
    complete = get_completion_class(shell)
    assert complete is not None
    click.echo(complete(main, {}, "cloudsimfs", "_CLOUDSIMFS_COMPLETE").source())
