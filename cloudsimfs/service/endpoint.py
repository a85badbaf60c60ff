"""The API's address and key, and which header or parameter carries the key in each version. Pure.

The key is for the API's own origin only: `is_same_origin` says whether a redirect stays there.
"""

from __future__ import annotations

import functools
import ipaddress
import logging
import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from cloudsimfs.errors import ConfigError
from cloudsimfs.service.call import Call

log = logging.getLogger(__name__)

_VERSIONED = re.compile(r"/api(/v[12])?$")


def _origin(url: str) -> tuple[str, str, int | None]:
    """(scheme, host, port) of a URL. Raises ValueError."""
    parts = urlsplit(url)
    default = {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or default


def check_base_url(base_url: str, *, insecure_http: bool = False) -> str:
    """`base_url` without a trailing slash, or the `/api/v1` that many paste with it. Raises ConfigError.

    `insecure_http`: the key may go unencrypted to another machine.
    """
    try:
        parts = urlsplit(base_url.strip())
        scheme, host, _ = _origin(base_url.strip())
    except ValueError:
        raise ConfigError("base URL: it should look like https://host.example") from None
    if parts.username is not None or parts.query or parts.fragment:
        raise ConfigError("base URL: it may hold no user, query or fragment")
    if scheme not in ("http", "https") or not host:
        raise ConfigError(f"base URL {base_url!r}: it should look like https://host.example")
    if scheme == "http" and not _is_loopback(host):
        if not insecure_http:
            raise ConfigError(
                f"base URL {base_url}: without https, everybody on the way can read the key; use https, or, in a "
                "network that you trust, say --insecure-http"
            )
        _warn_unencrypted(base_url)
    return _VERSIONED.sub("", base_url.strip().rstrip("/"))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@functools.cache
def _warn_unencrypted(base_url: str) -> None:
    """Warn once per URL: several callers check the same one."""
    log.warning("base URL %s: the key is sent unencrypted; use https", base_url)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The API of one account. `base_url` has passed `check_base_url`.

    `key_in_query` sends the key as v1's query parameter. `offline`: no call may be sent.
    """

    base_url: str
    key: str = field(repr=False)
    key_in_query: bool = False
    offline: bool = False

    @property
    def secure(self) -> bool:
        return self.base_url.startswith("https:")

    def url(self, call: Call) -> str:
        return f"{self.base_url}/api/{call.version}{call.path}"

    def headers(self, call: Call) -> dict[str, str]:
        """docs/service.md, "Authentication": each version has its own header for the key."""
        headers = {"Accept": "application/json"}
        if call.version == "v2":
            headers["X-API-key"] = self.key
        elif not self.key_in_query:
            headers["api-key"] = self.key
        return headers

    def query(self, call: Call) -> dict[str, str]:
        """The query parameters: the key, where v1 is to get it there."""
        return {"api_key": self.key} if self.key_in_query and call.version == "v1" else {}

    def is_same_origin(self, url: str) -> bool:
        """Whether `url` has the API's scheme, host and port, so that the key may go there."""
        try:
            return _origin(url) == _origin(self.base_url)
        except ValueError:
            return False
