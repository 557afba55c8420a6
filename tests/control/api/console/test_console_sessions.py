"""Sessions of the console: logging in and out, what the cookie opens, and what ends it.

See docs/reference/console.md#sessions.
"""

import asyncio
import logging
from typing import Any, NoReturn

import pytest
from sqlalchemy import select

from control.api.protocol.dependencies import DEPENDENCIES
from control.edges.sql import tables
from control.edges.sql.store import Store
from control.errors import DatabaseUnavailableError
from control.resources.console import console_sessions
from control.retention import RetentionDays, delete_old_records
from control.throttle import Allowance
from policy.credentials import prefix_of
from policy.keys.permissions import Permission, roles_with
from tests.control.api.console.browser import COOKIE, SESSION, Browser, logged_in
from tests.control.plane import ControlPlane, Json, running_plane

GROUPS = "/v1/gateway/groups"


async def test_login_sets_a_cookie_for_this_host_that_no_script_reads(sqlite_plane: ControlPlane) -> None:
    answer = await Browser(sqlite_plane).try_log_in(sqlite_plane.key)
    assert (answer.status, answer.body) == (204, "")
    pair, *attributes = answer.headers["Set-Cookie"].split("; ")
    name, _, token = pair.partition("=")
    assert (name, len(token)) == (COOKIE, 64)
    assert sorted(attributes) == ["HttpOnly", "Max-Age=43200", "Path=/", "SameSite=Strict"]


async def test_session_says_who_is_logged_in(plane: ControlPlane) -> None:
    browser = await logged_in(plane)
    session = (await browser.get(SESSION)).ok()
    assert session.pop("expires_at").endswith("Z")
    assert session.pop("roles_that_may") == {one.value: [role.value for role in roles_with(one)] for one in Permission}
    assert session == {
        "kind": "WORKSPACE_MANAGE_ALL",
        "prefix": plane.key.partition(".")[0],
        "name": "first key",
        "workspace": {"id": plane.workspace_id, "name": "workspace acme", "prefixes": ["acme"]},
        "group": None,
        "person": None,
        "role": "admin",
        "may": sorted(Permission),
        "may_manage": True,
        "onboarded": True,
        "inference_url": None,
        "choices": [],
    }


async def test_session_says_where_the_inference_api_is(sqlite_url: str) -> None:
    async with running_plane(sqlite_url, proxy_url="https://inference.example") as plane:
        session = (await (await logged_in(plane)).get(SESSION)).ok()
        assert session["inference_url"] == "https://inference.example"


async def test_cookie_works_on_the_management_api(plane: ControlPlane) -> None:
    browser = await logged_in(plane)
    (await browser.get(GROUPS)).ok()
    body = {"metadata": {"external_entity_id": "g"}, "models": [{"slug": "acme/chat"}]}
    (await browser.ask("POST", GROUPS, body)).ok()
    (await Browser(plane).get(GROUPS)).refused(401, "UNAUTHORIZED")


async def test_write_from_a_foreign_page_is_refused(sqlite_plane: ControlPlane) -> None:
    browser = await logged_in(sqlite_plane)
    for origin in ("", "null", "https://evil.example", "http://127.0.0.1:1", f"{browser.origin}.evil.example"):
        for method, path in (("POST", GROUPS), ("DELETE", "/v1/secrets/sec_1"), ("DELETE", SESSION)):
            (await browser.ask(method, path, {}, {"Origin": origin})).refused(403, "FOREIGN_ORIGIN")
        (await browser.try_log_in(sqlite_plane.key, Origin=origin)).refused(403, "FOREIGN_ORIGIN")
        (await browser.get(SESSION, headers={"Origin": origin})).ok()


async def test_logout_ends_the_session_and_clears_the_cookie(plane: ControlPlane) -> None:
    browser = await logged_in(plane)
    answer = await browser.ask("DELETE", SESSION)
    assert answer.status == 204
    assert f'{COOKIE}=""; ' in answer.headers["Set-Cookie"]
    assert "Max-Age=0" in answer.headers["Set-Cookie"]
    (await browser.get(SESSION)).refused(401)
    (await browser.get(GROUPS)).refused(401)


async def test_revoking_the_key_ends_its_sessions(plane: ControlPlane) -> None:
    key = (await plane.post("/v1/api_keys", {"type": "WORKSPACE_MANAGE_ALL"})).ok()
    browser = await logged_in(plane, key["api_key"])
    (await browser.get(GROUPS)).ok()
    (await plane.delete(f"/v1/api_keys/{key['prefix']}")).ok()
    (await browser.get(SESSION)).refused(401)
    (await browser.get(GROUPS)).refused(401)


