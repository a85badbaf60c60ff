"""Random operations on one file of a mount against a model in memory, after Apple's and the Linux Test Project's fsx.

    python fsx.py FILE SEED OPERATIONS CLOSED [BASE]      CLOSED: file that the digest of every closed state goes to

FILE is new, or holds the first BASE bytes that the seed yields. Reads are checked against the model as they are made,
the size after every operation. It runs in a process of its own: a page of mapped memory is fetched with the
interpreter's lock held.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import mmap
import os
import random
import sys
import time
from collections import deque
from pathlib import Path

LEAST = 1 << 20  # bytes the file may grow to, or twice what it has in the beginning
LONGEST = 96 << 10  # bytes of one operation
KEEP_SIZE, PUNCH_HOLE = 1, 2  # fallocate(2)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def base(seed: int, size: int) -> bytes:
    """What the file holds in the beginning."""
    return random.Random(f"base {seed}").randbytes(size)


class Mismatch(AssertionError):
    """The file is not what the model says."""


class Fsx:
    def __init__(self, file: Path, seed: int, closed: Path, size: int) -> None:
        self._file = file
        self._random = random.Random(seed)
        self._closed = closed
        self._model = bytearray(base(seed, size))
        self._history: deque[str] = deque(maxlen=40)
        self._largest = max(LEAST, 2 * size)
        self._fd = os.open(file, os.O_RDWR | os.O_CREAT)

    def run(self, operations: int) -> None:
        kinds = [self.read, self.read, self.write, self.write, self.truncate, self.map_read, self.map_write]
        kinds += [self.append, self.allocate, self.copy_range, self.sync, self.read, self.write]
        try:
            for number in range(operations):
                if number % 50 == 49:
                    self.reopen()
                else:
                    self._random.choice(kinds)()
                self._check_size()
            self.reopen()
            self._check(0, len(self._model), self._file.read_bytes())
            os.close(self._fd)
        except BaseException:
            print("\n".join(self._history), file=sys.stderr)
            raise

    # -- what is done ------------------------------------------------------------------------------------

    def read(self) -> None:
        offset, length = self._place(), self._length()
        self._note(f"read {offset} {length}")
        self._check(offset, length, os.pread(self._fd, length, offset))

    def write(self) -> None:
        offset, data = self._place(), self._data()
        self._note(f"write {offset} {len(data)}")
        self._patch(offset, data)
        assert os.pwrite(self._fd, data, offset) == len(data)

    def append(self) -> None:
        data = self._data()[: self._largest - len(self._model)]
        self._note(f"append {len(data)}")
        self._model += data
        fd = os.open(self._file, os.O_WRONLY | os.O_APPEND)
        assert os.write(fd, data) == len(data)
        os.close(fd)
        self._state_is_closed()

    def truncate(self) -> None:
        size = self._random.choice([self._place(), self._place(), self._random.randrange(self._largest)])
        self._note(f"truncate {size}")
        self._resize(size)
        os.ftruncate(self._fd, size)

    def map_read(self) -> None:
        if not self._model:
            return
        offset = self._random.randrange(len(self._model))
        length = min(self._length(), len(self._model) - offset)
        self._note(f"map_read {offset} {length}")
        with mmap.mmap(self._fd, len(self._model), prot=mmap.PROT_READ) as memory:
            self._check(offset, length, memory[offset : offset + length])

    def map_write(self) -> None:
        if not self._model:
            return
        offset = self._random.randrange(len(self._model))
        data = self._data()[: len(self._model) - offset]
        synced = self._random.random() < 0.5
        self._note(f"map_write {offset} {len(data)}{' msync' if synced else ''}")
        self._patch(offset, data)
        with mmap.mmap(self._fd, len(self._model)) as memory:
            memory[offset : offset + len(data)] = data
            if synced:
                memory.flush()

    def allocate(self) -> None:
        offset, length = self._place(), self._length()
        mode = self._random.choice([0, KEEP_SIZE, KEEP_SIZE | PUNCH_HOLE])
        self._note(f"allocate {mode} {offset} {length}")
        if mode == 0:
            self._resize(max(len(self._model), offset + length))
        failed = _libc.fallocate(self._fd, mode, offset, length)
        if mode & PUNCH_HOLE:  # not offered: refused, and nothing changed
            assert failed
            assert ctypes.get_errno() == errno.EOPNOTSUPP
        else:
            assert not failed, os.strerror(ctypes.get_errno())

    def copy_range(self) -> None:
        """Within the file; the two must not overlap."""
        source, target, length = self._place(), self._place(), self._length()
        length = min(length, len(self._model) - source, abs(source - target))
        if length <= 0:
            return
        self._note(f"copy_range {source} {target} {length}")
        copied = os.copy_file_range(self._fd, self._fd, length, source, target)
        assert 0 < copied <= length
        self._patch(target, bytes(self._model[source : source + copied]))

    def sync(self) -> None:
        self._note("sync")
        self._random.choice([os.fsync, os.fdatasync])(self._fd)
        self._state_is_closed()

    def reopen(self) -> None:
        """Sometimes with time for an upload to begin, or to end."""
        self._note("reopen")
        os.close(self._fd)
        self._state_is_closed()
        time.sleep(self._random.choice([0, 0, 0.02, 0.1]))
        self._fd = os.open(self._file, os.O_RDWR)

    # -- the model ---------------------------------------------------------------------------------------

    def _note(self, text: str) -> None:
        self._history.append(text)

    def _length(self) -> int:
        return self._random.choice([self._random.randrange(1, 5000), self._random.randrange(1, LONGEST)])

    def _place(self) -> int:
        """An offset, now and then a little beyond the end."""
        return min(self._random.randrange(len(self._model) + 5000), self._largest - LONGEST)

    def _data(self) -> bytes:
        return self._random.randbytes(self._length())

    def _resize(self, size: int) -> None:
        del self._model[size:]
        self._model.extend(bytes(size - len(self._model)))

    def _patch(self, offset: int, data: bytes) -> None:
        self._resize(max(len(self._model), offset))
        self._model[offset : offset + len(data)] = data

    def _check_size(self) -> None:
        size = os.fstat(self._fd).st_size
        if size != len(self._model):
            raise Mismatch(f"{size} bytes, not {len(self._model)}")

    def _check(self, offset: int, length: int, found: bytes) -> None:
        expected = self._model[offset : offset + length]
        if found == expected:
            return
        wrong = [at for at, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]]
        where = f"{len(wrong)} wrong, from {offset + wrong[0]} to {offset + wrong[-1]}" if wrong else "cut"
        raise Mismatch(f"{len(found)} bytes at {offset}, of {len(expected)}: {where}")

    def _state_is_closed(self) -> None:
        with open(self._closed, "a") as file:
            file.write(hashlib.md5(self._model, usedforsecurity=False).hexdigest() + "\n")


def main() -> None:
    file, seed, operations, closed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    Fsx(file, seed, closed, int(sys.argv[5]) if len(sys.argv) > 5 else 0).run(operations)


if __name__ == "__main__":
    main()
