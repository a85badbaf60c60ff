"""Files that one process of a test writes while another reads them."""

from __future__ import annotations

from pathlib import Path


def publish(file: Path, data: bytes) -> None:
    """Replace what `file` holds; a reader sees the old content or the new, never none or a part."""
    aside = file.with_name(f"{file.name}.next")
    aside.write_bytes(data)
    aside.replace(file)
