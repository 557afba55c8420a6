"""Checks who may do what: every operation is called with every role, as the matrix in docs/reference/roles.md says.

Attacks by roles are in tests/control/api/test_role_attacks.py.
"""

import re
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import select

from control.api.protocol.operations import Operation
from control.app import OPERATIONS
from control.edges.sql.training.tables import training_sessions
from policy.credentials import KeyKind
from policy.keys.permissions import EVERYTHING, Permission, permissions_of
from policy.keys.roles import Role
from tests.control import training
from tests.control.api.protocol.roles_matrix import PAGE, with_tables
from tests.control.plane import ControlPlane, Json
from tests.control.training_jobs import running_job

G = "/v1/gateway"
OPERATIONS_OF_A_KEY = 45
"""Operations that are sent with one key, twice at most: it may send a hundred requests a second."""
ROW = re.compile(r"\| `([A-Z]+) (\S+)` \| `(\w+)` \|(.*)\|")
READS_BY_POST = {
    "/v1/models/{model_id}/deployments/{deployment_id}/logs",
    "/v1/training_projects/{training_project_id}/jobs/{training_job_id}/logs",
    "/v1/training_projects/{training_project_id}/jobs/{training_job_id}/metrics",
    "/v1/training_jobs/search",
    "/graphql",
}


def matrix() -> dict[tuple[str, str], set[str]]:
    """The roles that may call each operation, as readers of the reference see them."""
    rows: dict[tuple[str, str], set[str]] = {}
    for method, path, _needs, marks in ROW.findall(PAGE.read_text()):
        cells = [cell.strip() for cell in marks.split("|")]
        assert set(cells) <= {"yes", ""}
        rows[method, path] = {role.value for role, cell in zip(Role, cells, strict=True) if cell == "yes"}
    return rows


def test_reference_has_the_tables_of_the_code() -> None:
    text = PAGE.read_text()
    assert with_tables(text) == text, "run: python -m tests.control.api.protocol.roles_matrix"
    assert matrix().keys() == {(one.method, one.path) for one in OPERATIONS}


def test_operation_cannot_be_declared_without_its_permission() -> None:
    declared: Any = Operation
    with pytest.raises(TypeError, match="needs"):
        declared("GET", "/v1/new", None, "Get what is new", None)


def test_roles_are_no_ladder_and_only_an_admin_may_do_everything() -> None:
    of = {role: permissions_of(KeyKind.WORKSPACE_MANAGE_ALL, role) for role in Role}
    assert of[Role.VIEWER] == {Permission.READ}
    assert of[Role.BILLING] - of[Role.OPERATOR] == {Permission.CREDITS}
    assert Permission.POLICY in of[Role.OPERATOR] - of[Role.BILLING]
    assert Permission.TRUST not in of[Role.OPERATOR] | of[Role.BILLING]
    assert [role for role in Role if of[role] == EVERYTHING] == [Role.ADMIN]
    assert permissions_of(KeyKind.WORKSPACE_MANAGE_ALL, None) == EVERYTHING, "as before there were roles"


def test_viewer_may_call_nothing_that_changes_or_hands_out_a_power() -> None:
    callable_by_viewers = [key for key, roles in matrix().items() if "viewer" in roles]
    for method, path in callable_by_viewers:
        assert method == "GET" or path in READS_BY_POST, (method, path)
        words = ("auth_codes", "webhook_secret", "credentials", "download", "checkpoint_files", "/files", "usage_links")
        assert not any(word in path for word in words), path


@dataclass
class Ids:
    """Real resources of one workspace, by the names of path parameters."""

    values: dict[str, str]

    def path(self, template: str) -> str:
        return template.format(**self.values)


