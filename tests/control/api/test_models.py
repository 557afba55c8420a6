"""`/v1/models`: platform models, deployments, replicas, environments, on both databases.

See docs/reference/management-api.md#models.
"""

import asyncio
import json
from typing import Any

import pytest
from sqlalchemy import insert, select

from control.api.protocol import lists
from control.edges.sql import model_rows
from control.edges.sql.endpoint_rows import insert_endpoint
from control.edges.sql.tables import environments, published
from control.records.policy import EndpointRecord
from policy.endpoints import Target
from tests.control.plane import ControlPlane, running_plane

Json = dict[str, Any]
PUBLIC = "https://93.184.215.14"


async def deployment(plane: ControlPlane, name: str = "first") -> tuple[str, str]:
    """The paths of a new model and of its new deployment."""
    model = (await plane.post("/v1/models", {"name": "mine"})).ok()
    item = (await plane.post(f"/v1/models/{model['id']}/deployments", {"name": name})).ok()
    return f"/v1/models/{model['id']}", f"/v1/models/{model['id']}/deployments/{item['id']}"


def endpoint_to(model: str, slug: str, environment: str | None = None) -> Json:
    target = {"provider": "PLATFORM", "model_id": model.rpartition("/")[2], "environment_name": environment}
    return {"slug": slug, "targets": [target]}


async def published_model(plane: ControlPlane, model: str) -> Json:
    async with plane.store.read() as conn:
        query = select(published.c.body).where(published.c.kind == "model", published.c.id == model.rpartition("/")[2])
        return json.loads((await conn.execute(query)).scalar_one())  # type: ignore[no-any-return]  # JSON


async def test_setting_replicas_activates_a_deployment(plane: ControlPlane) -> None:
    model, one = await deployment(plane)
    item = (await plane.get(one)).ok()
    assert (item["status"], item["active_replica_count"], item["environment"]) == ("DEPLOYING", 0, None)
    changed = (await plane.put(f"{one}/replicas", {"replicas": [PUBLIC, f"{PUBLIC}:8000/", PUBLIC]})).ok()
    assert (changed["status"], changed["active_replica_count"]) == ("ACTIVE", 2)
    assert changed["replicas"] == [PUBLIC, f"{PUBLIC}:8000"]
    pointer = (await plane.put(f"{model}/environments/production", {"deployment_id": item["id"]})).ok()
    assert pointer["deployment_id"] == item["id"]
    assert (await plane.get(f"{model}/environments/production")).ok() == pointer
    assert (await plane.get(f"{model}/environments")).ok()["items"] == [pointer]
    (entry,) = (await plane.get(f"{model}/deployments")).ok()["items"]
    assert entry["environment"] == "production"
    assert await published_model(plane, model) == {
        "workspace_id": plane.workspace_id,
        "deployments": [[item["id"], "ACTIVE", [PUBLIC, f"{PUBLIC}:8000"], {}]],
        "environments": {"production": item["id"]},
    }
    assert (await plane.put(f"{one}/replicas", {"replicas": []})).ok()["status"] == "SCALED_TO_ZERO"


async def test_an_environments_name_is_unique_without_regard_to_case(plane: ControlPlane) -> None:
    model, one = await deployment(plane)
    two = (await plane.post(f"{model}/deployments", {"name": "second"})).ok()["id"]
    first = (await plane.put(f"{model}/environments/Staging", {"deployment_id": one.rpartition("/")[2]})).ok()
    again = (await plane.put(f"{model}/environments/sTAGING", {"deployment_id": two})).ok()
    assert again["current_deployment"] == (await plane.get(f"{model}/deployments/{two}")).ok()
    moved = {name: again[name] for name in ("current_deployment", "updated_at")}
    assert again == {**first, "deployment_id": two, **moved}
    assert (await plane.get(f"{model}/environments")).ok()["items"] == [again]
    assert (await plane.get(f"{model}/environments/staging")).ok() == again
    assert (await published_model(plane, model))["environments"] == {"Staging": two}
    (await plane.put(f"{model}/environments/Production", {"deployment_id": two})).ok()
    assert (await plane.post(f"{model}/deployments/production/activate")).ok() == {"success": True}
    (await plane.get(f"{model}/environments/\N{KELVIN SIGN}")).refused(404)


