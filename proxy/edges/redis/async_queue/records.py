"""Conversions of values to the scripts' arguments, and of the scripts' replies to values."""

from collections.abc import Sequence
from typing import Any

from proxy.async_requests.endings import INPUT_LOST, visible_status, visible_webhook_status
from proxy.async_requests.requests import (
    Again,
    AttemptRef,
    Delivery,
    DeploymentRef,
    Failed,
    NewRequest,
    Outcome,
    RequestAttempt,
    RequestError,
    RequestState,
    RetryRules,
    Succeeded,
    Work,
)
from proxy.async_requests.states import ErrorCode, Phase, Status

Reply = Sequence[Any]


def submission_arguments(request: NewRequest, pieces: int) -> list[str | bytes | int]:
    """The arguments of submit.lua up to its bounds. `pieces`: their number in the input; 0: it is an argument."""
    submission = request.submission
    deployment = request.deployment
    retries = submission.retries
    return [
        *(request.id, deployment.deployment_id, deployment.model_id, request.path),
        *(submission.priority, b"" if pieces else submission.model_input, len(submission.model_input), pieces),
        *(submission.webhook_endpoint or "", submission.max_time_in_queue_s * 1000),
        *(retries.max_attempts, retries.initial_delay_ms, retries.max_delay_ms),
    ]


def outcome_arguments(outcome: Outcome) -> list[str | bytes | int]:
    match outcome:
        case Succeeded(size_bytes, chunks, is_json):
            return ["succeed", size_bytes, chunks, int(is_json)]
        case Failed(error):
            return ["fail", error.code, error.message]
        case Again(delay_ms, error):
            return ["again", error.code, error.message, delay_ms]


def input_lost_arguments() -> list[str]:
    """The arguments of an end that nobody has counted, in place of an outcome's."""
    return ["lost", INPUT_LOST.code, INPUT_LOST.message]


def attempt_arguments(ref: AttemptRef) -> tuple[str, int, str]:
    return ref.request_id, ref.attempt, ref.holder


def delivery_arguments(delivery: Delivery) -> tuple[str, int, str]:
    return delivery.request_id, delivery.attempt, delivery.holder


def state_of(workspace_id: str, request_id: str, reply: Reply) -> RequestState:
    phase, outcome, model, deployment, hook, created, status_at, code, text = reply
    status = status_of(phase, outcome)
    return RequestState(
        request_id,
        DeploymentRef(workspace_id, model.decode(), deployment.decode()),
        status,
        visible_webhook_status(bool(hook), status),
        created,
        status_at,
        _errors(code, text) if phase == Phase.ENDED.encode() else (),
    )


def status_of(phase: bytes, outcome: bytes) -> Status:
    return visible_status(Phase(phase.decode()), Status(outcome.decode()) if outcome else None)


def attempt_of(workspace_id: str, deployment_id: str, holder: str, reply: Reply) -> tuple[RequestAttempt, int]:
    """The attempt, and the number of pieces in which its input must be read. 0: the attempt has its input."""
    model, id, attempt, model_input, path, most, first_ms, longest_ms, hook, deadline, now, queued_ms, pieces = reply
    deployment = DeploymentRef(workspace_id, model.decode(), deployment_id)
    attempt = RequestAttempt(
        AttemptRef(deployment, id.decode(), attempt, holder),
        model_input,
        RetryRules(most, int(first_ms), int(longest_ms)),
        path.decode(),
        bool(hook),
        deadline,
        now,
        queued_ms,
    )
    return attempt, int(pieces or 0)


def delivery_of(workspace_id: str, holder: str, reply: Reply) -> Delivery:
    model, deployment, id, hook, tries, outcome, decided, age, code, text, size, chunks, is_json = reply
    answer = Succeeded(int(size), int(chunks), is_json == b"1") if size else None
    return Delivery(
        DeploymentRef(workspace_id, model.decode(), deployment.decode()),
        id.decode(),
        hook.decode(),
        tries,
        holder,
        Status(outcome.decode()),
        decided,
        age,
        _errors(code, text),
        answer,
    )


def work_of(workspace_id: str, reply: Reply) -> Work:
    more, _, answer_bytes, deliveries, due, startable, ended, uncounted = reply

    def ref(field: bytes) -> DeploymentRef:
        return deployment_of(workspace_id, field)

    def end(field: bytes) -> tuple[DeploymentRef, Status]:
        deployment, _, outcome = field.rpartition(b" ")
        return ref(deployment), Status(outcome.decode())

    return Work(
        {ref(startable[i]): int(startable[i + 1]) for i in range(0, len(startable), 2)},
        deliveries,
        answer_bytes,
        int(due) if due else None,
        [(ref(ended[i]), Status(ended[i + 1].decode()), ended[i + 2]) for i in range(0, len(ended), 3)],
        bool(more),
        {end(uncounted[i]): int(uncounted[i + 1]) for i in range(0, len(uncounted), 2)},
    )


def deployment_of(workspace_id: str, field: bytes) -> DeploymentRef:
    """Parse a field of the hash `deployments`."""
    model_id, _, deployment_id = field.decode().partition(" ")
    return DeploymentRef(workspace_id, model_id, deployment_id)


def _errors(code: bytes, text: bytes) -> tuple[RequestError, ...]:
    return (RequestError(ErrorCode(code.decode()), text.decode()),) if code else ()
