"""`/v1/gateway/webhooks`: the receivers of billing events and of alerts on limits, and the deliveries to each."""

from collections.abc import Sequence
from typing import Annotated, Literal

import orjson
from pydantic import Field, model_validator

from control.api.changes.conditions import tagged
from control.api.changes.ownership import OwnableRequestV1, OwnableResponseV1
from control.api.protocol.encoding import Encoded
from control.api.protocol.lists import Listing, Position, encoder, list_page
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import (
    INTEGRAL,
    NO_NUL,
    DeletedV1,
    IdText,
    PageQueryV1,
    PaginationResponseV1,
    ResponseV1,
    TimeText,
    not_all_null,
)
from control.records.times import time_text
from control.records.webhooks import DeliveryRecord, WebhookRecord
from control.resources import webhooks
from control.resources.changes.shown import shown_delivery, shown_webhook
from control.resources.changes.tags import record_tag
from control.resources.webhooks import NewWebhook, WebhookChange
from policy.billing import EVENT_TYPE
from policy.hosts import MAX_URL_CHARS
from policy.keys.permissions import Permission

DEFAULT_OVERLAP_S = 86_400
MAX_OVERLAP_S = 7 * 86_400
_Url = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_URL_CHARS,
        examples=["https://billing.example.com/hooks/tollgate"],
        description="Publicly reachable HTTPS, under the same rules as `base_url`.",
    ),
]
_DETAILS = "Whether the events of messages have `details` and `cost`, by the prices of when they are queued."
_Description = Annotated[str, Field(max_length=255, json_schema_extra=NO_NUL)]


_EventTypes = Annotated[
    list[Literal["API_BILLING_USAGE", "LIMIT_ALERT"]],
    Field(
        min_length=1,
        max_length=2,
        description="The messages that it is sent: billing events, alerts on limits and balances"
        " (LIMIT_ALERT, LIMIT_REACHED and BALANCE_EXHAUSTED).",
    ),
]


class CreateWebhookRequestV1(OwnableRequestV1):
    """A new receiver of billing events, and of alerts if it asks for them."""

    url: _Url
    description: _Description | None = None
    include_details: bool | None = Field(False, description=_DETAILS)
    event_types: _EventTypes | None = Field(None, description='`["API_BILLING_USAGE"]` if it is left out.')
    group_id: IdText | None = Field(None, description="It is told of this group and those below it alone, for ever.")


class UpdateWebhookRequestV1(OwnableRequestV1):
    """The fields to change, at least one besides the overlap. Null means unchanged, except for `description`
    and `managed_by`.

    Events that arrive while `enabled` is false are never sent.
    """

    url: _Url | None = None
    description: _Description | None = Field(None, description="Null removes it.")
    enabled: bool | None = None
    include_details: bool | None = Field(None, description=_DETAILS)
    event_types: _EventTypes | None = None
    rotate_secret: Annotated[Literal[True] | None, Field(description="Create a new secret; the response shows it.")] = (
        None
    )
    secret_overlap_seconds: Annotated[int, Field(ge=0, le=MAX_OVERLAP_S), INTEGRAL] | None = Field(
        DEFAULT_OVERLAP_S, description="With `rotate_secret`: how long messages are also signed with the old secret."
    )

    model_config = OwnableRequestV1.model_config | {
        "json_schema_extra": not_all_null(
            *("url", "enabled", "include_details", "event_types", "rotate_secret"),
            nullable=["description", "managed_by"],
        )
    }

    @model_validator(mode="after")
    def _changes_something(self) -> "UpdateWebhookRequestV1":
        is_said = self.model_fields_set & {"description", "managed_by"}
        changes = (self.url, self.enabled, self.include_details, self.event_types, self.rotate_secret)
        if not is_said and all(change is None for change in changes):
            raise ValueError(
                "give url, description, enabled, include_details, event_types, rotate_secret or managed_by"
            )
        return self