async def test_deleting_the_group_ends_the_sessions_of_its_keys(plane: ControlPlane) -> None:
    group, key = await federated_key(plane)
    browser = await logged_in(plane, key)
    (await browser.get(SESSION)).ok()
    (await plane.delete(f"{GROUPS}/{group['id']}")).ok()
    (await browser.get(SESSION)).refused(401)
    (await browser.get("/console/usage/data")).refused(401)


async def test_federated_session_names_its_group_and_opens_nothing_of_the_management_api(plane: ControlPlane) -> None:
    group, key = await federated_key(plane)
    browser = await logged_in(plane, key)
    session = (await browser.get(SESSION)).ok()
    assert (session["kind"], session["may_manage"]) == ("FEDERATED", False)
    assert (session["role"], session["may"]) == (None, [])
    assert session["group"] == {"id": group["id"], "external_entity_id": "blue", "name": None}
    for path in (GROUPS, f"{GROUPS}/{group['id']}", f"{GROUPS}/{group['id']}/usage", "/v1/secrets", "/v1/audit_events"):
        (await browser.get(path)).refused(403, "FEDERATED_KEY")
    (await browser.ask("POST", f"{GROUPS}/{group['id']}/usage_links", {})).refused(403, "FEDERATED_KEY")


async def test_session_without_management_scope_opens_nothing_of_the_management_api(sqlite_plane: ControlPlane) -> None:
    for kind in ("WORKSPACE_INVOKE", "WORKSPACE_EXPORT_METRICS"):
        key = (await sqlite_plane.post("/v1/api_keys", {"type": kind})).ok()
        browser = await logged_in(sqlite_plane, key["api_key"])
        session = (await browser.get(SESSION)).ok()
        assert (session["kind"], session["may_manage"], session["group"]) == (kind, False, None)
        (await browser.get(GROUPS)).refused(403, "MISSING_SCOPE")


async def test_session_of_a_workspace_that_is_not_onboarded_says_so(sqlite_plane: ControlPlane) -> None:
    other = await sqlite_plane.another_workspace(onboarded=False)
    browser = await logged_in(sqlite_plane, other["api_key"])
    assert (await browser.get(SESSION)).ok()["onboarded"] is False
    (await browser.get(GROUPS)).refused(403, "NOT_ONBOARDED")
    (await browser.get("/v1/secrets")).ok()


async def test_key_in_a_header_wins_over_the_cookie(sqlite_plane: ControlPlane) -> None:
    browser = await logged_in(sqlite_plane)
    other = await sqlite_plane.another_workspace()
    _, federated = await federated_key(sqlite_plane)
    for header in ({"Authorization": f"Bearer {other['api_key']}"}, {"x-api-key": other["api_key"]}):
        assert (await browser.get("/v1/api_keys", headers=header)).ok()["items"][0]["prefix"] == prefix_of(
            other["api_key"]
        )
        # No browser adds a key by itself, so the page that sends one may be any.
        (await browser.ask("POST", "/v1/secrets", {}, {"Origin": "https://evil.example"} | header)).refused(400)
    (await browser.get(GROUPS, headers={"Authorization": f"Bearer {federated}"})).refused(403, "FEDERATED_KEY")
    (await browser.get(GROUPS, headers={"Authorization": "Bearer wrong"})).refused(403, "AUTHENTICATION_FAILED")
    (await browser.get(GROUPS, headers={"x-api-key": "wrong"})).refused(403, "AUTHENTICATION_FAILED")


async def test_basic_credentials_of_a_proxy_before_us_leave_the_cookie_alone(sqlite_plane: ControlPlane) -> None:
    browser = await logged_in(sqlite_plane)
    (await browser.get(GROUPS, headers={"Authorization": "Basic dXNlcjpwdw=="})).ok()


async def test_cookie_opens_neither_metrics_nor_internal_paths(sqlite_plane: ControlPlane) -> None:
    key = (await sqlite_plane.post("/v1/api_keys", {"type": "WORKSPACE_EXPORT_METRICS"})).ok()
    browser = await logged_in(sqlite_plane, key["api_key"])
    (await browser.get("/metrics")).refused(401)
    (await browser.get("/internal/v1/snapshot")).refused(401)


MALFORMED_COOKIES = (
    "",
    "tollgate_console",
    "tollgate_console=",
    "tollgate_console=;",
    ";;;===;",
    "tollgate_console=" + "0" * 64,
    "tollgate_console=" + "g" * 64,
    "tollgate_console=" + "0" * 6000,
    "tollgate_console=\u00fc",
    "tollgate_console=%00",
    'tollgate_console="' + "0" * 64 + '"',
    "Tollgate_Console=TOKEN",
    "x=tollgate_console=TOKEN",
    "tollgate_console=TOKENx",
)


