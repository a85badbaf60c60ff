"""The options of commands, made from the table of settings, and the settings that they lead to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from cloudsimfs import config
from cloudsimfs.config import profiles
from cloudsimfs.config.settings import ACCOUNT, FLAG, SETTINGS, Setting
from cloudsimfs.errors import ConfigError

Command = TypeVar("Command", bound=Callable[..., Any])


def options(*names: str) -> Callable[[Command], Command]:
    """Decorate a command with `--profile` and the options of these settings; `settings_of` reads them."""

    def decorate(command: Command) -> Command:
        for name in reversed(names):
            command = _option(SETTINGS[name])(command)
        return _profile(command)

    return decorate


account_options = options(*ACCOUNT)
"""For a command that talks to the service: `config.account(settings_of(given))` is the address and the key."""


def settings_of(given: dict[str, Any], *, new: bool = False) -> config.Settings:
    """The settings in effect. Removes their options from `given`. `new`: the profile need not exist yet."""
    chosen = {name: _text(given.pop(row.field)) for name, row in SETTINGS.items() if row.field in given}
    return config.resolve(chosen, given.pop("profile", None), new=new)


def _text(value: str | bool | None) -> str | None:
    return str(value).lower() if isinstance(value, bool) else value


def _option(row: Setting) -> Callable[[Command], Command]:
    default = row.unset if row.default is None else row.default
    if row.kind is FLAG:
        return click.option(f"--{row.name}/--no-{row.name}", row.field, default=None, help=row.help)
    return click.option(
        f"--{row.name}",
        row.field,
        metavar=row.kind.metavar,
        type=click.Path() if row.kind.metavar in ("FILE", "DIR") else str,
        shell_complete=_completion(row.kind.words) if row.kind.words else None,
        help=row.help if default == "none" else f"{row.help}  [default: {default}]",
    )


def _completion(words: tuple[str, ...]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    return lambda _context, _parameter, start: [word for word in words if word.startswith(start)]


def profile_names(_context: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    try:
        return [name for name in profiles.names() if name.startswith(start)]
    except ConfigError:
        return []


def _profile(command: Command) -> Command:
    return click.option(
        "--profile",
        metavar="NAME",
        shell_complete=profile_names,
        help="The profile in config.toml to use.  [default: default]",
    )(command)
