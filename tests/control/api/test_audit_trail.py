"""The audit trail: every operation that changes something writes it, as its caller's, with its request id.

See docs/reference/management-api.md#audit-trail.
"""

import asyncio
import itertools
import json
import re
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import update

from control.app import OPERATIONS
from control.edges.sql.store import now_ms
from control.edges.sql.tables import audit_events
from control.resources.sealing.resealing import reencrypt_all
from control.resources.workspaces import create_workspace_key, set_workspace
from control.retention import DAY_MS, RetentionDays, delete_old_records
from policy.credentials import prefix_of
from policy.training.statuses import Outcome
from tests.control import training
from tests.control.plane import SECRET_KEYS, SLUG, ControlPlane, Json, rate
from tests.control.training_jobs import running_job

AUDIT = "/v1/audit_events"
G = "/v1/gateway"
M = "/v1/models"
T = "/v1/training_projects"
_DEPLOYMENT = f"{M}/{{model_id}}/deployments"
_JOB = f"{T}/{{training_project_id}}/jobs/{{training_job_id}}"
SECRET_VALUE = "sk-the-upstreams-own"
OWN_KEY = "key-of-ones-own/0123456789"
HOOK_PATH = "wake/s3cret-of-the-hook"
ENVIRONMENT_VALUE = "hf-token-of-a-job"
PRICE = {
    **{"slug": "acme/priced", "valid_from": "2026-01-01", "currency": "EUR"},
    **{"input_per_million": "1", "output_per_million": "2"},
}

