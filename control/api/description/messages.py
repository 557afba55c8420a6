"""The messages that Tollgate sends to addresses of its customers: the section `webhooks` of the document.

See docs/reference/events-and-webhooks.md and docs/reference/management-api.md#wake-hooks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from control.api.events import GatewayEventV1
from control.api.limit_schemas import UsageTypeName, UsageUnitName
from control.api.protocol.schemas import ResponseV1, TimeText

Json = dict[str, Any]


class WebhookEventV1(GatewayEventV1):
    """A billing event in a message: as the feed lists it, with what the caller said of its request."""

    requestMetadata: dict[str, Any] | None = Field(description="The JSON object of the header `x-request-metadata`.")


class WebhookEventsV1(ResponseV1):
    """The events of a message. A receiver may see one again, in another message too: `idempotencyKey` tells."""

    events: list[WebhookEventV1]


class BillingMessageV1(ResponseV1):
    """One to a hundred billing events."""

    type: Literal["API_BILLING_USAGE"]
    timestamp: TimeText
    data: WebhookEventsV1


class NoEventsV1(ResponseV1):
    """No events: a test has none."""

    events: list[WebhookEventV1] = Field(max_length=0)


class WebhookTestV1(ResponseV1):
    """A message without events, on request."""

    type: Literal["TEST"]
    timestamp: TimeText
    data: NoEventsV1


class UsageLimitOfAlertV1(ResponseV1):
    """A DAY or MONTH limit of a slug."""

    kind: Literal["USAGE"]
    type: UsageTypeName
    unit: UsageUnitName
    threshold: int
    currency: None
    slug: str


class SpendLimitOfAlertV1(ResponseV1):
    """A limit in currency, which holds for all slugs together."""

    kind: Literal["SPEND"]
    type: None
    unit: UsageUnitName
    amount: str
    currency: str
    slug: None


class BalanceOfAlertV1(ResponseV1):
    """A prepaid balance. `amount`: what was credited at the last top-up."""

    kind: Literal["BALANCE"]
    type: None
    unit: None
    amount: str
    currency: str
    slug: None


class AlertWindowV1(ResponseV1):
    """The UTC day or month of the limit."""

    start: TimeText
    end: TimeText


class AlertV1(ResponseV1):
    """A limit of a group, and how much of it is used."""

    groupId: str
    externalEntityId: str
    limit: Annotated[
        UsageLimitOfAlertV1 | SpendLimitOfAlertV1 | BalanceOfAlertV1,
        Field(discriminator="kind"),
    ]
    use: int | str = Field(alias="used", description="A count, or an amount as decimal text.")
    percent: int
    window: AlertWindowV1 | None = Field(description="Null of a balance.")


class AlertMessageV1(ResponseV1):
    """A limit of a group has come to a percent, or has refused a call. `idempotencyKey` is the same if sent again."""

    type: Literal["LIMIT_ALERT", "LIMIT_REACHED", "BALANCE_EXHAUSTED"]
    idempotencyKey: str
    timestamp: TimeText
    data: AlertV1


class AsyncErrorV1(ResponseV1):
    """The reason for which a request failed."""

    code: str
    message: str


class AsyncResultV1(ResponseV1):
    """The result of an asynchronous request."""

    request_id: str
    model_id: str
    deployment_id: str
    type: Literal["async_request_completed"]
    time: TimeText
    data: Any = Field(description="The model's answer: JSON, or other text as a string; null if the request failed.")
    errors: list[AsyncErrorV1]


class WakeMessageV1(ResponseV1):
    """Calls wait for a replica of a deployment, or somebody asks for one."""

    model_id: str
    deployment_id: str
    reason: Literal["request", "wake"]
    parked: int = Field(description="How many calls wait.")


@dataclass(frozen=True, slots=True)
class _Message:
    id: str
    model: type[ResponseV1]
    tag: str
    summary: str
    text: str
    is_signed: bool = True


_AGAIN = "Any other answer is tried again, later and later; the message keeps its id and its bytes."
_MESSAGES = (
    _Message(
        *("billingUsage", BillingMessageV1, "Webhooks", "Billing events were committed"),
        f"Sent to webhooks with `API_BILLING_USAGE` in `event_types`, at least once and in no order. {_AGAIN}",
    ),
    _Message(
        *("limitAlert", AlertMessageV1, "Webhooks", "A limit has come to a percent, or has refused a call"),
        f"Sent to webhooks with `LIMIT_ALERT` in `event_types`, at least once and in no order. {_AGAIN}",
    ),
    _Message(
        *("testMessage", WebhookTestV1, "Webhooks", "A webhook is tried"),
        f"Sent when somebody calls `testWebhook`. {_AGAIN}",
    ),
    _Message(
        *("asyncResult", AsyncResultV1, "Asynchronous requests", "An asynchronous request has ended"),
        "Sent to the `webhook_endpoint` of the request, in up to five tries. It is signed with the workspace's signing "
        "secret, and not signed before somebody has asked for that.",
    ),
    _Message(
        *("wakeDeployment", WakeMessageV1, "Deployments", "Calls wait for a replica"),
        "Sent to the `wake_url` of a deployment once per need, and again while calls wait. It is not signed: put a "
        "secret into the URL.",
        is_signed=False,
    ),
)


def message_models() -> Sequence[type[ResponseV1]]:
    """The models of all messages."""
    return [message.model for message in _MESSAGES]


def webhooks(ref: str) -> Json:
    """The section `webhooks`. `ref`: the form of a reference to a model."""
    return {message.id: {"post": _operation(message, ref)} for message in _MESSAGES}


def _operation(message: _Message, ref: str) -> Json:
    schema = {"$ref": ref.format(model=message.model.__name__)}
    return {
        "operationId": message.id,
        "summary": message.summary,
        "description": message.text,
        "tags": [message.tag],
        "security": [],
        "parameters": [_header(*one) for one in _HEADERS] if message.is_signed else [],
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {"2XX": {"description": "The receiver has it."}, "4XX": {"description": "It is tried again."}},
    }


_HEADERS = (
    ("webhook-id", "The message's id: the same on each attempt.", "msg_01KGA000000000000000000001"),
    ("webhook-timestamp", "When this attempt was made: seconds since 1970.", "1795000000"),
    (
        "webhook-signature",
        "Standard Webhooks: `v1,` and the base64 of HMAC-SHA256 over `{webhook-id}.{webhook-timestamp}.{body}`, the "
        "body as received; one for each valid secret, with a space between two. Refuse a timestamp that is old.",
        "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=",
    ),
)


def _header(name: str, text: str, example: str) -> Json:
    return {
        "name": name,
        "in": "header",
        "required": name != "webhook-signature",
        "description": text,
        "schema": {"type": "string"},
        "example": example,
    }
