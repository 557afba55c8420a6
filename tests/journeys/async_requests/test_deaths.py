"""Asynchronous requests when processes die: none is lost, none ends twice.

What becomes of those of a killed async worker is in `tests/contracts/process/test_async_attempts.py`.
"""

import asyncio
import os
import signal

from tests.journeys.async_requests.conftest import MakeScene
from tests.journeys.async_requests.scene import AsyncScene
from tests.journeys.product import kill


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