CHANGE_NOTHING = {
    ("POST", "/v1/secrets/compare"),
    ("POST", f"{_DEPLOYMENT}/{{deployment_id}}/logs"),
    ("POST", f"{_DEPLOYMENT}/{{deployment_id}}/logs/append"),  # what a replica printed, no policy
    ("PATCH", f"{M}/{{model_id}}/environments/{{environment_name}}"),
    *(
        ("PATCH", f"{_DEPLOYMENT}/{where}/autoscaling_settings")
        for where in ("development", "production", "{deployment_id}")
    ),
    ("PATCH", f"{_DEPLOYMENT}/{{deployment_id}}/request_backpressure_settings"),
    *(
        ("POST", f"{M}/{{model_id}}/environments/{{environment_name}}/{verb}_promotion")
        for verb in ("pause", "resume", "cancel", "force_cancel", "force_roll_forward")
    ),
    ("POST", f"{_JOB}/logs"),
    ("POST", f"{_JOB}/metrics"),
    ("POST", "/v1/training_jobs/search"),
    ("POST", "/graphql"),  # a question
    ("PATCH", "/v1/training/capacity"),
    ("POST", f"{_JOB}/ssh/sign"),
    ("DELETE", f"{_DEPLOYMENT}/{{deployment_id}}/replicas/{{replica_id}}"),
}
AUDITED: dict[tuple[str, str], str] = {
    ("POST", f"{G}/endpoints"): "endpoint.create",
    ("PATCH", f"{G}/endpoints/{{endpoint_id}}"): "endpoint.update",
    ("DELETE", f"{G}/endpoints/{{endpoint_id}}"): "endpoint.delete",
    ("POST", f"{G}/groups"): "group.create",
    ("PATCH", f"{G}/groups/{{group_id}}"): "group.update",
    ("DELETE", f"{G}/groups/{{group_id}}"): "group.delete",
    ("POST", f"{G}/groups/{{group_id}}/api_keys"): "key.mint",
    ("POST", f"{G}/groups/{{group_id}}/api_keys/register"): "key.register",
    ("PATCH", f"{G}/groups/{{group_id}}/api_keys/{{prefix}}"): "key.update",
    ("POST", f"{G}/groups/{{group_id}}/api_keys/{{prefix}}/rotate"): "key.rotate",
    ("DELETE", f"{G}/groups/{{group_id}}/api_keys/{{prefix}}"): "key.revoke",
    ("POST", f"{G}/groups/{{group_id}}/usage_links"): "usage_link.create",
    ("POST", f"{G}/groups/{{group_id}}/balance/credits"): "balance.credit",
    ("POST", "/v1/api_keys"): "key.mint",
    ("DELETE", "/v1/api_keys/{prefix}"): "key.revoke",
    ("POST", "/v1/secrets"): "secret.create",
    ("DELETE", "/v1/secrets/{name}"): "secret.delete",
    ("POST", "/v1/async/webhook_secret"): "signing_secret.rotate",
    ("POST", f"{G}/webhooks"): "webhook.create",
    ("PATCH", f"{G}/webhooks/{{webhook_id}}"): "webhook.rotate_secret",
    ("DELETE", f"{G}/webhooks/{{webhook_id}}"): "webhook.delete",
    ("POST", f"{G}/webhooks/{{webhook_id}}/test"): "webhook.test",
    ("POST", f"{G}/webhooks/{{webhook_id}}/deliveries/{{delivery_id}}/redeliver"): "webhook.redeliver",
    ("PUT", f"{G}/identity_provider"): "identity_provider.create",
    ("DELETE", f"{G}/identity_provider"): "identity_provider.delete",
    ("PUT", f"{G}/prices"): "price.create",
    ("DELETE", f"{G}/prices"): "price.delete",
    ("POST", M): "model.create",
    ("PATCH", f"{M}/{{model_id}}"): "model.update",
    ("DELETE", f"{M}/{{model_id}}"): "model.delete",
    ("POST", _DEPLOYMENT): "deployment.create",
    **{
        (method, f"{_DEPLOYMENT}/{where}{verb}"): action
        for where in ("{deployment_id}", "development", "production")
        for method, verb, action in (
            ("PATCH", "", "deployment.update"),
            ("DELETE", "", "deployment.delete"),
            ("POST", "/activate", "deployment.activate"),
            ("POST", "/deactivate", "deployment.deactivate"),
            ("POST", "/retry", "deployment.retry"),
        )
    },
    ("PUT", f"{_DEPLOYMENT}/{{deployment_id}}/replicas"): "deployment.set_replicas",
    ("PUT", f"{_DEPLOYMENT}/{{deployment_id}}/status"): "deployment.report_status",
    ("POST", f"{M}/{{model_id}}/environments"): "environment.create",
    ("POST", f"{_DEPLOYMENT}/{{deployment_id}}/promote"): "environment.create",
    ("POST", f"{_DEPLOYMENT}/development/promote"): "environment.update",
    **{
        ("POST", f"{M}/{{model_id}}/environments/{{environment_name}}/{verb}"): action
        for verb, action in (
            ("promote", "environment.update"),
            ("activate", "deployment.activate"),
            ("deactivate", "deployment.deactivate"),
            ("retry", "deployment.retry"),
        )
    },
    ("PUT", f"{M}/{{model_id}}/environments/{{environment_name}}"): "environment.create",
    ("DELETE", f"{M}/{{model_id}}/environments/{{environment_name}}"): "environment.delete",
    ("POST", T): "training_project.create",
    ("DELETE", f"{T}/{{training_project_id}}"): "training_project.delete",
    ("POST", f"{T}/{{training_project_id}}/jobs"): "training_job.create",
    ("PATCH", _JOB): "training_job.update",
    ("DELETE", _JOB): "training_job.delete",
    ("POST", f"{_JOB}/stop"): "training_job.stop",
    ("POST", f"{_JOB}/recreate"): "training_job.recreate",
    ("POST", f"{_JOB}/interactive_session"): "training_job.begin_sessions",
    ("PATCH", f"{_JOB}/interactive_session"): "training_job.update_sessions",
    ("PATCH", f"{_JOB}/interactive_sessions/{{session_id}}"): "training_job.update_sessions",
    ("POST", "/v1/teams/{team_id}/training_projects"): "training_project.create",
    ("POST", "/v1/teams/{team_id}/secrets"): "secret.create",
    ("DELETE", "/v1/teams/{team_id}/secrets/{name}"): "secret.delete",
}
REFUSED_WHILE_POINTED_TO = {("DELETE", f"{_DEPLOYMENT}/development"), ("DELETE", f"{_DEPLOYMENT}/production")}


