"""The embedded service: API v1 and v2, signed URLs, runs that really compute, faults on demand.

    with Sandbox() as box:
        requests.get(f"{box.url}/api/v1/storage", headers={"api-key": box.key})

Owns: its own model of the service (storage, runs, limits) and the HTTP server in front of it. Only tests and
`cloudsimfs sandbox` use it. It shares no rules with the client, so that one mistake cannot hide in both. Locks:
`Store`, `Runs`, `Links`, `Faults` and `CallLog` have one each, held for moments and never two at a time.

The names below are imported on first use: the solver runs from this package too, and needs none of them.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloudsimfs.sandbox.box import Sandbox, serve_forever
    from cloudsimfs.sandbox.faults import Fault
    from cloudsimfs.sandbox.settings import Settings

__all__ = ["CASES", "Fault", "Sandbox", "Settings", "serve_forever"]

CASES = Path(__file__).parent / "cases"
"""Example case folders, to be copied into a storage."""

_HOMES = {"Sandbox": "box", "serve_forever": "box", "Fault": "faults", "Settings": "settings"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
