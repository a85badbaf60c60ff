"""The user's configuration file: settings for all profiles on top, and one table for each profile.

    cache-size = "50G"

    [profiles.work]
    url = "https://service.example"
    mountpoint = "~/cloud"

`[profiles.default]` holds when none is named. Owns the file: nothing else reads or writes it.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudsimfs.config.settings import DIRECTORY, FILE, SETTINGS, near, xdg_directory
from cloudsimfs.errors import ConfigError
from cloudsimfs.host.files import make_private, replace_file

DEFAULT = "default"
_SECRETS = ("api-key", "api_key", "apikey", "key", "token", "password")


@dataclass(frozen=True, slots=True)
class RawSetting:
    """A setting in the file: its text, and where it stands."""

    text: str
    where: str


@dataclass(frozen=True, slots=True)
class Profile:
    """One profile. `given` also has the settings for all profiles. `known`: the file has a table for it."""

    name: str
    known: bool
    given: dict[str, RawSetting]


def config_file() -> Path:
    return xdg_directory("XDG_CONFIG_HOME", "~/.config") / "config.toml"


def private(directory: Path) -> Path:
    """Make the directory, for the user alone. Raises ConfigError."""
    try:
        make_private(directory)
    except OSError as error:
        raise ConfigError(f"{directory}: cannot be made: {error.strerror}") from None
    return directory


def write_private(file: Path, text: str) -> None:
    """Replace a file in one step, readable by the user alone. A link stays a link. Raises ConfigError."""
    target = Path(os.path.realpath(file))
    private(target.parent)
    try:
        replace_file(target, text.encode(), durable=True)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}") from None


def option(name: str) -> str:
    """The option that selects this profile, to be put after a command; empty for the default profile."""
    return "" if name == DEFAULT else f" --profile {name}"


def check_name(name: str) -> str:
    """Return the name if it can also name a file and a systemd instance. Raises ConfigError."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]*", name):
        raise ConfigError(f"profile {name!r}: a name has letters, digits, - and _ only")
    return name


def read(name: str | None) -> Profile:
    """The profile `name`, or the default one; the file need not have it. Raises ConfigError."""
    file, content = config_file(), _content()
    tables = content.pop("profiles", {})
    if not isinstance(tables, dict) or not all(isinstance(each, dict) for each in tables.values()):
        raise ConfigError(f"{file}: profiles are tables: [profiles.{name or DEFAULT}]")
    name = check_name(name or DEFAULT)
    _refuse_tables(content, f"{file}")
    given = _checked(content, f"{file}", file.parent, name)
    given |= _checked(tables.get(name, {}), f"{file} [profiles.{name}]", file.parent, name)
    return Profile(name, name in tables, given)


def names() -> list[str]:
    """All profiles in the file."""
    tables = _content().get("profiles", {})
    return sorted(tables) if isinstance(tables, dict) else []


def with_url(name: str, url: str) -> str:
    """The file's text with `url` as the address of the profile `name`. All else stays as it is written, comments too.

    Raises ConfigError.
    """
    file = config_file()
    wanted = _content()  # raises for a file that cannot be read
    wanted.setdefault("profiles", {}).setdefault(name, {})["url"] = url
    text = file.read_bytes().decode() if file.exists() else ""
    for edit in (_with_line, _with_value):
        edited = edit(text, name, url)
        if edited is not None and _means(edited, wanted):
            return edited
    line = f"url = {json.dumps(url)}"
    raise ConfigError(f"{file}: the profile is not written as [profiles.{name}]; put {line} into it yourself")


def _with_line(text: str, name: str, url: str) -> str | None:
    """Add a line below the profile's heading, or both at the end; None if the profile has an address already.

    A library would put the line behind the comments that follow, which are about the next table.
    """
    profile = tomllib.loads(text).get("profiles", {}).get(name, {})
    if "url" in profile:
        return None
    end = "\r\n" if "\r\n" in text else "\n"
    heading, line = f"[profiles.{name}]", f"url = {json.dumps(url)}"
    lines = text.splitlines()
    found = [number for number, each in enumerate(lines) if each.partition("#")[0].replace(" ", "") == heading]
    if found:
        lines.insert(found[0] + 1, line)
    else:
        lines += ["", heading, line] if lines else [heading, line]
    return end.join(lines) + end


def _with_value(text: str, name: str, url: str) -> str | None:
    """Set the address in a table that may be written in any way; None if TOML has no way to add it there."""
    import tomlkit  # only `login` needs it, and it takes longer to load than the rest of a short command

    try:
        document = tomlkit.parse(text)
        if "profiles" not in document:
            document["profiles"] = tomlkit.table(is_super_table=True)  # without a heading of its own
        if name not in document["profiles"]:
            document["profiles"][name] = tomlkit.table()
        document["profiles"][name]["url"] = url
        return tomlkit.dumps(document)
    except (tomlkit.exceptions.TOMLKitError, ValueError, TypeError):
        return None


def _means(text: str, wanted: dict[str, Any]) -> bool:
    """Whether a text is valid TOML for just this: there are more ways to write a table than can be foreseen."""
    try:
        return tomllib.loads(text) == wanted
    except tomllib.TOMLDecodeError:
        return False


def write(text: str) -> None:
    write_private(config_file(), text)


def _content() -> dict[str, Any]:
    file = config_file()
    try:
        with open(file, "rb") as stream:
            return tomllib.load(stream)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from None


def _refuse_tables(content: dict[str, Any], where: str) -> None:
    """Refuse tables that are no profiles, and name the profile that was probably meant. Raises ConfigError."""
    for key, value in content.items():
        if isinstance(value, dict) and key not in SETTINGS:
            below = [name for name, each in value.items() if isinstance(each, dict)]
            meant = key if not near(key, ["profiles"]) else below[0] if below else DEFAULT
            written = f"{key}.{below[0]}" if below else key
            raise ConfigError(f"{where}: [{written}]: no such table; did you mean [profiles.{meant}]?")


def _checked(table: dict[str, Any], where: str, base: Path, profile: str) -> dict[str, RawSetting]:
    given = {}
    for key, value in table.items():
        name = key.replace("_", "-")
        if name in _SECRETS:
            raise ConfigError(
                f"{where}: an API key is not kept here: remove the line of {key!r}, and run "
                f"`cloudsimfs login{option(profile)}`"
            )
        if name not in SETTINGS:
            raise ConfigError(f"{where}: {key}: no such setting{near(name, SETTINGS)}")
        text = _text(value, f"{where}: {key}")
        if SETTINGS[name].kind in (FILE, DIRECTORY) and not text.startswith("~"):
            text = str(base / text)  # relative to the file, not to where the command runs
        given[name] = RawSetting(text, where)
    return given


def _text(value: object, where: str) -> str:
    """The value as it would be written on the command line, where the setting's kind checks it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ",".join(value)
    raise ConfigError(f"{where}: write a text, a number, or true or false")
