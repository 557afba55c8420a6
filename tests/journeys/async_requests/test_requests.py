"""Asynchronous requests through the whole product, as a customer uses them."""

import asyncio
from typing import Any

import orjson
import pytest

from tests.control.api.description.deliveries import check_delivery
from tests.journeys.async_requests.conftest import MakeScene
from tests.journeys.async_requests.scene import AsyncScene

RESULT_MEMBERS = ["request_id", "model_id", "deployment_id", "type", "time", "data", "errors"]
STATE_MEMBERS = [
    *("request_id", "model_id", "deployment_id", "status", "webhook_status", "created_at", "status_at", "errors"),
]


async def test_answer_of_the_model_reaches_the_webhook_signed(scene: AsyncScene) -> None:
    id = await scene.submit({"answer": {"text": "ja", "score": 1.10}}, hook=True)

    (message,) = await scene.until_received(id)
    result = message.verified(scene.secret)
    check_delivery("asyncResult", result, message.headers)
    state = await scene.until_ended(id)

    assert list(result) == RESULT_MEMBERS
    assert (result["request_id"], result["model_id"]) == (id, scene.model_id)
    assert result["deployment_id"] == scene.deployment_id
    assert (result["type"], result["errors"]) == ("async_request_completed", [])
    assert result["data"] == {"text": "ja", "score": 1.10}
    assert message.id == id
    assert list(state) == STATE_MEMBERS
    assert (state["status"], state["webhook_status"], state["errors"]) == ("SUCCEEDED", "SUCCEEDED", [])


async def test_replica_gets_the_input_as_it_was_written_and_is_told_the_attempt(scene: AsyncScene) -> None:
    raw = b'{ "priority": 2, "model_input" : {"b":1.10,  "a":"\\u00e4", "sleep_s":0} }'
    headers = {"authorization": f"Bearer {scene.stage.operator.api_key}", "x-request-id": "the-callers-own"}
    url = scene.stage.product.proxy + f"{scene.path}/production/async_predict"
    async with scene.stage.session.post(url, data=raw, headers=headers) as answer:
        assert answer.status == 201
        assert answer.headers["x-request-id"] == "the-callers-own"
        id = (await answer.json())["request_id"]

    await scene.until_ended(id)

    (call,) = scene.model.calls
    assert call.body == b'{"b":1.10,  "a":"\\u00e4", "sleep_s":0}'
    assert (call.path, call.request_id, call.attempt) == ("/predict", id, 1)


async def test_every_form_of_the_path_takes_requests(scene: AsyncScene) -> None:
    environment = f"/v1/models/{scene.model_id}/environments"
    for name in ("development", "canary"):
        await scene.stage.operator.call("PUT", f"{environment}/{name}", {"deployment_id": scene.deployment_id})

    async def known() -> bool:
        return (await scene.ask("GET", f"{scene.path}/environments/canary/async_queue_status"))[0] == 200

    await scene.stage.until(known, "the environment is known")
    for where in ("production", "development", "environments/canary", f"deployment/{scene.deployment_id}"):
        id = await scene.submit({}, where=where)
        state = await scene.until_ended(id)
        assert (state["status"], state["webhook_status"]) == ("SUCCEEDED", "NO_WEBHOOK_PROVIDED")
        assert (await scene.ask("GET", f"{scene.path}/async_request/{id}"))[1] == state


async def test_failures_of_the_model_are_tried_again_with_backoff(scene: AsyncScene) -> None:
    quick = {"max_attempts": 3, "initial_delay_ms": 50, "max_delay_ms": 100}
    recovers = await scene.submit({"status": 503, "times": 2}, hook=True, inference_retry_config=quick)
    breaks = await scene.submit({"close": True, "times": 1}, inference_retry_config=quick)
    fails = await scene.submit({"status": 500, "times": 9}, hook=True, inference_retry_config=quick)
    invalid = await scene.submit({"status": 422, "times": 9, "error": "no such voice"}, inference_retry_config=quick)

    states = {id: await scene.until_ended(id) for id in (recovers, breaks, fails, invalid)}

    assert [states[id]["status"] for id in states] == ["SUCCEEDED", "SUCCEEDED", "FAILED", "FAILED"]
    assert scene.model.attempts(recovers) == scene.model.attempts(fails) == [1, 2, 3]
    assert scene.model.attempts(breaks) == [1, 2]
    assert scene.model.attempts(invalid) == [1]
    assert [error["code"] for error in states[fails]["errors"]] == ["MODEL_PREDICT_ERROR"]
    assert [error["code"] for error in states[invalid]["errors"]] == ["MODEL_INVALID_INPUT"]
    assert "no such voice" in states[invalid]["errors"][0]["message"]
    (message,) = await scene.until_received(fails)
    result = message.verified(scene.secret)
    assert (result["data"], result["errors"]) == (None, states[fails]["errors"])