async def test_malformed_and_unknown_cookies_are_401(sqlite_plane: ControlPlane) -> None:
    browser = await logged_in(sqlite_plane)
    token = browser.cookie.partition("=")[2]
    for cookie in MALFORMED_COOKIES:
        browser.cookie = cookie.replace("TOKEN", token)
        for path in (SESSION, GROUPS, "/console/usage/data"):
            (await browser.get(path)).refused(401, "UNAUTHORIZED")
        assert (await browser.ask("DELETE", SESSION)).status == 204, cookie


async def test_two_sessions_in_one_request_are_none(sqlite_plane: ControlPlane) -> None:
    """Another port of this host may set a cookie of the same name: it must not choose who acts."""
    own = await logged_in(sqlite_plane)
    planted = await logged_in(sqlite_plane)
    for cookie in (f"{planted.cookie}; {own.cookie}", f"{own.cookie}; {planted.cookie}"):
        (await Browser(sqlite_plane, cookie).get(GROUPS)).refused(401)
    (await Browser(sqlite_plane, f"{own.cookie}; a=b; {own.cookie}").get(GROUPS)).ok()
    (await Browser(sqlite_plane, f"{COOKIE}=rubbish; {own.cookie}").get(GROUPS)).ok()


RUBBISH = (
    (b"", 400),
    (b"{}", 400),
    (b"[]", 400),
    (b"null", 400),
    (b"{", 400),
    (b'{"api_key": 1}', 400),
    (b'{"api_key": ""}', 400),
    (b'{"api_key": "a", "more": 1}', 400),
    (b'{"api_key": "\\u0000"}', 400),
    (b'{"api_key": "\\ud800"}', 400),
    (b'{"api_key": "' + b"x" * 2000 + b'"}', 400),
    (b'{"api_key": "' + b"x" * 5000 + b'"}', 413),
    (b'{"api_key": "wrong"}', 403),
    (b'{"api_key": " "}', 403),
    (b'{"api_key": "tg_000000000000.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}', 403),
)


async def test_rubbish_does_not_log_in(sqlite_plane: ControlPlane) -> None:
    browser = Browser(sqlite_plane)
    for body, status in RUBBISH:
        answer = await browser.ask("POST", SESSION, headers={"Content-Type": "application/json"}, data=body)
        answer.refused(status)
        assert "Set-Cookie" not in answer.headers


async def test_login_takes_json_alone(sqlite_plane: ControlPlane) -> None:
    """No form of another page can send it."""
    body = f'{{"api_key": "{sqlite_plane.key}"}}'
    for type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        answer = await Browser(sqlite_plane).ask("POST", SESSION, headers={"Content-Type": type}, data=body)
        answer.refused(415, "UNSUPPORTED_MEDIA_TYPE")


async def test_cookie_is_secure_behind_a_tls_terminator(sqlite_plane: ControlPlane) -> None:
    browser = Browser(sqlite_plane)
    answer = await browser.try_log_in(
        sqlite_plane.key, **{"X-Forwarded-Proto": "https", "Origin": browser.origin.replace("http:", "https:")}
    )
    assert answer.status == 204
    assert "Secure" in answer.headers["Set-Cookie"].split("; ")


async def test_session_ends_after_twelve_hours_and_its_row_is_deleted(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_sessions, "VALID_MS", 1)
    ended = await logged_in(plane)
    (await ended.get(SESSION)).refused(401)
    monkeypatch.undo()
    active = await logged_in(plane)
    assert await rows(plane) == 2
    await delete_old_records(plane.store, RetentionDays(events=92, sums=400, audit=400))
    assert await rows(plane) == 1
    (await active.get(SESSION)).ok()


async def test_a_key_keeps_its_newest_sessions(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_sessions, "MAX_PER_KEY", 2)
    key = (await plane.post("/v1/api_keys", {"type": "WORKSPACE_MANAGE_ALL"})).ok()
    other = await logged_in(plane, key["api_key"])
    browsers = []
    for _ in range(4):
        browsers.append(await logged_in(plane))
        await asyncio.sleep(0.002)  # the time of a login counts milliseconds
    assert [(await browser.get(SESSION)).status for browser in browsers] == [401, 401, 200, 200]
    (await other.get(SESSION)).ok()


async def test_new_login_ends_the_session_of_the_same_browser(sqlite_plane: ControlPlane) -> None:
    browser = await logged_in(sqlite_plane)
    first = browser.cookie
    answer = await browser.try_log_in(sqlite_plane.key)
    assert answer.status == 204
    (await Browser(sqlite_plane, first).get(SESSION)).refused(401)
    (await browser.try_log_in("wrong")).refused(403)