class WebhookV1(OwnableResponseV1):
    """A receiver of billing events or alerts. `secret` is shown only in the response that creates it."""

    id: str
    url: str
    description: str | None
    enabled: bool
    include_details: bool
    event_types: list[str]
    group_id: str | None
    created_at: TimeText
    updated_at: TimeText
    previous_secret_expires_at: TimeText | None
    secret: str | None = Field(description="In the form that the `standardwebhooks` libraries take.")


class WebhooksResponseV1(ResponseV1):
    """One page of webhooks."""

    items: list[WebhookV1]
    pagination: PaginationResponseV1


class DeletedWebhookV1(DeletedV1):
    """The deleted webhook."""

    id: str
    url: str


class WebhookAttemptV1(ResponseV1):
    """One attempt to deliver. `error` is null if it succeeded."""

    at: TimeText
    duration_ms: int
    status_code: int | None
    error: str | None


class WebhookDeliveryV1(ResponseV1):
    """One message. All its attempts carry the same id (`webhook-id`). DEAD: not delivered within three days."""

    id: str
    type: str
    status: Literal["PENDING", "DELIVERED", "DEAD"]
    event_count: int
    attempt_count: int
    attempts: list[WebhookAttemptV1] = Field(description="The latest attempts.")
    created_at: TimeText
    next_attempt_at: TimeText | None
    ended_at: TimeText | None


class WebhookDeliveriesResponseV1(ResponseV1):
    """One page of deliveries, newest first."""

    items: list[WebhookDeliveryV1]
    pagination: PaginationResponseV1


class DeliveriesQueryV1(PageQueryV1):
    """Selects deliveries by status."""

    status: Literal["PENDING", "DELIVERED", "DEAD"] | None = None


async def _post(request: ApiRequest) -> Encoded:
    body = request.body_as(CreateWebhookRequestV1)
    parts = request.dependencies
    await webhooks.check_webhook_url(body.url, parts.names)
    keys = parts.settings.secret_keys
    workspace_id = request.workspace_id
    new = NewWebhook(
        url=body.url,
        description=body.description,
        owner=body.owner_change(),
        include_details=bool(body.include_details),
        event_types=tuple(body.event_types or (EVENT_TYPE,)),
        group_id=body.group_id,
    )
    record, secret = await webhooks.create_webhook(parts.store, keys, workspace_id, new)
    return _tagged(record, secret)


async def _list(request: ApiRequest) -> Encoded:
    async def fetch(at: Position[WebhookRecord]) -> Sequence[WebhookRecord]:
        return await webhooks.read_webhooks(request.store, request.workspace_id, at.after, at.limit)

    return await list_page(request, Listing("webhooks", fetch, lambda record: record.id, encoder(_response)))


async def _get(request: ApiRequest) -> Encoded:
    return _tagged(await _read(request))


async def _patch(request: ApiRequest) -> Encoded:
    body = request.body_as(UpdateWebhookRequestV1)
    parts = request.dependencies
    if body.url is not None:
        await webhooks.check_webhook_url(body.url, parts.names)
    overlap_s = DEFAULT_OVERLAP_S if body.secret_overlap_seconds is None else body.secret_overlap_seconds
    overlap_ms = overlap_s * 1000 if body.rotate_secret else None
    describes = "description" in body.model_fields_set
    change = WebhookChange(
        url=body.url,
        description=body.description,
        describes=describes,
        enabled=body.enabled,
        overlap_ms=overlap_ms,
        owner=body.owner_change(),
        include_details=body.include_details,
        event_types=None if body.event_types is None else tuple(body.event_types),
    )
    keys = parts.settings.secret_keys
    workspace_id = request.workspace_id
    webhook_id = request.path["webhook_id"]
    return _tagged(*await webhooks.change_webhook(parts.store, keys, workspace_id, webhook_id, change))


