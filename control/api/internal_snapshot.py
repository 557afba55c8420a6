"""`GET /internal/v1/snapshot`: the proxies' feed of policy, behind the token that both planes share.

See docs/reference/management-api.md#internal-api.
"""

import orjson
from aiohttp import web

from control.api.protocol import authentication
from control.api.protocol.dependencies import PARTS
from control.api.protocol.encoding import Array, encode_object, put_together
from control.api.protocol.errors import bad_field
from control.resources import publisher
from control.resources.publisher import Reader, Walk
from control.time_slices import each

_MAX_REVISION = 2**63 - 2
DEFAULT_ROWS = 1_000


async def snapshot(request: web.Request) -> web.Response:
    parts = request.app[PARTS]
    authentication.check_internal(request, parts.settings.internal_token)
    delta = await publisher.read_page(parts.store, _reader(request))
    wire = delta.to_wire()
    rows = Array(await each(wire["rows"], lambda row: (orjson.dumps(row),)))
    body = await put_together(encode_object(wire | {"rows": rows}))
    return web.Response(body=body, content_type="application/json")


def _reader(request: web.Request) -> Reader:
    after = request.query.get("after")
    try:
        walk = Walk.decode(after) if after is not None else None
    except (ValueError, RecursionError):
        raise bad_field("after", "not the `next` of an earlier page") from None
    limit = _number(request, "limit", DEFAULT_ROWS, publisher.MAX_ROWS)
    since = _number(request, "since", 0, _MAX_REVISION)
    return Reader(request.query.get("epoch", ""), since, walk, max(limit, 1), request.query.get("nonce"))


def _number(request: web.Request, name: str, default: int, largest: int) -> int:
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise bad_field(name, "must be a whole number")
    return min(int(text), largest)


ROUTES = [web.get("/internal/v1/snapshot", snapshot, allow_head=False)]
