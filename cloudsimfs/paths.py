"""The one path type: a storage path is a `str` without leading or trailing slash; the root is `""`.

Bytes that are not UTF-8 travel as surrogates (PEP 383) between the kernel and here; they are never sent to
the service. Pure.
"""

from __future__ import annotations

from cloudsimfs.errors import Invalid, NameTooLong

ROOT = ""
NAME_MAX = 255  # bytes in one name, as on ext4


def from_kernel(path: str) -> str:
    """`/a/b` as the kernel hands it over to `a/b`."""
    return path.strip("/")


def join(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name


def parent(path: str) -> str:
    return path.rpartition("/")[0]


def name(path: str) -> str:
    return path.rpartition("/")[2]


def split(path: str) -> tuple[str, str]:
    """`a/b/c` to (`a/b`, `c`); the root is (``, ``)."""
    directory, _, last = path.rpartition("/")
    return directory, last


def is_below(path: str, folder: str) -> bool:
    """Whether `path` is `folder` itself or anything inside it; everything is below the root."""
    return folder == ROOT or path == folder or path.startswith(folder + "/")


def rebase(path: str, old: str, new: str) -> str:
    """`path`, which is below `old`, as it is called after `old` was renamed to `new`."""
    return new + path[len(old) :]


def is_safe_name(name: str) -> bool:
    """Whether a name from the service may appear in a directory (design.md, invariant 10).

    Refused: empty, `.`, `..`, `/` or NUL inside, lone surrogates, more than 255 bytes.
    """
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        return False
    try:
        return len(name.encode("utf-8")) <= NAME_MAX
    except UnicodeEncodeError:
        return False


def check_new_name(path: str) -> None:
    """Refuse a name that cannot be stored. Raises NameTooLong, or Invalid if it is not UTF-8."""
    last = name(path)
    try:
        size = len(last.encode("utf-8"))
    except UnicodeEncodeError:
        raise Invalid(f"{last!r}: the service stores UTF-8 names only; rename the file first") from None
    if size > NAME_MAX:
        raise NameTooLong(f"{last[:40]!r}...: a name may have at most {NAME_MAX} bytes")