async def _delete(request: ApiRequest) -> DeletedWebhookV1:
    record = await webhooks.remove_webhook(request.store, request.workspace_id, request.path["webhook_id"])
    return DeletedWebhookV1(id=record.id, url=record.url)


async def _list_deliveries(request: ApiRequest) -> Encoded:
    record = await _read(request)

    async def fetch(at: Position[DeliveryRecord]) -> Sequence[DeliveryRecord]:
        store = request.store
        return await webhooks.read_deliveries(store, record.id, at.filters["status"], at.after, at.limit)

    kind = f"deliveries of {record.id}"
    encode = encoder(_delivery_response)
    return await list_page(request, Listing(kind, fetch, lambda delivery: delivery.id, encode, ("status",), 16))


async def _post_redeliver(request: ApiRequest) -> WebhookDeliveryV1:
    record = await _read(request)
    return _delivery_response(await webhooks.redeliver(request.store, record, request.path["delivery_id"]))


async def _post_test(request: ApiRequest) -> WebhookDeliveryV1:
    record = await _read(request)
    return _delivery_response(await webhooks.send_test(request.store, record))


async def _read(request: ApiRequest) -> WebhookRecord:
    return await webhooks.read_webhook(request.store, request.workspace_id, request.path["webhook_id"])


def _tagged(record: WebhookRecord, secret: str | None = None) -> Encoded:
    return tagged(_response(record, secret), record_tag(record))


def _response(record: WebhookRecord, secret: str | None = None) -> WebhookV1:
    return WebhookV1(**shown_webhook(record), secret=secret)


def _delivery_response(record: DeliveryRecord) -> WebhookDeliveryV1:
    attempts = [
        WebhookAttemptV1(at=time_text(at_ms), duration_ms=duration_ms, status_code=status_code, error=error)
        for at_ms, duration_ms, status_code, error in orjson.loads(record.attempt_log)
    ]
    return WebhookDeliveryV1(**shown_delivery(record), attempts=attempts)


_ALL = "/v1/gateway/webhooks"
_ONE = f"{_ALL}/{{webhook_id}}"
_LIST = f"{_ONE}/deliveries"
_AGAIN = f"{_LIST}/{{delivery_id}}/redeliver"
_NEW = CreateWebhookRequestV1
_CHANGE = UpdateWebhookRequestV1
OPERATIONS = (
    Operation(
        *("POST", _ALL, _post, "Create a webhook", WebhookV1, _NEW),
        errors=(400, 404, 409),
        needs=Permission.TRUST,
        is_tagged=True,
        creates=True,
    ),
    Operation(
        "GET", _ALL, _list, "List webhooks", WebhooksResponseV1, query=PageQueryV1, errors=(400,), needs=Permission.READ
    ),
    Operation(*("GET", _ONE, _get, "Get a webhook", WebhookV1), errors=(404,), needs=Permission.READ, is_tagged=True),
    Operation(
        *("PATCH", _ONE, _patch, "Change a webhook", WebhookV1, _CHANGE),
        errors=(400, 404),
        needs=Permission.TRUST,
        is_tagged=True,
    ),
    Operation(
        *("DELETE", _ONE, _delete, "Delete a webhook", DeletedWebhookV1),
        errors=(404,),
        needs=Permission.TRUST,
        is_tagged=True,
    ),
    Operation(
        *("GET", _LIST, _list_deliveries, "List deliveries", WebhookDeliveriesResponseV1),
        query=DeliveriesQueryV1,
        errors=(400, 404),
        needs=Permission.READ,
    ),
    Operation(
        "POST", _AGAIN, _post_redeliver, "Deliver again", WebhookDeliveryV1, errors=(404, 409), needs=Permission.POLICY
    ),
    Operation(
        *("POST", f"{_ONE}/test", _post_test, "Send a test message", WebhookDeliveryV1),
        errors=(404,),
        needs=Permission.POLICY,
        creates=True,
    ),
)
