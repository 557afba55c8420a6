"""The origin (scheme, host and port) under which a browser or client reaches this control plane.

See docs/reference/training.md#interactive-sessions.
"""

from aiohttp import web

_SCHEMES = ("http", "https")


def origin_of(request: web.Request) -> str:
    """`https://tollgate.example`, as links in answers begin.

    The scheme is what a TLS terminator names in `X-Forwarded-Proto`, else that of the connection. Callers choose both
    headers, so this is for answers to that very caller, never for a decision.
    """
    scheme = request.headers.get("X-Forwarded-Proto", "").strip().lower()
    return f"{scheme if scheme in _SCHEMES else request.scheme}://{request.host}"


def is_from_own_page(request: web.Request) -> bool:
    """Return whether a browser says that a page of ours sent the request: `Origin` names the host of the request.

    The scheme is not compared: behind a TLS terminator the page has `https`, the connection `http`. A page of another
    host cannot pass: browsers set `Origin` themselves, and send our cookie only to our host.
    """
    origins = request.headers.getall("Origin", ())
    scheme, separator, host = (origins[0] if len(origins) == 1 else "").lower().partition("://")
    return bool(separator) and scheme in _SCHEMES and host == request.host.lower()
