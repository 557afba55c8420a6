"""Control's `/metrics`, its request log, and how a bug in control is answered and logged."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
from aiohttp import ClientSession, web
from sqlalchemy import text

from control.api.protocol.dependencies import DEPENDENCIES
from control.app import LIMITS, build
from control.edges.sql.events.clock import database_ms
from control.resources.workspaces import create_workspace, create_workspace_key
from control.throttle import Allowance, Throttle
from policy.credentials import KeyKind, prefix_of
from runtime.http.server import FrontRunner
from runtime.log_schema import log_line
from tests.control.plane import METRICS_TOKEN, ControlPlane, settings_on

WORKSPACE = "workspace acme"


async def test_metrics_count_every_answer_by_route(sqlite_plane: ControlPlane) -> None:
    (await sqlite_plane.get("/v1/models")).ok()
    (await sqlite_plane.get("/v1/models/mdl_none")).refused(404)
    (await sqlite_plane.get("/v1/made/up/by/the/caller")).refused(404)
    text = (await sqlite_plane.get("/metrics", key=METRICS_TOKEN)).ok()
    for labels in (
        'method="GET",route="/v1/models",status_code="200"',
        'method="GET",route="/v1/models/{model_id}",status_code="404"',
        'method="any",route="none",status_code="404"',
    ):
        assert f"tollgate_control_requests_total{{{labels}}} 1.0" in text
    assert "mdl_none" not in text
    assert "made/up" not in text


async def test_metrics_tell_of_a_clock_set_back_though_nobody_reads_events(sqlite_plane: ControlPlane) -> None:
    hour_ms = 3_600_000
    for ahead_ms, expected in ((hour_ms, "3[0-9]{3}"), (-hour_ms, "0")):
        async with sqlite_plane.store.write() as tx:
            latest_ms = await database_ms(tx.conn) + ahead_ms
            await tx.conn.execute(text("UPDATE event_clock SET latest_ms = :ms"), {"ms": latest_ms})
        metrics = (await sqlite_plane.get("/metrics", key=METRICS_TOKEN)).ok()
        assert re.search(rf"^tollgate_event_clock_behind_seconds {expected}\.", metrics, re.MULTILINE)


async def test_a_workspaces_metrics_key_sees_no_series_of_the_installation(sqlite_plane: ControlPlane) -> None:
    key = await create_workspace_key(sqlite_plane.store, WORKSPACE, KeyKind.WORKSPACE_EXPORT_METRICS)
    assert "tollgate_control_requests_total" in (await sqlite_plane.get("/metrics", key=METRICS_TOKEN)).ok()
    assert "tollgate_" not in (await sqlite_plane.get("/metrics", key=key["api_key"])).ok()


async def test_metrics_require_a_metrics_key(sqlite_plane: ControlPlane) -> None:
    metrics_key = (await create_workspace_key(sqlite_plane.store, WORKSPACE, KeyKind.WORKSPACE_EXPORT_METRICS))[
        "api_key"
    ]
    invoke_key = (await create_workspace_key(sqlite_plane.store, WORKSPACE, KeyKind.WORKSPACE_INVOKE))["api_key"]
    assert (await sqlite_plane.get("/metrics", key=metrics_key)).status == 200
    (await sqlite_plane.get("/metrics", key=sqlite_plane.key)).refused(403)
    (await sqlite_plane.get("/metrics", key=invoke_key)).refused(403)
    (await sqlite_plane.get("/metrics", key="tg_wrong")).refused(403)
    async with sqlite_plane.client.get("/metrics") as answer:
        assert answer.status == 401, "from loopback too: a TLS terminator may stand there"


async def test_a_request_is_logged_with_the_fields_of_the_proxys_access_log(
    sqlite_plane: ControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    (await sqlite_plane.get("/v1/models/mdl_none")).refused(404)
    async with sqlite_plane.client.get("/healthz") as answer:
        assert answer.status == 200
    (line,) = [json.loads(log_line(record)) for record in caplog.records if record.getMessage() == "request"]
    assert line.pop("total_ms") >= 0
    assert line.keys() == {
        *("time", "level", "logger", "process", "message"),
        *("method", "path", "status", "workspace", "key_prefix", "request_id"),
    }
    assert (line["method"], line["path"], line["status"]) == ("GET", "/v1/models/{model_id}", 404)
    assert line["key_prefix"] == prefix_of(sqlite_plane.key)


class FaultyWindows:
    """Raises an error whose message holds the key's prefix."""

    async def admit(self, key_prefix: str, allowance: Allowance) -> int:
        raise RuntimeError(key_prefix)  # a traceback would show this line, so it must not contain the value


async def test_a_bug_is_500_and_logged_without_its_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = build(settings_on(f"sqlite+aiosqlite:///{tmp_path}/c.db"))
    app[DEPENDENCIES] = dataclasses.replace(app[DEPENDENCIES], throttle=Throttle(FaultyWindows()))
    runner = FrontRunner(app, LIMITS)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    workspace = await create_workspace(app[DEPENDENCIES].store, "acme", ["acme"])
    headers = {"Authorization": f"Bearer {workspace['api_key']}"}
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/models"
    async with ClientSession() as session, session.get(url, headers=headers) as answer:
        assert answer.status == 500
        message = "Internal error"
        assert await answer.json() == {"error": message, "message": message, "code": "INTERNAL_ERROR"}
    await runner.cleanup()
    assert "bug in GET /v1/models (RuntimeError)" in caplog.text
    assert workspace["api_key"].partition(".")[0] not in caplog.text
    assert workspace["api_key"] not in caplog.text