@dataclass
class Walk:
    """Calls operations with a request id each, and remembers which operation each was."""

    plane: ControlPlane
    calls: dict[str, tuple[str, str]] = field(default_factory=dict)

    async def __call__(self, method: str, template: str, body: Any = None, **path: str) -> Json:
        """`path`: the parameters in the template, and `query`, if it has one."""
        request_id = f"walk-{len(self.calls)}"
        self.calls[request_id] = (method, template)
        headers = {"x-request-id": request_id}
        answer = await self.plane.call(method, template.format(**path) + path.get("query", ""), body, headers=headers)
        assert answer.headers["x-request-id"] == request_id
        result: Json = answer.ok()
        return result


async def trail(plane: ControlPlane, query: str = "", **more: Any) -> list[Json]:
    """The whole trail, newest first."""
    events: list[Json] = (await plane.get(f"{AUDIT}?limit=1000{query}", **more)).ok()["items"]
    return events


def target(secret_id: str, model: str = "a") -> list[Json]:
    return [{"provider": "VENDOR_B", "secret_id": secret_id, "target_model": model}]


async def walk_gateway(walk: Walk) -> None:
    secret = await walk("POST", "/v1/secrets", {"name": "vendor", "value": SECRET_VALUE})
    endpoint = await walk("POST", f"{G}/endpoints", {"slug": SLUG, "targets": target(secret["id"])})
    one = {"endpoint_id": endpoint["id"]}
    await walk("PATCH", f"{G}/endpoints/{{endpoint_id}}", {"targets": target(secret["id"], "b")}, **one)
    await walk("DELETE", f"{G}/endpoints/{{endpoint_id}}", **one)
    await walk("DELETE", "/v1/secrets/{name}", name="vendor")
    body = {"metadata": {"external_entity_id": "c1"}, "models": [rate(5)]}
    group = {"group_id": (await walk("POST", f"{G}/groups", body))["id"]}
    await walk("PATCH", f"{G}/groups/{{group_id}}", {"models": [rate(3)]}, **group)
    key = await walk("POST", f"{G}/groups/{{group_id}}/api_keys", {"name": "laptop"}, **group)
    one_key = {**group, "prefix": key["prefix"]}
    await walk("PATCH", f"{G}/groups/{{group_id}}/api_keys/{{prefix}}", {"allowed_ips": ["192.0.2.0/24"]}, **one_key)
    await walk("POST", f"{G}/groups/{{group_id}}/api_keys/{{prefix}}/rotate", {"overlap_seconds": 60}, **one_key)
    await walk("DELETE", f"{G}/groups/{{group_id}}/api_keys/{{prefix}}", **one_key)
    await walk("POST", f"{G}/groups/{{group_id}}/api_keys/register", {"key": OWN_KEY, "name": "own"}, **group)
    await walk("POST", f"{G}/groups/{{group_id}}/usage_links", {"frame_origins": ["https://portal.example"]}, **group)
    paid_in = {"amount": "1", "currency": "EUR", "reference": "invoice-1"}
    await walk("POST", f"{G}/groups/{{group_id}}/balance/credits", paid_in, **group)
    await walk("DELETE", f"{G}/groups/{{group_id}}", query="?forfeit=true", **group)
    own = await walk("POST", "/v1/api_keys", {"type": "WORKSPACE_INVOKE"})
    await walk("DELETE", "/v1/api_keys/{prefix}", prefix=own["prefix"])
    (await walk.plane.get("/v1/async/webhook_secret")).ok()  # makes the first one
    await walk("POST", "/v1/async/webhook_secret")


