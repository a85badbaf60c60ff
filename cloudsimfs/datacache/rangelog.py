"""The log beside a backing file: which version the file holds, and which of its bytes are present.

It begins before the first byte comes: a file with a version's log holds nothing but a version's bytes. Each step
appends a line after its data is written. So the log never claims more than there is, even if the daemon is killed:

    {"version": [id, size, ns], "path": ..., "boot": ...}     the first line; without it the file is worth nothing
    r START END     these bytes are present
    c END           the file was cut: the version's bytes beyond END are not wanted
    x               nothing is present any more (evicted)
    e ETAG          the version's ETag
    s               everything before this line is on the disk

After a crash of the machine the line may be there and its data not: lines after the last `s` count only in the boot
that wrote them. An incomplete last line is ignored.

Threading: none of its own; guarded by Content.lock. A log that cannot be written is given up; that is never an error.
"""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cloudsimfs.host.files import open_private, replace_file
from cloudsimfs.prefetch.ranges import RangeSet
from cloudsimfs.service.model import Entry

log = logging.getLogger(__name__)

Version = tuple[int, int, int]


@functools.cache
def boot_id() -> str:
    """An id that changes with each start of the machine (random(4)); empty if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@dataclass(slots=True)
class Record:
    """What a log says. The version's bytes end at `end`."""

    version: Version
    end: int
    etag: str | None = None
    present: RangeSet = field(default_factory=RangeSet)
    clean: bool = True  # the log may be appended to as it is


def load(path: Path) -> Record | None:
    """What the log at `path` reliably says; None if there is no log or it is damaged."""
    try:
        lines = path.read_bytes().split(b"\n")
        header = json.loads(lines[0])
        entry_id, size, mtime_ns = header["version"]
        same_boot = header["boot"] == boot_id() != ""
    except (OSError, ValueError, KeyError, TypeError):
        return None
    record = Record((entry_id, size, mtime_ns), end=size, clean=same_boot and lines[-1] == b"")
    durable = len(lines) - 1 if same_boot else max((at for at, line in enumerate(lines) if line == b"s"), default=0)
    for at, line in enumerate(lines[1:-1], start=1):
        kind, _, rest = line.partition(b" ")
        try:
            if kind == b"r" and at < durable:
                start, end = map(int, rest.split())
                record.present.add(start, min(end, record.end))
            elif kind == b"c":
                record.end = min(record.end, int(rest))
                record.present.clip(record.end)
            elif kind == b"x":
                record.present = RangeSet()
            elif kind == b"e":
                record.etag = rest.decode()
        except ValueError:
            return None
    return record


class RangeLog:
    """Writes the log at `path`. The first line that is written opens it."""

    def __init__(self, path: Path, entry: Entry, record: Record | None = None) -> None:
        """`record` is what `load` returned for this path. Without one the first line starts a new log."""
        self.path = path
        self.sealed = record is not None and record.clean
        self._entry = entry
        self._etag = None if record is None else record.etag
        self._fd = -1
        self._begun = record is not None and record.clean
        self._broken = False
        if record is not None and not record.clean:
            self.begin(record.present, record.etag, end=record.end)

    def begin(
        self, present: Iterable[tuple[int, int]] = (), etag: str | None = None, *, end: int | None = None
    ) -> None:
        """Replace the log in one step. `end` is where the version's bytes end, if the file was cut."""
        self.close()
        header = {"version": self._entry.fingerprint, "path": self._entry.path, "boot": boot_id()}
        lines = [json.dumps(header)]
        lines += [] if end is None else [f"c {end}"]
        lines += [] if etag is None else [f"e {etag}"]
        lines += [f"r {start} {stop}" for start, stop in present]
        try:
            replace_file(self.path, "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
        except OSError as error:
            self._give_up(error)
        self._begun, self._etag, self.sealed = True, etag, False

    def open(self) -> None:
        """Have the first line there, before the first byte."""
        if not self._begun and not self._broken:
            self.begin()

    def add(self, start: int, end: int, etag: str | None) -> None:
        """Log that `[start, end)` is present."""
        line = f"r {start} {end}\n"
        if etag is not None and self._etag is None and etag.isprintable():
            self._etag = etag
            line = f"e {etag}\n{line}"
        self._append(line)

    def cut(self, end: int) -> None:
        """Log that the version's bytes beyond `end` are not wanted."""
        self._append(f"c {end}\n")

    def evicted(self, present: Iterable[tuple[int, int]]) -> None:
        """Log that only `present` is left. To be called before the data goes."""
        self._append("x\n" + "".join(f"r {start} {end}\n" for start, end in present))

    def seal(self) -> None:
        """Log that the data is on the disk. The log's mtime stays that of the last use."""
        try:
            before = self.path.stat()
            self._append("s\n")
            os.utime(self.path, ns=(before.st_atime_ns, before.st_mtime_ns))
        except OSError as error:
            self._give_up(error)
        self.sealed = True

    def touch(self) -> None:
        """Note the use in the log's mtime: after a remount, eviction goes by it."""
        if self._begun and not self._broken:
            try:
                os.utime(self.path)
            except OSError as error:
                self._give_up(error)

    def move(self, path: Path) -> None:
        """Rename the log."""
        if self._begun and not self._broken:
            try:
                self.path.rename(path)
            except OSError as error:
                self._give_up(error)
        self.path = path

    def remove(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)
        self._begun = False

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _append(self, text: str) -> None:
        self.open()
        if self._broken:
            return
        try:
            if self._fd < 0:
                self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            os.write(self._fd, text.encode("utf-8", "surrogateescape"))
            self.sealed = False
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """The disk is full or the directory was removed: the file is good for this mount only."""
        log.warning("cache: %s is not kept for the next mount: %s", self._entry.path, error.strerror)
        self._broken = True
        self.close()
        try:  # half a log is ignored, and so is an empty one, but it still says that the file is a version's
            os.close(open_private(self.path, os.O_WRONLY | os.O_TRUNC))
        except OSError:
            pass  # nothing can be written there
