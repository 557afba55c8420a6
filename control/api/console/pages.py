"""The pages below `/console/`: one static shell for all of them, and what it loads.

The script of the shell decides what to draw. No page holds a secret, runs an inline script or a string, loads anything
from another host, or may be framed.

See docs/reference/console.md#pages.
"""

from pathlib import Path

from aiohttp import web

PAGES = (
    *("overview", "groups", "endpoints", "keys", "events", "webhooks", "models", "async", "training", "audit"),
    *("playground", "usage"),
)
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " form-action 'none'; base-uri 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Content-Security-Policy": f"{_POLICY}; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # `no-referrer` would also hide the Origin of writes from us
}
_ASSETS = Path(__file__).parent / "assets"
_TYPES = {".css": "text/css", ".mjs": "text/javascript", ".svg": "image/svg+xml", ".txt": "text/plain"}
SHELL = _ASSETS / "shell.html"


def _found_assets() -> dict[str, Path]:
    """Path below `/console/assets/` to file. A request chooses one of these; it never names a file."""
    return {str(path.relative_to(_ASSETS)): path for path in _ASSETS.rglob("*") if path.suffix in _TYPES}


ASSETS = _found_assets()


async def _home(_request: web.Request) -> web.Response:
    return web.Response(status=303, headers={"Location": "/console/overview", "Cache-Control": "no-store"})


async def _page(request: web.Request) -> web.StreamResponse:
    if request.match_info["page"] not in PAGES:
        raise web.HTTPNotFound
    return shell({})


def shell(headers: dict[str, str]) -> web.FileResponse:
    """The page of every path, with these headers besides its own."""
    own = {"Content-Type": "text/html; charset=utf-8", "Cache-Control": "no-store"}
    return web.FileResponse(SHELL, headers=own | _HEADERS | headers)


async def _asset(request: web.Request) -> web.StreamResponse:
    path = ASSETS.get(request.match_info["path"])
    if path is None:
        raise web.HTTPNotFound
    headers = {"Content-Type": f"{_TYPES[path.suffix]}; charset=utf-8", "Cache-Control": "no-cache", **_HEADERS}
    return web.FileResponse(path, headers=headers)


ROUTES = [
    web.get("/console", _home),
    web.get("/console/{page}", _page),
    web.get("/console/assets/{path:.+}", _asset),
]
