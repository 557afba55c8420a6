"""The admin port: `/healthz`, `/readyz` and `/metrics`. Must not be served on the public port or show a secret.

The supervisor serves it, so it answers while workers are busy or dead. `/metrics` needs a metrics key, except for a
request from this machine itself (docs/reference/metrics.md#access).

See docs/reference/inference.md#admin-port.
"""

from collections.abc import Awaitable, Callable
from ipaddress import ip_address

from aiohttp import web

from policy.credentials import credentials_in
from proxy.exchange import Headers, PolicyUnavailableError
from proxy.supervisor.readiness import Report

FORWARDING_FIELDS = ("forwarded", "via", "x-real-ip")
FORWARDING_PREFIX = "x-forwarded"
_LOCAL_NAMES = ("localhost", "")

ReportNow = Callable[[], Awaitable[Report]]
MetricsText = Callable[[str], Awaitable[tuple[bytes, str]]]
"""All metrics and their content type, by the Accept field."""
MayExport = Callable[[str], Awaitable[bool]]
"""Whether an API key may export metrics. Raises `PolicyUnavailableError` when there is no policy to check it by."""


def admin_app(report: ReportNow, metrics_text: MetricsText, may_export: MayExport) -> web.Application:
    async def healthz(_request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def readyz(_request: web.Request) -> web.Response:
        found = await report()
        return web.json_response(found.to_wire(), status=200 if found.ready else 503)

    async def metrics(request: web.Request) -> web.Response:
        refusal = None if _is_from_this_machine(request) else await _refusal(request, may_export)
        if refusal is not None:
            return refusal
        text, content_type = await metrics_text(request.headers.get("Accept", ""))
        return web.Response(body=text, headers={"Content-Type": content_type})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    return app


async def _refusal(request: web.Request, may_export: MayExport) -> web.Response | None:
    """The error response; None when the request carries a key that may export metrics."""
    headers = request.headers
    keys = credentials_in(headers.getall("Authorization", ()), headers.getall("x-api-key", ()))
    if not keys:
        return web.json_response({"error": "Unauthorized"}, status=401, headers={"WWW-Authenticate": "Bearer"})
    try:
        if any([await may_export(key) for key in keys]):
            return None
    except PolicyUnavailableError:
        return web.json_response({"error": "There is no policy yet to check this key against"}, status=503)
    return web.json_response({"error": "Authentication failed"}, status=403)


def _is_from_this_machine(request: web.Request) -> bool:
    peer = request.transport.get_extra_info("peername") if request.transport else None
    if not peer:
        return False
    fields = [(name.lower(), value) for name, value in request.headers.items()]
    return is_direct_from_loopback(str(peer[0]), request.version >= (1, 1), fields)


def is_direct_from_loopback(peer: str, is_http_1_1: bool, fields: Headers) -> bool:
    """Whether a request comes directly from this machine, not through a proxy or TLS terminator on it.

    A forwarder shows by its header fields, by the host name that its own client used, or by HTTP/1.0, which nginx uses
    for upstreams by default. The names in `fields` are in lower case.
    """
    if not is_http_1_1 or not _is_loopback(peer):
        return False
    if any(name in FORWARDING_FIELDS or name.startswith(FORWARDING_PREFIX) for name, _ in fields):
        return False
    return all(_names_this_machine(value) for name, value in fields if name == "host")


def _names_this_machine(host: str) -> bool:
    """Whether a Host field (RFC 9110 7.2) names `localhost` or a loopback address, with any port."""
    name = host.partition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    return name.lower() in _LOCAL_NAMES or _is_loopback(name)


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False
