"""The HTTP side of the sandbox: routing, key, limits, faults, envelopes, the request log.

Threading: one event loop; `Server` is made and closed inside it. Must never accept a call without the key of its
version, nor an API key at a signed URL in silence: such a request is noted in `key_leaks`.
"""

from __future__ import annotations

import ipaddress
import json
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from email.utils import formatdate
from functools import partial
from typing import Any

from aiohttp import web

from cloudsimfs import paths
from cloudsimfs.sandbox import faults as fault_module
from cloudsimfs.sandbox import odd, wire
from cloudsimfs.sandbox.answers import Answers
from cloudsimfs.sandbox.api import NUMBER, ApiRequest, Limits, Redirect, Refusal, Route
from cloudsimfs.sandbox.faults import ActiveFaults, Faults
from cloudsimfs.sandbox.log import Call, CallLog
from cloudsimfs.sandbox.objects import Objects
from cloudsimfs.sandbox.settings import Clock, Settings
from cloudsimfs.sandbox.store import BadName, NoEntry, Store
from cloudsimfs.sandbox.wire import Dropped, Reply, json_reply

_MAX_BODY = 64 * 1024 * 1024  # bytes of an API request; a direct upload that is too large is read, then refused
_UNKNOWN = Route("*", "", "unknown", lambda _: None)
_TECHNICAL = "A technical problem has occurred, try again later."  # docs/service.md, "Envelopes"
_Handler = Callable[[web.Request], Awaitable[web.Response]]
_OBJECT_OPERATIONS = {"GET": "object-get", "HEAD": "object-head", "PUT": "object-put"}


