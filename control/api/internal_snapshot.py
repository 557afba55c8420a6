"""`GET /internal/v1/snapshot`: the feed of policy for the proxies, authenticated by the internal token.

See docs/reference/management-api.md#internal-api.
"""

from functools import partial

import orjson
from aiohttp import web

from control.api.protocol import authentication
from control.api.protocol.dependencies import DEPENDENCIES
from control.api.protocol.encoding import Array, Pieces, encode_object, joined
from control.dependencies import Store
from control.errors import InvalidFieldError
from control.long_work import OPERATOR, beside
from control.resources import policy_feed
from control.resources.policy_feed import FeedCursor, FeedReader
from control.shared_work import SharedWork
from policy.limits.kinds import KINDS
from policy.snapshot import SnapshotPage
from policy.spend.levels import POLICY_LEVEL

_MAX_REVISION = 2**63 - 2
DEFAULT_ROWS = 1_000


async def _get(request: web.Request) -> web.Response:
    dependencies = request.app[DEPENDENCIES]
    authentication.check_internal(request, dependencies.settings.internal_token)
    reader = _reader(request)
    limit_kinds = _number(request, "limit_kinds", policy_feed.FIRST_KINDS, len(KINDS))
    await dependencies.older_proxies.note(limit_kinds, _number(request, "spend_limits", 0, POLICY_LEVEL))
    page = await dependencies.policy_pages.of(reader)
    return web.Response(body=joined(page), content_type="application/json")


def shared_pages(store: Store) -> SharedWork[FeedReader, Pieces]:
    """Encoded pages of policy. Proxies of the same revision that ask at once get the same one."""

    async def page(reader: FeedReader) -> Pieces:
        rows = await policy_feed.read_page(store, reader)
        return await beside(OPERATOR, len(rows.rows), partial(_encoded, rows))

    return SharedWork(page)


def _encoded(page: SnapshotPage) -> Pieces:
    wire = page.to_wire()
    return encode_object(wire | {"rows": Array([(orjson.dumps(row),) for row in wire["rows"]])})


def _reader(request: web.Request) -> FeedReader:
    after = request.query.get("after")
    try:
        cursor = FeedCursor.decode(after) if after is not None else None
    except (ValueError, RecursionError):
        raise InvalidFieldError("after", "not the `next` of an earlier page") from None
    limit = _number(request, "limit", DEFAULT_ROWS, policy_feed.MAX_ROWS)
    since = _number(request, "since", 0, _MAX_REVISION)
    return FeedReader(request.query.get("epoch", ""), since, cursor, max(limit, 1), request.query.get("nonce"))


def _number(request: web.Request, name: str, default: int, largest: int) -> int:
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise InvalidFieldError(name, "must be a whole number")
    return min(int(text), largest)


ROUTES = [web.get("/internal/v1/snapshot", _get, allow_head=False)]
