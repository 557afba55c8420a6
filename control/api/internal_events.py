"""`POST /internal/v1/events`: proxies send billing events, possibly more than once; each is stored once.

200: committed. 400: an event is malformed. 409: `after`, the key of an event that was committed before, is not in the
database, as after a restore. An error stores nothing of the batch.
"""

from typing import Any

import orjson
from aiohttp import web

from control.api.protocol import authentication
from control.api.protocol.bodies import receive_batch
from control.api.protocol.dependencies import DEPENDENCIES
from control.api.protocol.errors import bad_request
from control.resources.errors import InvalidFieldError
from control.time_slices import each, pause
from policy import exact_json
from policy.billing import BillingEvent

MAX_EVENTS = 1000
_TEXTS = {
    "idempotency_key": 64,
    "workspace_id": 128,
    "group_id": 128,
    "external_entity_id": 255,
    "api_key_prefix": 128,
    "request_id": 128,
    "model_slug": 257,
}


async def _post(request: web.Request) -> web.Response:
    dependencies = request.app[DEPENDENCIES]
    authentication.check_internal(request, dependencies.settings.internal_token)
    batch, after = await parse_batch(await receive_batch(request))
    return web.json_response({"accepted": await dependencies.ingest.take(batch, after)})


async def parse_batch(body: bytes) -> tuple[list[BillingEvent], str | None]:
    """The events, and `after`. The error names the first malformed event."""
    await pause()
    try:
        batch = orjson.loads(body)
        wires, after = batch["events"], batch.get("after")
    except (ValueError, KeyError, TypeError):
        raise bad_request("The body must be a JSON object with a member `events`") from None
    if not isinstance(wires, list) or len(wires) > MAX_EVENTS:
        raise InvalidFieldError("events", f"must be an array of at most {MAX_EVENTS} events")
    if not all(await each(wires, _is_read_exactly)):
        wires = await _read_exactly(body)
    if not (after is None or (isinstance(after, str) and 1 <= len(after) <= _TEXTS["idempotency_key"])):
        raise InvalidFieldError("after", "must be the idempotency key of an event that was committed before")
    return await each(enumerate(wires), _event), after


async def _read_exactly(body: bytes) -> list[Any]:
    try:
        return await each(exact_json.items_of(body.decode(), "events"), lambda wire: wire)
    except RecursionError:
        raise InvalidFieldError("events", "an event's metadata is nested too deeply") from None


def _is_read_exactly(wire: Any) -> bool:
    """Whether orjson read an event's metadata without loss. Malformed events are reported later."""
    metadata = wire.get("request_metadata") if isinstance(wire, dict) else None
    return not isinstance(metadata, dict) or exact_json.has_only_text(metadata)


def _event(place: tuple[int, Any]) -> BillingEvent:
    index, wire = place
    try:
        event = BillingEvent.from_wire(wire)
        _check(event)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidFieldError(f"events.{index}", f"malformed: {error}") from None
    return event


def _check(event: BillingEvent) -> None:
    """Refuse what no column can hold: in the database it would fail the batch and look like an outage.

    `from_wire` has checked types and signs.
    """
    for name, longest in _TEXTS.items():
        text = getattr(event, name)
        if not 1 <= len(text) <= longest or "\0" in text:
            raise ValueError(f"{name} must be text of 1 to {longest} characters")
    if event.status > 999:
        raise ValueError("status must be at most 999")


ROUTES = [web.post("/internal/v1/events", _post)]