async def test_requests_start_by_priority_and_then_by_age(make_scene: MakeScene) -> None:
    scene = await make_scene(max_concurrency=1)
    (first,) = await scene.fill(1)
    submitted = [(await scene.submit({}, priority=priority), priority) for priority in (2, 1, 0, 2, 1, 0)]
    figures = await scene.figures()

    scene.model.release()
    await scene.ended()

    assert (figures["num_queued_requests"], figures["num_in_progress_requests"]) == (6, 1)
    assert figures["priorities"] == {"0": 2, "1": 2, "2": 2}
    order = [call.request_id for call in scene.model.calls]
    assert order == [first, *(id for urgency in (0, 1, 2) for id, priority in submitted if priority == urgency)]
    assert scene.model.most_at_once == 1
    after = await scene.figures()
    assert (after["num_queued_requests"], after["num_in_progress_requests"]) == (0, 0)


async def test_synchronous_calls_go_before_queued_requests(make_scene: MakeScene) -> None:
    scene = await make_scene(max_concurrency=1)
    await scene.fill(1)
    queued = [await scene.submit({}) for _ in range(3)]
    calls = [asyncio.create_task(scene.ask("POST", f"{scene.path}/production/predict", {})) for _ in range(3)]

    async def waiting() -> bool:
        load = (await scene.stage.operator.call("GET", scene.deployment_path))["load"]
        return bool(load["queued"] >= 3)

    await scene.stage.until(waiting, "the calls wait for their turn")
    scene.model.release()

    assert [status for status, _ in await asyncio.gather(*calls)] == [200] * 3
    await scene.ended()
    assert [call.async_call for call in scene.model.calls] == [True] + [False] * 3 + [True] * 3
    assert [call.request_id for call in scene.model.calls[4:]] == queued


async def test_cancel_takes_what_is_queued_and_leaves_what_runs(make_scene: MakeScene) -> None:
    scene = await make_scene(max_concurrency=1)
    (running,) = await scene.fill(1)
    queued = await scene.submit({}, hook=True)

    canceled = await scene.cancel(queued)
    refusal = await scene.cancel(running)
    again = await scene.cancel(queued)
    scene.model.release()
    await scene.until_status(running, "SUCCEEDED")

    assert (canceled["request_id"], canceled["canceled"]) == (queued, True)
    assert (refusal["canceled"], again["canceled"]) == (False, False)
    state = await scene.state(queued)
    assert (state["status"], state["webhook_status"], state["errors"]) == ("CANCELED", "CANCELED", [])
    assert scene.model.attempts(queued) == []
    assert queued not in scene.receiver.by_id()


async def test_of_cancel_and_start_exactly_one_wins(make_scene: MakeScene) -> None:
    scene = await make_scene(max_concurrency=2)

    async def race(number: int) -> tuple[str, bool]:
        id = await scene.submit({"answer": number})
        await asyncio.sleep(0.002 * (number % 10))
        return id, bool((await scene.cancel(id))["canceled"])

    races = await asyncio.gather(*map(race, range(60)))
    await scene.ended()

    for id, canceled in races:
        assert (await scene.state(id))["status"] == ("CANCELED" if canceled else "SUCCEEDED")
        assert scene.model.attempts(id) == ([] if canceled else [1])


async def test_answer_that_is_no_json_arrives_as_a_string(scene: AsyncScene) -> None:
    id = await scene.submit({"text": 20_000_000}, hook=True)

    (message,) = await scene.until_received(id)

    assert message.verified(scene.secret)["data"] == "ä" * 10_000_000
    assert (await scene.until_ended(id))["status"] == "SUCCEEDED"