class Server:
    """The web application. Many parameters, all by keyword: every part of the sandbox meets here."""

    def __init__(
        self,
        *,
        host: str,
        keys: set[str],
        store: Store,
        objects: Objects,
        clock: Clock,
        settings: Settings,
        faults: Faults,
        calls: CallLog,
        key_leaks: list[str],
        routes: Mapping[int, list[Route]],
    ) -> None:
        self._host = host
        self._keys = keys
        self._store = store
        self._objects = objects
        self._clock = clock
        self._settings = settings
        self._faults = faults
        self._calls = calls
        self._key_leaks = key_leaks
        self._limits = Limits(clock, settings)
        self._answers = Answers()
        self.app = web.Application(client_max_size=_MAX_BODY)
        add = self.app.router.add_route
        for version, offered in routes.items():
            for route in offered:
                handler = partial(self._api, version, route)
                add(route.method, f"/api/v{version}{route.path}", handler)
            add("*", f"/api/v{version}/{{tail:.*}}", partial(self._api, version, _UNKNOWN))
        add("*", "/objects/{token}", self._object)
        own: list[tuple[str, str, _Handler]] = [
            ("GET", "calls", self._show_calls),
            ("DELETE", "calls", self._reset_calls),
            ("GET", "faults", self._show_faults),
            ("POST", "faults", self._add_fault),
            ("DELETE", "faults", self._clear_faults),
            ("DELETE", rf"faults/{{id:{NUMBER}}}", self._clear_faults),
        ]
        for method, path, act in own:
            add(method, f"/sandbox/{path}", partial(self._own_call, act))

    # -- API calls ----------------------------------------------------------------------------------

    async def _api(self, version: int, route: Route, request: web.Request) -> web.StreamResponse:
        try:
            data = await _parameters(request, version)
        except ConnectionError:
            return web.Response(status=400)  # the client is gone
        except ValueError:
            data = None
        subject = self._subject(request, data or {})
        call = self._log(request, route.operation, version, subject)
        fired = self._faults.due(route.operation, version, subject)
        try:
            reply = await wire.before(request, fired, self._settings)
            if reply is None:
                reply = self._process(version, route, request, data, fired)
            reply = self._answers.instead(f"{route.operation} {request.path} {data}", reply, fired)
            reply.headers.update(self._limits.headers())
            return await self._send(request, reply, fired, call)
        except Dropped:
            return web.Response(status=500)  # never sent: the connection is gone

    def _process(
        self, version: int, route: Route, request: web.Request, data: dict[str, Any] | None, fired: ActiveFaults
    ) -> Reply:
        try:
            self._authorise(version, request)
            self._limits.count()
            if route is _UNKNOWN:
                raise Refusal(404, "Not found.")
            if data is None:
                raise Refusal(400, "the body is not what this call takes")
            act = partial(route.handler, ApiRequest(request.match_info, data))
            if fired.late(act):
                return Reply(200)  # `wire.send` sends the fault's answer
            value = act()
        except NoEntry:
            return _failure(version, Refusal(404, "not found" if version == 1 else _TECHNICAL))
        except BadName:
            return _failure(version, Refusal(400, "this name cannot be stored"))
        except Refusal as refusal:
            return _failure(version, refusal)
        if isinstance(value, Redirect):
            return Reply(302, headers={"Location": value.url})
        if fired.get("null_link") and isinstance(value, dict):
            value = {name: None if name in ("url", "mediaLink") else item for name, item in value.items()}
        return _answer(version, value, fired)

    def _authorise(self, version: int, request: web.Request) -> None:
        """Check the key (docs/service.md, "Authentication"). Raises Refusal."""
        if version == 1:
            given = request.headers.get("api-key") or request.query.get("api_key", "")
        else:
            given = request.headers.get("X-API-key", "")
        if not self._is_key(given):
            raise Refusal(401, "Unauthorized.")
        if version == 2 and not self._settings.v2_enabled:
            raise Refusal(403, "User not enabled.")

    def _subject(self, request: web.Request, data: dict[str, Any]) -> str:
        """The storage path of a call, for the log and for faults."""
        folder = request.match_info.get("id")
        if folder is not None and request.path.split("/")[3] != "simulation":
            return self._store.path_of(int(folder)) or ""
        name = data.get("basename", data.get("filename"))
        if name is not None:
            return paths.join(str(data.get("dirname", "")).strip("/"), str(name))
        return str(data.get("path", data.get("folder", ""))).strip("/")

    # -- object transfers ---------------------------------------------------------------------------

    async def _object(self, request: web.Request) -> web.StreamResponse:
        operation = _OBJECT_OPERATIONS.get(request.method, "unknown")
        token = request.match_info["token"]
        subject = self._objects.path_of(token)
        call = self._log(request, operation, 0, subject)
        call.range = request.headers.get("Range", "")
        if self._carries_key(request):
            self._key_leaks.append(f"{request.method} {request.path}")
        fired = self._faults.due(operation, 0, subject)
        try:
            reply = await wire.before(request, fired, self._settings)
            if reply is None:
                reply = await self._objects.answer(request, token, fired, call)
            if fault := fired.get("odd"):
                reply = odd.vary_object(fault.variation, reply)
            return await self._send(request, reply, fired, call)
        except Dropped:
            return web.Response(status=500)  # never sent: the connection is gone

    def _carries_key(self, request: web.Request) -> bool:
        names = ("api-key", "X-API-key", "Authorization")
        return (
            any(name in request.headers for name in names)
            or "api_key" in request.query
            or any(self._keys & {*value.split()} for value in (*request.headers.values(), *request.query.values()))
        )

    # -- both --------------------------------------------------------------------------------------

    def _log(self, request: web.Request, operation: str, version: int, subject: str) -> Call:
        call = Call(self._clock.now(), request.method, request.path, operation, version, subject)
        return self._calls.add(call)

    async def _send(self, request: web.Request, reply: Reply, fired: ActiveFaults, call: Call) -> web.StreamResponse:
        self._calls.finish(call, reply.status)
        reply.headers.setdefault("Date", formatdate(self._clock.now(), usegmt=True))
        try:
            return await wire.send(request, reply, fired, self._settings, call)
        except (ConnectionError, RuntimeError):  # sendfile raises RuntimeError for a closing transport
            raise Dropped from None

    # -- the sandbox's own calls --------------------------------------------------------------------

    async def _own_call(self, act: _Handler, request: web.Request) -> web.Response:
        """Act for who has the key. No page in a browser may ask, not even through a name that leads here."""
        given = request.headers.get("X-API-key", "")
        host, origin = request.host, request.headers.get("Origin")
        if not self._is_known(host.rpartition(":")[0] if re.search(r":\d+$", host) else host):
            return web.json_response({"message": "another host is meant"}, status=403)
        if origin is not None and origin != f"http://{host}":
            return web.json_response({"message": "not from a page of another site"}, status=403)
        if not self._is_key(given):
            return web.json_response({"message": "the header X-API-key has to have the key"}, status=401)
        if request.method == "POST" and request.content_type != "application/json":
            return web.json_response({"message": "the Content-Type has to be application/json"}, status=415)
        return await act(request)

    def _is_known(self, host: str) -> bool:
        """Whether a host is this one: by its address, or by the name it listens at."""
        if host in ("localhost", self._host):
            return True
        try:
            ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            return False
        return True

    def _is_key(self, given: str) -> bool:
        return any(
            secrets.compare_digest(given.encode("utf-8", "surrogateescape"), key.encode())
            for key in tuple(self._keys)
        )

    async def _show_calls(self, _: web.Request) -> web.Response:
        return web.json_response(self._calls.as_json())

    async def _reset_calls(self, _: web.Request) -> web.Response:
        self._calls.reset()
        return web.json_response(True)

    async def _show_faults(self, _: web.Request) -> web.Response:
        return web.json_response([fault.as_json() for fault in self._faults.active()])

    async def _add_fault(self, request: web.Request) -> web.Response:
        try:
            fault = self._faults.set(fault_module.from_json(await request.json()))
        except (ValueError, TypeError) as error:
            return web.json_response({"message": str(error)}, status=400)
        return web.json_response(fault.as_json())

    async def _clear_faults(self, request: web.Request) -> web.Response:
        wanted = request.match_info.get("id")
        for fault in self._faults.active():
            if wanted is None or fault.id == int(wanted):
                self._faults.remove(fault)
        return web.json_response(True)


