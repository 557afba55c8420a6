"""Schemas of the answers that are the gateway's own: lists of models, wakes, asynchronous requests."""

from control.api.inference_document.json_schema import (
    Json,
    anything,
    choice,
    flag,
    integer,
    list_of,
    or_null,
    record,
    reference,
    text,
)

_TIME = text("ISO 8601 in UTC, with milliseconds.", format="date-time")
_STATUSES = ["QUEUED", "IN_PROGRESS", "SUCCEEDED", "FAILED", "EXPIRED", "CANCELED", "WEBHOOK_FAILED"]
_WEBHOOK_STATUSES = ["PENDING", "SUCCEEDED", "FAILED", "CANCELED", "NO_WEBHOOK_PROVIDED"]
_ERRORS = [
    *("MODEL_NOT_READY", "MODEL_UNAVAILABLE", "MODEL_DOES_NOT_EXIST", "MODEL_INVALID_INPUT"),
    *("MODEL_PREDICT_ERROR", "MODEL_PREDICT_TIMEOUT", "INTERNAL_SERVER_ERROR"),
]
_MODEL_ID = text("The id of the platform model.")
_REQUEST_ID = text("The id of the asynchronous request.", examples=["areq_01JABCDEFGHJKMNPQRSTVWXYZ0"])
_SLUG = text("The slug.", examples=["acme/chat"])


def _bounded(description: str, least: int, most: int) -> Json:
    return or_null(integer(description, minimum=least, maximum=most))


SCHEMAS: Json = {
    "ListedModelV1": record(
        "A slug, in the form of Chat Completions.",
        {
            "id": _SLUG,
            "object": {"type": "string", "const": "model"},
            "created": integer("Always 0: a slug has no date."),
            "owned_by": text("The slug's prefix.", examples=["acme"]),
        },
        ["id", "object", "created", "owned_by"],
    ),
    "ModelListV1": record(
        "All slugs that the key may call, on one page.",
        {"object": {"type": "string", "const": "list"}, "data": list_of(reference("ListedModelV1"))},
        ["object", "data"],
    ),
    "MessagesModelV1": record(
        "A slug, in the form of Messages.",
        {
            "type": {"type": "string", "const": "model"},
            "id": _SLUG,
            "display_name": _SLUG,
            "created_at": text("Always the Unix epoch: a slug has no date.", format="date-time"),
            "lifecycle": text(examples=["active"]),
        },
        ["type", "id", "display_name", "created_at", "lifecycle"],
    ),
    "MessagesModelListV1": record(
        "A page of the slugs that the key may call.",
        {
            "data": list_of(reference("MessagesModelV1")),
            "has_more": flag("True when more follow."),
            "first_id": or_null(text()),
            "last_id": or_null(text("The `after_id` of the next page.")),
        },
        ["data", "has_more", "first_id", "last_id"],
    ),
    "EitherModelListV1": choice(
        "With the header `anthropic-version` the form of Messages, else that of Chat Completions.",
        reference("ModelListV1"),
        reference("MessagesModelListV1"),
    ),
    "EitherModelV1": choice(
        "With the header `anthropic-version` the form of Messages, else that of Chat Completions.",
        reference("ListedModelV1"),
        reference("MessagesModelV1"),
    ),
    "WakeAnswerV1": record("Nothing: the deployment will be woken.", {}),
    "SubmissionV1": record(
        "An asynchronous request.",
        {
            "model_input": anything(
                "The body for the model server: any JSON value. Its text goes on as it was written."
            ),
            "webhook_endpoint": or_null(text("The URL that is told the result.", format="uri")),
            "priority": _bounded("0 goes first. 0 without it.", 0, 2),
            "max_time_in_queue_seconds": _bounded("Not begun by then, it expires. 600 without it.", 10, 259_200),
            "inference_retry_config": or_null(
                record(
                    "How often it is tried.",
                    {
                        "max_attempts": _bounded("3 without it.", 1, 10),
                        "initial_delay_ms": _bounded("It doubles with each attempt. 1000 without it.", 0, 10_000),
                        "max_delay_ms": _bounded("5000 without it.", 0, 60_000),
                    },
                )
                | {"additionalProperties": False}
            ),
        },
        ["model_input"],
    )
    | {"additionalProperties": False},
    "SubmittedRequestV1": record("The queue has the request.", {"request_id": _REQUEST_ID}, ["request_id"]),
    "AsyncRequestV1": record(
        "The state of an asynchronous request.",
        {
            "request_id": _REQUEST_ID,
            "model_id": _MODEL_ID,
            "deployment_id": text(),
            "status": text(enum=_STATUSES),
            "webhook_status": text(enum=_WEBHOOK_STATUSES),
            "created_at": _TIME,
            "status_at": _TIME | {"description": "The time of the last change."},
            "errors": list_of(
                record(
                    "Why it failed or expired.",
                    {"code": text(enum=_ERRORS), "message": text()},
                    ["code", "message"],
                ),
                "Empty unless it failed or expired.",
            ),
        },
        [
            *("request_id", "model_id", "deployment_id", "status"),
            *("webhook_status", "created_at", "status_at", "errors"),
        ],
    ),
    "CancellationV1": record(
        "Always 200.",
        {
            "request_id": _REQUEST_ID,
            "canceled": flag("False if the request runs or has ended."),
            "message": text("Says so in words."),
        },
        ["request_id", "canceled", "message"],
    ),
    "QueueStatusV1": record(
        "The asynchronous requests of a deployment.",
        {
            "model_id": _MODEL_ID,
            "deployment_id": text(),
            "num_queued_requests": integer(minimum=0),
            "num_in_progress_requests": integer(minimum=0),
            "priorities": {
                "type": "object",
                "description": "Queued requests by priority.",
                "additionalProperties": integer(minimum=0),
            },
        },
        ["model_id", "deployment_id", "num_queued_requests", "num_in_progress_requests", "priorities"],
    ),
}
