"""Sessions of the console: logging in and out, what the cookie opens, and what ends it."""

import pytest

from tests.control.api.console.browser import COOKIE, SESSION, Browser, logged_in
from tests.control.plane import ControlPlane

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
    shown = (await browser.get(SESSION)).ok()
    assert shown.pop("expires_at").endswith("Z")
    assert shown == {
        "kind": "WORKSPACE_MANAGE_ALL",
        "prefix": plane.key.partition(".")[0],
        "name": "first key",
        "workspace": {"id": plane.workspace_id, "name": "workspace acme", "prefixes": ["acme"]},
        "group": None,
        "may_manage": True,
        "onboarded": True,
        "inference_url": None,
    }


async def test_cookie_works_on_the_management_api(plane: ControlPlane) -> None:
    browser = await logged_in(plane)
    (await browser.get(GROUPS)).ok()
    body = {"metadata": {"external_entity_id": "g"}, "models": [{"slug": "acme/chat"}]}
    (await browser.ask("POST", GROUPS, body)).ok()
    (await Browser(plane).get(GROUPS)).refused(401, "UNAUTHORIZED")


@pytest.mark.parametrize("origin", ["", "null", "https://evil.example", "http://127.0.0.1:1"])
async def test_write_from_a_foreign_page_is_refused(sqlite_plane: ControlPlane, origin: str) -> None:
    browser = await logged_in(sqlite_plane)
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
    made = (await plane.post("/v1/api_keys", {"type": "WORKSPACE_MANAGE_ALL"})).ok()
    browser = await logged_in(plane, made["api_key"])
    (await browser.get(GROUPS)).ok()
    (await plane.delete(f"/v1/api_keys/{made['prefix']}")).ok()
    (await browser.get(SESSION)).refused(401)
    (await browser.get(GROUPS)).refused(401)
