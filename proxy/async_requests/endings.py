"""Errors of requests that end without a model server's answer, and the statuses that callers see. Pure.

The Lua scripts get these texts from here, so that the queue in memory and the one in Redis say the same.
"""

from proxy.async_requests.requests import RequestError
from proxy.async_requests.states import ErrorCode, Phase, Status, WebhookStatus

NEVER_READY = RequestError(ErrorCode.MODEL_NOT_READY, "no replica became ready in max_time_in_queue_seconds")
NEVER_FREE = RequestError(ErrorCode.MODEL_UNAVAILABLE, "no replica was free in max_time_in_queue_seconds")
OUT_OF_TIME = RequestError(ErrorCode.MODEL_PREDICT_TIMEOUT, "the request ran out of time before its next attempt")
WORKER_LOST = RequestError(ErrorCode.INTERNAL_SERVER_ERROR, "the gateway process that ran the last attempt has died")
INPUT_LOST = RequestError(ErrorCode.INTERNAL_SERVER_ERROR, "the gateway has lost the model's input")
ANSWER_LOST = RequestError(ErrorCode.INTERNAL_SERVER_ERROR, "the gateway has lost the model's answer")
DEPLOYMENT_GONE = RequestError(ErrorCode.MODEL_DOES_NOT_EXIST, "the deployment was deleted")


def visible_status(phase: Phase, outcome: Status | None) -> Status:
    """`outcome`: what was decided, None if nothing was."""
    if phase is Phase.QUEUED:
        return Status.QUEUED
    return outcome if phase is Phase.ENDED and outcome is not None else Status.IN_PROGRESS


def visible_webhook_status(has_webhook: bool, status: Status) -> WebhookStatus:
    """`status`: as callers see it."""
    if not has_webhook:
        return WebhookStatus.NO_WEBHOOK_PROVIDED
    if status in (Status.QUEUED, Status.IN_PROGRESS):
        return WebhookStatus.PENDING
    if status is Status.CANCELED:
        return WebhookStatus.CANCELED
    return WebhookStatus.FAILED if status is Status.WEBHOOK_FAILED else WebhookStatus.SUCCEEDED
