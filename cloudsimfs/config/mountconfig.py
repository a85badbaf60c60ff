"""The configuration of a mount: its account and its own settings. Makes no API call."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from cloudsimfs.config.accounts import Api, account, state_dir
from cloudsimfs.config.precedence import Settings
from cloudsimfs.config.settings import SETTINGS, default
from cloudsimfs.datacache.directory import make_directory
from cloudsimfs.service import Credentials

KERNEL_SHARE = 0.25  # of the TTL: so long the kernel may answer by itself; a listing gets the rest
CACHE_SHARE = 0.8  # of the free space on the cache's disk, if that is less than the cache's size


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration of one mount. Times in seconds, sizes in bytes."""

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
    insecure_http: bool = False
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


def mount_config(settings: Settings, mount_options: tuple[str, ...]) -> Config:
    """The configuration that the settings lead to. `mount_options` are for the kernel, checked by `mountoptions`."""
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


def cache_limit(directory: Path, wanted: int) -> int:
    """`wanted` bytes, or 80 % of what is free on the cache's disk if that is less (docs/architecture.md, "Data")."""
    make_directory(directory)
    return min(wanted, int(shutil.disk_usage(directory).free * CACHE_SHARE))
