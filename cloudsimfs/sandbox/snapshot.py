"""The index of a data directory: the stored files and the ids, kept from one sandbox to the next.

Written at close, read at start. Threading: none, since the server does not run then. Must never touch anything in
the directory except `objects/` and the index.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cloudsimfs.sandbox.blobs import Blob
from cloudsimfs.sandbox.store import Store
from cloudsimfs.sandbox.tree import File

_INDEX = "index.json"


def save(store: Store, directory: Path) -> None:
    """Write the index."""
    files = [_as_json(store, file) for file in store.files().values()]
    part = directory / f"{_INDEX}.tmp"
    part.write_text(json.dumps({"folders": store.folder_ids(), "files": files}), encoding="utf-8")
    part.replace(directory / _INDEX)


def load(store: Store, directory: Path) -> None:
    """Fill an empty store, and delete bytes that no entry needs. Raises ValueError for a damaged index."""
    objects, index = directory / "objects", directory / _INDEX
    state = json.loads(index.read_text(encoding="utf-8")) if index.exists() else {"folders": {}, "files": []}
    files = [
        File(
            item["id"],
            item["path"],
            item["created"],
            Blob(item["size"], item["etag"], file=objects / item["file"]),
        )
        for item in state["files"]
        if (objects / item["file"]).exists()
    ]
    store.restore(files, state["folders"])
    needed = {file.blob.file for file in files}
    for path in objects.iterdir():
        if path not in needed:
            path.unlink()


def _as_json(store: Store, file: File) -> dict[str, Any]:
    blob = file.blob
    place = blob.file
    if place is None:
        place = store.new_file()
        place.write_bytes(blob.read())
    return {
        "id": file.id,
        "path": file.path,
        "created": file.created,
        "size": blob.size,
        "etag": blob.etag,
        "file": place.name,
    }
