"""Where a setting's value comes from. The first of these counts: the command line, the environment, the profile, the
top of the configuration file, the default.

Raises ConfigError with the remedy. Reads the configuration file and the environment, nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloudsimfs.config import profiles
from cloudsimfs.config.settings import SETTINGS, Setting, default, near
from cloudsimfs.errors import ConfigError

PROFILE_VARIABLE = "CLOUDSIMFS_PROFILE"


@dataclass(frozen=True, slots=True)
class Value:
    """A setting's value and its source, in words for the user."""

    value: Any
    source: str
    text: str | None  # as it was written
    of_profile: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting of one command, looked up by name."""

    profile: str
    values: dict[str, Value]

    def __getitem__(self, name: str) -> Any:
        return self.values[name].value


def resolve(given: Mapping[str, str | None], profile: str | None = None, *, new: bool = False) -> Settings:
    """The settings in effect. `given` holds those of the command line, by name, as text.

    The profile is `profile`, else CLOUDSIMFS_PROFILE, else the default one. `new`: the profile need not exist.
    """
    in_file = profiles.read(profile or os.environ.get(PROFILE_VARIABLE) or None)
    if not in_file.known and not new and in_file.name != profiles.DEFAULT:
        raise unknown_profile(in_file.name, f"; make it: cloudsimfs login{profiles.option(in_file.name)}")
    values = {name: _value(row, given.get(name), in_file.given.get(name)) for name, row in SETTINGS.items()}
    return Settings(in_file.name, values)


def unknown_profile(name: str, remedy: str = "") -> ConfigError:
    """The error for a profile that does not exist. It names a similar one, or else the `remedy`."""
    hint = near(name, profiles.names()) or remedy
    return ConfigError(f"profile {name}: not in {profiles.config_file()}{hint}")


def _value(row: Setting, option: str | None, in_file: profiles.RawSetting | None) -> Value:
    in_environment = os.environ.get(row.variable, "")
    if option is not None:
        return Value(_parsed(row, option, f"--{row.name} {option}"), f"--{row.name}", option)
    if in_environment:
        return Value(_parsed(row, in_environment, f"{row.variable}={in_environment}"), row.variable, in_environment)
    if in_file is not None:
        where = f"{in_file.where}: {row.name} = {in_file.text}"
        return Value(_parsed(row, in_file.text, where), in_file.where, in_file.text, of_profile=True)
    return Value(default(row.name), "default", row.default)


def _parsed(row: Setting, text: str, where: str) -> Any:
    try:
        return row.kind.parse(text)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
