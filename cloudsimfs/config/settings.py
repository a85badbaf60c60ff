"""The one table of settings: name, kind, default and help. Options, environment, profiles and help come from it.

Pure. A setting `cache-size` is the option `--cache-size`, the variable CLOUDSIMFS_CACHE_SIZE, the key `cache-size` of
a profile, the word `cache-size=` after `-o`, and the field `cache_size` of Config.
"""

from __future__ import annotations

import grp
import math
import os
import pwd
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from cloudsimfs.text import MIB, parse_size

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")

LEAST_CACHE = MIB  # bytes; a smaller number was meant to have a unit
_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of a value. `parse` makes the value from text; raises ValueError with the fault and its remedy."""

    metavar: str
    parse: Callable[[str], Any]
    words: tuple[str, ...] = ()  # all possible values, for completion


def _cache_size(text: str) -> int:
    size = parse_size(text)
    if size < LEAST_CACHE:
        raise ValueError("less than 1M; write for example 500M or 20G")
    return size


def near(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for a mistyped word, or nothing."""
    matches = get_close_matches(word, list(known), 1)
    return f"; did you mean {matches[0]}?" if matches else ""


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError("not a number of seconds; write for example 60")
    return seconds


def _count(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) == 0:
        raise ValueError("not a number from 1 up")
    return int(text)


def _flag(text: str) -> bool:
    if text.lower() not in _WORDS:
        raise ValueError("neither true nor false")
    return _WORDS[text.lower()]


def _umask(text: str) -> int:
    if not re.fullmatch("[0-7]{1,4}", text):
        raise ValueError("not an octal number such as 022")
    return int(text, 8) & 0o777


def _user(text: str) -> int:
    try:
        return int(text) if text.isdecimal() else pwd.getpwnam(text).pw_uid
    except KeyError:
        raise ValueError("no such user") from None


def _group(text: str) -> int:
    try:
        return int(text) if text.isdecimal() else grp.getgrnam(text).gr_gid
    except KeyError:
        raise ValueError("no such group") from None


def _path(text: str) -> Path:
    if not text or "\0" in text:
        raise ValueError("not the name of a file")
    return Path(text).expanduser().absolute()


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("empty; write for example https://service.example")
    return text.strip().rstrip("/")


def split_options(text: str) -> tuple[str, ...]:
    """`ro,ttl=5` as its words; a comma within one is written `\\,` as libfuse has it."""
    return tuple(word for word in re.split(r"(?<!\\),", text) if word)


def _choice(*words: str) -> Kind:
    def parse(text: str) -> str:
        exact = {word.lower(): word for word in words}.get(text.lower())
        if exact is None:
            raise ValueError(f"not one of {', '.join(words)}{near(text, words)}")
        return exact

    return Kind("|".join(words), parse, words)


URL = Kind("URL", _text)
FILE = Kind("FILE", _path)
DIRECTORY = Kind("DIR", _path)
SIZE = Kind("SIZE", _cache_size)
SECONDS = Kind("SECONDS", _seconds)
COUNT = Kind("N", _count)
FLAG = Kind("", _flag)
OPTIONS = Kind("OPTION,...", split_options)


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of the table. `default` is text as a user would write it. If it is None, `unset` says what holds."""

    name: str
    kind: Kind
    default: str | None
    help: str
    unset: str = "none"

    @property
    def field(self) -> str:
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        return "CLOUDSIMFS_" + self.field.upper()


_ROWS = (
    Setting("url", URL, None, "The service's address; /api/v1 and /api/v2 are below it."),
    Setting("api", _choice("auto", "v1", "v2"), "auto", "The API version; auto asks the service."),
    Setting(
        "key-file",
        FILE,
        None,
        "A file with the API key alone, or the service's license file.",
        "the key that `cloudsimfs login` stored",
    ),
    Setting("key-in-query", FLAG, "false", "v1 only: send the key in the query, for proxies that drop its header."),
    Setting("insecure-http", FLAG, "false", "Send the key unencrypted to an http:// address of another machine."),
    Setting("calls-per-hour", COUNT, None, "At most this many API calls an hour.", "the account's own limit"),
    Setting("mountpoint", DIRECTORY, None, "Where to mount when no MOUNTPOINT is given."),
    Setting("cache-dir", DIRECTORY, None, "Where file contents and the journal are kept.", "~/.cache/cloudsimfs"),
    Setting("cache-size", SIZE, "20G", "At most this much on disk, and at most 80 % of what is free."),
    Setting("ttl", SECONDS, "60", "How long a listing counts as fresh."),
    Setting("run-ttl", SECONDS, "15", "How long the list of runs counts as fresh."),
    Setting("write-back", SECONDS, "2", "The time from the last close to the upload."),
    Setting("fsync", _choice("local", "remote"), "local", "What fsync(2) waits for: this disk, or the service."),
    Setting("offline", FLAG, "false", "Make no API call: show what is known, read what is cached."),
    Setting("read-only", FLAG, "false", "Refuse every change."),
    Setting("allow-other", FLAG, "false", "Other users may use the mount; see fuse.conf(5)."),
    Setting("uid", Kind("USER", _user), None, "Owner of the files.", "you"),
    Setting("gid", Kind("GROUP", _group), None, "Group of the files.", "yours"),
    Setting("umask", Kind("OCTAL", _umask), "022", "Permission bits that files do not get."),
    Setting("log-file", FILE, None, "Where the mount logs.", "below ~/.local/state/cloudsimfs"),
    Setting("log-level", _choice(*LOG_LEVELS), "INFO", "The lowest level that is logged."),
    Setting("log-format", _choice("text", "json"), "text", "The format of the log."),
    Setting("options", OPTIONS, None, "More mount options, separated by commas, as after -o."),
)

SETTINGS = {row.name: row for row in _ROWS}


def default(name: str) -> Any:
    row = SETTINGS[name]
    return None if row.default is None else row.kind.parse(row.default)


ACCOUNT = ("url", "api", "key-file", "key-in-query", "insecure-http", "calls-per-hour", "cache-dir")
"""The settings of a command that talks to the service without a mount."""

DIRECT = tuple(name for name in SETTINGS if name not in ("mountpoint", "options"))
"""The settings that are options of `mount` under their own names; the others are its argument, and -o."""


def xdg_directory(variable: str, default: str) -> Path:
    """Our directory below an XDG base directory; a relative base is ignored, as the specification asks."""
    base = os.environ.get(variable, "")
    return Path(base if base.startswith("/") else os.path.expanduser(default)) / "cloudsimfs"
