"""`POST /console/call`: a call of the inference API for the console's pages, which may not call another origin.

The answer's first line is JSON: status and headers of the proxy's answer. Its body follows, byte by byte as it comes.

See docs/reference/console.md#calls.
"""

import asyncio
import json
import logging
from typing import Any, Literal

from aiohttp import web
from pydantic import Field

from control.api.console.console_sessions import session_of
from control.api.protocol.authentication import check_permission
from control.api.protocol.bodies import read_body, receive
from control.api.protocol.dependencies import DEPENDENCIES
from control.api.protocol.errors import ProblemError
from control.api.protocol.schemas import RequestV1
from control.errors import AnswerBrokenError, NoProxyUrlError, ProxyUnavailableError
from control.records.console import InferenceCall
from control.resources.console.calls import check_call, is_look
from control.resources.console.console_sessions import ConsoleSession
from policy.credentials import MODEL_CALLERS, KeyKind
from policy.keys.permissions import Permission
from runtime.log_lines import cause_of

PATH = "/console/call"
_LOOK_S = 0.2
"""The interval of looks whether the browser is still there: nothing is read from it, so nothing else tells."""
_LEFT = 499
_HEADERS = {
    "Content-Type": "application/octet-stream",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # else nginx collects what streams
}
log = logging.getLogger(__name__)


class CallRequestV1(RequestV1):
    """A call of the inference API. `api_key` null: with the key that logged in, if one did."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    headers: dict[str, str] = Field(default_factory=dict)
    body: Any = None
    api_key: str | None = Field(default=None, repr=False)


async def _call(request: web.Request) -> web.StreamResponse:
    dependencies = request.app[DEPENDENCIES]
    session = await session_of(request)
    _check_may_call(session)
    if dependencies.inference is None:
        raise NoProxyUrlError
    text = await receive(request)
    async with dependencies.turns.of(session.caller.workspace_id):
        body = await read_body(session.caller.workspace_id, text, CallRequestV1)
    assert isinstance(body, CallRequestV1)
    call = _checked(body, session)
    with dependencies.call_places.taken(session.record.digest, session.caller.workspace_id):
        try:
            return await _while_connected(request, call)
        except ProxyUnavailableError as error:
            log.warning(
                "The proxy gave a call of the console no answer (%s); the page shows the error. Check the proxy and"
                " TOLLGATE_PROXY_URL.",
                error.reason,
            )
            raise


def _check_may_call(session: ConsoleSession) -> None:
    """Refuse keys that the pages with calls are not for with 403."""
    if session.caller.kind is KeyKind.FEDERATED:
        raise ProblemError(403, "FEDERATED_KEY", "A session of a federated key sees the usage of its group and no more")
    if session.caller.kind not in MODEL_CALLERS:
        raise ProblemError(403, "MISSING_SCOPE", "This API key may not call models")
    check_permission(session.caller, Permission.INVOKE)


def _checked(body: CallRequestV1, session: ConsoleSession) -> InferenceCall:
    api_key = session.api_key() if body.api_key is None else body.api_key
    if api_key is None:
        raise ProblemError(403, "NO_KEY", "You logged in without an API key: name the key to call with")
    has_body = "body" in body.model_fields_set
    call = InferenceCall(
        body.method,
        body.path,
        {name.lower(): value for name, value in body.headers.items()},
        json.dumps(body.body, ensure_ascii=False, separators=(",", ":")).encode() if has_body else None,
        api_key,
        is_look(body.method, body.path),
    )
    check_call(call)
    return call


async def _while_connected(request: web.Request, call: InferenceCall) -> web.StreamResponse:
    """Relay until the end, or until the browser leaves: then the proxy's call is aborted."""
    relaying = asyncio.create_task(_relay(request, call))
    try:
        while not relaying.done():
            await asyncio.wait({relaying}, timeout=_LOOK_S)
            if request.transport is None or request.transport.is_closing():
                break
    finally:
        relaying.cancel()  # does nothing to one that is done
        await asyncio.wait({relaying})
    if relaying.cancelled() or isinstance(relaying.exception(), ConnectionResetError):
        return web.Response(status=_LEFT)  # for log and metrics
    return relaying.result()


async def _relay(request: web.Request, call: InferenceCall) -> web.StreamResponse:
    inference = request.app[DEPENDENCIES].inference
    assert inference is not None
    async with inference.calling(call) as upstream:
        answer = web.StreamResponse(headers=_HEADERS)
        await answer.prepare(request)
        head = {"status": upstream.status, "headers": upstream.headers}
        await answer.write(json.dumps(head).encode() + b"\n")
        try:
            async for piece in upstream.pieces():
                await answer.write(piece)
        except AnswerBrokenError as error:
            log.warning(
                "A call of the console broke off: the proxy's answer ended early (%s). The page shows it as cut off."
                " Check the proxy's log.",
                cause_of(error),
            )
            if request.transport is not None:
                request.transport.abort()  # the page must not take a part for the whole
            return answer
        await answer.write_eof()
    return answer


ROUTES = [web.post(PATH, _call)]
