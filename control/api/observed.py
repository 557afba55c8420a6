"""Counts every answer, and shows the counts at `/metrics` to a metrics key or to this machine (decisions 11)."""

import time
from ipaddress import ip_address

from aiohttp import web
from aiohttp.typedefs import Handler

from control.api import guard
from control.api.parts import PARTS
from control.api.problems import ProblemError
from policy.credentials import may_export_metrics


@web.middleware
async def count_answers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Outside of `render_problems`, so that refusals are counted too."""
    started_s = time.perf_counter()
    answer = await handler(request)
    resource = request.match_info.route.resource
    route = resource.canonical if resource else "none"
    method = request.method if resource else "any"  # no label that a caller can make up
    request.app[PARTS].metrics.answered(method, route, answer.status, time.perf_counter() - started_s)
    return answer


async def metrics(request: web.Request) -> web.Response:
    parts = request.app[PARTS]
    if "Authorization" in request.headers or not _is_local(request):
        caller = await guard.authenticate(request, parts.store)
        if not may_export_metrics(caller.kind):
            raise ProblemError(403, "MISSING_SCOPE", "This API key may not export metrics")
    return web.Response(body=parts.metrics.text(), headers={"Content-Type": parts.metrics.content_type})


def _is_local(request: web.Request) -> bool:
    """From loopback, and not through a proxy that stands there."""
    if "X-Forwarded-For" in request.headers or "Forwarded" in request.headers:
        return False
    peer = request.transport.get_extra_info("peername") if request.transport else None
    return peer is not None and len(peer) > 1 and ip_address(str(peer[0]).partition("%")[0]).is_loopback


ROUTES = [web.get("/metrics", metrics)]
