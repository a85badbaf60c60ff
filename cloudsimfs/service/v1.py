"""API v1: the request of each operation (docs/service.md, "v1 (documented)"). Pure: nothing is sent here.

`entries` and `parsing` read the replies.
"""

from __future__ import annotations

from typing import Any

from cloudsimfs import paths
from cloudsimfs.errors import NotOffered
from cloudsimfs.service.call import Call, Multipart
from cloudsimfs.service.model import LaunchRequest, Signal

CONTENT_TYPE = "application/octet-stream"
DIRECT_LIMIT = 2_000_000  # bytes; a direct upload must be smaller (docs/service.md, "Limits")


def _data(**members: Any) -> dict[str, Any]:
    return {"data": members}


def list_simulations() -> Call:
    return Call("simulations", "GET", "/simulation", "v1", runs=True)


def simulation(run_id: int) -> Call:
    return Call("simulation", "GET", f"/simulation/{run_id}", "v1", subject=f"run {run_id}", runs=True)


def launch(request: LaunchRequest) -> Call:
    """Raises NotOffered for a request with a mesh, which exists in v2 only."""
    if request.mesh is not None:
        raise NotOffered("POST /simulation: API v1 takes no mesh; leave it out or use API v2")
    body = _data(cpu=request.cpu, ram=request.ram, folder=request.folder, script=request.script)
    if request.nopre is not None:
        body["data"]["nopre"] = request.nopre
    return Call("launch", "POST", "/simulation", "v1", json=body, subject=f"folder {request.folder!r}", once=True)


def cpu_values() -> Call:
    return Call("cpu", "GET", "/simulation/cpu", "v1")


def ram_values() -> Call:
    return Call("ram", "GET", "/simulation/ram", "v1")


def scripts() -> Call:
    return Call("scripts", "GET", "/simulation/scripts", "v1")


def stop(run_id: int, signal: Signal) -> Call:
    path = f"/simulation/{run_id}/stop"
    return Call("stop", "PUT", path, "v1", json=_data(signal=signal.value), subject=f"run {run_id}", ack=True)


def sync(run_id: int) -> Call:
    body = _data(signal=Signal.SYNC.value)
    return Call("sync", "PUT", f"/simulation/{run_id}/sync", "v1", json=body, subject=f"run {run_id}", ack=True)


def upload_url(path: str) -> Call:
    dirname, name = paths.split(path)
    body = _data(dirname=dirname, basename=name, contentType=CONTENT_TYPE)
    return Call("upload-url", "POST", "/storage/upload/url", "v1", json=body)


def upload_direct(path: str, content: bytes) -> Call:
    dirname, name = paths.split(path)
    body = Multipart(dirname, name, content)
    return Call("upload-direct", "POST", "/storage", "v1", multipart=body, ack=True)


def list_directory(entry_id: int) -> Call:
    return Call("list", "GET", f"/storage/{entry_id}/list", "v1", subject=f"folder {entry_id}")


def list_all() -> Call:
    return Call("list-all", "GET", "/storage", "v1")


def view(path: str) -> Call:
    return Call("view", "POST", "/storage/view", "v1", json=_data(path=path), subject=repr(path))


def entry(entry_id: int) -> Call:
    return Call("entry", "GET", f"/storage/{entry_id}", "v1", subject=f"entry {entry_id}")


def download_url(entry_id: int) -> Call:
    path = f"/storage/{entry_id}/download/url"
    return Call("download-url", "GET", path, "v1", subject=f"entry {entry_id}")


def download_direct(entry_id: int) -> Call:
    path = f"/storage/{entry_id}/download/file"
    return Call("download-direct", "GET", path, "v1", subject=f"entry {entry_id}")


def delete(entry_id: int) -> Call:
    return Call("delete", "DELETE", f"/storage/{entry_id}", "v1", subject=f"entry {entry_id}", ack=True)
