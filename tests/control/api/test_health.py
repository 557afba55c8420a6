"""Health at a glance: what of a workspace does not work now, on both databases.

See docs/reference/management-api.md#health-at-a-glance.
"""

from typing import Any

from sqlalchemy import update

from control.edges.sql.spend.tables import spend_machines
from control.edges.sql.tables import deployments, webhook_deliveries
from control.records.webhooks import DEAD
from control.resources.spend.machines import LIVE_MS
from control.resources.traffic.health import GIVEN_UP_MS, LAUNCH_MS, MAX_NAMES
from tests.control.api.test_load_reports import create_deployment
from tests.control.plane import TOKEN, ControlPlane, Json

PATH = "/v1/gateway/health"
WEBHOOKS = "/v1/gateway/webhooks"


async def health(plane: ControlPlane, **more: Any) -> Json:
    """Total, failing and names by part."""
    items = (await plane.get(PATH, **more)).ok()["items"]
    return {one["part"]: (one["total"], one["failing"], one["names"]) for one in items}


async def set_all(plane: ControlPlane, table: Any, **values: Any) -> None:
    async with plane.store.write() as tx:
        await tx.conn.execute(update(table).values(**values))


async def leading_endpoint(plane: ControlPlane, slug: str, of: Json, **target: Any) -> None:
    targets = [{"provider": "PLATFORM", "model_id": of["model_id"], **target}]
    (await plane.post("/v1/gateway/endpoints", {"slug": slug, "targets": targets})).ok()


async def test_a_workspace_without_anything_has_nothing_that_fails(plane: ControlPlane) -> None:
    nothing: Json = {part: (0, 0, []) for part in ("webhooks", "endpoints", "launchers", "proxies", "trainer")}
    parts = await health(plane)
    (total, _, names) = parts.pop("control")
    assert (parts, total) == (nothing, 1)
    assert ["TOLLGATE_REDIS_URL is not set" in name for name in names] == [True]


async def test_a_webhook_fails_while_a_message_is_tried_again_or_was_just_given_up(plane: ControlPlane) -> None:
    url = "https://hooks.example.com/in"
    webhook = (await plane.post(WEBHOOKS, {"url": url})).ok()
    (await plane.post(f"{WEBHOOKS}/{webhook['id']}/test")).ok()
    assert (await health(plane))["webhooks"] == (1, 0, []), "it was not tried yet"
    await set_all(plane, webhook_deliveries, attempt_log='[{"status_code": 500}]')
    assert (await health(plane))["webhooks"] == (1, 1, [url])
    now_ms = await _now_ms(plane)
    await set_all(plane, webhook_deliveries, status=DEAD, ended_at_ms=now_ms)
    assert (await health(plane))["webhooks"] == (1, 1, [url])
    await set_all(plane, webhook_deliveries, ended_at_ms=now_ms - GIVEN_UP_MS - 1)
    assert (await health(plane))["webhooks"] == (1, 0, [])
    await set_all(plane, webhook_deliveries, ended_at_ms=now_ms)
    (await plane.patch(f"{WEBHOOKS}/{webhook['id']}", {"enabled": False})).ok()
    assert (await health(plane))["webhooks"] == (0, 0, []), "it is off"


async def test_an_endpoint_fails_that_leads_to_a_deployment_that_does_not_serve(plane: ControlPlane) -> None:
    of = await create_deployment(plane, "https://one.example.com")
    environments = f"/v1/models/{of['model_id']}/environments"
    (await plane.put(f"{environments}/production", {"deployment_id": of["id"]})).ok()
    (await plane.post(environments, {"name": "staging"})).ok()
    for number in range(MAX_NAMES + 1):
        await leading_endpoint(plane, f"acme/slug-{number}", of)
    assert (await health(plane))["endpoints"] == (4, 0, [])
    await leading_endpoint(plane, "acme/empty", of, environment_name="staging")
    assert (await health(plane))["endpoints"] == (5, 1, ["acme/empty"])
    await leading_endpoint(plane, "acme/none", of, environment_name="Stag_ng")
    assert (await health(plane))["endpoints"] == (6, 2, ["acme/empty", "acme/none"])
    await set_all(plane, deployments, status="UNHEALTHY")
    assert (await health(plane))["endpoints"] == (6, 6, ["acme/empty", "acme/none", "acme/slug-0"])


async def test_a_launcher_fails_that_does_not_answer_or_brings_no_replica(plane: ControlPlane) -> None:
    await create_deployment(plane, wake_url="https://launcher.example.com/secret")
    assert (await health(plane))["launchers"] == (1, 0, [])
    await set_all(plane, deployments, wake_pause_ms=-1000)
    assert (await health(plane))["launchers"] == (1, 1, ["mine"])
    now_ms = await _now_ms(plane)
    await set_all(plane, deployments, wake_pause_ms=0, status="WAKING_UP", updated_at_ms=now_ms)
    assert (await health(plane))["launchers"] == (1, 0, [])
    await set_all(plane, deployments, updated_at_ms=now_ms - LAUNCH_MS - 1)
    assert (await health(plane))["launchers"] == (1, 1, ["mine"])


async def test_a_proxy_fails_that_has_told_nothing_for_a_minute_and_is_not_named(plane: ControlPlane) -> None:
    for machine in ("one", "two"):
        body = {"machine": f"host-{machine}", "incarnations": ["a"]}
        (await plane.post("/internal/v1/machines", body, key=TOKEN)).ok()
    assert (await health(plane))["proxies"] == (2, 0, [])
    await set_all(plane, spend_machines, reported_at_ms=await _now_ms(plane) - LIVE_MS - 1)
    assert (await health(plane))["proxies"] == (2, 2, [])


async def test_others_see_nothing_of_a_workspace(plane: ControlPlane) -> None:
    webhook = (await plane.post(WEBHOOKS, {"url": "https://hooks.example.com/in"})).ok()
    (await plane.post(f"{WEBHOOKS}/{webhook['id']}/test")).ok()
    await set_all(plane, webhook_deliveries, attempt_log='[{"status_code": 500}]')
    of = await create_deployment(plane, wake_url="https://launcher.example.com/secret")
    (await plane.put(f"/v1/models/{of['model_id']}/environments/production", {"deployment_id": of["id"]})).ok()
    await leading_endpoint(plane, "acme/chat", of)
    await set_all(plane, deployments, status="FAILED", wake_pause_ms=-1000)
    mine = await health(plane)
    assert [mine[part][:2] for part in ("webhooks", "endpoints", "launchers")] == [(1, 1)] * 3
    other = (await plane.another_workspace())["api_key"]
    theirs = await health(plane, key=other)
    assert [theirs[part] for part in ("webhooks", "endpoints", "launchers")] == [(0, 0, [])] * 3


async def test_a_key_without_management_scope_is_refused(plane: ControlPlane) -> None:
    key = (await plane.post("/v1/api_keys", {"type": "WORKSPACE_INVOKE"})).ok()["api_key"]
    (await plane.get(PATH, key=key)).refused(403)


async def _now_ms(plane: ControlPlane) -> int:
    async with plane.store.write() as tx:
        return tx.now_ms