async def test_body_above_the_workspaces_bound_is_refused_with_both_sizes(scene: AsyncScene) -> None:
    filler = "x" * (262_145 - len(orjson.dumps({"model_input": ""})))
    path = f"{scene.path}/production/async_predict"
    status, answer = await scene.ask("POST", path, {"model_input": filler})
    await scene.submit(filler[2:])
    assert status == 413, answer
    size = len(orjson.dumps({"model_input": filler})) + 1  # aiohttp writes a blank after the colon
    assert answer["error"] == f"payload size of {size} bytes exceeds maximum size of 262144 bytes"

    product = scene.stage.product
    await asyncio.to_thread(product.command, "workspace", "set", "acme", "--async-max-body-bytes", "300000")

    async def accepted() -> bool:
        return (await scene.ask("POST", path, {"model_input": filler}))[0] == 201

    await scene.stage.until(accepted, "the raised bound holds")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "model_input"),
        ({"model_input": 1, "priority": 3}, "priority"),
        ({"model_input": 1, "priority": True}, "priority"),
        ({"model_input": 1, "max_time_in_queue_seconds": 9}, "max_time_in_queue_seconds"),
        ({"model_input": 1, "inference_retry_config": {"max_attempts": 11}}, "inference_retry_config.max_attempts"),
        ({"model_input": 1, "webhook_endpoint": "https://127.0.0.1/x"}, "webhook_endpoint"),
        ({"model_input": 1, "webhook_endpoint": "http://results.example.com/x"}, "webhook_endpoint"),
        ({"model_input": 1, "webhook_endpoint": 7}, "webhook_endpoint"),
        ({"model_input": 1, "webhook": "https://a.example.com"}, "webhook"),
    ],
)
async def test_bad_field_is_named(scene: AsyncScene, body: Any, field: str) -> None:
    status, answer = await scene.ask("POST", f"{scene.path}/production/async_predict", body)

    assert status == 400, answer
    assert field in answer["error"]
    assert list(answer) == ["error", "error_code"]


async def test_other_tenants_neither_see_nor_cancel_a_request(scene: AsyncScene) -> None:
    name = scene.stage.name
    other = await asyncio.to_thread(scene.stage.product.command, "workspace", "create", name, "--prefix", name)
    id = await scene.submit({"sleep_s": 0.5})
    key = other["api_key"]

    answers = [
        await scene.ask("GET", f"/async_request/{id}", key=key),
        await scene.ask("DELETE", f"/async_request/{id}", key=key),
        await scene.ask("GET", f"{scene.path}/async_request/{id}", key=key),
        await scene.ask("POST", f"{scene.path}/production/async_predict", {"model_input": 1}, key=key),
        await scene.ask("GET", f"{scene.path}/production/async_queue_status", key=key),
        await scene.ask("GET", "/async_request/areq_00000000000000000000000000"),
    ]

    assert [status for status, _ in answers] == [404] * 6
    federated = await scene.stage.operator.key(await scene.stage.operator.group(name, [{"slug": scene.stage.slug}]))
    assert (await scene.ask("GET", f"/async_request/{id}", key=federated))[0] == 403
    assert (await scene.until_ended(id))["status"] == "SUCCEEDED"


async def test_console_reads_queues_and_cancels_through_control(make_scene: MakeScene) -> None:
    scene = await make_scene(max_concurrency=1)
    stage = scene.stage
    control = scene.stage.product.control
    own = {"Origin": control}
    async with stage.session.post(
        control + "/console/session", json={"api_key": stage.operator.api_key}, headers=own
    ) as answer:
        assert answer.status == 204
        own["Cookie"] = answer.headers["Set-Cookie"].partition(";")[0]

    async def call(method: str, path: str, **more: Any) -> tuple[int, Any]:
        body = {"method": method, "path": path, **more}
        async with stage.session.post(control + "/console/call", json=body, headers=own) as answer:
            assert answer.status == 200, await answer.text()
            head = orjson.loads(await answer.content.readline())
            return head["status"], orjson.loads(await answer.content.read())

    await scene.fill(1)
    body = {"model_input": {"n": 1}, "priority": 2}
    status, queued = await call("POST", f"{scene.path}/production/async_predict", body=body)
    assert status == 201
    status, figures = await call("GET", f"{scene.path}/deployment/{scene.deployment_id}/async_queue_status")
    assert (status, figures["num_queued_requests"], figures["num_in_progress_requests"]) == (200, 1, 1)
    path = f"/async_request/{queued['request_id']}"
    assert (await call("GET", path))[1]["status"] == "QUEUED"
    assert (await call("DELETE", path))[1]["canceled"] is True
    assert (await call("GET", f"{scene.path}/production/async_queue_status", api_key="tg_wrong"))[0] == 403
    scene.model.release()
    await scene.ended()
