"""Counts and logs every answer; serves the counts at `/metrics`.

See docs/reference/metrics.md#access.
"""

import logging
import time

from aiohttp import web
from aiohttp.typedefs import Handler

from control.api.changes.request_ids import request_id_of
from control.api.protocol import authentication
from control.api.protocol.dependencies import DEPENDENCIES
from control.api.protocol.errors import ProblemError
from control.dependencies import Dependencies
from control.resources.training.backend_reports import read_state
from policy.credentials import equals_token, may_export_metrics
from runtime.http.server import keep
from runtime.log_schema import FIELDS
from runtime.metrics_text import ALL_WORKSPACES

ROUTINE_PATHS = ("/healthz", "/readyz", "/metrics")
log = logging.getLogger(__name__)


@web.middleware
async def count_answers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware outside `render_problems`, so that refusals are counted too."""
    started_s = time.perf_counter()
    answer = await handler(request)
    resource = request.match_info.route.resource
    route = resource.canonical if resource else "none"
    method = request.method if resource else "any"  # a caller must not be able to invent label values
    duration_s = time.perf_counter() - started_s
    request.app[DEPENDENCIES].metrics.answered(method, route, answer.status, duration_s)
    _log(request, route, answer.status, duration_s)
    return answer


def _log(request: web.Request, route: str, status: int, duration_s: float) -> None:
    """One line with the fields of the proxy's access log; `path` is the template, since a real path may contain a key.

    Routine requests of machines are logged at DEBUG.
    """
    is_routine = route in ROUTINE_PATHS or route.startswith("/internal/")
    fields = {
        "method": request.method,
        "path": route,
        "status": status,
        "total_ms": round(duration_s * 1e6) / 1000,
        "request_id": request_id_of(request),
    }
    caller = request.get(authentication.CALLER)
    if caller is not None:
        fields |= {"workspace": caller.workspace_id, "key_prefix": caller.prefix}
    log.log(logging.DEBUG if is_routine and status < 500 else logging.INFO, "request", extra={FIELDS: fields})


async def metrics(request: web.Request) -> web.Response:
    dependencies = request.app[DEPENDENCIES]
    workspace = await _workspace_shown(request, dependencies)
    await dependencies.events.look_at_clock()
    dependencies.metrics.show_training(*await read_state(dependencies.store))
    text, content_type = dependencies.metrics.text(request.headers.get("Accept", ""), workspace)
    return web.Response(body=text, headers={"Content-Type": content_type})


async def _workspace_shown(request: web.Request, dependencies: Dependencies) -> str:
    """The workspace whose series the request may read: every one with the operator's token. Otherwise 401 or 403."""
    token = dependencies.settings.metrics_token
    if any(equals_token(credential, token) for credential in authentication.presented_credentials(request)):
        keep(request, None)
        return ALL_WORKSPACES
    caller = await authentication.authenticate(request, dependencies)
    if not may_export_metrics(caller.kind):
        raise ProblemError(
            403, "MISSING_SCOPE", "This API key may not export metrics; use a WORKSPACE_EXPORT_METRICS key"
        )
    return caller.workspace_id


ROUTES = [web.get("/metrics", metrics)]
