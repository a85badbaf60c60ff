"""From settings to what a command works with: a mount's Config, or an Account. Raises ConfigError with the remedy.

Each value comes from, in increasing strength: its default, the configuration file, the profile, the environment,
the command line.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from cloudsimfs import cachedir, keys, profiles
from cloudsimfs.clock import Clock
from cloudsimfs.errors import ConfigError
from cloudsimfs.service import Client, Credentials, connect
from cloudsimfs.service.exchange import check_base_url
from cloudsimfs.settings import SETTINGS, Setting, default, home, near

Api = Literal["auto", "v1", "v2"]

KERNEL_SHARE = 0.25  # of the TTL, for which the kernel may answer by itself; the rest is the listing's
CACHE_SHARE = 0.8  # of what is free on the cache's disk, if that is less than the cache's size

PROFILE_VARIABLE = "CLOUDSIMFS_PROFILE"


@dataclass(frozen=True, slots=True)
class Value:
    """A setting's value and where it came from, as a user would say it."""

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


@dataclass(frozen=True, slots=True)
class Account:
    """A user's account at a service: all that a command without a mount needs. `directory` is its cache's."""

    url: str
    credentials: Credentials
    key_source: str
    api: Api
    key_in_query: bool
    calls_per_hour: int | None
    directory: Path

    def connect(
        self, *, offline: bool = False, clock: Clock | None = None, stop: threading.Event | None = None
    ) -> Client:
        """A client for it; makes no call."""
        return connect(
            base_url=self.url,
            key=self.credentials.key,
            api=self.api,
            calls_per_hour=self.calls_per_hour,
            key_in_query=self.key_in_query,
            offline=offline,
            clock=clock,
            stop=stop,
        )


@dataclass(frozen=True, slots=True)
class Config:
    """What `cloudsimfs mount` was asked for. Times in seconds, sizes in bytes."""

    url: str
    credentials: Credentials
    cache_dir: Path
    key_source: str = "whoever asked"
    api: Api = "auto"
    cache_size: int = default("cache-size")
    ttl: float = default("ttl")
    run_ttl: float = default("run-ttl")
    write_back: float = default("write-back")
    fsync: str = default("fsync")
    offline: bool = False
    key_in_query: bool = False
    read_only: bool = False
    allow_other: bool = False
    uid: int = 0
    gid: int = 0
    umask: int = 0
    calls_per_hour: int | None = None
    log_file: Path | None = None
    log_level: str = default("log-level")
    log_format: str = default("log-format")
    mount_options: tuple[str, ...] = ()


# -- settings --------------------------------------------------------------------------------------------------


def resolve(given: Mapping[str, str | None], profile: str | None = None, *, new: bool = False) -> Settings:
    """The settings in effect; `given` is the command line's, by name, as text.

    The profile is `profile`, else CLOUDSIMFS_PROFILE, else the default one. `new`: it need not exist.
    """
    found = profiles.read(profile or os.environ.get(PROFILE_VARIABLE) or None)
    if not found.known and not new and found.name != profiles.DEFAULT:
        raise unknown_profile(found.name, f"; make it: cloudsimfs login{profiles.option(found.name)}")
    values = {name: _value(row, given.get(name), found.given.get(name)) for name, row in SETTINGS.items()}
    return Settings(found.name, values)


def unknown_profile(name: str, remedy: str = "") -> ConfigError:
    """That there is none of this name; `remedy` if none is called alike, either."""
    hint = near(name, profiles.names()) or remedy
    return ConfigError(f"profile {name}: not in {profiles.config_file()}{hint}")


def _value(row: Setting, option: str | None, in_file: profiles.Given | None) -> Value:
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


