"""`/v1/models/{model_id}/deployments`: settings, statuses, verbs and deletion, on both databases.

See docs/reference/management-api.md#deployments.
"""

import asyncio
import json
import random
from typing import Any

import pytest

from control.edges.sql import model_rows
from control.records.loads import Load
from control.resources.platform import deployments
from tests.control.plane import TOKEN, ControlPlane, running_plane

Json = dict[str, Any]
PUBLIC = "https://93.184.215.14"
HOOK = f"{PUBLIC}:9000/wake/s3cret?x=1"
HEALTH = {"path": "/health", "interval_s": 5.0, "timeout_s": 2.0, "healthy_after": 1, "unhealthy_after": 3}
IDLE = {"in_flight": 0, "queued": 0, "parked": 0, "last_request_at": None}


async def new_deployment(plane: ControlPlane, **settings: Any) -> tuple[str, str]:
    """The paths of a new model and of its new deployment."""
    model = (await plane.post("/v1/models", {"name": "mine"})).ok()["id"]
    deployment = (await plane.post(f"/v1/models/{model}/deployments", {"name": "first", **settings})).ok()
    return f"/v1/models/{model}", f"/v1/models/{model}/deployments/{deployment['id']}"


async def point(plane: ControlPlane, one: str, *names: str) -> None:
    model, _, id = one.rpartition("/deployments/")
    for name in names:
        (await plane.put(f"{model}/environments/{name}", {"deployment_id": id})).ok()


async def published_model(plane: ControlPlane, model: str) -> Json:
    return (await _published_row(plane, model))[3]  # type: ignore[no-any-return]  # JSON


async def published(plane: ControlPlane, one: str) -> tuple[int, list[Any]]:
    """The model's revision, and what proxies know of the deployment."""
    model, _, id = one.rpartition("/deployments/")
    row = await _published_row(plane, model)
    return row[2], next(deployment for deployment in row[3]["deployments"] if deployment[0] == id)


async def _published_row(plane: ControlPlane, model: str) -> list[Any]:
    page = (await plane.get("/internal/v1/snapshot", key=TOKEN)).ok()
    return next(row for row in page["rows"] if row[0] == "model" and row[1] == model.rpartition("/")[2])


async def test_a_deployment_shows_all_its_members(plane: ControlPlane) -> None:
    model, one = await new_deployment(plane)
    deployment = (await plane.get(one)).ok()
    assert deployment == {
        **{"id": one.rpartition("/")[2], "name": "first", "model_id": model.rpartition("/")[2], "status": "DEPLOYING"},
        **{"environment": None, "is_production": False, "is_development": False, "active_replica_count": 0},
        **{"wake_url": None, "health": None, "max_concurrency": None, "max_queued": 100, "replicas": []},
        **{"load": IDLE, "error_message": None, "instance_type_name": ""},
        **{"autoscaling_settings": None, "request_backpressure_settings": {"policy": None}},
        **{"created_at": deployment["created_at"], "updated_at": deployment["updated_at"]},
    }
    await point(plane, one, "staging", "Production", "development")
    deployment = (await plane.get(one)).ok()
    assert (deployment["environment"], deployment["is_production"], deployment["is_development"]) == (
        "Production",
        True,
        True,
    )
    assert (await plane.get(f"{model}/deployments")).ok()["items"] == [deployment]
    for name in ("production", "development"):
        assert (await plane.get(f"{model}/deployments/{name}")).ok() == deployment


async def test_a_deployment_is_created_with_its_settings(plane: ControlPlane) -> None:
    settings = {"wake_url": HOOK, "health": {"path": "/ready?deep=1"}, "max_concurrency": 4, "max_queued": 0}
    _, one = await new_deployment(plane, **settings)
    deployment = (await plane.get(one)).ok()
    assert deployment["health"] == {**HEALTH, "path": "/ready?deep=1"}
    assert (deployment["wake_url"], deployment["max_concurrency"], deployment["max_queued"]) == (HOOK, 4, 0)
    _, row = await published(plane, one)
    assert row[3] == {"health": deployment["health"], "max_concurrency": 4, "max_queued": 0}
    _, two = await new_deployment(plane, **dict.fromkeys(settings))
    deployment = (await plane.get(two)).ok()
    assert [deployment[name] for name in settings] == [None, None, None, 100]


