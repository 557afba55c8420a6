"""Environments as clients of the original know them: made empty, promoted to, with the settings that Tollgate has not.

See docs/reference/management-api.md#environments.
"""

import json
from typing import Any

import pytest
from sqlalchemy import select

from control.edges.sql.tables import published
from tests.control.plane import ControlPlane

Json = dict[str, Any]
NOTHING_ASKED: list[Json] = [
    {},
    {"autoscaling_settings": None, "promotion_settings": None, "request_backpressure_settings": None},
    {"autoscaling_settings": {}, "promotion_settings": {}, "request_backpressure_settings": {"policy": None}},
    {"autoscaling_settings": {"min_replica": None, "max_scale_down_rate": None}},
    {"promotion_settings": {"rolling_deploy": False, "promotion_cleanup_strategy": "KEEP"}},
]
SOMETHING_ASKED = [
    ("autoscaling_settings", "min_replica", 1),
    ("autoscaling_settings", "concurrency_target", 0),
    ("promotion_settings", "rolling_deploy", True),
    ("promotion_settings", "promotion_cleanup_strategy", "DEACTIVATE"),
    ("request_backpressure_settings", "policy", "REJECT_ON_FULL"),
    ("request_backpressure_settings", "unknown", None),
]


async def model_with_deployments(plane: ControlPlane) -> tuple[str, str, str]:
    """The path of a new model, and the ids of its two deployments."""
    model = "/v1/models/" + (await plane.post("/v1/models", {"name": "mine"})).ok()["id"]
    ids = [(await plane.post(f"{model}/deployments", {"name": name})).ok()["id"] for name in ("first", "second")]
    return model, ids[0], ids[1]


async def published_environments(plane: ControlPlane) -> Json:
    async with plane.store.read() as conn:
        body = (await conn.execute(select(published.c.body).where(published.c.kind == "model"))).scalar_one()
    environments: Json = json.loads(body)["environments"]
    return environments


async def test_an_empty_environment_has_no_deployment_until_one_is_promoted(plane: ControlPlane) -> None:
    model, first, second = await model_with_deployments(plane)
    (await plane.patch(f"{model}/deployments/{first}", {"max_concurrency": 7})).ok()
    empty = (await plane.post(f"{model}/environments", {"name": "staging"})).ok()
    assert (empty["deployment_id"], empty["current_deployment"]) == (None, None)
    assert empty["autoscaling_settings"]["concurrency_target"] == 0
    assert (await plane.get(f"{model}/environments/STAGING")).ok() == empty
    assert (await plane.get(f"{model}/environments")).ok()["items"] == [empty]
    assert await published_environments(plane) == {"staging": None}
    (await plane.post(f"{model}/environments/staging/activate")).refused(404, "NOT_FOUND")
    promoted = (await plane.post(f"{model}/environments/staging/promote", {"deployment_id": first})).ok()
    assert (promoted["id"], promoted["environment"]) == (first, "staging")
    full = (await plane.get(f"{model}/environments/staging")).ok()
    assert full["current_deployment"] == promoted == (await plane.get(f"{model}/deployments/{first}")).ok()
    assert full["autoscaling_settings"]["concurrency_target"] == 7
    assert await published_environments(plane) == {"staging": first}
    (await plane.post(f"{model}/environments/staging/promote", {"deployment_id": second})).ok()
    assert (await plane.get(f"{model}/environments/staging")).ok()["deployment_id"] == second


async def test_an_empty_environment_takes_its_name_and_can_be_deleted(plane: ControlPlane) -> None:
    model, _first, _second = await model_with_deployments(plane)
    (await plane.post(f"{model}/environments", {"name": "Production"})).ok()
    item = (await plane.get(model)).ok()
    assert (item["production_deployment_id"], item["deployments_count"]) == (None, 2)
    (await plane.get(f"{model}/deployments/production")).refused(404)
    (await plane.post(f"{model}/environments", {"name": "production"})).refused(409, "CONFLICT")
    (await plane.post(f"{model}/environments", {"name": "not a name"})).refused(400, field="name")
    (await plane.delete(f"{model}/environments/production")).ok()
    assert (await plane.get(f"{model}/environments")).ok()["items"] == []


async def test_a_model_with_an_empty_environment_can_be_deleted(plane: ControlPlane) -> None:
    model, _first, _second = await model_with_deployments(plane)
    (await plane.post(f"{model}/environments", {"name": "staging"})).ok()
    (await plane.delete(model)).ok()
    (await plane.get(model)).refused(404)


async def test_production_is_there_to_promote_to_and_other_names_must_be_made(sqlite_plane: ControlPlane) -> None:
    model, first, second = await model_with_deployments(sqlite_plane)
    (await sqlite_plane.post(f"{model}/environments/stagng/promote", {"deployment_id": first})).refused(404)
    assert (await sqlite_plane.get(f"{model}/environments")).ok()["items"] == []
    (await sqlite_plane.post(f"{model}/environments/production/promote", {"deployment_id": first})).ok()
    assert (await sqlite_plane.post(f"{model}/deployments/{second}/promote", {})).ok()["is_production"]
    (await sqlite_plane.put(f"{model}/environments/development", {"deployment_id": first})).ok()
    promoted = (await sqlite_plane.post(f"{model}/deployments/development/promote", {})).ok()
    assert (promoted["id"], promoted["is_production"], promoted["is_development"]) == (first, True, True)
    for path in ("deployments/dep_gone/promote", "environments/production/promote"):
        body = {"deployment_id": "dep_gone"} if "environments" in path else {}
        (await sqlite_plane.post(f"{model}/{path}", body)).refused(404)
    assert (await sqlite_plane.get(f"{model}/environments/production")).ok()["deployment_id"] == first


