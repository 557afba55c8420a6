"""Asynchronous requests when processes die: none is lost, none ends twice."""

import asyncio
import os
import signal

import pytest

from tests.journeys.async_requests.conftest import MakeScene
from tests.journeys.async_requests.scene import AsyncScene
from tests.journeys.product import kill

ASYNC_WORKER = "proxy.async_worker"


@pytest.mark.soak
async def test_killed_async_worker_gives_its_work_back_within_ten_seconds(scene: AsyncScene) -> None:
    id = await scene.submit({"wait": True, "answer": "late"}, hook=True)
    await scene.until_running(1)
    (pid,) = scene.stage.product.processes(ASYNC_WORKER)

    kill(pid)
    loop = asyncio.get_running_loop()
    killed_at = loop.time()

    async def again() -> bool:
        return scene.model.attempts(id) == [1, 2]

    await scene.stage.until(again, "the request is attempted again")
    took_s = loop.time() - killed_at
    scene.model.release()
    (message,) = await scene.until_received(id)

    assert took_s < 10  # the contract's own bound, no measure of speed
    assert message.verified(scene.secret)["data"] == "late"
    assert (await scene.until_ended(id))["status"] == "SUCCEEDED"
    assert scene.model.attempts(id) == [1, 2]


async def test_request_whose_last_attempt_was_killed_has_failed(scene: AsyncScene) -> None:
    id = await scene.submit({"wait": True}, inference_retry_config={"max_attempts": 1})
    await scene.until_running(1)

    kill(scene.stage.product.processes(ASYNC_WORKER)[0])
    state = await scene.until_ended(id)

    assert state["status"] == "FAILED"
    assert [error["code"] for error in state["errors"]] == ["INTERNAL_SERVER_ERROR"]
    assert scene.model.attempts(id) == [1]


async def test_requests_survive_a_killed_redis(make_scene: MakeScene) -> None:
    scene = await make_scene(max_concurrency=2)
    await scene.fill(2)
    queued = [await scene.submit({"answer": number}, hook=True) for number in range(10)]

    kill(scene.stage.product.processes("redis-server")[0])
    scene.model.release()
    await scene.stage.until(scene.stage.all_parts_ready, "Redis is back")
    states = [await scene.until_ended(id) for id in scene.submitted]

    assert {state["status"] for state in states} == {"SUCCEEDED"}
    for number, id in enumerate(queued):
        (message, *_) = await scene.until_received(id)
        assert message.verified(scene.secret)["data"] == number
        assert scene.model.attempts(id) == [1]


async def test_requests_run_and_are_delivered_while_control_is_away(scene: AsyncScene) -> None:
    product = scene.stage.product
    await scene.until_ended(await scene.submit({}, hook=True))
    (control,) = product.processes("-m control --")
    os.kill(control, signal.SIGSTOP)
    try:
        id = await scene.submit({"answer": "without control"}, hook=True)
        (message,) = await scene.until_received(id)
        assert (await scene.until_ended(id))["status"] == "SUCCEEDED"
    finally:
        os.kill(control, signal.SIGCONT)
    assert message.verified(scene.secret)["data"] == "without control"


async def test_restart_of_the_product_keeps_what_was_accepted(make_scene: MakeScene) -> None:
    scene = await make_scene(max_concurrency=1)
    (running,) = await scene.fill(1)
    queued = [await scene.submit({"answer": number}, hook=True) for number in range(5)]
    product = scene.stage.product

    assert await asyncio.to_thread(product.stop) == 0
    scene.model.release()
    product.start()  # on this thread, with which it dies
    states = [await scene.until_ended(id) for id in (running, *queued)]

    assert {state["status"] for state in states} == {"SUCCEEDED"}
    assert scene.model.attempts(running) == [1, 2]
    for id in queued:
        assert scene.model.attempts(id) == [1]
        await scene.until_received(id)
