"""Settings of a mount: defaults, units, checks, the key. Raises ConfigError with the name and the remedy."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from cloudsimfs.errors import ConfigError
from cloudsimfs.service import Credentials, load_key
from cloudsimfs.service.credentials import check_key

Api = Literal["auto", "v1", "v2"]

TTL = 60.0  # seconds a listing is believed
RUN_TTL = 15.0  # seconds the list of runs is believed
KERNEL_SHARE = 0.25  # of the TTL, for which the kernel may answer by itself; the rest is the listing's
WRITE_BACK = 2.0  # seconds from the last close to the upload
CACHE_SIZE = 20 << 30  # bytes
CACHE_SHARE = 0.8  # of what is free on the cache's disk, if that is less

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, slots=True)
class Config:
    """What `cloudsimfs mount` was asked for. Times in seconds, sizes in bytes."""

    url: str
    credentials: Credentials
    cache_dir: Path
    api: Api = "auto"
    cache_size: int = CACHE_SIZE
    ttl: float = TTL
    run_ttl: float = RUN_TTL
    write_back: float = WRITE_BACK
    fsync: Literal["local", "remote"] = "local"
    offline: bool = False
    key_in_query: bool = False
    read_only: bool = False
    allow_other: bool = False
    uid: int = 0
    gid: int = 0
    umask: int = 0
    calls_per_hour: int | None = None
    log_file: Path | None = None
    log_level: str = "INFO"
    mount_options: tuple[str, ...] = ()


def parse_size(text: str) -> int:
    """`20G`, `512MiB`, `1000` as bytes; K, M, G, T are powers of 1024."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if match is None:
        raise ConfigError(f"{text!r} is not a size; write for example 500M or 20G")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def find_credentials(key_file: Path | None) -> Credentials:
    """The key from CLOUDSIMFS_API_KEY, else from the key or license file (design.md section 6)."""
    key = os.environ.get("CLOUDSIMFS_API_KEY", "").strip()
    if key:
        check_key(key, "CLOUDSIMFS_API_KEY")
        return Credentials(None, key)
    if key_file is None:
        raise ConfigError(
            "no API key: give --key-file FILE (the key, or the service's license file), or CLOUDSIMFS_API_KEY"
        )
    return load_key(key_file)


def account_dir(base: Path | None, url: str, key: str) -> Path:
    """Where one account's cache and journal live: below `base`, or `$XDG_CACHE_HOME/cloudsimfs`.

    One directory per service address and key: what waits there must never go up under another account's key.
    """
    digest = hashlib.sha256(key.encode()).hexdigest()[:8]
    return _cache_base(base) / f"{_service_name(url)}-{digest}"


def account_dirs(base: Path | None, url: str | None) -> list[Path]:
    """The directories there are of all accounts, or of those at the service `url`."""
    name = "*" if url is None else f"{_service_name(url)}-????????"
    return sorted(found.parent for found in _cache_base(base).glob(f"{name}/data"))


def _cache_base(base: Path | None) -> Path:
    if base is None:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        base = Path(home) / "cloudsimfs"
    return base.absolute()


def _service_name(url: str) -> str:
    parts = urlsplit(url)
    name = re.sub(r"[^A-Za-z0-9.-]", "_", f"{parts.netloc}{parts.path}".strip("/"))
    if not name:
        raise ConfigError(f"{url!r} is no service address; write for example https://service.example")
    return name


def other_accounts(directory: Path) -> list[Path]:
    """The directories of other keys at the same service."""
    return [found for found in directory.parent.glob(directory.name[:-8] + "*") if found != directory]


def cache_limit(directory: Path, wanted: int) -> int:
    """`wanted` bytes, or 80 % of what is free on the cache's disk if that is less (design.md section 4)."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(f"{directory}: the cache directory cannot be made: {error.strerror}") from None
    return min(wanted, int(shutil.disk_usage(directory).free * CACHE_SHARE))
