"""`GET /v1/audit_events`: who changed what, newest first (docs/reference/management-api.md#audit-trail)."""

from collections.abc import Sequence
from typing import Annotated, Any

import orjson
from pydantic import Field

from control.api.protocol.encoding import Encoded, Pieces
from control.api.protocol.lists import Listing, Position, list_page
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import NO_NUL, PageQueryV1, PaginationResponseV1, ResponseV1, TimeText
from control.api.protocol.times import TimeParameter, next_ms
from control.errors import InvalidFieldError
from control.records.audit import MAX_ACTOR_CHARS, AuditEvent, AuditFilter
from control.records.times import time_text
from control.resources.changes import audit_trail
from policy.keys.permissions import Permission

_Actor = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_ACTOR_CHARS,
        json_schema_extra=NO_NUL,
        description="Only changes by the key with this prefix, by the person with this name, or by `cli`: the command"
        " line on the machine itself.",
    ),
]


class AuditEventsQueryV1(PageQueryV1):
    """Selects changes. With `cursor`, which carries window, page size and actor, the others are ignored."""

    start_time: TimeParameter | None = Field(None, description="Inclusive start. Omitted: from the oldest on.")
    end_time: TimeParameter | None = Field(None, description="Exclusive end. Omitted: to the newest.")
    actor: _Actor | None = None


class AuditEventV1(ResponseV1):
    """One change of one resource. `before` is null if it was made, `after` if it was deleted. Never a secret."""

    id: str
    timestamp: TimeText
    actor: str
    action: str = Field(examples=["endpoint.update"])
    resource: str = Field(examples=["endpoints/ep_01K0000000000000000000000A"])
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    request_id: str | None


class AuditEventsResponseV1(ResponseV1):
    """One page of changes, newest first."""

    items: list[AuditEventV1]
    pagination: PaginationResponseV1


async def _list(request: ApiRequest) -> Encoded:
    _check_window(request.query_as(AuditEventsQueryV1))

    async def fetch(at: Position[AuditEvent]) -> Sequence[AuditEvent]:
        start_ns = at.filters["start_time"]
        end_ns = at.filters["end_time"]
        actor = at.filters["actor"]
        selection = AuditFilter(request.workspace_id, _ms(start_ns), _ms(end_ns), actor)
        before = (int(at.after[0]), str(at.after[1])) if at.after else None
        return await audit_trail.read_audit_events(request.store, selection, before, at.limit)

    filters = ("start_time", "end_time", "actor")
    listing = Listing("audit events", fetch, lambda event: [event.timestamp_ms, event.id], _encode, filters, first=32)
    return await list_page(request, listing)


def _check_window(query: AuditEventsQueryV1) -> None:
    if query.start_time is not None and query.end_time is not None and query.end_time < query.start_time:
        raise InvalidFieldError("end_time", "end_time is before start_time")


def _ms(time_ns: int | None) -> int | None:
    return None if time_ns is None else next_ms(time_ns)


def _encode(event: AuditEvent) -> Pieces:
    sides = {
        name: None if text is None else orjson.Fragment(text)
        for name, text in (("before", event.before), ("after", event.after))
    }
    members = {
        "id": event.id,
        "timestamp": time_text(event.timestamp_ms),
        "actor": event.actor,
        "action": event.action,
        "resource": event.resource,
        **sides,
        "request_id": event.request_id,
    }
    return (orjson.dumps(members),)


OPERATIONS = (
    Operation(
        *("GET", "/v1/audit_events", _list, "List audit events", AuditEventsResponseV1),
        query=AuditEventsQueryV1,
        errors=(400,),
        needs=Permission.READ,
    ),
)
