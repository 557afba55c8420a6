"""`POST /internal/v1/traffic`: proxies send what they counted since they last did, possibly more than once.

200: added, now or before. 400 names what is malformed, and nothing of the batch is taken. Workspaces that do not exist
are ignored.
"""

import re
from collections.abc import Iterable

from aiohttp import web

from control.api.protocol.reports import Json, items, received
from control.errors import InvalidFieldError
from control.resources.traffic.figures import TrafficBatch, add_traffic
from policy.limits.alerts import ReachedLimit
from policy.traffic import TrafficRow

_SENDER = re.compile(r"[0-9a-f]{16}")
_MAX_TEXTS = {"workspace_id": 128, "group_id": 128, "slug": 257, "type": 64, "unit": 64, "deposited": 64}


async def _post(request: web.Request) -> web.Response:
    dependencies, body = await received(request)
    sender = body.get("sender")
    number = body.get("number")
    if not isinstance(sender, str) or not _SENDER.fullmatch(sender):
        raise InvalidFieldError("sender", "sender must be 16 hexadecimal digits")
    if type(number) is not int or not 1 <= number < 2**53:
        raise InvalidFieldError("number", "number must be a whole number of at least 1")
    rows = await items(body, "rows", _row)
    # Proxies of the version before do not send them.
    reached = await items({"limits_reached": [], **body}, "limits_reached", _reached)
    await add_traffic(dependencies.store, TrafficBatch(sender, number, rows, reached))
    return web.json_response({})


def _row(wire: Json) -> TrafficRow:
    row = TrafficRow.from_wire(wire)
    _check_texts(row, ("workspace_id", "slug"))
    return row


def _reached(wire: Json) -> ReachedLimit:
    limit = ReachedLimit.from_wire(wire)
    _check_texts(limit, ReachedLimit._fields)
    return limit


def _check_texts(row: TrafficRow | ReachedLimit, names: Iterable[str]) -> None:
    for name in names:
        text = getattr(row, name)
        if len(text) > _MAX_TEXTS[name] or "\0" in text:
            raise ValueError(f"{name} must be text of at most {_MAX_TEXTS[name]} characters")


ROUTES = [web.post("/internal/v1/traffic", _post)]