async def resources(plane: ControlPlane, key: str, workspace_id: str, prefix: str) -> Ids:
    """One of everything that a path can name."""
    slug = f"{prefix}/chat"
    secret = (await plane.post("/v1/secrets", {"name": f"{prefix}-vendor", "value": "sk-x"}, key=key)).ok()
    target = {"provider": "VENDOR_B", "secret_id": secret["id"], "target_model": "m"}
    endpoint = (await plane.post(f"{G}/endpoints", {"slug": slug, "targets": [target]}, key=key)).ok()
    body = {"metadata": {"external_entity_id": f"{prefix}-customer"}, "models": [{"slug": slug}]}
    group = (await plane.post(f"{G}/groups", body, key=key)).ok()
    federated = (await plane.post(f"{G}/groups/{group['id']}/api_keys", {}, key=key)).ok()
    hook = (await plane.post(f"{G}/webhooks", {"url": "https://billing.example.com/hook"}, key=key)).ok()
    delivery = (await plane.post(f"{G}/webhooks/{hook['id']}/test", key=key)).ok()
    model = (await plane.post("/v1/models", {"name": "m"}, key=key)).ok()
    deployment = (await plane.post(f"/v1/models/{model['id']}/deployments", {"name": "d"}, key=key)).ok()
    environment = f"/v1/models/{model['id']}/environments/production"
    (await plane.put(environment, {"deployment_id": deployment["id"]}, key=key)).ok()
    project = f"{prefix}-project"
    job = (await running_job(plane, workspace_id=workspace_id, id=f"{prefix}-job", project_id=project)).record
    async with plane.store.read() as conn:
        query = select(training_sessions.c.id).where(training_sessions.c.job_id == job.id)
        session = (await conn.execute(query)).scalar_one()
    return Ids(
        {
            "endpoint_id": endpoint["id"],
            "group_id": group["id"],
            "prefix": federated["prefix"],
            "webhook_id": hook["id"],
            "delivery_id": delivery["id"],
            "model_id": model["id"],
            "deployment_id": deployment["id"],
            "environment_name": "production",
            "replica_id": "none",
            "training_project_id": job.project_id,
            "training_job_id": job.id,
            "session_id": session,
            "checkpoint_id": "none",
            "team_id": workspace_id,
            "name": f"{prefix}-vendor",
            "blob_type": "train",
        }
    )


async def keys_of_roles(plane: ControlPlane) -> dict[str, str]:
    keys = {}
    for role in Role:
        body = {"type": "WORKSPACE_MANAGE_ALL", "role": role.value}
        keys[role.value] = (await plane.post("/v1/api_keys", body)).ok()["api_key"]
    return keys


async def trail(plane: ControlPlane, key: str) -> list[Json]:
    items: list[Json] = (await plane.get("/v1/audit_events?limit=1000", key=key)).ok()["items"]
    return items


async def test_every_operation_admits_exactly_the_roles_of_the_matrix(sqlite_plane: ControlPlane) -> None:
    plane = sqlite_plane
    await training.enable(plane)
    other = await plane.another_workspace()
    foreign = await resources(plane, other["api_key"], other["workspace_id"], "other")
    own = await resources(plane, plane.key, plane.workspace_id, "acme")
    keys = [await keys_of_roles(plane) for _ in range(0, len(OPERATIONS), OPERATIONS_OF_A_KEY)]
    changes = [await trail(plane, key) for key in (plane.key, other["api_key"])]
    rows = matrix()
    for number, operation in enumerate(OPERATIONS):
        may = rows[operation.method, operation.path]
        body: Json | None = None if operation.body is None else {}
        for role, key in keys[number // OPERATIONS_OF_A_KEY].items():
            foreign_path = foreign.path(operation.path)
            answer = await plane.call(operation.method, foreign_path, body, key=key)
            what = (role, operation.method, operation.path, answer.status, answer.body)
            if role not in may:
                names = answer.refused(403, "MISSING_ROLE")["error"]
                assert all(one in names for one in may), what
                own_path = own.path(operation.path)
                (await plane.call(operation.method, own_path, body, key=key)).refused(403, "MISSING_ROLE")
                continue
            assert answer.status not in (403, 405, 500), what
            if "{" in operation.path and "{blob_type}" not in operation.path:
                assert answer.status in (400, 404, 409, 503), what
                assert operation.body or answer.status == 404, what
    for key, before in zip((plane.key, other["api_key"]), changes, strict=True):
        new = [event for event in await trail(plane, key) if event not in before]
        assert {event["action"] for event in new} <= {"signing_secret.create", "signing_secret.rotate"}, new


async def test_refused_role_is_told_before_the_body_is_read(sqlite_plane: ControlPlane) -> None:
    key = (await keys_of_roles(sqlite_plane))["viewer"]
    for data in ("{not json", '{"api_key": "tg_x"}', "[]" * 5):
        async with sqlite_plane.client.post(
            f"{G}/groups", data=data, headers={"Authorization": f"Bearer {key}", "Content-Type": "text/plain"}
        ) as answer:
            assert (answer.status, (await answer.json())["code"]) == (403, "MISSING_ROLE")


async def test_viewer_reads_what_there_is(sqlite_plane: ControlPlane) -> None:
    own = await resources(sqlite_plane, sqlite_plane.key, sqlite_plane.workspace_id, "acme")
    keys = await keys_of_roles(sqlite_plane)
    job = "/v1/training_projects/{training_project_id}/jobs/{training_job_id}"
    paths = (f"{G}/groups/{{group_id}}", f"{G}/webhooks/{{webhook_id}}", "/v1/models/{model_id}", "/v1/secrets", job)
    for role in Role:
        for path in paths:
            answer = (await sqlite_plane.get(own.path(path), key=keys[role.value])).ok()
            assert not any(secret in str(answer) for secret in ("whsec_", "sk-x")), path
