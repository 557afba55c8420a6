"""`POST /graphql/`: the one question of the original's tool (docs/reference/management-api.md#teams)."""

import pytest

from control.api.platform.graphql import OTHER_QUESTION
from tests.control.plane import ControlPlane

AS_SENT = """
        query Teams {
            teams {
                id
                name
                default
            }
        }
        """


@pytest.mark.parametrize("question", [AS_SENT, "{teams{id,name,default}}", "query { teams { id name default } }"])
async def test_question_for_the_teams_is_answered_with_the_workspace(plane: ControlPlane, question: str) -> None:
    (team,) = (await plane.get("/v1/teams")).ok()["teams"]

    answer = (await plane.post("/graphql/", {"query": question})).ok()

    assert answer == {"data": {"teams": [{"id": team["id"], "name": team["name"], "default": True}]}}


async def test_another_workspace_is_told_of_its_own_team(sqlite_plane: ControlPlane) -> None:
    other = await sqlite_plane.another_workspace()

    answer = (await sqlite_plane.post("/graphql/", {"query": AS_SENT}, key=other["api_key"])).ok()

    assert [team["id"] for team in answer["data"]["teams"]] == [other["workspace_id"]]


@pytest.mark.parametrize(
    "question",
    [
        "query { organization { id } }",
        "{teams {id name default created}}",
        "{ teams { id name default } } { teams { id name default } }",
        "mutation { create_model_from_truss(name: 1) { id } }",
        "",
    ],
)
async def test_other_question_is_told_what_there_is(sqlite_plane: ControlPlane, question: str) -> None:
    answer = (await sqlite_plane.post("/graphql/", {"query": question, "variables": {"a": None}})).ok()

    assert answer == {"errors": [{"message": OTHER_QUESTION}]}


async def test_scheme_of_the_original_is_a_credential(sqlite_plane: ControlPlane) -> None:
    headers = {"Authorization": f"Api-Key {sqlite_plane.key}"}

    assert "data" in (await sqlite_plane.post("/graphql/", {"query": AS_SENT}, headers=headers)).ok()


@pytest.mark.parametrize("body", [{}, {"query": 1}, {"query": AS_SENT, "variables": []}, {"query": AS_SENT, "x": 1}])
async def test_malformed_body_is_refused(sqlite_plane: ControlPlane, body: dict[str, object]) -> None:
    (await sqlite_plane.post("/graphql/", body)).refused(400, "INVALID_REQUEST")


async def test_key_without_management_scope_is_refused(sqlite_plane: ControlPlane) -> None:
    key = (await sqlite_plane.post("/v1/api_keys", {"type": "WORKSPACE_INVOKE"})).ok()["api_key"]

    (await sqlite_plane.post("/graphql/", {"query": AS_SENT}, key=key)).refused(403, "MISSING_SCOPE")