async def test_the_database_alone_opens_no_session_and_no_key(plane: ControlPlane) -> None:
    browser = await logged_in(plane)
    token = browser.cookie.partition("=")[2]
    async with plane.store.read() as conn:
        stored = repr((await conn.execute(select(tables.console_sessions))).all())
    for secret in (token, plane.key, plane.key.partition(".")[2]):
        assert secret not in stored
    session = await console_sessions.find_session(plane.store, token, None)
    assert session is not None
    assert session.api_key() == plane.key
    assert plane.key not in repr(session)
    assert token not in repr(session)


async def test_login_is_throttled_and_counts_as_a_use_of_the_key(
    sqlite_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = (await sqlite_plane.post("/v1/api_keys", {"type": "WORKSPACE_INVOKE"})).ok()
    await logged_in(sqlite_plane, key["api_key"])
    assert sqlite_plane.client.app is not None
    await sqlite_plane.client.app[DEPENDENCIES].last_used.write()
    assert (await sqlite_plane.get(f"/v1/api_keys/{key['prefix']}")).ok()["last_used_at"] is not None
    browser = await logged_in(sqlite_plane)
    monkeypatch.setattr("control.throttle.OTHER", Allowance("few", 2, 3_600_000))
    for _ in range(2):
        (await browser.get(GROUPS)).ok()
    for answer in (await browser.get(GROUPS), await browser.get(SESSION), await browser.try_log_in(sqlite_plane.key)):
        answer.refused(429, "RATE_LIMITED")


async def test_use_by_cookie_counts_as_a_use_of_the_key(sqlite_plane: ControlPlane) -> None:
    key = (await sqlite_plane.post("/v1/api_keys", {"type": "WORKSPACE_MANAGE_ALL"})).ok()
    browser = await logged_in(sqlite_plane, key["api_key"])
    assert sqlite_plane.client.app is not None
    last_used = sqlite_plane.client.app[DEPENDENCIES].last_used
    last_used._noted.clear()
    (await browser.get(GROUPS)).ok()
    assert key["prefix"] in last_used._noted


async def test_write_by_cookie_is_audited_as_the_keys(sqlite_plane: ControlPlane) -> None:
    browser = await logged_in(sqlite_plane)
    (await browser.ask("POST", "/v1/secrets", {"name": "s", "value": "sk-of-the-vendor"})).ok()
    (newest, *_) = (await browser.get("/v1/audit_events")).ok()["items"]
    assert (newest["actor"], newest["action"]) == (prefix_of(sqlite_plane.key), "secret.create")


async def test_outage_of_the_database_is_503_and_never_401(
    sqlite_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, federated = await federated_key(sqlite_plane)
    customer = await logged_in(sqlite_plane, federated)
    browser = await logged_in(sqlite_plane)
    url = (await browser.ask("POST", f"{GROUPS}/{group['id']}/usage_links", {})).ok()["url"]
    link = url.removeprefix(browser.origin)

    def away(*_arguments: Any) -> NoReturn:
        raise DatabaseUnavailableError

    monkeypatch.setattr(Store, "read", away)
    monkeypatch.setattr(Store, "transact", away)
    for path in (SESSION, GROUPS, f"{link}/data"):
        (await browser.get(path)).refused(503, "DATABASE_UNAVAILABLE")
    (await customer.get("/console/usage/data")).refused(503, "DATABASE_UNAVAILABLE")
    (await browser.try_log_in(sqlite_plane.key)).refused(503)
    (await browser.ask("DELETE", SESSION)).refused(503)
    page = await browser.get(link)
    assert (page.status, page.headers["Content-Type"]) == (503, "text/html; charset=utf-8")
    assert "Try again" in page.body
    assert (await browser.get("/console/overview")).status == 200


async def test_no_log_line_and_no_answer_has_a_token_or_a_key(
    sqlite_plane: ControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    browser = await logged_in(sqlite_plane)
    token = browser.cookie.partition("=")[2]
    answers = [
        await browser.get(SESSION),
        await browser.get(f"/console/{token}"),
        await browser.get(GROUPS),
        await browser.ask("POST", SESSION, {"api_key": sqlite_plane.key, "more": 1}),
        await browser.ask("DELETE", SESSION, headers={"Origin": "null"}),
        await browser.ask("DELETE", SESSION),
    ]
    output = caplog.text + repr([record.__dict__ for record in caplog.records])
    output += "".join(f"{answer.body}{answer.headers}" for answer in answers)
    assert "/console/session" in output
    for secret in (token, sqlite_plane.key, sqlite_plane.key.partition(".")[2]):
        assert secret not in output


async def federated_key(plane: ControlPlane) -> tuple[Json, str]:
    """A group, and a key of it."""
    group = await plane.group("blue")
    return group, (await plane.post(f"{GROUPS}/{group['id']}/api_keys", {})).ok()["api_key"]


async def rows(plane: ControlPlane) -> int:
    async with plane.store.read() as conn:
        return len((await conn.execute(select(tables.console_sessions))).all())