async def walk_webhooks(walk: Walk) -> None:
    webhook = await walk("POST", f"{G}/webhooks", {"url": "https://billing.example.com/hook"})
    hook = {"webhook_id": webhook["id"]}
    await walk("PATCH", f"{G}/webhooks/{{webhook_id}}", {"enabled": False, "rotate_secret": True}, **hook)
    delivery = await walk("POST", f"{G}/webhooks/{{webhook_id}}/test", **hook)
    again = f"{G}/webhooks/{{webhook_id}}/deliveries/{{delivery_id}}/redeliver"
    await walk("POST", again, **hook, delivery_id=delivery["id"])
    await walk("DELETE", f"{G}/webhooks/{{webhook_id}}", **hook)


async def walk_models(walk: Walk) -> None:
    model = {"model_id": (await walk("POST", M, {"name": "mine"}))["id"]}
    await walk("PATCH", f"{M}/{{model_id}}", {"name": "ours"}, **model)
    for where in ("{deployment_id}", "development", "production"):
        hook = f"https://93.184.215.14/{HOOK_PATH}"
        deployment = await walk("POST", _DEPLOYMENT, {"name": where, "wake_url": hook}, **model)
        one = {**model, "deployment_id": deployment["id"]}
        environment = {**one, "environment_name": where.strip("{}")}
        await walk(
            "PUT",
            f"{M}/{{model_id}}/environments/{{environment_name}}",
            {"deployment_id": deployment["id"]},
            **environment,
        )
        await walk("PATCH", f"{_DEPLOYMENT}/{where}", {"max_concurrency": 4}, **one)
        for status in ("WAKING_UP", "LOADING_MODEL", "FAILED"):
            await walk("PUT", f"{_DEPLOYMENT}/{{deployment_id}}/status", {"status": status}, **one)
        await walk("POST", f"{_DEPLOYMENT}/{where}/retry", **one)
        await walk("POST", f"{_DEPLOYMENT}/{where}/deactivate", **one)
        await walk("POST", f"{_DEPLOYMENT}/{where}/activate", **one)
        replicas = {"replicas": ["https://93.184.215.14:8000"]}
        await walk("PUT", f"{_DEPLOYMENT}/{{deployment_id}}/replicas", replicas, **one)
        await walk("DELETE", f"{M}/{{model_id}}/environments/{{environment_name}}", **environment)
        if where == "{deployment_id}":
            await walk("DELETE", f"{_DEPLOYMENT}/{where}", **one)
    await walk("DELETE", f"{M}/{{model_id}}", **model)


async def walk_promotions(walk: Walk) -> None:
    model = {"model_id": (await walk("POST", M, {"name": "mine"}))["id"]}
    id = (await walk("POST", _DEPLOYMENT, {"name": "first"}, **model))["id"]
    one = {**model, "deployment_id": id}
    environment = {**model, "environment_name": "development"}
    path = f"{M}/{{model_id}}/environments"
    await walk("POST", path, {"name": "development"}, **model)
    await walk("POST", f"{path}/{{environment_name}}/promote", {"deployment_id": id}, **environment)
    await walk("POST", f"{_DEPLOYMENT}/{{deployment_id}}/promote", {}, **one)
    await walk("POST", f"{_DEPLOYMENT}/development/promote", {}, **model)
    for status in ("WAKING_UP", "LOADING_MODEL", "FAILED"):
        await walk("PUT", f"{_DEPLOYMENT}/{{deployment_id}}/status", {"status": status}, **one)
    for verb in ("retry", "deactivate", "activate"):
        await walk("POST", f"{path}/{{environment_name}}/{verb}", **environment)


async def walk_prices(walk: Walk) -> None:
    await walk("PUT", f"{G}/prices", PRICE)
    provider = {"issuer": "https://login.example.invalid", "audience": "tollgate", "entity_claim": "org"}
    await walk("PUT", f"{G}/identity_provider", provider)
    await walk("DELETE", f"{G}/identity_provider")
    await walk("DELETE", f"{G}/prices", query="?slug=acme/priced&valid_from=2026-01-01")


