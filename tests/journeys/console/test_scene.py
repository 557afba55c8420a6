"""The scene that the journeys of the console look at has something of everything."""

import pytest

from tests.journeys.console.scene import Scene
from tests.journeys.training.scene import SEARCH

LISTS = (
    *("/v1/gateway/groups", "/v1/gateway/endpoints", "/v1/gateway/webhooks", "/v1/models", "/v1/api_keys"),
    *("/v1/secrets", "/v1/audit_events"),
)


@pytest.mark.parametrize("path", LISTS)
async def test_every_list_has_items(scene: Scene, path: str) -> None:
    assert (await scene.stage.operator.call("GET", path))["items"]


async def test_calls_jobs_and_requests_have_ended_in_several_ways(scene: Scene) -> None:
    operator = scene.stage.operator
    assert await operator.events("research", scene.stage.began, 100)
    jobs = (await operator.call("POST", SEARCH, {}))["training_jobs"]
    assert {job["current_status"] for job in jobs} >= {"TRAINING_JOB_COMPLETED", "TRAINING_JOB_FAILED"}
    assert scene.asynchronous is not None
    states = [await scene.asynchronous.state(id) for id in scene.asynchronous.submitted]
    assert {state["status"] for state in states} >= {"SUCCEEDED", "FAILED"}