async def test_concurrent_puts_of_one_environment_create_one(plane: ControlPlane) -> None:
    model, one = await deployment(plane)
    body = {"deployment_id": one.rpartition("/")[2]}
    names = ["qa", "QA", "Qa", "qA"]
    answers = await asyncio.gather(*(plane.put(f"{model}/environments/{name}", body) for name in names))
    assert len({answer.ok()["name"] for answer in answers}) == 1
    assert len((await plane.get(f"{model}/environments")).ok()["items"]) == 1


async def test_older_environments_that_differ_in_case_stay_distinct(plane: ControlPlane) -> None:
    model, one = await deployment(plane)
    two = (await plane.post(f"{model}/deployments", {"name": "second"})).ok()["id"]
    values = {"model_id": model.rpartition("/")[2], "created_at_ms": 1, "updated_at_ms": 1}
    for name, id in (("Staging", one.rpartition("/")[2]), ("staging", two)):
        async with plane.store.write() as tx:
            await tx.conn.execute(insert(environments).values(name=name, deployment_id=id, **values))
    (await plane.put(f"{model}/environments/staging", {"deployment_id": two})).ok()
    for name, id in (("Staging", one.rpartition("/")[2]), ("staging", two)):
        assert (await plane.get(f"{model}/environments/{name}")).ok()["deployment_id"] == id


