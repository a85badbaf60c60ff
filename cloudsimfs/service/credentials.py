"""The API key from the user's file. No state, no network; never shows the key."""

from __future__ import annotations

import errno
import json
import logging
import os
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cloudsimfs.errors import ConfigError
from cloudsimfs.redact import register_secret

log = logging.getLogger(__name__)

_MAX_KEY_FILE = 64 * 1024  # bytes; a key or license file is far smaller
_KEY_MEMBERS = ("apikey", "key", "token", "apitoken", "accesskey", "accesstoken", "licensekey", "secret")
_ADDRESS = "cloudsimfs-address"
_USER_MEMBERS = ("username", "user", "login", "email", "name")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user's key. Only a license file says the `username`; only what `as_text` made, the `address` it is for."""

    username: str | None
    key: str = field(repr=False)
    address: str | None = None

    def as_text(self) -> str:
        """What `parse_key` makes the same of."""
        return json.dumps({"key": self.key, _ADDRESS: self.address})


def load_key(path: str | os.PathLike[str]) -> Credentials:
    """Read the key from `path`: one line, or the service's license file (docs/service.md, "Authentication").

    Raises ConfigError, which says what is wrong with the file: also if others may have put a key of theirs there.
    Logs a warning if other users can read it.
    """
    name = os.fspath(path)
    try:
        with open(os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            found = os.fstat(file.fileno())
            _check_file(name, found)
            content = file.read(_MAX_KEY_FILE + 1)
    except OSError as error:
        raise ConfigError(f"key file {name}: {error.strerror}") from None
    except ValueError:
        raise ConfigError(f"key file {name!r}: not a file name") from None
    if found.st_mode & (stat.S_IRGRP | stat.S_IROTH):
        log.warning("key file %s can be read by others; run: chmod 600 %s", name, shlex.quote(name))
    if len(content) > _MAX_KEY_FILE:
        raise ConfigError(f"key file {name}: too large to be a key or a license file")
    try:
        text = content.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        raise ConfigError(f"key file {name}: not a text file") from None
    if not text:
        raise ConfigError(f"key file {name}: it is empty")
    return parse_key(text, f"key file {name}")


def parse_key(text: str, where: str) -> Credentials:
    """The key in a text: the key alone, or a license. Raises ConfigError, which says what is wrong `where`."""
    credentials = _from_license(text, where) if text.startswith("{") else Credentials(None, text)
    check_key(credentials.key, where)
    register_secret(credentials.key)
    return credentials


def _check_file(name: str, found: os.stat_result) -> None:
    """Raises ConfigError for a file that decides nothing: a pipe, or one in which others may write."""
    if stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"key file {name}: {os.strerror(errno.EISDIR)}")
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"key file {name}: no regular file; save the key in a file, and run: chmod 600 FILE")
    if found.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            f"key file {name}: it belongs to another user ({found.st_uid}), who may put another key there; "
            f"copy it to a file of your own, and run: chmod 600 FILE"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"key file {name}: others may write to it; run: chmod 600 {shlex.quote(name)}")


def check_key(key: str, where: str) -> None:
    """Raises ConfigError, without showing the key, if it cannot be sent as a header."""
    if not key:
        raise ConfigError(f"{where}: the API key is empty")
    if len(key.splitlines()) > 1:
        raise ConfigError(f"{where}: more than one line; it should hold the API key alone or the license JSON")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"{where}: an API key has printable ASCII characters and no spaces")


def _from_license(text: str, where: str) -> Credentials:
    try:
        license_ = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(f"{where}: it starts like a license file but is not valid JSON") from None
    members = {_plain(member): value for member, value in license_.items()}
    key = _first(members, _KEY_MEMBERS)
    if key is None:
        raise ConfigError(f"{where}: the license JSON has no member that is the key (as `api_key`)")
    return Credentials(_first(members, _USER_MEMBERS), key, _first(members, (_plain(_ADDRESS),)))


def _plain(member: str) -> str:
    return member.replace("-", "").replace("_", "").replace(" ", "").lower()


def _first(members: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    for name in names:
        value = members.get(name)
        if isinstance(value, str) and value.strip():
            return value.strip()
    return None
