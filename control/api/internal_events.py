"""`POST /internal/v1/events`: proxies hand in billing events, as often as they like; each counts once.

200 means committed. 400 names the event that is malformed; nothing of the batch is taken then. `after`, if given, is
the key of an event that was committed before: 409 when it is not here, as after a restore, and nothing is taken.
"""

from typing import Any

import orjson
from aiohttp import web

from control.api.protocol import authentication
from control.api.protocol.dependencies import PARTS
from control.api.protocol.errors import ProblemError, bad_field, bad_request
from control.edges.sql.events.ingest import EventsLostError, IngestTooSlowError
from control.time_slices import each, pause
from policy import exact_json
from policy.billing import BillingEvent

MAX_EVENTS = 1000
MAX_BYTES = 16 * 1024 * 1024
_TEXTS = {
    "idempotency_key": 64,
    "workspace_id": 128,
    "group_id": 128,
    "external_entity_id": 255,
    "api_key_prefix": 128,
    "request_id": 128,
    "model_slug": 257,
}


async def take_events(request: web.Request) -> web.Response:
    parts = request.app[PARTS]
    authentication.check_internal(request, parts.settings.internal_token)
    batch, after = await parse_batch(await _body(request))
    try:
        accepted = await parts.ingest.take(batch, after)
    except EventsLostError as error:
        raise ProblemError(409, "EVENTS_LOST", str(error)) from None
    except IngestTooSlowError as error:
        raise ProblemError(503, "DATABASE_UNAVAILABLE", str(error)) from None
    return web.json_response({"accepted": accepted})


async def _body(request: web.Request) -> bytes:
    """A batch may be larger than what the management API takes."""
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > MAX_BYTES:
            raise ProblemError(413, "REQUEST_ENTITY_TOO_LARGE", f"a batch has at most {MAX_BYTES} bytes")
    return bytes(body)


async def parse_batch(body: bytes) -> tuple[list[BillingEvent], str | None]:
    """The events, and `after`; a 400 that names the first one that is not one."""
    await pause()
    try:
        batch = orjson.loads(body)
        wires, after = batch["events"], batch.get("after")
    except (ValueError, KeyError, TypeError):
        raise bad_request("The body must be a JSON object with a member `events`") from None
    if not isinstance(wires, list) or len(wires) > MAX_EVENTS:
        raise bad_field("events", f"must be an array of at most {MAX_EVENTS} events")
    if not all(await each(wires, _is_read_exactly)):
        wires = await _read_exactly(body)
    if not (after is None or (isinstance(after, str) and 1 <= len(after) <= _TEXTS["idempotency_key"])):
        raise bad_field("after", "must be the idempotency key of an event that was committed before")
    return await each(enumerate(wires), _event), after


async def _read_exactly(body: bytes) -> list[Any]:
    try:
        return await each(exact_json.items_of(body.decode(), "events"), lambda wire: wire)
    except RecursionError:
        raise bad_field("events", "an event's metadata is nested too deeply") from None


def _is_read_exactly(wire: Any) -> bool:
    """Whether orjson kept all that an event's metadata says; what is no event is told later."""
    metadata = wire.get("request_metadata") if isinstance(wire, dict) else None
    return not isinstance(metadata, dict) or exact_json.has_only_text(metadata)


def _event(place: tuple[int, Any]) -> BillingEvent:
    index, wire = place
    try:
        event = BillingEvent.from_wire(wire)
        _check(event)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise bad_field(f"events.{index}", f"malformed: {error}") from None
    return event


def _check(event: BillingEvent) -> None:
    """What the database could not hold would fail a whole batch; it is told from an outage here. Types and signs are
    `from_wire`'s to check."""
    for name, longest in _TEXTS.items():
        text = getattr(event, name)
        if not 1 <= len(text) <= longest or "\0" in text:
            raise ValueError(f"{name} must be text of 1 to {longest} characters")
    if event.status > 999:
        raise ValueError("status must be at most 999")


ROUTES = [web.post("/internal/v1/events", take_events)]
