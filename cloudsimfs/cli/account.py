"""`login`, `logout` and `config`: the profile's account and its settings."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from cloudsimfs import config
from cloudsimfs.cli.adopting import note_other_keys
from cloudsimfs.cli.group import main
from cloudsimfs.cli.options import options, settings_of
from cloudsimfs.cli.table import echo_table
from cloudsimfs.config import keys, profiles
from cloudsimfs.config.settings import SETTINGS
from cloudsimfs.errors import ConfigError, KeyRefused, MountError, ServiceError
from cloudsimfs.redact import redact
from cloudsimfs.service import Credentials, connect, load_key
from cloudsimfs.service.credentials import check_key
from cloudsimfs.service.endpoint import check_base_url

LOGIN_EPILOG = """\
\b
Examples:
  cloudsimfs login                                           asks for the address and the key
  cloudsimfs login --url https://service.example --license license.json
  cloudsimfs login --profile work --keyring
  pass show service | cloudsimfs login --url https://service.example

One API call checks the address and the key. The address goes into config.toml, the key into a file beside it that
only you can read, or with --keyring into the desktop's keyring.
"""


@main.command(epilog=LOGIN_EPILOG)
@options("url", "api", "key-in-query", "insecure-http")
@click.option("--license", "license_file", type=click.Path(path_type=Path), help="The service's license file.")
@click.option("--keyring", is_flag=True, help="Store the key in the desktop's keyring.")
def login(license_file: Path | None, keyring: bool, **given: Any) -> None:
    """Check an address and an API key, and store them for the profile."""
    settings = settings_of(given, new=True)
    _refuse_shadowed(settings)
    if keyring:
        keys.check_keyring()
    url = _url(settings)
    credentials = load_key(license_file) if license_file else _ask_for_key(url)
    _check(settings, url, credentials.key)
    kept = _keep(settings.profile, url, Credentials(None, credentials.key, url), keyring=keyring)
    user = f" as {credentials.username}" if credentials.username else ""
    option = profiles.option(settings.profile)
    click.echo(f"{url} accepts the key{user}; it is kept in {kept}. Next: cloudsimfs mount{option} MOUNTPOINT")
    note_other_keys(config.account_dir(settings["cache-dir"], url, credentials.key))


def _keep(profile: str, url: str, key: Credentials, *, keyring: bool) -> str:
    """Store the address and the key. Returns where the key is now."""
    text = profiles.with_url(profile, url)
    keys.forget(profile)  # the old key must never meet the new address
    profiles.write(text)
    if keyring:
        keys.store_in_keyring(profile, key)
        return "the keyring"
    return str(keys.store(profile, key))


def _refuse_shadowed(settings: config.Settings) -> None:
    """Refuse to store a key that another one takes precedence over: the user would wonder later."""
    named = settings.values["key-file"]
    if os.environ.get(keys.VARIABLE, "").strip():
        raise ConfigError(f"{keys.VARIABLE} is set and takes precedence over a stored key: unset {keys.VARIABLE}")
    if named.value is not None:
        raise ConfigError(
            f"{named.source} names the key file {named.value}, which takes precedence over a stored key: "
            "remove that setting"
        )


def _url(settings: config.Settings) -> str:
    given = settings.values["url"]
    if given.value is not None and not (given.of_profile and sys.stdin.isatty()):
        return check_base_url(str(given.value), insecure_http=settings["insecure-http"])
    if not sys.stdin.isatty():
        raise ConfigError("no service address: give --url URL")
    asked = click.prompt("Service address (https://...)", default=given.value, err=True)
    return check_base_url(str(asked), insecure_http=settings["insecure-http"])


def _ask_for_key(url: str) -> Credentials:
    """Read the key from the terminal, without echo, or from the first line of a pipe."""
    if sys.stdin.isatty():
        key = click.prompt(f"API key for {url} (not shown)", hide_input=True, err=True)
    else:
        key = sys.stdin.readline()
    check_key(key.strip(), "the key that was entered")
    return Credentials(None, key.strip())


def _check(settings: config.Settings, url: str, key: str) -> None:
    """Make one call that changes nothing: in v1, which every account may use, unless v2 was asked for."""
    api: config.Api = "v2" if settings["api"] == "v2" else "v1"
    carried = {"key_in_query": settings["key-in-query"], "insecure_http": settings["insecure-http"]}
    with connect(base_url=url, key=key, api=api, **carried) as client:
        try:
            client.cpu_values()
        except KeyRefused as error:
            raise KeyRefused(f"{url} does not accept this key; nothing was stored: {error}") from None
        except ServiceError as error:
            raise MountError(f"{url} does not answer as the service does; nothing was stored: {error}") from None


@main.command()
@options()
def logout(**given: Any) -> None:
    """Remove the key that `login` stored for the profile. Its settings stay, and so does what waits for upload."""
    settings = settings_of(given, new=True)
    removed = keys.forget(settings.profile)
    if not removed and settings.profile not in (profiles.DEFAULT, *profiles.names()):
        raise config.unknown_profile(settings.profile)
    click.echo(f"profile {settings.profile}: {'the key is removed' if removed else 'no key was stored'}")


@main.group("config")
def config_group() -> None:
    """The settings and where they come from."""


@config_group.command()
@options()
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def show(as_json: bool, **given: Any) -> None:
    """Show every setting of the profile, and where it comes from. Keys are not shown."""
    settings = settings_of(given)
    shown = dict(settings.values) | {"api-key": _key(settings)}
    if as_json:
        found = {name: {"value": _plain(name, each.value), "source": each.source} for name, each in shown.items()}
        click.echo(json.dumps(found))
        return
    click.echo(f"profile {settings.profile}, configuration file {profiles.config_file()}")
    rows = [(name, _text(name, each), each.source) for name, each in shown.items()]
    echo_table(("SETTING", "VALUE", "FROM"), rows)


def _key(settings: config.Settings) -> config.Value:
    named = settings.values["key-file"]
    try:
        key = keys.find(settings.profile, named.value, of_profile=named.of_profile)
    except ConfigError as error:
        return config.Value(None, f"unusable: {error}", "none")
    if key is None:
        return config.Value(None, f"nowhere: run `cloudsimfs login{profiles.option(settings.profile)}`", "none")
    return config.Value("hidden", key.where, "hidden")


def _plain(name: str, value: Any) -> Any:
    """The value as JSON can hold it."""
    if name == "umask":
        return f"{value:03o}"
    return redact(str(value)) if isinstance(value, (str, Path)) else value


def _text(name: str, each: config.Value) -> str:
    """The value as the user wrote it; a path is absolute."""
    if isinstance(each.value, Path):
        return str(each.value)
    return f"({SETTINGS[name].unset})" if each.text is None else redact(each.text)
