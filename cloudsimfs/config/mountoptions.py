"""The words after `-o` of mount(8), fstab(5) and mount.fuse3(8): settings of ours, the kernel's, and ignored ones.

Pure. Raises ConfigError for a word nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cloudsimfs.config.settings import DIRECT, FLAG, SETTINGS, near
from cloudsimfs.errors import ConfigError

_OURS = {"ro": ("read-only", "true"), "rw": ("read-only", "false"), "allow_other": ("allow-other", "true")}
"""The usual names of two of our settings."""

_KERNEL = {
    *("exec", "noexec", "suid", "nosuid", "dev", "nodev", "sync", "async", "dirsync"),
    *("atime", "noatime", "diratime", "nodiratime"),
}
_KERNEL_VALUES = {"fsname", "max_read", "context", "fscontext", "defcontext", "rootcontext"}

_IGNORED = {
    *("_netdev", "auto", "noauto", "nofail", "defaults"),  # what only mount(8) and systemd look at
    *("user", "nouser", "users", "owner", "group"),
    *("relatime", "norelatime", "strictatime", "nostrictatime", "lazytime", "nolazytime"),
    *("default_permissions", "comment", "uhelper", "helper"),  # the first holds always
}

SETUID = "setuid="  # read by the helper that mounts on behalf of a user, not by the mount


@dataclass(slots=True)
class MountOptions:
    """`settings` are our settings and `profile`, by name; `kernel` goes to libfuse unchanged."""

    settings: dict[str, str] = field(default_factory=dict)
    kernel: list[str] = field(default_factory=list)


def parse(words: Iterable[str]) -> MountOptions:
    """Sort the words into ours and the kernel's. The last of two that contradict each other counts."""
    options = MountOptions()
    for word in words:
        name, equals, value = word.replace("\\,", ",").partition("=")
        setting = name.replace("_", "-")
        if word in _OURS:
            setting, value = _OURS[word]
            options.settings[setting] = value
        elif name in _IGNORED or name.startswith(("x-", "X-")):
            continue
        elif word in _KERNEL or (name in _KERNEL_VALUES and value):
            options.kernel.append(word)
        elif setting == "profile" or setting in DIRECT:
            options.settings[setting] = _value(setting, equals, value)
        else:
            known = [*DIRECT, "profile", *_OURS, *_KERNEL, *_KERNEL_VALUES, *_IGNORED]
            raise ConfigError(f"-o {name}: no such mount option{near(setting, known) or near(name, known)}")
    return options


def with_source(source: str, words: Iterable[str]) -> str:
    """The options of mount(8), with its source added as the profile or the URL, unless they name one already."""
    kept = [word for word in words if not word.startswith(SETUID)]
    named = {word.partition("=")[0] for word in kept}
    escaped = source.replace(",", "\\,")
    if not named & {"profile", "url"}:
        kept.append(f"url={escaped}" if "://" in source else f"profile={escaped}")
    if "fsname" not in named:
        kept.append(f"fsname={escaped}")
    return ",".join(kept)


def _value(setting: str, equals: str, value: str) -> str:
    if equals:
        return value
    if setting != "profile" and SETTINGS[setting].kind is FLAG:
        return "true"
    raise ConfigError(f"-o {setting}: it needs a value: {setting}=...")