def mount_config(settings: Settings, mount_options: tuple[str, ...]) -> Config:
    """What the mount is built from; `mount_options` are the kernel's, as checked by `mountoptions`."""
    owner = account(settings)
    values = {row.field: settings[name] for name, row in SETTINGS.items() if row.field in Config.__slots__}
    values |= {
        "url": owner.url,
        "cache_dir": owner.directory,
        "uid": os.getuid() if settings["uid"] is None else settings["uid"],
        "gid": os.getgid() if settings["gid"] is None else settings["gid"],
        "log_file": settings["log-file"] or state_dir(settings, owner) / "mount.log",
    }
    return Config(credentials=owner.credentials, key_source=owner.key_source, mount_options=mount_options, **values)


# -- the account -----------------------------------------------------------------------------------------------


def account(settings: Settings) -> Account:
    """The address and the key that the settings lead to. Makes no call."""
    url, login = settings["url"], f"cloudsimfs login{profiles.option(settings.profile)}"
    if url is None:
        raise ConfigError(f"no service address: give --url URL, set CLOUDSIMFS_URL, or run `{login}` once")
    url = check_base_url(url)
    named = settings.values["key-file"]
    found = keys.find(settings.profile, named.value, of_profile=named.of_profile)
    if found is None:
        raise ConfigError(
            f"no API key for {url}: run `{login}`, give --key-file FILE (the key, or the service's license file), "
            f"or set {keys.VARIABLE}"
        )
    if found.stored:
        _check_address(settings, found)
    return Account(
        url=url,
        credentials=found.credentials,
        key_source=found.where,
        api=settings["api"],
        key_in_query=settings["key-in-query"],
        calls_per_hour=settings["calls-per-hour"],
        directory=account_dir(settings["cache-dir"], url, found.credentials.key),
    )


def _check_address(settings: Settings, found: keys.Found) -> None:
    """A profile's key is not for another service's eyes."""
    in_file = profiles.read(settings.profile).given.get("url")
    if in_file is not None and SETTINGS["url"].kind.parse(in_file.text) != settings["url"]:
        raise ConfigError(
            f"the key in {found.where} is for {in_file.text}, and {settings.values['url'].source} names another "
            "service: give --key-file, or a --profile of its own"
        )


def account_dir(base: Path | None, url: str, key: str) -> Path:
    """Where one account's cache and journal live: below `base`, or `$XDG_CACHE_HOME/cloudsimfs`.

    One directory per service address and key: what waits there must never go up under another account's key.
    """
    digest = hashlib.sha256(key.encode()).hexdigest()[:8]
    return cache_base(base) / f"{_service_name(url)}-{digest}"


def account_dirs(base: Path | None, url: str | None) -> list[Path]:
    """The directories there are of all accounts, or of those at the service `url`."""
    name = "*" if url is None else f"{_service_name(url)}-????????"
    return sorted(found.parent for found in cache_base(base).glob(f"{name}/data"))


def state_dir(settings: Settings, owner: Account) -> Path:
    """Where one account's logs live: with a cache directory of the user's choice there, else `$XDG_STATE_HOME`."""
    if settings["cache-dir"] is not None:
        return owner.directory
    return home("XDG_STATE_HOME", "~/.local/state") / owner.directory.name


def cache_base(base: Path | None) -> Path:
    return (base or home("XDG_CACHE_HOME", "~/.cache")).absolute()


def _service_name(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    name = re.sub(r"[^A-Za-z0-9.-]", "_", f"{parts.netloc.rpartition('@')[2]}{parts.path}".strip("/"))
    if not name:
        raise ConfigError(f"{url!r} is no service address; write for example https://service.example")
    return name


def other_accounts(directory: Path) -> list[Path]:
    """The directories of other keys at the same service."""
    return [found for found in directory.parent.glob(directory.name[:-8] + "*") if found != directory]


def cache_limit(directory: Path, wanted: int) -> int:
    """`wanted` bytes, or 80 % of what is free on the cache's disk if that is less (design.md section 4)."""
    cachedir.make(directory)
    return min(wanted, int(shutil.disk_usage(directory).free * CACHE_SHARE))