async def test_a_model_may_shrink_but_not_grow_beyond_its_bound(
    sqlite_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, one = await deployment(sqlite_plane)
    urls = [f"{PUBLIC}:{port}" for port in range(1000, 1256)]
    (await sqlite_plane.put(f"{one}/replicas", {"replicas": urls[:40]})).ok()
    monkeypatch.setattr(model_rows, "MAX_MODEL_BYTES", 1000)
    refused = (await sqlite_plane.put(f"{one}/replicas", {"replicas": urls})).refused(409, "CONFLICT")
    assert "more than 1 MiB" in refused["error"]
    (await sqlite_plane.post(f"{model}/deployments", {"name": "more"})).refused(409, "CONFLICT")
    assert len((await sqlite_plane.put(f"{one}/replicas", {"replicas": urls[:39]})).ok()["replicas"]) == 39
    assert (await sqlite_plane.get(f"{model}/deployments")).ok()["items"][0]["active_replica_count"] == 39


async def test_deployments_of_many_replicas_are_listed_page_by_page(
    sqlite_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, one = await deployment(sqlite_plane)
    for n in range(11):
        one = f"{model}/deployments/" + (await sqlite_plane.post(f"{model}/deployments", {"name": f"d{n}"})).ok()["id"]
        (
            await sqlite_plane.put(f"{one}/replicas", {"replicas": [f"{PUBLIC}:{port}" for port in range(1000, 1100)]})
        ).ok()
    monkeypatch.setattr(lists, "PAGE_BYTES", 18_000)
    counts = list[int]()
    path = f"{model}/deployments?limit=1000"
    while path:
        page = (await sqlite_plane.get(path)).ok()
        counts.append(len(page["items"]))
        path = f"{model}/deployments?cursor={page['pagination']['cursor']}" if page["pagination"]["has_more"] else ""
    assert (sum(counts), max(counts)) == (12, 3)


async def test_activate_deactivate_and_retry_change_the_status(plane: ControlPlane) -> None:
    model, one = await deployment(plane)
    (await plane.put(f"{one}/replicas", {"replicas": [PUBLIC]})).ok()
    (await plane.post(f"{model}/deployments/production/activate")).refused(404)
    (await plane.put(f"{model}/environments/production", {"deployment_id": one.rpartition("/")[2]})).ok()
    for where in (one, f"{model}/deployments/production"):
        assert (await plane.post(f"{where}/deactivate")).ok() == {"success": True}
        assert (await plane.get(one)).ok()["status"] == "INACTIVE"
        assert (await plane.post(f"{where}/activate")).ok() == {"success": True}
        assert (await plane.get(one)).ok()["status"] == "ACTIVE"
        tried = (await plane.post(f"{where}/retry")).ok()
        assert (tried["retried"], tried["deployment"]["environment"]) == (False, "production")
    (await plane.post(f"{model}/deployments/development/retry")).refused(404)
    assert (await plane.post(f"{one}/logs", {"limit": 5})).ok() == {"logs": []}
    nulls = ["limit", "start_epoch_millis", "end_epoch_millis", "direction", "min_level", "request_id", "includes"]
    assert (await plane.post(f"{one}/logs", dict.fromkeys([*nulls, "excludes"]))).ok() == {"logs": []}
    (await plane.post(f"{one}/logs", {"limit": 0})).refused(400)


async def test_models_of_other_workspaces_are_404(plane: ControlPlane) -> None:
    model, one = await deployment(plane)
    (await plane.put(f"{model}/environments/production", {"deployment_id": one.rpartition("/")[2]})).ok()
    before = [(await plane.get(path)).ok() for path in (model, one)]
    key = (await plane.another_workspace())["api_key"]
    for method, path, body in (
        ("GET", model, None),
        ("PATCH", model, {"name": "x"}),
        ("DELETE", model, None),
        ("GET", one, None),
        ("PATCH", one, {"name": "x"}),
        ("DELETE", one, None),
        ("PUT", f"{one}/status", {"status": "WAKING_UP"}),
        *((method, f"{model}/deployments/production", body) for method, body in (("GET", None), ("DELETE", None))),
        ("PATCH", f"{model}/deployments/production", {"name": "x"}),
        *(("POST", f"{model}/deployments/production/{verb}", None) for verb in ("activate", "deactivate", "retry")),
        ("DELETE", f"{model}/environments/production", None),
        ("GET", f"{model}/deployments", None),
        ("POST", f"{model}/deployments", {"name": "x"}),
        ("PUT", f"{one}/replicas", {"replicas": [PUBLIC]}),
        ("GET", f"{model}/environments", None),
        ("GET", f"{model}/environments/production", None),
        ("PUT", f"{model}/environments/production", {"deployment_id": one.rpartition("/")[2]}),
        ("POST", f"{one}/activate", None),
        ("POST", f"{one}/logs", {}),
    ):
        (await plane.call(method, path, body, key=key)).refused(404)
    assert (await plane.get("/v1/models", key=key)).ok()["items"] == []
    assert [(await plane.get(path)).ok() for path in (model, one)] == before


async def test_a_model_counts_its_deployments_and_shows_where_two_environments_point(plane: ControlPlane) -> None:
    model, one = await deployment(plane)
    before = (await plane.get(model)).ok()
    assert before == {
        **{"id": model.rpartition("/")[2], "name": "mine", "created_at": before["created_at"], "deployments_count": 1},
        **{"production_deployment_id": None, "development_deployment_id": None},
        **{"instance_type_name": "", "team_name": "workspace acme"},
    }
    two = (await plane.post(f"{model}/deployments", {"name": "second"})).ok()["id"]
    await deployment(plane)  # of another model
    (await plane.put(f"{model}/environments/Production", {"deployment_id": one.rpartition("/")[2]})).ok()
    (await plane.put(f"{model}/environments/development", {"deployment_id": two})).ok()
    (await plane.put(f"{model}/environments/staging", {"deployment_id": two})).ok()
    after = (await plane.get(model)).ok()
    assert after["deployments_count"] == 2
    assert after["production_deployment_id"] == one.rpartition("/")[2]
    assert after["development_deployment_id"] == two
    listed = (await plane.get("/v1/models")).ok()["items"]
    assert listed[0] == after
    assert [item["deployments_count"] for item in listed] == [2, 1]
    empty = (await plane.post("/v1/models", {"name": "mine"})).ok()
    assert (empty["deployments_count"], empty["production_deployment_id"]) == (0, None)


async def test_a_model_is_renamed(plane: ControlPlane) -> None:
    model, _ = await deployment(plane)
    before = (await plane.get(model)).ok()
    renamed = (await plane.patch(model, {"name": "yours"})).ok()
    assert renamed == {**before, "name": "yours"}
    assert (await plane.get("/v1/models")).ok()["items"] == [renamed]
    for body in ({}, {"name": None}, {"name": ""}, {"name": "x" * 256}, {"name": "x", "id": "y"}):
        (await plane.patch(model, body)).refused(400)


async def test_a_model_is_deleted_with_what_it_has_unless_an_endpoint_names_it(plane: ControlPlane) -> None:
    model, one = await deployment(plane)
    (await plane.put(f"{model}/environments/production", {"deployment_id": one.rpartition("/")[2]})).ok()
    answer = await plane.post("/v1/gateway/endpoints", endpoint_to(model, "acme/chat", "nowhere"))
    refused = (await plane.delete(model)).refused(409, "CONFLICT")
    assert refused["error"] == "endpoints route to the model: acme/chat"
    (await plane.delete(f"/v1/gateway/endpoints/{answer.ok()['id']}")).ok()
    assert (await plane.delete(model)).ok() == {"id": model.rpartition("/")[2], "deleted": True}
    for path in (model, one, f"{model}/deployments", f"{model}/environments"):
        (await plane.get(path)).refused(404)
    (await plane.delete(model)).refused(404)
    assert (await plane.get("/v1/models")).ok()["items"] == []
    async with plane.store.read() as conn:
        query = select(published.c.body).where(published.c.kind == "model", published.c.id == model.rpartition("/")[2])
        assert (await conn.execute(query)).scalar_one() is None
    (await plane.post("/v1/gateway/endpoints", endpoint_to(model, "acme/chat"))).refused(400)


async def test_deleting_a_model_and_routing_to_it_at_once_leaves_no_dangling_endpoint(plane: ControlPlane) -> None:
    for number in range(8):
        model, one = await deployment(plane)
        (await plane.put(f"{model}/environments/production", {"deployment_id": one.rpartition("/")[2]})).ok()
        creation, deletion = await asyncio.gather(
            plane.post("/v1/gateway/endpoints", endpoint_to(model, f"acme/m{number}")), plane.delete(model)
        )
        assert {creation.status, deletion.status} in ({200, 409}, {400, 200})


async def test_a_model_is_kept_for_an_endpoint_that_is_being_written(plane: ControlPlane) -> None:
    model, _ = await deployment(plane)
    target = Target("PLATFORM", model_id=model.rpartition("/")[2])
    async with plane.store.write() as tx:
        await insert_endpoint(tx, EndpointRecord("ep_1", plane.workspace_id, "acme/chat", target, 1, 1))
        deletion = asyncio.create_task(plane.delete(model))
        await asyncio.sleep(0.3)  # by then it waits for this transaction
    assert "endpoints route to the model" in (await deletion).refused(409, "CONFLICT")["error"]


async def test_an_endpoint_is_refused_for_a_model_that_is_being_deleted(plane: ControlPlane) -> None:
    model, _ = await deployment(plane)
    async with plane.store.write() as tx:
        record = await model_rows.lock_model(tx, plane.workspace_id, model.rpartition("/")[2])
        assert record is not None
        await model_rows.delete_model(tx, record)
        creation = asyncio.create_task(plane.post("/v1/gateway/endpoints", endpoint_to(model, "acme/chat")))
        await asyncio.sleep(0.3)  # by then it waits for this transaction
    refused = (await creation).refused(400)
    assert refused["details"] == [{"field": "targets.0.model_id", "message": "no such model"}]


async def test_an_environment_is_deleted_unless_an_endpoint_routes_to_it(plane: ControlPlane) -> None:
    model, one = await deployment(plane)
    other, _ = await deployment(plane)
    id = one.rpartition("/")[2]
    for name in ("production", "Staging", "sta_ing", "staging2"):
        (await plane.put(f"{model}/environments/{name}", {"deployment_id": id})).ok()
    by_default = (await plane.post("/v1/gateway/endpoints", endpoint_to(model, "acme/implicit"))).ok()
    by_name = (await plane.post("/v1/gateway/endpoints", endpoint_to(model, "acme/named", "sTAGING"))).ok()
    (await plane.post("/v1/gateway/endpoints", endpoint_to(other, "acme/other", "staging2"))).ok()
    for name, slug in (("Production", "acme/implicit"), ("staging", "acme/named")):
        refused = (await plane.delete(f"{model}/environments/{name}")).refused(409, "CONFLICT")
        assert refused["error"] == f"endpoints route to the environment: {slug}"
    for name in ("sta_ing", "staging2"):
        deleted = (await plane.delete(f"{model}/environments/{name}")).ok()
        assert deleted == {"name": name, "model_id": model.rpartition("/")[2], "deleted": True}
        (await plane.get(f"{model}/environments/{name}")).refused(404)
        (await plane.delete(f"{model}/environments/{name}")).refused(404)
    explicit = endpoint_to(model, "acme/implicit", "PRODUCTION")["targets"]
    (await plane.patch(f"/v1/gateway/endpoints/{by_default['id']}", {"targets": explicit})).ok()
    (await plane.delete(f"{model}/environments/production")).refused(409)
    for endpoint in (by_default, by_name):
        (await plane.delete(f"/v1/gateway/endpoints/{endpoint['id']}")).ok()
    assert (await plane.delete(f"{model}/environments/STAGING")).ok()["name"] == "Staging"
    assert (await published_model(plane, model))["environments"] == {"production": id}
    (await plane.get(one)).ok()


async def test_an_environment_points_only_to_a_deployment_of_its_model(plane: ControlPlane) -> None:
    model, _ = await deployment(plane)
    _, other = await deployment(plane)
    for id in (other.rpartition("/")[2], "dep_gone", "x" * 128):
        (await plane.put(f"{model}/environments/qa", {"deployment_id": id})).refused(404)
        (await plane.get(f"{model}/deployments/{id}")).refused(404)
        (await plane.delete(f"{model}/deployments/{id}")).refused(404)
    assert (await plane.get(f"{model}/environments")).ok()["items"] == []


async def test_a_list_of_too_many_replicas_is_one_fault(sqlite_plane: ControlPlane) -> None:
    _, one = await deployment(sqlite_plane)
    for replicas in ([f"{PUBLIC}:{1 + number}" for number in range(257)], ["http://x.invalid"] * 10_000):
        refused = (await sqlite_plane.put(f"{one}/replicas", {"replicas": replicas})).refused(400)
        assert [detail["field"] for detail in refused["details"]] == ["replicas"]


async def test_an_endpoints_other_fields_do_not_hold_an_environment(plane: ControlPlane) -> None:
    model, one = await deployment(plane)
    (await plane.put(f"{model}/environments/qa", {"deployment_id": one.rpartition("/")[2]})).ok()
    body = endpoint_to(model, "acme/chat")
    body["targets"][0]["target_model"] = '","environment_name":"qa","x":"'
    (await plane.post("/v1/gateway/endpoints", body)).ok()
    (await plane.delete(f"{model}/environments/qa")).ok()


async def test_concurrent_changes_are_all_published(plane: ControlPlane) -> None:
    model, _ = await deployment(plane)
    await asyncio.gather(*(plane.post(f"{model}/deployments", {"name": f"d{i}"}) for i in range(6)))
    assert len((await published_model(plane, model))["deployments"]) == 7


@pytest.mark.parametrize(
    "url",
    [
        *("http://10.0.0.5:8000", "http://127.0.0.1", "http://169.254.169.254", "ftp://x.com", "http://u:p@x.com", ""),
        *("http://localhost:8000", "http://[::1]:8000", "http://x.com:0", "http://x.com:99999", "http://x.com/?a=b"),
    ],
)
async def test_a_replica_url_neither_public_nor_allowed_is_refused(sqlite_plane: ControlPlane, url: str) -> None:
    _, one = await deployment(sqlite_plane)
    body = (await sqlite_plane.put(f"{one}/replicas", {"replicas": [PUBLIC, url]})).refused(400)
    assert body["details"][0]["field"] == "replicas.1"


async def test_a_replica_in_an_allowed_network_is_accepted(tmp_path: Any) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/control.db"
    async with running_plane(url, egress_allow="10.0.0.0/8,127.0.0.0/8") as plane:
        _, one = await deployment(plane)
        replicas = ["http://10.0.0.5:8000", "http://127.0.0.1:9", "http://localhost:9"]
        assert (await plane.put(f"{one}/replicas", {"replicas": replicas})).ok()["replicas"] == replicas
        (await plane.put(f"{one}/replicas", {"replicas": ["http://192.168.0.1"]})).refused(400)
        (await plane.put(f"{one}/replicas", {"replicas": ["http://169.254.169.254"]})).refused(400)


@pytest.mark.parametrize("name", ["-x", "a b", "x" * 129, "%2e%2e%2f", "ä"])
async def test_illegal_environment_names_are_refused(sqlite_plane: ControlPlane, name: str) -> None:
    model, one = await deployment(sqlite_plane)
    answer = await sqlite_plane.put(f"{model}/environments/{name}", {"deployment_id": one.rpartition("/")[2]})
    answer.refused(400)
