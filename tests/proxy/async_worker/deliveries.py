"""Requests that have ended and wait for their webhook, in the queue in memory."""

from dataclasses import replace

from proxy.async_requests.requests import (
    Delivery,
    DeploymentRef,
    Failed,
    NewRequest,
    RequestError,
    Submission,
    Succeeded,
)
from proxy.async_requests.states import ErrorCode, Status
from tests.fakes.async_queue import FakeAsyncQueue

URL = "https://hooks.example.com/in"
DEPLOYMENT = DeploymentRef("ws_1", "mdl_1", "dep_1")
ERROR = RequestError(ErrorCode.MODEL_PREDICT_ERROR, "The model answered 500: no")
ENDED_MS = 1_795_000_000_000


class Clock:
    """The queue's clock; it moves only when it is told to."""

    def __init__(self) -> None:
        self.ms = ENDED_MS

    def __call__(self) -> int:
        return self.ms

    def move(self, seconds: float) -> None:
        self.ms += int(seconds * 1000)


def delivery(id: str = "req_1", url: str = URL, workspace_id: str = "ws_1", attempt: int = 1) -> Delivery:
    """A result without an answer."""
    deployment = replace(DEPLOYMENT, workspace_id=workspace_id)
    return Delivery(deployment, id, url, attempt, "me", Status.FAILED, ENDED_MS, 0, (ERROR,), None)


def with_answer(one: Delivery, *chunks: bytes, is_json: bool = True) -> Delivery:
    answer = Succeeded(sum(map(len, chunks)), len(chunks), is_json)
    return replace(one, status=Status.SUCCEEDED, errors=(), answer=answer)


async def end_request(
    queue: FakeAsyncQueue,
    id: str = "req_1",
    url: str | None = URL,
    workspace_id: str = "ws_1",
    answer: bytes | None = None,
) -> None:
    """Submit and start a request, then end it with `answer`; None ends it as failed."""
    deployment = replace(DEPLOYMENT, workspace_id=workspace_id)
    await queue.submit(NewRequest(id, deployment, "/predict", Submission(b"{}", url)), parks=False)
    attempt = await queue.start(deployment, "runner")
    assert attempt is not None
    assert attempt.ref.request_id == id
    if answer is None:
        assert await queue.finish(attempt.ref, Failed(ERROR))
    else:
        await queue.store(attempt.ref, 0, answer)
        assert await queue.finish(attempt.ref, Succeeded(len(answer), 1))
