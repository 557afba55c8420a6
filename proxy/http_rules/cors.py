"""Cross-origin requests (CORS): which origins may call from a browser, and the fields that tell the browser so. Pure.

Off unless the operator sets origins. Credentials mode is never allowed: the gateway uses no cookies, and a page sends
its API key in a header.

See docs/reference/inference.md#cross-origin-requests.
"""

import re
from dataclasses import dataclass

from proxy.answers import Answered
from proxy.records.messages import Incoming

ANY = "*"
MAX_AGE_S = 7200
"""Seconds for which a browser may reuse a preflight's answer. Browsers allow no more."""
_METHODS = "GET, HEAD, POST"
_DIRECT_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
_USUAL_FIELDS = "authorization, x-api-key, content-type"
_EXPOSED = ", ".join(
    (
        *("x-request-id", "request-id", "retry-after", "retry-after-ms", "x-should-retry"),
        *("x-tollgate-reasoning", "x-tollgate-left-out", "x-tollgate-output-cap"),
        *(
            f"x-ratelimit-{figure}-{kind}"
            for kind in ("requests", "tokens")
            for figure in ("limit", "remaining", "reset")
        ),
    )
)
_ORIGIN = re.compile(r"https?://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")
_FIELD_NAMES = re.compile(r"[A-Za-z0-9_-]+(?: ?, ?[A-Za-z0-9_-]+){0,99}")


@dataclass(frozen=True, slots=True)
class CorsRules:
    """The origins that may call from a browser. Empty: none; `*` among them: all."""

    origins: frozenset[str] = frozenset()

    def lines(self, incoming: Incoming) -> str:
        """The header lines, with CRLF, that each answer to this request gets. Call it only if there are origins."""
        if ANY in self.origins:
            return f"access-control-allow-origin: *\r\naccess-control-expose-headers: {_EXPOSED}\r\n"
        origin = incoming.header("origin")
        if origin not in self.origins:
            return "vary: origin\r\n"
        allowed = f"access-control-allow-origin: {origin}\r\naccess-control-expose-headers: {_EXPOSED}\r\n"
        return f"{allowed}vary: origin\r\n"

    def preflight(self, incoming: Incoming, is_direct: bool = False) -> Answered | None:
        """The answer to a preflight request of an allowed origin, which carries no credential; None for all else.

        `is_direct`: it is for a direct call to a model, which may have any method of a resource.
        Any field may be sent: the gateway passes on a fixed list. So the names that the browser asks for are repeated.
        """
        if incoming.method != "OPTIONS" or incoming.header("access-control-request-method") is None:
            return None
        origin = incoming.header("origin")
        if origin is None or self.origins.isdisjoint((origin, ANY)):
            return None
        names = incoming.header("access-control-request-headers") or ""
        fields = names if _FIELD_NAMES.fullmatch(names) else _USUAL_FIELDS
        headers = (
            ("access-control-allow-methods", _DIRECT_METHODS if is_direct else _METHODS),
            ("access-control-allow-headers", fields),
            ("access-control-max-age", str(MAX_AGE_S)),
            ("vary", "access-control-request-headers"),
        )
        return Answered(204, headers, b"")


def parse_cors_origins(text: str) -> CorsRules:
    """Parse comma-separated origins, or `*`. Raises `ValueError`."""
    origins = frozenset(item.strip() for item in text.split(",") if item.strip())
    if not all(origin == ANY or _ORIGIN.fullmatch(origin) for origin in origins):
        raise ValueError("expected `*`, or comma-separated origins such as https://app.example.com, without a path")
    return CorsRules(origins)