async def walk_training(walk: Walk) -> None:
    plane = walk.plane
    await training.enable(plane)
    answer = await walk("POST", T, {"training_project": {"name": "llama"}})
    project = {"training_project_id": answer["training_project"]["id"]}
    body = training.job_body(environment_variables={"HF_TOKEN": ENVIRONMENT_VALUE})
    first = (await walk("POST", f"{T}/{{training_project_id}}/jobs", body, **project))["training_job"]["id"]
    await walk("PATCH", _JOB, {"priority": 1}, **project, training_job_id=first)
    await walk("POST", f"{_JOB}/stop", **project, training_job_id=first)
    again = (await walk("POST", f"{_JOB}/recreate", **project, training_job_id=first))["training_job"]["id"]
    await training.end(plane.store, again, Outcome.COMPLETED)
    await walk("DELETE", _JOB, **project, training_job_id=again)
    await walk("DELETE", f"{T}/{{training_project_id}}", **project)
    job = (await running_job(plane, None)).record
    running = {"training_project_id": job.project_id, "training_job_id": job.id}
    codes = await walk("POST", f"{_JOB}/interactive_session", **running)
    session = {"session_id": codes["auth_codes"][0]["session_id"]}
    await walk("PATCH", f"{_JOB}/interactive_session", {"timeout_minutes": 7}, **running)
    await walk("PATCH", f"{_JOB}/interactive_sessions/{{session_id}}", {"timeout_minutes": 9}, **running, **session)
    team = {"team_id": plane.workspace_id}
    await walk("POST", "/v1/teams/{team_id}/training_projects", {"training_project": {"name": "ours"}}, **team)
    await walk("POST", "/v1/teams/{team_id}/secrets", {"name": "ours", "value": SECRET_VALUE}, **team)
    await walk("DELETE", "/v1/teams/{team_id}/secrets/{name}", **team, name="ours")


def test_every_operation_is_audited_or_changes_nothing() -> None:
    """An operation is missing here: let it write `tx.audit`, and walk it below; or list it in CHANGE_NOTHING."""
    writing = {(operation.method, operation.path) for operation in OPERATIONS if operation.method != "GET"}
    assert writing == AUDITED.keys() | CHANGE_NOTHING


async def test_each_change_is_in_the_trail_once_as_its_callers(plane: ControlPlane) -> None:
    walk = Walk(plane)
    for part in (walk_gateway, walk_webhooks, walk_models, walk_promotions, walk_prices, walk_training):
        await part(walk)
    events_by_request: dict[str, list[Json]] = {}
    for event in await trail(plane, f"&actor={prefix_of(plane.key)}"):
        events_by_request.setdefault(event["request_id"], []).append(event)
    (secret_events,) = (events_by_request.pop(id) for id in events_by_request.keys() - walk.calls.keys())
    assert {id: [event["action"] for event in events] for id, events in events_by_request.items()} == {
        id: [AUDITED[operation]] for id, operation in walk.calls.items()
    }
    assert set(walk.calls.values()) == AUDITED.keys() - REFUSED_WHILE_POINTED_TO
    text = json.dumps(events_by_request)
    assert [event["action"] for event in secret_events] == ["signing_secret.create"]
    for secret in (SECRET_VALUE, OWN_KEY, HOOK_PATH, ENVIRONMENT_VALUE, plane.key, "whsec_"):
        assert secret not in text
    for events in events_by_request.values():
        (event,) = events
        verb = event["action"].partition(".")[2]
        is_new = verb in ("create", "mint", "register", "credit", "test", "recreate", "begin_sessions")
        assert (event["before"] is None) == is_new, event
        assert (event["after"] is None) == (verb in ("delete", "revoke")), event


async def test_before_and_after_are_what_the_api_showed(plane: ControlPlane) -> None:
    secret_id = await plane.secret()
    endpoint = (await plane.post(f"{G}/endpoints", {"slug": SLUG, "targets": target(secret_id)})).ok()
    changed = (await plane.patch(f"{G}/endpoints/{endpoint['id']}", {"targets": target(secret_id, "b")})).ok()
    last, first, *_ = await trail(plane)
    assert (first["before"], first["after"]) == (None, endpoint)
    assert (last["before"], last["after"]) == (endpoint, changed)
    assert last["resource"] == f"endpoints/{endpoint['id']}"
    assert last["actor"] == prefix_of(plane.key)
    group = await plane.group("c1", models=[rate(5)])
    after = (await trail(plane))[0]["after"]
    effective = {"effective_models", "effective_spend_limits"}
    assert after == {name: value for name, value in group.items() if name not in effective}


