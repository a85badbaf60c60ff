"""What one process of a test writes while another reads it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shared_file import publish

LONG, SHORT = b"0" * 100_000, b"1"


def test_a_reader_sees_one_content_or_the_other(tmp_path: Path) -> None:
    file = tmp_path / "clock"
    publish(file, LONG)

    def write() -> None:
        for _ in range(150):
            publish(file, SHORT)
            publish(file, LONG)

    with ThreadPoolExecutor() as pool:
        writing = pool.submit(write)
        while not writing.done():
            assert file.read_bytes() in (LONG, SHORT)
    writing.result()
