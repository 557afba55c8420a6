"""The answers to calls about asynchronous requests. Pure.

See docs/reference/inference.md#asynchronous-requests.
"""

from typing import Any

import orjson

from proxy.answers import Answered
from proxy.async_requests.requests import PRIORITIES, Cancellation, DeploymentRef, QueueFigures, RequestState
from proxy.async_requests.states import Status
from runtime.log_schema import timestamp


def accepted_answer(request_id: str) -> Answered:
    """The queue has the request."""
    return _answered({"request_id": request_id}, 201)


def state_answer(state: RequestState) -> Answered:
    return _answered(
        {
            "request_id": state.request_id,
            "model_id": state.deployment.model_id,
            "deployment_id": state.deployment.deployment_id,
            "status": state.status,
            "webhook_status": state.webhook_status,
            "created_at": timestamp(state.created_at_ms),
            "status_at": timestamp(state.status_at_ms),
            "errors": [{"code": error.code, "message": error.message} for error in state.errors],
        }
    )


def cancellation_answer(request_id: str, cancellation: Cancellation) -> Answered:
    """Always 200: a request that could not be canceled is no error."""
    if cancellation.canceled:
        message = "The request was canceled"
    elif cancellation.status is Status.IN_PROGRESS:
        message = "The request is in progress and can no longer be canceled"
    else:
        message = f"The request has ended ({cancellation.status}) and can no longer be canceled"
    return _answered({"request_id": request_id, "canceled": cancellation.canceled, "message": message})


def figures_answer(deployment: DeploymentRef, figures: QueueFigures) -> Answered:
    return _answered(
        {
            "model_id": deployment.model_id,
            "deployment_id": deployment.deployment_id,
            "num_queued_requests": sum(figures.queued.values()),
            "num_in_progress_requests": figures.in_progress,
            "priorities": {str(priority): figures.queued.get(priority, 0) for priority in PRIORITIES},
        }
    )


def _answered(body: dict[str, Any], status: int = 200) -> Answered:
    return Answered(status, (("content-type", "application/json"),), orjson.dumps(body))
