"""The client of the cloud simulation service: usable from a script, without any mount.

    from cloudsimfs.service import LaunchRequest, connect, load_key
    with connect(base_url="https://service.example", key=load_key("license.json").key) as client:
        for entry in client.list_directory(0, "").entries:
            print(entry.path, entry.size)
        run = client.launch(LaunchRequest(cpu="8", ram="highcore", script="openFoam-v2406", folder="case1"))

The client is typed, may be used from many threads, and counts its calls (`client.budget.snapshot()`). It raises only
errors of `cloudsimfs.errors`; each says which call failed and why. A launch is never sent twice.

Owns: requests and replies of both API versions, the call budget, retries, transfers with the object store, the key on
its way to the service. Called by every package above it, and by scripts; imports none of them. Locks: `Budget` (the
counts), `Uploads` and its circuit breaker (kept links, failures) are leaves, held for moments; `Versions` holds one
during the single call that finds out the API version. No lock is held during any other call or transfer.

| operation | v1 | v2 | used by the mount for |
|---|---|---|---|
| `list_directory` | GET /storage/{id}/list | GET /storage/index/... * | listings |
| `list_page` | - | GET /storage/index/... * | scripts |
| `list_all` | GET /storage | (v1) | walks |
| `view` | POST /storage/view | POST /storage/view-by-path | one path, revalidated |
| `entry` | GET /storage/{id} | (v1) | scripts |
| `upload` | POST /storage/upload/url, PUT | POST /storage/upload-url, PUT | write-back |
| `upload_direct` | POST /storage | (v1) | scripts |
| `download`, `fetch` | GET /storage/{id}/download/url, GET | GET /storage/download/{id}, GET | reads |
| `download_direct` | GET /storage/{id}/download/file | (v1) | scripts |
| `delete` | DELETE /storage/{id} | DELETE /storage/delete/{id} * | rm, rename |
| `server_cache` | - | DELETE /user/delete-cache | after uploads, before a launch |
| `simulations` | GET /simulation | GET /simulation/index-short/... * | `.simulations/runs` |
| `simulation` | GET /simulation/{id} | GET /simulation/view/{id} * | status and log |
| `launch` | POST /simulation | POST /simulation/add | `.simulations/launch` |
| `stop` | PUT /simulation/{id}/stop | PUT /simulation/stop/{id} | `.simulations/<id>/stop` |
| `sync` | PUT /simulation/{id}/sync | PUT /simulation/sync/{id} * | `.simulations/<id>/sync` |
| `cpu_values` | GET /simulation/cpu | GET /simulation/view-cpu | `.simulations/options/cpu` |
| `ram_values` | GET /simulation/ram | GET /simulation/view-ram * | `.simulations/options/ram` |
| `scripts` | GET /simulation/scripts | GET /simulation/view-scripts * | `.simulations/options/scripts` |

`*` is not in the service's document (docs/service.md, "v2 calls outside the document"). If the service answers such a
call with 404 or 405, the client makes v1's call.
"""

from cloudsimfs.service.budget import Budget, BudgetState, Urgency
from cloudsimfs.service.call import Timeouts, Version
from cloudsimfs.service.client import Client, connect
from cloudsimfs.service.credentials import Credentials, load_key
from cloudsimfs.service.model import (
    Download,
    Entry,
    Image,
    LaunchRequest,
    Listed,
    RunStatus,
    Signal,
    Simulation,
    Stored,
    View,
)
from cloudsimfs.service.objectstore import Fetched
from cloudsimfs.service.retry import Retry

__all__ = [
    "Budget",
    "BudgetState",
    "Client",
    "Credentials",
    "Download",
    "Entry",
    "Fetched",
    "Image",
    "LaunchRequest",
    "Listed",
    "Retry",
    "RunStatus",
    "Signal",
    "Simulation",
    "Stored",
    "Timeouts",
    "Urgency",
    "Version",
    "View",
    "connect",
    "load_key",
]