async def test_patch_changes_what_it_names_and_null_resets(plane: ControlPlane) -> None:
    model, one = await new_deployment(plane)
    await point(plane, one, "production")
    settings = {"name": "second", "wake_url": HOOK, "health": {**HEALTH, "interval_s": 0.5}, "max_concurrency": 4}
    settings["max_queued"] = 7
    before = (await plane.get(one)).ok()
    for place, (name, value) in enumerate(settings.items()):
        where = one if place % 2 else f"{model}/deployments/production"
        changed = (await plane.patch(where, {name: value})).ok()
        assert changed == {**before, name: value, "updated_at": changed["updated_at"]}
        assert changed["updated_at"] > before["updated_at"]
        before = changed
    cleared = (await plane.patch(one, dict.fromkeys(settings))).ok()
    assert [cleared[name] for name in settings] == ["second", None, None, None, 100]
    same = (await plane.patch(one, {"name": "second"})).ok()
    assert same == cleared


async def test_only_what_proxies_use_is_published(plane: ControlPlane) -> None:
    _, one = await new_deployment(plane)
    before, _ = await published(plane, one)
    (await plane.patch(one, {"name": "second", "wake_url": HOOK})).ok()
    (await plane.patch(one, {"max_queued": 100, "health": None})).ok()
    (await plane.post(f"{one}/activate")).ok()
    assert (await published(plane, one))[0] == before
    (await plane.patch(one, {"max_queued": 99})).ok()
    assert (await published(plane, one))[1][3] == {"max_queued": 99}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, ""),
        ({"name": None}, ""),
        ({"name": ""}, "name"),
        ({"name": "x" * 256}, "name"),
        ({"name": 1}, "name"),
        ({"status": "ACTIVE"}, "status"),
        ({"replicas": []}, "replicas"),
        *(({"health": {"path": path}}, "health.path") for path in ("", "health", "/a b", "/\n", "/#")),
        *(({"health": {"path": path}}, "health.path") for path in ("/%zz", "/ä", "/\\")),
        ({"health": {"path": "/" + "x" * 1024}}, "health.path"),
        *(({"health": {"interval_s": value}}, "health.interval_s") for value in (0, -1, 0.09, 3601, 1e300, True, "5")),
        *(({"health": {"timeout_s": value}}, "health.timeout_s") for value in (0, -1, 61, "x", False)),
        *(({"health": {"healthy_after": value}}, "health.healthy_after") for value in (0, 101, 1.5, "1", True)),
        *(({"health": {"unhealthy_after": value}}, "health.unhealthy_after") for value in (0, 101, 1.5, "1", True)),
        ({"health": {"port": 80}}, "health.port"),
        ({"health": True}, "health"),
        ({"health": []}, "health"),
        *(({"max_concurrency": value}, "max_concurrency") for value in (0, -1, 1.5, 2**31, 2**63, 10**400, "4", True)),
        *(({"max_queued": value}, "max_queued") for value in (-1, 0.5, 2**31, 10**400, "4", False)),
    ],
)  # fmt: skip
async def test_settings_out_of_bounds_are_refused(sqlite_plane: ControlPlane, body: Json, field: str) -> None:
    model, one = await new_deployment(sqlite_plane)
    text = json.dumps(body, allow_nan=True)
    headers = {"Content-Type": "application/json"}
    refused = (await sqlite_plane.call("PATCH", one, data=text, headers=headers)).refused(400, "INVALID_REQUEST")
    assert [detail["field"] for detail in refused["details"]] == [field]
    if field and field != "name":
        (await sqlite_plane.post(f"{model}/deployments", {"name": "x", **body})).refused(400)


