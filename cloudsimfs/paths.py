"""The one path type: a storage path is a `str` without leading or trailing slash; the root is `""`.

Names that are not UTF-8 are passed between the kernel and this process as surrogates (PEP 383). They are never sent
to the service. Pure.
"""

from __future__ import annotations

from cloudsimfs.errors import Invalid, NameTooLong

ROOT = ""
NAME_MAX = 255  # bytes in one name, as on ext4
LONGEST_CHARACTER = 4  # bytes, in UTF-8


def from_kernel(path: str) -> str:
    """Turn the kernel's `/a/b` into `a/b`. Raises NameTooLong: FUSE itself lets names of 1024 bytes pass."""
    path = path.strip("/")
    if len(path) > NAME_MAX // LONGEST_CHARACTER:  # a shorter path has no such name; this runs for every call
        for part in path.split("/"):
            if not _fits(part):
                raise NameTooLong(f"{part[:40]!r}...: a name may have at most {NAME_MAX} bytes")
    return path


def join(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name


def parent(path: str) -> str:
    return path.rpartition("/")[0]


def name(path: str) -> str:
    return path.rpartition("/")[2]


def split(path: str) -> tuple[str, str]:
    """`a/b/c` becomes (`a/b`, `c`), the root (``, ``)."""
    directory, _, last = path.rpartition("/")
    return directory, last


def is_within(path: str, folder: str) -> bool:
    """Whether `path` is `folder` itself or anything inside it. Everything is within the root."""
    return folder == ROOT or path == folder or path.startswith(folder + "/")


def rebase(path: str, old: str, new: str) -> str:
    """What `path`, which is within `old`, is called after `old` was renamed to `new`."""
    return new + path[len(old) :]


def is_safe_name(name: str) -> bool:
    """Whether a name from the service may appear in a directory (docs/architecture.md, invariant 10d).

    Refused: empty, `.`, `..`, `/` or NUL inside, lone surrogates, more than 255 bytes.
    """
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name and _is_utf8(name) and _fits(name)


def check_new_name(path: str) -> None:
    """Raises Invalid if the last name of the path is not UTF-8, and so cannot be stored."""
    last = name(path)
    if not _is_utf8(last):
        raise Invalid(f"{last!r}: the service stores UTF-8 names only; rename the file first")


def _is_utf8(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _fits(name: str) -> bool:
    return len(name.encode("utf-8", "surrogateescape")) <= NAME_MAX
