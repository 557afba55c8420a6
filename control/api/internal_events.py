"""`POST /internal/v1/events`: proxies send billing events, possibly more than once; each is stored once.

200: committed. 400: an event is malformed. 409: `after`, the key of an event that was committed before, is not in the
database, as after a restore. An error stores nothing of the batch.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import orjson
from aiohttp import web

from control.api.protocol import authentication
from control.api.protocol.bodies import receive_batch
from control.api.protocol.dependencies import DEPENDENCIES
from control.api.protocol.errors import bad_request
from control.errors import InvalidFieldError
from control.long_work import CHARS_PER_ITEM, OPERATOR, beside
from policy import exact_json
from policy.billing import BillingEvent, EventColumns, columns_from_wires, columns_of

MAX_EVENTS = 4000
_MAX_STATUS = 999
_TEXTS = {
    "idempotency_key": 64,
    "workspace_id": 128,
    "group_id": 128,
    "external_entity_id": 255,
    "api_key_prefix": 128,
    "request_id": 128,
    "model_slug": 257,
    "group_path": 1024,
    "balance_group": 128,
}
_MAY_BE_EMPTY = ("group_path", "balance_group")


async def _post(request: web.Request) -> web.Response:
    dependencies = request.app[DEPENDENCIES]
    authentication.check_internal(request, dependencies.settings.internal_token)
    body = await receive_batch(request)
    batch, after = await beside(OPERATOR, len(body) // CHARS_PER_ITEM, partial(parse_batch, body))
    accepted = await dependencies.ingest.commit(batch, after)
    dependencies.alerts.note(set(zip(batch["workspace_id"], batch["group_id"], strict=True)))
    return web.json_response({"accepted": accepted})


def parse_batch(body: bytes) -> tuple[EventColumns, str | None]:
    """The events, and `after`. The error names the first malformed event."""
    try:
        batch = orjson.loads(body)
        wires = batch["events"]
        after = batch.get("after")
    except (ValueError, KeyError, TypeError):
        raise bad_request("The body must be a JSON object with a member `events`") from None
    if not isinstance(wires, list) or len(wires) > MAX_EVENTS:
        raise InvalidFieldError("events", f"must be an array of at most {MAX_EVENTS} events")
    if not _are_read_exactly(wires):
        wires = _read_exactly(body)
    if not (after is None or (isinstance(after, str) and 1 <= len(after) <= _TEXTS["idempotency_key"])):
        raise InvalidFieldError("after", "must be the idempotency key of an event that was committed before")
    return _columns(wires), after


def _read_exactly(body: bytes) -> list[Any]:
    try:
        return [*exact_json.items_of(body.decode(), "events")]
    except RecursionError:
        raise InvalidFieldError("events", "an event's metadata is nested too deeply") from None


def _are_read_exactly(wires: Sequence[Any]) -> bool:
    """Return whether orjson read the events' metadata without loss. Malformed events are reported later."""
    objects = (wire.get("request_metadata") for wire in wires if isinstance(wire, dict))
    return all(exact_json.has_only_text(metadata) for metadata in objects if isinstance(metadata, dict))


def _columns(wires: Sequence[Any]) -> EventColumns:
    """The events, checked together; one by one if something is wrong, to name the first such event."""
    columns = columns_from_wires(wires)
    if columns is None or not _are_sound(columns):
        return columns_of(list(map(_event, enumerate(wires))))
    return columns


def _are_sound(columns: EventColumns) -> bool:
    """Return whether `_check` finds no fault in any of them. Most events share most of their texts."""
    for name, longest in _TEXTS.items():
        texts = set(columns[name])
        if max(map(len, texts)) > longest or "\0" in "".join(texts):
            return False
        if "" in texts and name not in _MAY_BE_EMPTY:
            return False
    return all(status <= _MAX_STATUS for status in set(columns["status"]))


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
        shortest = int(name not in _MAY_BE_EMPTY)
        if not shortest <= len(text) <= longest or "\0" in text:
            raise ValueError(f"{name} must be text of {shortest} to {longest} characters, without NUL")
    if event.status > _MAX_STATUS:
        raise ValueError("status must be at most 999")


ROUTES = [web.post("/internal/v1/events", _post)]