async def test_an_environment_stands_for_its_deployment_in_actions(sqlite_plane: ControlPlane) -> None:
    model, first, _second = await model_with_deployments(sqlite_plane)
    (await sqlite_plane.put(f"{model}/environments/staging", {"deployment_id": first})).ok()
    (await sqlite_plane.post(f"{model}/environments/staging/deactivate")).ok()
    assert (await sqlite_plane.get(f"{model}/deployments/{first}")).ok()["status"] == "INACTIVE"
    (await sqlite_plane.post(f"{model}/environments/staging/activate")).ok()
    assert (await sqlite_plane.get(f"{model}/deployments/{first}")).ok()["status"] != "INACTIVE"
    (await sqlite_plane.post(f"{model}/environments/absent/activate")).refused(404)


@pytest.mark.parametrize("settings", NOTHING_ASKED)
async def test_settings_that_ask_for_nothing_are_accepted(sqlite_plane: ControlPlane, settings: Json) -> None:
    model, first, _second = await model_with_deployments(sqlite_plane)
    environment = (await sqlite_plane.post(f"{model}/environments", {"name": "staging", **settings})).ok()
    unchanged = (await sqlite_plane.patch(f"{model}/environments/staging", settings)).ok()
    assert (unchanged["environment"], unchanged["status"]) == (environment, "UNCHANGED")
    members = {
        "environment_settings_update": settings,
        "promotion_settings_override": settings.get("promotion_settings"),
        "preserve_env_instance_type": True,
    }
    body = {"deployment_id": first, "scale_down_previous_deployment": True, **members}
    (await sqlite_plane.post(f"{model}/environments/staging/promote", body)).ok()
    body = {"scale_down_previous_production": False, **members}
    (await sqlite_plane.post(f"{model}/deployments/{first}/promote", body)).ok()


@pytest.mark.parametrize(("group", "member", "value"), SOMETHING_ASKED)
async def test_settings_that_ask_for_something_are_refused_by_name(
    sqlite_plane: ControlPlane, group: str, member: str, value: object
) -> None:
    model, first, _second = await model_with_deployments(sqlite_plane)
    settings = {group: {member: value}}
    body = {"name": "staging", **settings}
    (await sqlite_plane.post(f"{model}/environments", body)).refused(400, field=f"{group}.{member}")
    (await sqlite_plane.get(f"{model}/environments/staging")).refused(404)
    update = {"environment_settings_update": settings}
    field = f"environment_settings_update.{group}.{member}"
    (await sqlite_plane.post(f"{model}/deployments/{first}/promote", update)).refused(400, field=field)
    (await sqlite_plane.get(f"{model}/environments/production")).refused(404)
    (await sqlite_plane.put(f"{model}/environments/qa", {"deployment_id": first})).ok()
    (await sqlite_plane.patch(f"{model}/environments/qa", settings)).refused(400, field=f"{group}.{member}")


@pytest.mark.parametrize("verb", ["pause", "resume", "cancel", "force_cancel", "force_roll_forward"])
async def test_a_promotion_is_never_in_progress(sqlite_plane: ControlPlane, verb: str) -> None:
    model, first, _second = await model_with_deployments(sqlite_plane)
    (await sqlite_plane.post(f"{model}/environments/none/{verb}_promotion")).refused(404, "NOT_FOUND")
    (await sqlite_plane.post(f"{model}/environments", {"name": "staging"})).ok()
    (await sqlite_plane.post(f"{model}/environments/staging/promote", {"deployment_id": first})).ok()
    refused = (await sqlite_plane.post(f"{model}/environments/staging/{verb}_promotion")).refused(409, "CONFLICT")
    assert "no promotion is in progress" in refused["error"]
    other = (await sqlite_plane.another_workspace())["api_key"]
    path = f"{model}/environments/staging/{verb}_promotion"
    (await sqlite_plane.post(path, key=other)).refused(404, "NOT_FOUND")


@pytest.mark.parametrize("where", ["{id}", "production", "development"])
async def test_a_deployment_is_scaled_by_its_owner(sqlite_plane: ControlPlane, where: str) -> None:
    model, first, _second = await model_with_deployments(sqlite_plane)
    path = f"{model}/deployments/{where.format(id=first)}/autoscaling_settings"
    if where != "{id}":
        (await sqlite_plane.patch(path, {})).refused(404, "NOT_FOUND")
        (await sqlite_plane.put(f"{model}/environments/{where}", {"deployment_id": first})).ok()
    for body in ({}, {"min_replica": None}):
        assert (await sqlite_plane.patch(path, body)).ok()["status"] == "UNCHANGED"
    refused = (await sqlite_plane.patch(path, {"max_replica": 3})).refused(400, field="max_replica")
    assert "their owner lists them" in refused["error"]


async def test_a_deployment_has_no_other_policy_for_waiting_calls(sqlite_plane: ControlPlane) -> None:
    model, first, _second = await model_with_deployments(sqlite_plane)
    path = f"{model}/deployments/{first}/request_backpressure_settings"
    assert (await sqlite_plane.patch(path, {"policy": None})).ok() == {"policy": None}
    (await sqlite_plane.patch(path, {"policy": "REJECT_ON_FULL"})).refused(400, field="policy")
    (await sqlite_plane.patch(path.replace(first, "dep_none"), {})).refused(404, "NOT_FOUND")
