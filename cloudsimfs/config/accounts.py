"""The account that settings lead to: its address, its key, and its directories. Makes no API call."""

from __future__ import annotations

import hashlib
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from cloudsimfs.clock import Clock
from cloudsimfs.config import keys, profiles
from cloudsimfs.config.precedence import Settings
from cloudsimfs.config.settings import SETTINGS, xdg_directory
from cloudsimfs.errors import ConfigError
from cloudsimfs.service import Client, Credentials, connect
from cloudsimfs.service.endpoint import check_base_url

Api = Literal["auto", "v1", "v2"]


@dataclass(frozen=True, slots=True)
class Account:
    """A user's account at a service: all that a command without a mount needs. `directory` holds its cache."""

    url: str
    credentials: Credentials
    key_source: str
    api: Api
    key_in_query: bool
    insecure_http: bool
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
            insecure_http=self.insecure_http,
            offline=offline,
            clock=clock,
            stop=stop,
        )


def account(settings: Settings) -> Account:
    """The address and the key that the settings lead to. Makes no call."""
    url, login = settings["url"], f"cloudsimfs login{profiles.option(settings.profile)}"
    if url is None:
        raise ConfigError(f"no service address: give --url URL, set CLOUDSIMFS_URL, or run `{login}` once")
    url = check_base_url(url, insecure_http=settings["insecure-http"])
    named = settings.values["key-file"]
    key = keys.find(settings.profile, named.value, of_profile=named.of_profile)
    if key is None:
        raise ConfigError(
            f"no API key for {url}: run `{login}`, give --key-file FILE (the key, or the service's license file), "
            f"or set {keys.VARIABLE}"
        )
    if key.stored:
        _check_address(settings, key, url)
    return Account(
        url=url,
        credentials=key.credentials,
        key_source=key.where,
        api=settings["api"],
        key_in_query=settings["key-in-query"],
        insecure_http=settings["insecure-http"],
        calls_per_hour=settings["calls-per-hour"],
        directory=account_dir(settings["cache-dir"], url, key.credentials.key),
    )


def _check_address(settings: Settings, key: keys.StoredKey, url: str) -> None:
    """Refuse to send a profile's key to another service. Raises ConfigError."""
    in_file, address = profiles.read(settings.profile).given.get("url"), key.credentials.address
    if key.by_login and address is not None and address != url:
        raise ConfigError(
            f"the key in {key.where} is for {address}, and {settings.values['url'].source} names another service: "
            f"run `cloudsimfs login{profiles.option(settings.profile)}` for it, or give --key-file"
        )
    if key.by_login and address is None and in_file is None:
        raise ConfigError(
            f"the key in {key.where} is for an address that is not recorded: "
            f"run `cloudsimfs login{profiles.option(settings.profile)}` again"
        )
    if in_file is not None and SETTINGS["url"].kind.parse(in_file.text) != settings["url"]:
        raise ConfigError(
            f"the key in {key.where} is for {in_file.text}, and {settings.values['url'].source} names another "
            "service: give --key-file, or a --profile of its own"
        )


def account_dir(base: Path | None, url: str, key: str) -> Path:
    """Where one account's cache and journal live: below `base`, or `$XDG_CACHE_HOME/cloudsimfs`.

    There is one directory per service address and key: what waits in it must never be uploaded with another
    account's key.
    """
    digest = hashlib.sha256(key.encode()).hexdigest()[:8]
    return cache_base(base) / f"{_service_name(url)}-{digest}"


def account_dirs(base: Path | None, url: str | None) -> list[Path]:
    """The existing directories of all accounts, or of those at the service `url`."""
    name = "*" if url is None else f"{_service_name(url)}-????????"
    return sorted(data.parent for data in cache_base(base).glob(f"{name}/data"))


def state_dir(settings: Settings, owner: Account) -> Path:
    """Where one account's logs live: in a cache directory of the user's choice, else below `$XDG_STATE_HOME`."""
    if settings["cache-dir"] is not None:
        return owner.directory
    return launches_dir(owner.directory)


def launches_dir(directory: Path) -> Path:
    """Where the launches of the account with this cache directory are recorded, wherever that directory is."""
    return xdg_directory("XDG_STATE_HOME", "~/.local/state") / directory.name


def cache_base(base: Path | None) -> Path:
    return (base or xdg_directory("XDG_CACHE_HOME", "~/.cache")).absolute()


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
    return [other for other in directory.parent.glob(directory.name[:-8] + "*") if other != directory]
