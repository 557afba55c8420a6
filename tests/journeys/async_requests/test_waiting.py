"""Requests whose deployment has no replica, and results whose receiver fails: what takes its time."""

import asyncio
from typing import Any

import pytest

from tests.journeys.async_requests.conftest import MakeScene
from tests.journeys.async_requests.scene import AsyncScene
from tests.journeys.replicas.crowd import WakeHook


@pytest.fixture
async def hook() -> Any:
    hook = WakeHook()
    await hook.start()
    yield hook
    await hook.stop()


async def test_parked_request_wakes_its_deployment_and_keeps_others_out(make_scene: MakeScene, hook: WakeHook) -> None:
    scene = await make_scene(replicas=False, wake_url=hook.url)
    id = await scene.submit({"answer": "awake"}, hook=True)

    answer_status, answer = await scene.ask("POST", f"{scene.path}/production/async_predict", {"model_input": 1})
    await scene.stage.until(lambda: _woken(hook), "the hook is called")
    state = await scene.state(id)
    figures = await scene.figures()
    await scene.replicas(scene.model.url)
    (message,) = await scene.until_received(id)

    assert (answer_status, answer["error_code"]) == (429, "CAPACITY_EXCEEDED")
    assert hook.requests[0]["reason"] == "request"
    assert (state["status"], figures["num_queued_requests"]) == ("QUEUED", 1)
    assert message.verified(scene.secret)["data"] == "awake"
    await scene.submit({})
    assert [state["status"] for state in await scene.ended()] == ["SUCCEEDED"] * 2


async def _woken(hook: WakeHook) -> bool:
    return bool(hook.requests)


async def test_request_that_found_no_replica_expires(make_scene: MakeScene) -> None:
    scene = await make_scene(replicas=False)
    with_hook = await make_scene(replicas=False)
    id = await scene.submit({}, max_time_in_queue_seconds=10)
    hook_id = await with_hook.submit({}, hook=True, max_time_in_queue_seconds=10)

    state = await scene.until_ended(id)
    state_told = await with_hook.until_ended(hook_id)
    (message,) = await with_hook.until_received(hook_id)

    assert state["status"] == state_told["status"] == "EXPIRED"
    assert [error["code"] for error in state["errors"]] == ["MODEL_NOT_READY"]
    assert (state["webhook_status"], state_told["webhook_status"]) == ("NO_WEBHOOK_PROVIDED", "SUCCEEDED")
    result = message.verified(scene.secret)
    assert (result["data"], result["errors"]) == (None, state_told["errors"])
    assert scene.model.calls == []


async def test_result_that_is_refused_is_sent_again_with_the_same_id(scene: AsyncScene) -> None:
    scene.receiver.status = 500
    id = await scene.submit({"answer": [1, 2]}, hook=True)
    await scene.until_received(id)

    await asyncio.sleep(0.5)
    meanwhile = await scene.state(id)
    scene.receiver.status = 200
    first, second = await scene.until_received(id, 2)
    state = await scene.until_ended(id)

    assert (meanwhile["status"], meanwhile["webhook_status"]) == ("IN_PROGRESS", "PENDING")
    assert first.body == second.body
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == id
    assert second.verified(scene.secret)["data"] == [1, 2]
    assert (state["status"], state["webhook_status"]) == ("SUCCEEDED", "SUCCEEDED")


async def test_rotated_secret_signs_beside_the_previous_one(scene: AsyncScene) -> None:
    operator = scene.stage.operator
    rotated = (await operator.call("POST", "/v1/async/webhook_secret"))["secrets"]

    async def signed_by_both() -> bool:
        (message,) = await scene.until_received(await scene.submit({}, hook=True))
        return message.headers["webhook-signature"].count("v1,") == 2

    await scene.stage.until(signed_by_both, "both secrets sign")
    message = scene.receiver.messages[-1]
    assert len(rotated) == 2
    assert rotated == (await operator.call("GET", "/v1/async/webhook_secret"))["secrets"]
    for secret in rotated:
        message.verified(secret)
