"""A read that waits for bytes of a content while a writer moves on to a copy of it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cloudsimfs.sandbox import Sandbox
from harness import patient, wait_until
from world import Ticking, World

DATA = os.urandom(8_000_000)
START = 4_000_000


def test_a_read_goes_on_in_the_copy(box: Sandbox, tmp_path: Path) -> None:
    """The closed state that it waited for was dropped when the next one was closed: nobody keeps its bytes."""
    box.put("f", DATA)
    world = World(box, tmp_path, "v2", Ticking())
    handles = world.files.handles
    first, second = (handles.open("f", os.O_RDWR) for _ in range(2))
    buffer = bytearray(100_000)
    try:
        handles.write(first, b"first", 0)
        handles.flush(first)
        with ThreadPoolExecutor(1) as pool:
            hang = box.faults.add("object-get", "hang")
            reading = pool.submit(handles.read, first, memoryview(buffer), START)
            wait_until(lambda: hang.fired, "the bytes are under way")
            handles.write(second, b"second", 0)
            handles.flush(second)
            box.faults.remove(hang)
            try:
                assert reading.result(timeout=patient(20)) == len(buffer)
            finally:
                world.client.close()  # should it still be asking
        assert buffer == DATA[START : START + len(buffer)]
    finally:
        for fh in (first, second):
            handles.release(fh)
        world.close()