@pytest.mark.parametrize(
    "text", ['{"max_queued": NaN}', '{"health": {"interval_s": Infinity}}', '{"max_queued": 1e999}']
)
async def test_numbers_that_are_none_are_refused(sqlite_plane: ControlPlane, text: str) -> None:
    _, one = await new_deployment(sqlite_plane)
    (await sqlite_plane.call("PATCH", one, data=text, headers={"Content-Type": "application/json"})).refused(400)


async def test_whole_numbers_may_be_written_as_floats(sqlite_plane: ControlPlane) -> None:
    _, one = await new_deployment(sqlite_plane)
    body = {"max_queued": 5.0, "max_concurrency": 1e3, "health": {"healthy_after": 2.0, "interval_s": 1}}
    changed = (await sqlite_plane.patch(one, body)).ok()
    assert (changed["max_queued"], changed["max_concurrency"], changed["health"]["healthy_after"]) == (5, 1000, 2)


@pytest.mark.parametrize(
    "url",
    [
        *("http://10.0.0.5:8000/s3cret", "http://127.0.0.1/s3cret", "http://169.254.169.254/s3cret", "http://[::1]/s3cret"),
        *("ftp://x.com/s3cret", "http://s3cret@x.com", "http://u:s3cret@x.com", "http://x.com/s3cret#a"),
        *("http://x.com/s3cret?a#b", "http://x.com/s3cret\n", "http://x.com/\x01s3cret", "http://x.com/s3cret b"),
        *("http://x.com?s3cret=\u00e4", "http://x.com/s3cret?a=%zz", "http://x.com/../s3cret", "http://x.com:0/s3cret"),
        *("http://localhost/s3cret", "http://metadata.google.internal/s3cret", "?s3cret", "http://?s3cret"),
        *("", "x.com/s3cret", "http:///s3cret"),
        *("http://2130706433/s3cret", "http://0x7f.1/s3cret", "http://x.com/s3cret" + "x" * 2048, "http://x.com\\@y.com/s3cret"),
    ],
)  # fmt: skip
async def test_a_wake_url_under_the_rules_of_replicas_is_not_repeated(
    sqlite_plane: ControlPlane, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    model, one = await new_deployment(sqlite_plane)
    for answer in (
        await sqlite_plane.patch(one, {"wake_url": url}),
        await sqlite_plane.post(f"{model}/deployments", {"name": "x", "wake_url": url}),
    ):
        refused = answer.refused(400)
        assert [detail["field"] for detail in refused["details"]] == ["wake_url"]
        assert "s3cret" not in json.dumps(refused)
    assert "s3cret" not in caplog.text


async def test_a_wake_url_in_an_allowed_network_is_accepted(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/control.db"
    async with running_plane(url, egress_allow="10.0.0.0/8,127.0.0.0/8") as plane:
        _, one = await new_deployment(plane)
        for wake_url in ("http://10.0.0.5:8000/s3cret", "http://localhost:9?token=s3cret", "http://x.com:1/s3cret/"):
            assert (await plane.patch(one, {"wake_url": wake_url})).ok()["wake_url"] == wake_url
        (await plane.patch(one, {"wake_url": "http://192.168.0.1/s3cret"})).refused(400)
    assert "s3cret" not in caplog.text


async def test_an_environment_in_place_of_the_id_must_exist(plane: ControlPlane) -> None:
    model, one = await new_deployment(plane)
    await point(plane, one, "development")
    where = f"{model}/deployments/production"
    (await plane.get(where)).refused(404)
    (await plane.patch(where, {"name": "x"})).refused(404)
    (await plane.delete(where)).refused(404)
    for verb in ("activate", "deactivate", "retry"):
        (await plane.post(f"{where}/{verb}")).refused(404)
        (await plane.post(f"{model}/deployments/development/{verb}")).ok()


async def test_a_deployment_is_deleted_unless_an_environment_points_to_it(plane: ControlPlane) -> None:
    model, one = await new_deployment(plane)
    await point(plane, one, "production", *(f"env{n}" for n in range(6)))
    for where in (one, f"{model}/deployments/production"):
        refused = (await plane.delete(where)).refused(409, "CONFLICT")
        assert refused["error"] == "environments point to the deployment: env0, env1, env2, env3, env4 and more"
    two = (await plane.post(f"{model}/deployments", {"name": "second"})).ok()["id"]
    for name in ("production", *(f"env{n}" for n in range(6))):
        (await plane.put(f"{model}/environments/{name}", {"deployment_id": two})).ok()
    ids = {"id": one.rpartition("/")[2], "model_id": model.rpartition("/")[2]}
    assert (await plane.delete(one)).ok() == {**ids, "deleted": True}
    (await plane.get(one)).refused(404)
    (await plane.delete(one)).refused(404)
    (await plane.put(f"{one}/replicas", {"replicas": []})).refused(404)
    assert [item["id"] for item in (await plane.get(f"{model}/deployments")).ok()["items"]] == [two]
    assert (await published(plane, f"{model}/deployments/{two}"))[1][0] == two


async def test_deleting_and_pointing_at_once_leaves_no_dangling_environment(plane: ControlPlane) -> None:
    model, _ = await new_deployment(plane)
    for _ in range(8):
        id = (await plane.post(f"{model}/deployments", {"name": "x"})).ok()["id"]
        deleted, pointed = await asyncio.gather(
            plane.delete(f"{model}/deployments/{id}"), plane.put(f"{model}/environments/qa", {"deployment_id": id})
        )
        assert {deleted.status, pointed.status} in ({200, 409}, {200, 404})
        if pointed.status == 200:
            assert (await plane.delete(f"{model}/environments/qa")).ok()["name"] == "qa"


async def test_a_launcher_reports_the_status(plane: ControlPlane) -> None:
    _, one = await new_deployment(plane)
    assert (await plane.put(f"{one}/status", {"status": "WAKING_UP"})).ok()["status"] == "WAKING_UP"
    same = (await plane.get(one)).ok()
    assert (await plane.put(f"{one}/status", {"status": "WAKING_UP", "error_message": None})).ok() == same
    refused = (await plane.put(f"{one}/status", {"status": "FAILED"})).refused(409, "CONFLICT")
    assert refused["error"].endswith("WAKING_UP cannot be set to FAILED; it can be set to LOADING_MODEL")
    (await plane.put(f"{one}/status", {"status": "LOADING_MODEL"})).ok()
    (await plane.put(f"{one}/status", {"status": "ACTIVE"})).refused(409)
    failed = (await plane.put(f"{one}/status", {"status": "FAILED", "error_message": "exit status 1"})).ok()
    assert (failed["status"], failed["error_message"]) == ("FAILED", "exit status 1")
    assert (await published(plane, one))[1][1] == "FAILED"
    (line,) = (await plane.post(f"{one}/logs", {})).ok()["logs"]
    assert (line["level"], line["message"]) == ("ERROR", "exit status 1")
    again = (await plane.post(f"{one}/retry")).ok()
    assert (again["retried"], again["reason"], again["deployment"]["status"]) == (True, None, "DEPLOYING")
    assert again["deployment"]["error_message"] is None
    again = (await plane.post(f"{one}/retry")).ok()
    assert (again["retried"], again["reason"]) == (False, "the deployment has not failed: it is DEPLOYING")


@pytest.mark.parametrize(
    "body",
    [
        *({"status": status} for status in ("active", "GONE", "", None, 1, ["FAILED"])),
        *({"status": "WAKING_UP", "error_message": text} for text in (1, "x" * 4097, "\0")),
        *({}, {"error_message": "x"}, {"status": "WAKING_UP", "reason": "x"}),
    ],
)
async def test_a_malformed_status_is_refused(sqlite_plane: ControlPlane, body: Json) -> None:
    _, one = await new_deployment(sqlite_plane)
    (await sqlite_plane.put(f"{one}/status", body)).refused(400)


async def test_replicas_with_probes_serve_after_the_first_report(plane: ControlPlane) -> None:
    model, one = await new_deployment(plane, health={})
    changed = (await plane.put(f"{one}/replicas", {"replicas": [PUBLIC]})).ok()
    assert (changed["status"], changed["active_replica_count"]) == ("LOADING_MODEL", 0)
    ids = (model.rpartition("/")[2], one.rpartition("/")[2])
    for load, status in (
        (Load(healthy=frozenset(), unhealthy=frozenset([PUBLIC])), "LOADING_MODEL"),
        (Load(healthy=frozenset([PUBLIC])), "ACTIVE"),
        (Load(healthy=frozenset()), "ACTIVE"),
        (Load(healthy=frozenset(), unhealthy=frozenset([PUBLIC])), "UNHEALTHY"),
        (Load(healthy=frozenset([PUBLIC])), "ACTIVE"),
    ):
        await deployments.observe_health(plane.store, *ids, load)
        assert (await plane.get(one)).ok()["status"] == status
        assert (await published(plane, one))[1][1] == status
    (await plane.delete(one)).ok()
    await deployments.observe_health(plane.store, *ids, Load(healthy=frozenset([PUBLIC])))


async def test_a_replica_that_proxies_know_as_healthy_keeps_its_deployment_serving(plane: ControlPlane) -> None:
    model, one = await new_deployment(plane, health={})
    (await plane.put(f"{one}/replicas", {"replicas": [PUBLIC]})).ok()
    figures: Json = {**dict.fromkeys(("in_flight", "queued", "parked"), 0), "last_request_at_ms": None, "unhealthy": []}
    load = {"model_id": model.rpartition("/")[2], "deployment_id": one.rpartition("/")[2], **figures}
    report = {"machine": "0123456789abcdef", "loads": [{**load, "healthy": [PUBLIC]}]}
    (await plane.post("/internal/v1/deployments/loads", report, key=TOKEN)).ok()
    deployment = (await plane.get(one)).ok()
    assert (deployment["status"], deployment["active_replica_count"]) == ("ACTIVE", 1)
    both = (await plane.put(f"{one}/replicas", {"replicas": [PUBLIC, f"{PUBLIC}:1"]})).ok()
    assert (both["status"], both["active_replica_count"]) == ("ACTIVE", 1)
    (await plane.post(f"{one}/deactivate")).ok()
    assert (await plane.get(one)).ok()["active_replica_count"] == 0
    (await plane.post(f"{one}/activate")).ok()
    assert (await plane.get(one)).ok()["status"] == "ACTIVE"
    assert (await plane.put(f"{one}/replicas", {"replicas": [f"{PUBLIC}:1"]})).ok()["status"] == "LOADING_MODEL"


async def test_reports_and_changes_at_once_are_all_kept(plane: ControlPlane) -> None:
    model, one = await new_deployment(plane, health={})
    (await plane.put(f"{one}/replicas", {"replicas": [PUBLIC]})).ok()
    ids = (model.rpartition("/")[2], one.rpartition("/")[2])
    load = Load(healthy=frozenset([PUBLIC]))
    await asyncio.gather(
        plane.patch(one, {"name": "renamed"}),
        deployments.observe_health(plane.store, *ids, load),
        plane.patch(one, {"max_queued": 7}),
        deployments.observe_health(plane.store, *ids, load),
        plane.patch(one, {"wake_url": HOOK}),
    )
    deployment = (await plane.get(one)).ok()
    assert [deployment[name] for name in ("name", "status", "max_queued", "wake_url")] == ["renamed", "ACTIVE", 7, HOOK]
    assert (await published(plane, one))[1] == [ids[1], "ACTIVE", [PUBLIC], {"health": HEALTH, "max_queued": 7}]


async def test_a_deployment_of_a_full_model_can_be_switched_off(
    sqlite_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, one = await new_deployment(sqlite_plane)
    (await sqlite_plane.put(f"{one}/replicas", {"replicas": [PUBLIC]})).ok()
    monkeypatch.setattr(model_rows, "MAX_MODEL_BYTES", 10)
    (await sqlite_plane.post(f"{one}/deactivate")).ok()
    assert (await published(sqlite_plane, one))[1][1] == "INACTIVE"
    (await sqlite_plane.patch(one, {"health": {"path": "/x"}})).refused(409, "CONFLICT")
    assert (await sqlite_plane.get(one)).ok()["health"] is None


async def test_the_three_forms_of_a_verb_share_one_limit(sqlite_plane: ControlPlane) -> None:
    model, one = await new_deployment(sqlite_plane)
    await point(sqlite_plane, one, "production", "development")
    forms = [one, f"{model}/deployments/production", f"{model}/deployments/development"]
    for verb, limit in (("activate", 20), ("deactivate", 20), ("retry", 10)):
        for number in range(limit):
            (await sqlite_plane.post(f"{forms[number % 3]}/{verb}")).ok()
        for form in forms:
            refused = (await sqlite_plane.post(f"{form}/{verb}")).refused(429, "RATE_LIMITED")
            assert refused["retry_after"] >= 1
    (await sqlite_plane.get(one)).ok()


async def test_random_changes_at_once_are_answered_and_published_as_stored(plane: ControlPlane) -> None:
    model, one = await new_deployment(plane)
    dice = random.Random(1)
    ids = [one.rpartition("/")[2]]
    names = ["production", "development", "qa", "QA"]

    async def change() -> int:
        where = f"{model}/deployments"
        id = dice.choice(ids)
        name = dice.choice(names)
        match dice.randrange(9):
            case 0:
                answer = await plane.post(where, {"name": "x", "health": dice.choice([None, {}])})
                ids.extend([answer.body["id"]] if answer.status == 200 else [])
                return answer.status
            case 1:
                return (await plane.delete(f"{where}/{dice.choice([id, 'production'])}")).status
            case 2 | 3:
                urls = dice.sample([PUBLIC, f"{PUBLIC}:1", f"{PUBLIC}:2"], dice.randrange(4))
                return (await plane.put(f"{where}/{id}/replicas", {"replicas": urls})).status
            case 4:
                return (await plane.put(f"{model}/environments/{name}", {"deployment_id": id})).status
            case 5:
                return (await plane.delete(f"{model}/environments/{name}")).status
            case 6:
                status = dice.choice(["WAKING_UP", "LOADING_MODEL", "FAILED"])
                return (await plane.put(f"{where}/{id}/status", {"status": status, "error_message": "x"})).status
            case 7:
                return (
                    await plane.patch(f"{where}/{dice.choice([id, 'qa'])}", {"max_queued": dice.randrange(5)})
                ).status
        await deployments.observe_health(plane.store, model.rpartition("/")[2], id, Load(healthy=frozenset([PUBLIC])))
        return (await plane.get(f"{where}/production")).status

    async def changes() -> set[int]:
        return {await change() for _ in range(25)}

    statuses = set[int]().union(*await asyncio.gather(*(changes() for _ in range(6))))
    assert {200, 404, 409} <= statuses <= {200, 404, 409, 429}
    await asyncio.sleep(1.0)  # the window of the request limit
    stored = (await plane.get(f"{model}/deployments?limit=1000")).ok()["items"]
    pointers = (await plane.get(f"{model}/environments")).ok()["items"]
    row = await published_model(plane, model)
    assert row["environments"] == {pointer["name"]: pointer["deployment_id"] for pointer in pointers}
    assert [item[:3] for item in row["deployments"]] == [
        [item["id"], item["status"], item["replicas"]] for item in stored
    ]
    assert set(row["environments"].values()) <= {item["id"] for item in stored}
    assert (await plane.get(model)).ok()["deployments_count"] == len(stored)
