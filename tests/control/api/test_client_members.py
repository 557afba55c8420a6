"""Members that models of the original's clients demand, and queries that they send.

See docs/reference/management-api.md#teams and docs/reference/management-api.md#settings-of-other-products.
"""

from typing import Any

import pytest

from tests.control.plane import ControlPlane

WRITES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/secrets", {"name": "s", "value": "v"}),
    ("/v1/models", {"name": "mine"}),
]


@pytest.mark.parametrize(("path", "body"), WRITES)
async def test_a_team_is_the_workspace(plane: ControlPlane, path: str, body: dict[str, Any]) -> None:
    team = (await plane.post(path, body)).ok()["team_name"]
    (await plane.post(path, {**body, "team_name": team})).ok()
    (await plane.post(path, {**body, "team_name": None})).ok()
    assert {item["team_name"] for item in (await plane.get(path)).ok()["items"]} == {team}
    count = len((await plane.get(path)).ok()["items"])
    refused = (await plane.post(path, {**body, "name": "other", "team_name": f"{team}2"})).refused(
        400, field="team_name"
    )
    assert team in refused["error"]
    assert len((await plane.get(path)).ok()["items"]) == count


async def test_a_renamed_model_keeps_its_team(sqlite_plane: ControlPlane) -> None:
    model = (await sqlite_plane.post("/v1/models", {"name": "mine"})).ok()
    path = f"/v1/models/{model['id']}"
    (await sqlite_plane.patch(path, {"name": "x", "team_name": "another"})).refused(400, field="team_name")
    changed = (await sqlite_plane.patch(path, {"name": "x", "team_name": model["team_name"]})).ok()
    assert changed == {**model, "name": "x"} == (await sqlite_plane.get(path)).ok()


async def test_models_and_deployments_have_the_members_of_machines(sqlite_plane: ControlPlane) -> None:
    model = (await sqlite_plane.post("/v1/models", {"name": "mine"})).ok()
    deployment = (await sqlite_plane.post(f"/v1/models/{model['id']}/deployments", {"name": "first"})).ok()
    assert model["instance_type_name"] == deployment["instance_type_name"] == ""
    assert deployment["autoscaling_settings"] is None
    assert deployment["request_backpressure_settings"] == {"policy": None}


async def test_a_source_is_refused_with_the_remedy(sqlite_plane: ControlPlane) -> None:
    source = {"kind": "model_archive", "name": "mine", "deployment": {}}
    model = (await sqlite_plane.post("/v1/models", {"name": "mine", "source": None})).ok()
    deployments = f"/v1/models/{model['id']}/deployments"
    (await sqlite_plane.post(deployments, {"name": "first", "source": None})).ok()
    for path in ("/v1/models", deployments):
        refused = (await sqlite_plane.post(path, {"source": source})).refused(400, field="source")
        assert "register by name" in refused["error"]


async def test_lists_are_filtered_by_name_on_every_page(plane: ControlPlane) -> None:
    for name in ("a", "b", "a"):
        (await plane.post("/v1/models", {"name": name})).ok()
    assert await _names(plane, "/v1/models?name=a&limit=1") == ["a", "a"]
    assert await _names(plane, "/v1/models?name=A") == []
    model = (await plane.get("/v1/models?name=b")).ok()["items"][0]["id"]
    for name in ("a", "b", "a"):
        (await plane.post(f"/v1/models/{model}/deployments", {"name": name})).ok()
    assert await _names(plane, f"/v1/models/{model}/deployments?name=a&limit=1") == ["a", "a"]
    assert await _names(plane, f"/v1/models/{model}/deployments?name=c") == []


async def test_a_key_of_no_particular_models_is_the_workspaces(sqlite_plane: ControlPlane) -> None:
    body = {"type": "WORKSPACE_INVOKE", "name": None, "model_ids": None, "team_id": None}
    (await sqlite_plane.post("/v1/api_keys", body)).ok()
    (await sqlite_plane.post("/v1/api_keys", {**body, "model_ids": ["mdl_1"]})).refused(400, field="model_ids")
    (await sqlite_plane.post("/v1/api_keys", {**body, "team_id": "t"})).refused(400, field="team_id")
    every = (await sqlite_plane.get("/v1/api_keys")).ok()
    assert (await sqlite_plane.get("/v1/api_keys?created_by_me=false")).ok()["items"] == every["items"]
    (await sqlite_plane.get("/v1/api_keys?created_by_me=true")).refused(400, field="created_by_me")


async def _names(plane: ControlPlane, path: str) -> list[str]:
    """The names on all pages of a list."""
    page = (await plane.get(path)).ok()
    names = [item["name"] for item in page["items"]]
    while cursor := page["pagination"]["cursor"]:
        page = (await plane.get(f"{path.partition('?')[0]}?cursor={cursor}")).ok()
        names += [item["name"] for item in page["items"]]
    return names


async def test_a_workspace_is_its_only_team(plane: ControlPlane) -> None:
    (team,) = (await plane.get("/v1/teams")).ok()["teams"]
    assert team.keys() == {"id", "name", "default", "created_at"}
    assert (team["id"], team["default"]) == (plane.workspace_id, True)
    assert (await plane.post("/v1/models", {"name": "mine", "team_name": team["name"]})).ok()
    assert (await plane.get(f"/v1/teams/{team['id']}")).ok() == team
    assert (await plane.get("/v1/teams", params={"name": team["name"]})).ok() == {"teams": [team]}
    assert (await plane.get("/v1/teams", params={"name": "another"})).ok() == {"teams": []}
    other = await plane.another_workspace()
    (await plane.get(f"/v1/teams/{team['id']}", key=other["api_key"])).refused(404, "NOT_FOUND")
    (theirs,) = (await plane.get("/v1/teams", key=other["api_key"])).ok()["teams"]
    assert (theirs["id"], theirs["name"]) == (other["workspace_id"], "other")


async def test_models_have_no_instance_types(sqlite_plane: ControlPlane) -> None:
    assert (await sqlite_plane.get("/v1/instance_types")).ok() == {"instance_types": []}
