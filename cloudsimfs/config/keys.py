"""The user's API key. The first of these counts: CLOUDSIMFS_API_KEY, --key-file, the profile's key file, the keyring.

The desktop's keyring is reached through the optional package `keyring`. A stored key belongs to a profile and its
address. No key ever appears in a message.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudsimfs.config.profiles import config_file, write_private
from cloudsimfs.errors import ConfigError
from cloudsimfs.redact import register_secret
from cloudsimfs.service import Credentials, load_key
from cloudsimfs.service.credentials import check_key, parse_key

VARIABLE = "CLOUDSIMFS_API_KEY"
_SERVICE = "cloudsimfs"  # the name of our entries in the keyring


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key and where it was found. `stored`: it is the profile's own, and goes to the profile's address only.

    `by_login`: it goes only to the address it was stored with, whatever the profile says now.
    """

    credentials: Credentials
    where: str
    stored: bool
    by_login: bool = False


def from_environment() -> Credentials | None:
    key = os.environ.get(VARIABLE, "").strip()
    if not key:
        return None
    check_key(key, VARIABLE)
    register_secret(key)
    return Credentials(None, key)


def find(profile: str, key_file: Path | None, *, of_profile: bool) -> StoredKey | None:
    """The key to use, if there is one. `of_profile`: `key_file` comes from the profile, not from the command."""
    if credentials := from_environment():
        return StoredKey(credentials, VARIABLE, stored=False)
    if key_file is not None:
        return StoredKey(load_key(key_file), str(key_file), stored=of_profile)
    own = profile_file(profile)
    if own.exists():
        return StoredKey(load_key(own), str(own), stored=True, by_login=True)
    if text := _keyring_get(profile):
        where = "the system keyring"
        return StoredKey(parse_key(text, where), where, stored=True, by_login=True)
    return None


def profile_file(profile: str) -> Path:
    """Where `login` keeps the key of a profile."""
    return config_file().parent / f"{profile}.key"


def store(profile: str, key: Credentials) -> Path:
    """Store the key, with its address, in the profile's own file (0600). Returns the file."""
    file = profile_file(profile)
    write_private(file, key.as_text() + "\n")
    return file


def check_keyring() -> None:
    if _keyring() is None:
        raise ConfigError("--keyring: the package is missing; install it: pip install 'cloudsimfs[keyring]'")


def store_in_keyring(profile: str, key: Credentials) -> None:
    """Store the key in the system keyring, and remove the profile's key file."""
    check_keyring()
    try:
        _keyring().set_password(_SERVICE, profile, key.as_text())
    except Exception as error:  # noqa: BLE001  # each backend has its own
        raise ConfigError(f"--keyring: it refused the key ({type(error).__name__}); leave out --keyring") from None
    profile_file(profile).unlink(missing_ok=True)


def forget(profile: str) -> bool:
    """Remove the profile's key from its file and from the keyring. Returns whether there was one."""
    file, removed = profile_file(profile), False
    with contextlib.suppress(FileNotFoundError):
        file.unlink()
        removed = True
    if _keyring_get(profile) is not None:
        with contextlib.suppress(Exception):
            _keyring().delete_password(_SERVICE, profile)
            removed = True
    return removed


def _keyring() -> Any:
    try:
        import keyring
    except ImportError:
        return None
    return keyring


def _keyring_get(profile: str) -> str | None:
    keyring = _keyring()
    if keyring is None:
        return None
    try:
        text = keyring.get_password(_SERVICE, profile)
    except Exception:  # noqa: BLE001  # without a running keyring there is no key in it
        return None
    return text if isinstance(text, str) and text else None
