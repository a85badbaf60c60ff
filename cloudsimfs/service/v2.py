"""API v2: the request of each operation (docs/service.md, "v2 (documented)"). Pure: nothing is sent here.

`entries` and `parsing` read the replies. Calls of docs/service.md, "v2 calls outside the document", are marked
`undocumented`: the client makes v1's call where a service lacks them.
"""

from __future__ import annotations

from cloudsimfs import paths
from cloudsimfs.service.call import Call
from cloudsimfs.service.model import LaunchRequest, Signal
from cloudsimfs.service.v1 import CONTENT_TYPE


def cpu_values() -> Call:
    return Call("cpu", "GET", "/simulation/view-cpu", "v2")


def ram_values() -> Call:
    return Call("ram", "GET", "/simulation/view-ram", "v2", undocumented=True)


def scripts() -> Call:
    return Call("scripts", "GET", "/simulation/view-scripts", "v2", undocumented=True)


def launch(request: LaunchRequest) -> Call:
    body: dict[str, str | int] = {
        "cpu": request.cpu,
        "ram": request.ram,
        "folder": request.folder,
        "script": request.script,
    }
    if request.nopre is not None:
        body["nopre"] = request.nopre
    if request.mesh is not None:
        body["mesh"] = request.mesh
    subject = f"folder {request.folder!r}"
    return Call("launch", "POST", "/simulation/add", "v2", json=body, subject=subject, once=True)


def stop(run_id: int, signal: Signal) -> Call:
    body = {"signal": signal.value}
    return Call("stop", "PUT", f"/simulation/stop/{run_id}", "v2", json=body, subject=f"run {run_id}", ack=True)


def sync(run_id: int) -> Call:
    body = {"signal": Signal.SYNC.value}
    return Call(
        "sync",
        "PUT",
        f"/simulation/sync/{run_id}",
        "v2",
        json=body,
        subject=f"run {run_id}",
        ack=True,
        undocumented=True,
    )


def simulations_page(page: int) -> Call:
    path = f"/simulation/index-short/id/desc/{page}"
    return Call("simulations", "GET", path, "v2", undocumented=True)


def simulation(run_id: int) -> Call:
    path = f"/simulation/view/{run_id}"
    return Call("simulation", "GET", path, "v2", subject=f"run {run_id}", undocumented=True, runs=True)


def upload_url(path: str) -> Call:
    dirname, name = paths.split(path)
    body = {"dirname": dirname, "filename": name, "contentType": CONTENT_TYPE}
    return Call("upload-url", "POST", "/storage/upload-url", "v2", json=body)


def list_page(entry_id: int, page: int, order: str = "asc") -> Call:
    parent = f"parent_id/{entry_id}/" if entry_id else ""
    path = f"/storage/index/name/{order}/{parent}{page}"
    subject = f"folder {entry_id}" if entry_id else None
    return Call("list", "GET", path, "v2", subject=subject, undocumented=True)


def view(path: str) -> Call:
    return Call("view", "POST", "/storage/view-by-path", "v2", json={"path": path}, subject=repr(path))


def view_url(entry_id: int) -> Call:
    path = f"/storage/view-url/{entry_id}"
    return Call("download-url", "GET", path, "v2", subject=f"entry {entry_id}", undocumented=True)


def download(entry_id: int) -> Call:
    return Call("download-url", "GET", f"/storage/download/{entry_id}", "v2", subject=f"entry {entry_id}")


def delete(entry_id: int) -> Call:
    path = f"/storage/delete/{entry_id}"
    return Call("delete", "DELETE", path, "v2", subject=f"entry {entry_id}", ack=True, undocumented=True)


def delete_cache() -> Call:
    return Call("delete-cache", "DELETE", "/user/delete-cache", "v2", ack=True)