async def _parameters(request: web.Request, version: int) -> dict[str, Any]:
    """The call's parameters. Raises ValueError if the body does not have its Content-Type."""
    if not request.body_exists:
        return {}
    if request.content_type == "multipart/form-data":
        return await _form(request)
    value = json.loads(await request.read() or b"{}")
    if isinstance(value, dict) and (version == 1 or set(value) == {"data"}):
        value = value.get("data")  # docs/service.md, "Endpoints", general rules
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


async def _form(request: web.Request) -> dict[str, Any]:
    form = await request.post()
    data: dict[str, Any] = dict(form)
    part = data.get("basename")
    if isinstance(part, web.FileField):
        data["basename"], data["content"] = part.filename, part.file.read()
        part.file.close()
    return data


def _answer(version: int, value: Any, fired: ActiveFaults) -> Reply:
    """The reply with a value: in the envelope of its version, or changed by an `odd` fault."""
    fault = fired.get("odd")
    variation = fault.variation if fault else None
    if callable(variation):
        value = variation(value)
    elif variation in odd.VARIATIONS:
        value = odd.VARIATIONS[variation](value)
    if variation in ("non-json", "empty"):
        return Reply(200, b"OK" if variation == "non-json" else b"", "text/plain")
    if variation == "wrapped-data":
        value = {"data": value}
    elif variation == "wrapped" or (version == 2 and variation != "unwrapped"):
        value = {"response": value}
    return json_reply(200, value)


def _failure(version: int, refusal: Refusal) -> Reply:
    """The reply for a failed call. v1: 4xx. v2: 403 whatever the cause, but 404 for an unknown call."""
    if version == 1:
        return json_reply(refusal.status, {"message": refusal.message}, refusal.headers)
    status = 404 if refusal.message == "Not found." else 403
    return json_reply(status, {"errors": [refusal.message]}, refusal.headers)
