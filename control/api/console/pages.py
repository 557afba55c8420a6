"""The pages below `/console/`: one static shell for all of them, and the files that it loads.

The script of the shell decides what to draw. No page holds a secret, runs an inline script or a string, loads anything
from another host. None may be framed but the embedded one, by the origins that its link names.

See docs/reference/console.md#pages.
"""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from aiohttp import web

from control.api.console.tables import tables
from control.api.protocol.dependencies import DEPENDENCIES

PAGES = (
    *("overview", "requests", "spend", "groups", "endpoints", "prices", "secrets", "keys", "events", "webhooks"),
    *("models", "async", "training", "audit", "playground", "usage"),
)
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " form-action 'none'; base-uri 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_NOBODY = "'none'"
HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Content-Security-Policy": f"{_POLICY}; frame-ancestors {_NOBODY}",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # `no-referrer` would also hide the Origin of writes from us
}
_HTML = {"Content-Type": "text/html; charset=utf-8", "Cache-Control": "no-store"}
_ASSETS = Path(__file__).parent / "assets"
_TYPES = {".css": "text/css", ".mjs": "text/javascript", ".svg": "image/svg+xml", ".txt": "text/plain"}
_SHELL = _ASSETS / "shell.html"


def _found_assets() -> dict[str, Path]:
    """Path below `/console/assets/` to file. A request chooses one of these; it never names a file."""
    return {str(path.relative_to(_ASSETS)): path for path in _ASSETS.rglob("*") if path.suffix in _TYPES}


ASSETS = _found_assets()


async def _home(_request: web.Request) -> web.Response:
    return web.Response(status=303, headers={"Location": "/console/overview", "Cache-Control": "no-store"})


async def _page(request: web.Request) -> web.StreamResponse:
    if request.match_info["page"] not in PAGES:
        raise web.HTTPNotFound
    return web.FileResponse(_SHELL, headers=_HTML | HEADERS)


def embedded_page(frame_origins: Sequence[str]) -> web.FileResponse:
    """The same page, as pages of these origins may frame it."""
    return web.FileResponse(_SHELL, headers=_HTML | embedded_headers(frame_origins))


def embedded_notice(frame_origins: Sequence[str], status: int, message: str) -> web.Response:
    """A page that says one thing, in place of the embedded page."""
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Usage</title>'
        '<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="/console/assets/console.css">'
        f"</head><body><main><p>{escape(message)}</p></main></body></html>"
    )
    return web.Response(status=status, text=text, headers=_HTML | embedded_headers(frame_origins))


def notice_page(status: int, title: str, paragraphs: Sequence[str], links: Mapping[str, str]) -> web.Response:
    """A page outside the shell: paragraphs of text, and links by their texts. Its address is told to nobody."""
    body = "".join(f"<p>{escape(paragraph)}</p>" for paragraph in paragraphs)
    ways = "".join(f'<p><a href="{escape(address)}">{escape(text)}</a></p>' for text, address in links.items())
    text = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)} · Tollgate</title>'
        '<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="/console/assets/console.css">'
        f'</head><body><main class="login"><h1>{escape(title)}</h1>{body}{ways}</main></body></html>'
    )
    return web.Response(status=status, text=text, headers=_HTML | HEADERS | {"Referrer-Policy": "no-referrer"})


def embedded_headers(frame_origins: Sequence[str]) -> dict[str, str]:
    """The headers of a page in a frame. X-Frame-Options cannot name origins. No request may tell the link's token."""
    framed = {"Content-Security-Policy": f"{_POLICY}; frame-ancestors {' '.join(frame_origins) or _NOBODY}"}
    others = {name: value for name, value in HEADERS.items() if name != "X-Frame-Options"}
    return others | framed | {"Referrer-Policy": "no-referrer"}


async def _asset(request: web.Request) -> web.StreamResponse:
    path = ASSETS.get(request.match_info["path"])
    if path is None:
        raise web.HTTPNotFound
    headers = {"Content-Type": f"{_TYPES[path.suffix]}; charset=utf-8", "Cache-Control": "no-cache", **HEADERS}
    return web.FileResponse(path, headers=headers)


async def _tables(request: web.Request) -> web.Response:
    settings = request.app[DEPENDENCIES].settings
    headers = {"Cache-Control": "no-store", **HEADERS}
    members = tables(settings.provider_names, settings.regions, settings.login is not None)
    return web.json_response(members, headers=headers)


ROUTES = [
    web.get("/console", _home),
    web.get("/console/", _home),
    web.get("/console/tables.json", _tables),
    web.get("/console/{page}", _page),
    web.get("/console/assets/{path:.+}", _asset),
]
