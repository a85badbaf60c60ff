"""The sandbox's API without our client: what a request of any other program is answered with."""

from __future__ import annotations

from typing import Any

import requests

from cloudsimfs.sandbox import Sandbox


def send(box: Sandbox, version: int, method: str, path: str, **options: Any) -> requests.Response:
    """One request with the key in the header its version wants; `options` are those of requests."""
    headers = {"api-key" if version == 1 else "X-API-key": box.key}
    url = f"{box.url}/api/v{version}{path}"
    return requests.request(method, url, headers=headers, timeout=10, **options)
