"""`/sessions/{session_id}`: asks for the code; with the cookie that a code buys, the same address is the shell.

No page holds a secret, runs an inline script, loads anything from another host, or may be framed.

See docs/reference/training.md#interactive-sessions.
"""

from html import escape
from pathlib import Path
from urllib.parse import parse_qs

from aiohttp import web

from control.api.protocol.dependencies import DEPENDENCIES
from control.api.protocol.errors import ProblemError
from control.api.protocol.origins import is_from_own_page, origin_of
from control.api.session_pages.terminal_sockets import COOKIE
from control.errors import DatabaseUnavailableError
from control.records.training import SessionRecord
from control.resources.training import sessions
from control.resources.training.sessions import Refusal

_MAX_FORM_BYTES = 4096
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'"
)
"""The content security policy. Inline styles: xterm.js writes its colours and sizes into `<style>` elements."""
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # `no-referrer` would also hide the form's Origin from us
    "Cross-Origin-Opener-Policy": "same-origin",
}
_ASSETS = Path(__file__).parent / "assets"
_TYPES = {
    "page.css": "text/css",
    "terminal.mjs": "text/javascript",
    "xterm.css": "text/css",
    "xterm.mjs": "text/javascript",
    "xterm.LICENSE": "text/plain",
}
_OVER = "This session is over, or it never was. Ask for a new address: <code>GET …/auth_codes</code> of the job."
_TOLD = {
    Refusal.WRONG: "This is not the code.",
    Refusal.VOID: "There is no valid code any more. Ask for a new one: <code>GET …/auth_codes</code> of the job.",
}


async def _get(request: web.Request) -> web.Response:
    try:
        session = await _session(request)
    except DatabaseUnavailableError:
        return _unavailable()
    if session is None:
        return _page("Session over", f"<h1>Session over</h1><p>{_OVER}</p>", 404)
    if sessions.is_opened_by(session, request.cookies.get(COOKIE, "")):
        return _terminal_page(session)
    return _code_page()


async def _post(request: web.Request) -> web.Response:
    """Spend the code. Answers with a redirect to the same address, so that a reload repeats nothing."""
    if not is_from_own_page(request):
        raise ProblemError(403, "FOREIGN_ORIGIN", "Only the page of this session may send its code")
    typed = await _typed_code(request)
    dependencies = request.app[DEPENDENCIES]
    session_id = request.match_info["session_id"]
    try:
        spent = await sessions.spend_code(dependencies.store, dependencies.settings.secret_keys, session_id, typed)
    except DatabaseUnavailableError:
        return _unavailable()
    if spent is Refusal.OVER:
        return _page("Session over", f"<h1>Session over</h1><p>{_OVER}</p>", 404)
    if isinstance(spent, Refusal):
        return _code_page(_TOLD[spent], 403)
    answer = _page("Session", "<p>The session is open.</p>", 303)
    answer.headers["Location"] = request.path
    is_https = origin_of(request).startswith("https:")
    answer.set_cookie(COOKIE, spent, path=request.path, httponly=True, samesite="Strict", secure=is_https)
    return answer


async def _typed_code(request: web.Request) -> str:
    if request.content_type != "application/x-www-form-urlencoded":
        raise ProblemError(415, "UNSUPPORTED_MEDIA_TYPE", "Content-Type must be application/x-www-form-urlencoded")
    if (request.content_length or 0) > _MAX_FORM_BYTES or len(body := await request.read()) > _MAX_FORM_BYTES:
        raise ProblemError(413, "REQUEST_ENTITY_TOO_LARGE", f"The form has more than {_MAX_FORM_BYTES} bytes")
    try:
        return parse_qs(body.decode("ascii"), max_num_fields=4).get("code", [""])[0]
    except ValueError:
        raise ProblemError(400, "INVALID_REQUEST", "The body is not a form") from None


async def _asset(request: web.Request) -> web.StreamResponse:
    name = request.match_info["name"]
    if name not in _TYPES:
        raise web.HTTPNotFound
    headers = {"Content-Type": f"{_TYPES[name]}; charset=utf-8", "Cache-Control": "no-cache", **_HEADERS}
    return web.FileResponse(_ASSETS / name, headers=headers)


async def _session(request: web.Request) -> SessionRecord | None:
    return await sessions.find_session(request.app[DEPENDENCIES].store, request.match_info["session_id"])


def _code_page(message: str = "", status: int = 200) -> web.Response:
    body = (
        "<h1>Interactive session</h1>"
        f"<p role=alert>{message}</p>"
        "<form method=post autocomplete=off><label for=code>Code</label>"
        "<input id=code name=code required autofocus maxlength=40 autocapitalize=characters spellcheck=false"
        " placeholder=4F64-C0D9><button>Open</button></form>"
        "<p>It is the <code>auth_code</code> of <code>GET …/auth_codes</code> of the job, and opens the shell once.</p>"
    )
    return _page("Interactive session", body, status)


def _terminal_page(session: SessionRecord) -> web.Response:
    body = (
        "<div id=terminal></div><p id=notice role=status hidden></p>"
        "<noscript><p>The shell needs JavaScript.</p></noscript>"
        "<script type=module src=/sessions/assets/terminal.mjs></script>"
    )
    return _page(f"Node {session.rank} of {session.job_id}", body)


def _unavailable() -> web.Response:
    html = "<h1>Try again</h1><p>Tollgate cannot reach its database right now. The session is unchanged.</p>"
    return _page("Try again", html, 503)


def _page(title: str, body: str, status: int = 200) -> web.Response:
    text = (
        f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{escape(title)}</title>"
        "<meta name=viewport content='width=device-width'>"
        "<link rel=stylesheet href=/sessions/assets/xterm.css><link rel=stylesheet href=/sessions/assets/page.css>"
        f"</head><body>{body}</body></html>"
    )
    headers = {**_HEADERS, "Cache-Control": "no-store"}
    return web.Response(status=status, text=text, content_type="text/html", headers=headers)


ROUTES = [
    web.get("/sessions/assets/{name}", _asset),
    web.get("/sessions/{session_id}", _get),
    web.post("/sessions/{session_id}", _post),
]