async def test_a_write_that_fails_is_not_in_the_trail(plane: ControlPlane) -> None:
    before = await trail(plane)
    secret_id = await plane.secret()
    (await plane.post(f"{G}/endpoints", {"slug": "foreign/slug", "targets": target(secret_id)})).refused(400)
    (await plane.delete(f"{G}/groups/grp_none")).refused(404)
    (await plane.post(f"{G}/endpoints", {"slug": SLUG, "targets": target(secret_id)})).ok()
    (await plane.post(f"{G}/endpoints", {"slug": SLUG, "targets": target(secret_id)})).refused(409)
    now = await trail(plane)
    assert [event["action"] for event in now[: len(now) - len(before)]] == ["endpoint.create", "secret.create"]


async def test_a_write_that_changes_nothing_is_not_in_the_trail(sqlite_plane: ControlPlane) -> None:
    model = (await sqlite_plane.post(M, {"name": "mine"})).ok()["id"]
    deployment = (await sqlite_plane.post(f"{M}/{model}/deployments", {"name": "first"})).ok()
    replicas = {"replicas": ["https://93.184.215.14:8000"]}
    for _ in range(3):  # a launcher repeats its list
        (await sqlite_plane.put(f"{M}/{model}/deployments/{deployment['id']}/replicas", replicas)).ok()
    assert [event["action"] for event in await trail(sqlite_plane)].count("deployment.set_replicas") == 1


async def test_the_same_value_again_is_not_in_the_trail(sqlite_plane: ControlPlane) -> None:
    model = (await sqlite_plane.post(M, {"name": "mine"})).ok()["id"]
    for _ in range(2):
        (await sqlite_plane.patch(f"{M}/{model}", {"name": "ours"})).ok()
        (await sqlite_plane.put(f"{G}/prices", PRICE)).ok()
        await set_workspace(sqlite_plane.store, "workspace acme", tier="pro")
    actions = [event["action"] for event in await trail(sqlite_plane)]
    assert [actions.count(name) for name in ("model.update", "price.update", "workspace.update")] == [1, 0, 1]


async def test_writers_of_one_price_know_what_the_other_left(plane: ControlPlane) -> None:
    writes = (plane.put(f"{G}/prices", {**PRICE, "per_call": str(number)}) for number in range(1, 6))
    for answer in await asyncio.gather(*writes):
        answer.ok()
    changes = [event for event in await trail(plane) if event["action"].startswith("price.")]
    costs = [change["before"] and change["before"]["per_call"] for change in changes]
    assert costs.count(None) == 1
    assert len(set(costs)) == 5  # each began with what another one left


async def test_the_command_line_is_an_actor(plane: ControlPlane) -> None:
    await plane.secret()
    key = await create_workspace_key(plane.store, "workspace acme")
    await set_workspace(plane.store, "workspace acme", tier="pro")
    await reencrypt_all(plane.store, SECRET_KEYS)
    events = await trail(plane, "&actor=cli")
    assert [event["action"] for event in events] == [
        *("secrets.reencrypt", "workspace.update", "key.mint", "key.mint", "workspace.create")
    ]
    assert {event["request_id"] for event in events} == {None}
    assert (events[1]["before"]["tier"], events[1]["after"]["tier"]) == ("basic", "pro")
    assert events[2]["resource"] == f"api_keys/{key['prefix']}"
    assert events[0]["after"] == {"secrets": 1, "webhooks": 0, "signing_secrets": 0}
    assert key["api_key"] not in json.dumps(events)


