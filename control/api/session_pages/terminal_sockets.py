"""The WebSockets of terminals: the browser's below `/sessions/`, and the trainer's on the internal API.

A browser needs the session's cookie, and a page of ours to come from. The trainer needs the internal token.

See docs/reference/training.md#interactive-sessions.
"""

import asyncio

from aiohttp import web

from control.api.protocol import authentication
from control.api.protocol.dependencies import DEPENDENCIES
from control.api.protocol.errors import ProblemError
from control.api.protocol.origins import is_from_own_page
from control.api.session_pages.pairing import TERMINALS, TooManyTerminalsError
from control.api.session_pages.relay import MAX_MESSAGE_BYTES, STOPPING, End, Relay
from control.dependencies import Dependencies
from control.errors import DatabaseUnavailableError, NotFoundError
from control.records.training import SessionRecord
from control.resources.training import sessions
from runtime.http.server import keep

COOKIE = "tollgate-session"
_HEARTBEAT_S = 20.0
_CLOSE_TIMEOUT_S = 3.0


async def _browser(request: web.Request) -> web.StreamResponse:
    dependencies = request.app[DEPENDENCIES]
    if not is_from_own_page(request):
        raise ProblemError(403, "FOREIGN_ORIGIN", "Only a page of this control plane may open a shell")
    cookie = request.cookies.get(COOKIE, "")
    session_id = request.match_info["session_id"]
    session = await sessions.find_session(dependencies.store, session_id)
    if session is None or not sessions.is_opened_by(session, cookie):
        raise ProblemError(403, "SESSION_NOT_OPEN", "The session is over, or its code was not entered in this browser")
    workspace_id = await sessions.owner_of(dependencies.store, session)
    keep(request, workspace_id)
    socket = await _accepted(request)
    try:
        with request.app[TERMINALS].opened(workspace_id, session, socket) as terminal:
            await Relay(terminal, lambda: _is_open(dependencies, session, cookie)).run()
    except TooManyTerminalsError as refusal:
        end = End(str(refusal))
        await socket.close(code=end.code, message=end.message)
    return socket


async def _is_open(dependencies: Dependencies, session: SessionRecord, cookie: str) -> bool:
    """Return whether the session is open to this cookie. True while the database is away: an outage ends no shell."""
    try:
        record = await sessions.find_session(dependencies.store, session.id)
    except DatabaseUnavailableError:
        return True
    return record is not None and sessions.is_opened_by(record, cookie)


async def _trainer(request: web.Request) -> web.StreamResponse:
    dependencies = request.app[DEPENDENCIES]
    authentication.check_internal(request, dependencies.settings.internal_token)
    terminal = request.app[TERMINALS].waiting(request.match_info["terminal_id"])
    if terminal is None:
        raise NotFoundError
    socket = await _accepted(request)
    if terminal.node.done():  # its browser left meanwhile, or it was joined twice
        await socket.close()
    else:
        terminal.node.set_result(socket)
        await terminal.ended.wait()
    return socket


async def _accepted(request: web.Request) -> web.WebSocketResponse:
    """The connection as a WebSocket; 400 if the request asks for none. Uncompressed: sizes are what they seem."""
    socket = web.WebSocketResponse(
        timeout=_CLOSE_TIMEOUT_S, heartbeat=_HEARTBEAT_S, max_msg_size=MAX_MESSAGE_BYTES, compress=False
    )
    if not socket.can_prepare(request):
        raise ProblemError(400, "INVALID_REQUEST", "This address is for WebSockets")
    await socket.prepare(request)
    return socket


async def close_terminals(app: web.Application) -> None:
    """Close open shells, so that they do not hold up the end of control: for `on_shutdown`."""
    browsers = app[TERMINALS].browsers()
    await asyncio.gather(*(one.close(code=STOPPING.code, message=STOPPING.message) for one in browsers))


ROUTES = [
    web.get("/sessions/{session_id}/terminal", _browser),
    web.get("/internal/v1/training/terminals/{terminal_id}", _trainer),
]
