"""Paths of the workspace's own team, whoever calls, and what deployments have not.

See docs/reference/management-api.md#teams.
"""

from tests.control.plane import ControlPlane, Json

PROJECTS = "training_projects"
NEW: dict[str, Json] = {PROJECTS: {"training_project": {"name": "a"}}, "secrets": {"name": "a", "value": "b"}}


async def test_a_teams_projects_are_the_workspaces(sqlite_plane: ControlPlane) -> None:
    team = f"/v1/teams/{sqlite_plane.workspace_id}"
    project = (await sqlite_plane.post(f"{team}/{PROJECTS}", NEW[PROJECTS])).ok()
    assert (await sqlite_plane.post(f"/v1/{PROJECTS}", NEW[PROJECTS])).ok() == project
    projects = (await sqlite_plane.get(f"/v1/{PROJECTS}")).ok()
    assert (await sqlite_plane.get(f"{team}/{PROJECTS}")).ok() == projects == {PROJECTS: [project["training_project"]]}


async def test_a_teams_secrets_are_the_workspaces(sqlite_plane: ControlPlane) -> None:
    team = f"/v1/teams/{sqlite_plane.workspace_id}"
    secret = (await sqlite_plane.post(f"{team}/secrets", NEW["secrets"])).ok()
    assert (await sqlite_plane.get(f"{team}/secrets")).ok() == (await sqlite_plane.get("/v1/secrets")).ok()
    assert (await sqlite_plane.get(f"{team}/secrets")).ok()["secrets"] == [secret]
    (await sqlite_plane.delete(f"/v1/teams/ws_none/secrets/{secret['name']}")).refused(404)
    assert (await sqlite_plane.delete(f"{team}/secrets/{secret['name']}")).ok()["id"] == secret["id"]


async def test_other_teams_are_not_found(sqlite_plane: ControlPlane) -> None:
    other = (await sqlite_plane.another_workspace())["workspace_id"]
    for team in (other, "ws_none"):
        for name, body in NEW.items():
            (await sqlite_plane.get(f"/v1/teams/{team}/{name}")).refused(404)
            (await sqlite_plane.post(f"/v1/teams/{team}/{name}", body)).refused(404)
    assert (await sqlite_plane.get("/v1/secrets")).ok()["items"] == []


async def test_a_key_is_no_person(sqlite_plane: ControlPlane) -> None:
    assert (await sqlite_plane.get("/v1/users/me")).ok() == {
        "user_id": sqlite_plane.key.partition(".")[0],
        "email": None,
        "name": None,
        "workspace_name": "workspace acme",
    }


async def test_what_no_deployment_has_is_said(sqlite_plane: ControlPlane) -> None:
    model = (await sqlite_plane.post("/v1/models", {"name": "mine"})).ok()["id"]
    path = f"/v1/models/{model}/deployments"
    deployment = (await sqlite_plane.post(path, {"name": "first"})).ok()["id"]
    config = await sqlite_plane.get(f"{path}/{deployment}/config?output_format=raw")
    assert "builds no models" in config.refused(404)["message"]
    end = await sqlite_plane.delete(f"{path}/{deployment}/replicas/r1")
    assert "owner" in end.refused(409)["message"]
    assert "builds" not in (await sqlite_plane.get(f"{path}/dep_none/config")).refused(404)["message"]
    (await sqlite_plane.delete(f"{path}/dep_none/replicas/r1")).refused(404)
    (await sqlite_plane.get(f"{path}/{deployment}/config?output_format=xml")).refused(400)
