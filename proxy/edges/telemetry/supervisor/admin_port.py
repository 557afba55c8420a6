"""The admin port: `/healthz`, `/readyz` and `/metrics`. Must not be served on the public port or show a secret.

The supervisor serves it, so it answers while workers are busy or dead. `/metrics` shows the series of all workspaces to
this machine itself and to the operator's token, those of one to its metrics key (docs/reference/metrics.md#access).

See docs/reference/inference.md#admin-port.
"""

import json
from collections.abc import Awaitable, Callable
from ipaddress import ip_address

from aiohttp import web

from policy.credentials import credentials_in
from proxy.answers import Headers
from proxy.errors import PolicyUnavailableError
from proxy.records.supervisor.findings import Report
from runtime.http.server import keep
from runtime.metrics_text import ALL_WORKSPACES
from runtime.shares.places import NoPlaceError

FORWARDING_FIELDS = ("forwarded", "via", "x-real-ip")
FORWARDING_PREFIX = "x-forwarded"
_LOCAL_NAMES = ("localhost", "")
_JSON = "application/json"
_CHALLENGE = {"WWW-Authenticate": "Bearer"}

ReportNow = Callable[[], Awaitable[Report]]
MetricsText = Callable[[str, str], Awaitable[tuple[bytes, str]]]
"""Metrics and their content type, by the Accept field and the workspace shown."""
WorkspaceShown = Callable[[str], Awaitable[str | None]]
"""The workspace whose series a credential may read, `ALL_WORKSPACES`, or None.

Raises `PolicyUnavailableError` when there is no policy to check it by.
"""


def admin_app(report: ReportNow, metrics_text: MetricsText, workspace_shown: WorkspaceShown) -> web.Application:
    async def healthz(_request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def readyz(_request: web.Request) -> web.Response:
        findings = await report()
        return web.json_response(findings.to_wire(), status=200 if findings.ready else 503)

    async def metrics(request: web.Request) -> web.Response:
        here = _is_from_this_machine(request)
        workspace = ALL_WORKSPACES if here else await _shown_to_credentials(request, workspace_shown)
        _keep(request, workspace)
        text, content_type = await metrics_text(request.headers.get("Accept", ""), workspace)
        return web.Response(body=text, headers={"Content-Type": content_type})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    return app


async def _shown_to_credentials(request: web.Request, workspace_shown: WorkspaceShown) -> str:
    """Return the workspace whose series the request may read. Raises 401 or 403; 503 while keys cannot be checked."""
    headers = request.headers
    credentials = credentials_in(headers.getall("Authorization", ()), headers.getall("x-api-key", ()))
    if not credentials:
        raise web.HTTPUnauthorized(text=_error("Unauthorized"), content_type=_JSON, headers=_CHALLENGE)
    try:
        workspaces = {await workspace_shown(credential) for credential in credentials} - {None}
    except PolicyUnavailableError:
        text = _error("There is no policy yet to check this key against")
        raise web.HTTPServiceUnavailable(text=text, content_type=_JSON) from None
    if len(workspaces) != 1:
        raise web.HTTPForbidden(text=_error("Authentication failed"), content_type=_JSON)
    return str(workspaces.pop())


def _keep(request: web.Request, workspace: str) -> None:
    """Let the connection stay until the answer is read; 429 if the workspace has its share of connections."""
    try:
        keep(request, None if workspace == ALL_WORKSPACES else workspace)
    except NoPlaceError:
        text = _error("Too many requests of this workspace are under way")
        raise web.HTTPTooManyRequests(text=text, content_type=_JSON, headers={"Retry-After": "1"}) from None


def _error(message: str) -> str:
    return json.dumps({"error": message})


def _is_from_this_machine(request: web.Request) -> bool:
    peer = request.transport.get_extra_info("peername") if request.transport else None
    if not peer:
        return False
    fields = [(name.lower(), value) for name, value in request.headers.items()]
    return is_direct_from_loopback(str(peer[0]), request.version >= (1, 1), fields)


def is_direct_from_loopback(peer: str, is_http_1_1: bool, fields: Headers) -> bool:
    """Return whether a request comes directly from this machine, not through a proxy or TLS terminator on it.

    A forwarder shows by its header fields, by the host name that its own client used, or by HTTP/1.0, which nginx uses
    for upstreams by default. The names in `fields` are in lower case.
    """
    if not is_http_1_1 or not _is_loopback(peer):
        return False
    if any(name in FORWARDING_FIELDS or name.startswith(FORWARDING_PREFIX) for name, _ in fields):
        return False
    return all(_names_this_machine(value) for name, value in fields if name == "host")


def _names_this_machine(host: str) -> bool:
    """Return whether a Host field (RFC 9110 7.2) names `localhost` or a loopback address, with any port."""
    name = host.partition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    return name.lower() in _LOCAL_NAMES or _is_loopback(name)


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False