async def test_another_workspace_sees_nothing(plane: ControlPlane) -> None:
    await plane.secret()
    other = (await plane.another_workspace())["api_key"]
    assert {event["actor"] for event in await trail(plane, key=other)} == {"cli"}
    cursor = (await plane.get(f"{AUDIT}?limit=1")).ok()["pagination"]["cursor"]
    (await plane.get(f"{AUDIT}?cursor={cursor}", key=other)).refused(400)


async def test_pages_join_into_the_whole_newest_first(plane: ControlPlane) -> None:
    for number in range(7):
        await plane.group(f"c{number}")
    whole = await trail(plane)
    places = [(event["timestamp"], event["id"]) for event in whole]
    assert places == sorted(places, reverse=True)
    joined = []
    query = f"limit=2&actor={prefix_of(plane.key)}"
    for _ in itertools.count():
        page = (await plane.get(f"{AUDIT}?{query}")).ok()
        joined += page["items"]
        await plane.group(f"late{len(joined)}")  # what is written meanwhile does not move the pages
        if not page["pagination"]["has_more"]:
            break
        query = f"cursor={page['pagination']['cursor']}"
    assert joined == [event for event in whole if event["actor"] != "cli"]


async def test_a_window_and_an_actor_select(sqlite_plane: ControlPlane) -> None:
    await sqlite_plane.group("c1")
    (event,) = await trail(sqlite_plane, f"&actor={prefix_of(sqlite_plane.key)}")
    later = re.sub(r"(\d{3})Z$", lambda digits: f"{digits[1]}1Z", event["timestamp"])  # a tenth of a millisecond later
    assert event in await trail(sqlite_plane, f"&start_time={event['timestamp']}&end_time={later}")
    assert event not in await trail(sqlite_plane, f"&start_time={later}")
    assert event not in await trail(sqlite_plane, f"&end_time={event['timestamp']}")
    assert await trail(sqlite_plane, "&actor=tg_nobody") == []
    refused = (await sqlite_plane.get(f"{AUDIT}?start_time={later}&end_time={event['timestamp']}")).refused(400)
    assert refused["details"][0]["field"] == "end_time"


async def test_a_request_id_is_accepted_or_made(sqlite_plane: ControlPlane) -> None:
    for request_id in ("", "a b", "x" * 129):
        answer = await sqlite_plane.get("/v1/models", headers={"x-request-id": request_id})
        assert re.fullmatch("[0-9A-Z]{26}", answer.headers["x-request-id"])
    refused = await sqlite_plane.get("/v1/models", key="tg_wrong", headers={"x-request-id": "mine"})
    assert (refused.status, refused.headers["x-request-id"]) == (403, "mine")


async def test_a_change_of_a_long_list_shows_what_differs(plane: ControlPlane) -> None:
    models = [rate(number + 1, slug=f"acme/{number:0120d}") for number in range(900)]
    group = await plane.group("large", models=models)
    models[7] = rate(99_999, slug=models[7]["slug"])
    (await plane.patch(f"{G}/groups/{group['id']}", {"models": models})).ok()
    changed, creation, *_ = await trail(plane)
    assert [entry["rate_limits"][0]["threshold"] for entry in changed["before"]["models"]] == [8]
    assert [entry["rate_limits"][0]["threshold"] for entry in changed["after"]["models"]] == [99_999]
    assert changed["after"]["models_left_out"] == 899
    assert len(creation["after"]["models"]) + creation["after"]["models_left_out"] == 900
    assert 0 < len(json.dumps(creation["after"]["models"], separators=(",", ":"))) <= 66_000


async def test_old_entries_are_deleted(plane: ControlPlane) -> None:
    await plane.secret()
    before = await trail(plane)
    async with plane.store.write() as tx:
        old = update(audit_events).where(audit_events.c.action == "workspace.create")
        await tx.conn.execute(old.values(timestamp_ms=now_ms() - 401 * DAY_MS))
    await delete_old_records(plane.store, RetentionDays(events=92, sums=400, audit=400))
    assert [event["id"] for event in await trail(plane)] == [event["id"] for event in before[:-1]]
