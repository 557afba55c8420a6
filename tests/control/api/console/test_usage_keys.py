"""Keys that customers manage on their usage page, within the key that they are logged in with.

See docs/reference/console.md#keys-of-customers.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import insert, select

from control.edges.sql.tables import api_keys, published
from control.throttle import Allowance
from policy.credentials import digest_of
from policy.snapshot import KeyRow
from tests.control.api.console.browser import Browser, logged_in
from tests.control.api.test_key_settings import RATES, SPEND, in_days
from tests.control.plane import SLUG, Answer, ControlPlane, Json, running_plane

KEYS = "/console/usage/keys"
GROUPS = "/v1/gateway/groups"
OTHER_SLUG = "acme/other"
HOUR = {"overlap_seconds": 3600}


@pytest.fixture
async def portal(database_url: str) -> AsyncIterator[ControlPlane]:
    """A plane whose operator lets customers manage keys."""
    async with running_plane(database_url, portal_keys=True) as plane:
        yield plane


@pytest.fixture
async def sqlite_portal(sqlite_url: str) -> AsyncIterator[ControlPlane]:
    async with running_plane(sqlite_url, portal_keys=True) as plane:
        yield plane


async def group_path(plane: ControlPlane, entity: str = "customer") -> str:
    """Create a group, and return the path of its keys in the management API."""
    models = [{"slug": SLUG}, {"slug": OTHER_SLUG}]
    return f"{GROUPS}/{(await plane.group(entity, models=models))['id']}/api_keys"


async def minted(plane: ControlPlane, path: str, **settings: Any) -> Json:
    return (await plane.post(path, settings)).ok()  # type: ignore[no-any-return]  # JSON


async def customer(plane: ControlPlane, entity: str = "customer", **settings: Any) -> tuple[Browser, str, Json]:
    """A browser that is logged in with a key of a new group, the path of the group's keys, and that key."""
    path = await group_path(plane, entity)
    key = await minted(plane, path, **settings)
    return await logged_in(plane, key["api_key"]), path, key


async def rotate(browser: Browser, prefix: str, body: Json | None = None, **more: Any) -> Answer:
    return await browser.ask("POST", f"{KEYS}/{prefix}/rotate", HOUR if body is None else body, **more)


async def published_row(plane: ControlPlane, key: str) -> KeyRow:
    async with plane.store.read() as conn:
        body = (await conn.execute(select(published.c.body).where(published.c.id == digest_of(key)))).scalar_one()
    return KeyRow.from_wire(digest_of(key), json.loads(body))


async def test_customers_create_rotate_and_revoke_keys_of_their_group(portal: ControlPlane) -> None:
    browser, path, key = await customer(portal)
    assert (await browser.get("/console/usage/data")).ok()["manages_keys"] is True
    new = (await browser.ask("POST", KEYS, {"name": "laptop", "expires_at": in_days(30)})).ok()
    assert new["api_key"].startswith(f"{new['prefix']}.")
    rotated = (await rotate(browser, new["prefix"])).ok()
    assert rotated["replaces"]["prefix"] == new["prefix"]
    items = {item["prefix"]: item for item in (await browser.get(KEYS)).ok()["items"]}
    assert {prefix: (item["state"], item["own"], item["may_change"]) for prefix, item in items.items()} == {
        key["prefix"]: ("ACTIVE", True, True),
        new["prefix"]: ("REPLACED", False, True),
        rotated["prefix"]: ("ACTIVE", False, True),
    }
    assert (await browser.ask("DELETE", f"{KEYS}/{new['prefix']}")).ok() == {"prefix": new["prefix"], "deleted": True}
    assert [item["prefix"] for item in (await portal.get(path)).ok()["items"]] == [key["prefix"], rotated["prefix"]]
    (await rotate(browser, key["prefix"])).ok()
    (await browser.ask("DELETE", f"{KEYS}/{key['prefix']}")).ok()
    (await browser.get(KEYS)).refused(401)


async def test_what_customers_do_is_audited_as_their_keys(portal: ControlPlane) -> None:
    browser, _, key = await customer(portal)
    new = (await browser.ask("POST", KEYS, {"name": "laptop"}, headers={"x-request-id": "of-the-page"})).ok()
    rotated = (await rotate(browser, new["prefix"])).ok()
    (await browser.ask("DELETE", f"{KEYS}/{rotated['prefix']}")).ok()
    events = (await portal.get(f"/v1/audit_events?actor={key['prefix']}")).ok()["items"]
    assert [event["action"] for event in events] == ["key.revoke", "key.rotate", "key.mint"]
    assert events[-1]["request_id"] == "of-the-page"
    for plaintext in (new["api_key"], rotated["api_key"]):
        assert plaintext.partition(".")[2] not in json.dumps(events)


async def test_nothing_is_managed_unless_the_operator_allows_it(sqlite_plane: ControlPlane) -> None:
    browser, path, key = await customer(sqlite_plane)
    assert (await browser.get("/console/usage/data")).ok()["manages_keys"] is False
    answers = [
        await browser.get(KEYS),
        await browser.ask("POST", KEYS, {}),
        await rotate(browser, key["prefix"]),
        await browser.ask("DELETE", f"{KEYS}/{key['prefix']}"),
    ]
    for answer in answers:
        answer.refused(404, "NOT_FOUND")
    assert len((await sqlite_plane.get(path)).ok()["items"]) == 1


async def test_a_link_manages_nothing(sqlite_portal: ControlPlane) -> None:
    _, path, key = await customer(sqlite_portal)
    group = path.removesuffix("/api_keys")
    url = (await sqlite_portal.post(f"{group}/usage_links", {})).ok()["url"]
    browser = Browser(sqlite_portal)
    embedded = url.removeprefix(browser.origin)
    assert (await browser.get(f"{embedded}/data")).ok()["manages_keys"] is False
    for method, place in (("GET", "keys"), ("POST", "keys"), ("DELETE", f"keys/{key['prefix']}")):
        body: Json | None = {} if method == "POST" else None
        assert (await browser.ask(method, f"{embedded}/{place}", body)).status in (404, 405)
    for method in ("GET", "POST"):
        (await browser.ask(method, KEYS, {} if method == "POST" else None)).refused(401)


async def test_who_is_not_of_a_group_manages_no_keys_here(sqlite_portal: ControlPlane) -> None:
    browser = await logged_in(sqlite_portal)
    (await browser.get(KEYS)).refused(403, "MISSING_SCOPE")
    (await browser.ask("POST", KEYS, {})).refused(403, "MISSING_SCOPE")
    _, _, key = await customer(sqlite_portal)
    bearer = {"Authorization": f"Bearer {key['api_key']}"}
    (await Browser(sqlite_portal).ask("POST", KEYS, {}, headers=bearer)).refused(401)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", ""])
async def test_another_sites_page_changes_nothing(sqlite_portal: ControlPlane, origin: str) -> None:
    browser, path, key = await customer(sqlite_portal)
    foreign = {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
    answers = [
        await browser.ask("POST", KEYS, {}, headers=foreign),
        await rotate(browser, key["prefix"], headers=foreign),
        await browser.ask("DELETE", f"{KEYS}/{key['prefix']}", headers=foreign),
    ]
    for answer in answers:
        answer.refused(403, "FOREIGN_ORIGIN")
    (item,) = (await sqlite_portal.get(path)).ok()["items"]
    assert item["state"] == "ACTIVE"


async def test_a_body_of_another_type_is_refused(sqlite_portal: ControlPlane) -> None:
    browser, path, _ = await customer(sqlite_portal)
    (await browser.ask("POST", KEYS, headers={"Content-Type": "text/plain"}, data="{}")).refused(415)
    (await browser.ask("POST", KEYS, headers={"Content-Type": "application/json"}, data="{" * 9)).refused(400)
    (await browser.ask("POST", KEYS, {"name": "x" * 5000})).refused(413)
    (await browser.get(f"{KEYS}?limit=0")).refused(400, field="limit")
    (await browser.get(f"{KEYS}?cursor=abc")).refused(400)
    assert len((await sqlite_portal.get(path)).ok()["items"]) == 1


async def test_wrong_members_are_refused_by_field(sqlite_portal: ControlPlane) -> None:
    browser, _, key = await customer(sqlite_portal)
    bodies: list[Json] = [{"name": 5}, {"slugs": [SLUG]}, {"disabled": False}, {"expires_at": "2020-01-01T00:00:00Z"}]
    for body in bodies:
        (await browser.ask("POST", KEYS, body)).refused(400, field=next(iter(body)))
    (await browser.ask("POST", KEYS, {"allowed_ips": ["10.0.0.1/8"]})).refused(400, field="allowed_ips.0")
    (await rotate(browser, key["prefix"], {"overlap_seconds": 604_801})).refused(400, field="overlap_seconds")


# A key makes no key that may do more than itself, and changes none.


async def test_a_new_key_is_bound_by_the_key_that_makes_it(portal: ControlPlane) -> None:
    settings: Json = {
        **{"expires_at": in_days(7), "allowed_ips": ["203.0.113.0/24", "2001:db8::/32"], "slugs": [SLUG]},
        **{"rate_limits": RATES, "spend_limits": SPEND},
    }
    browser, path, key = await customer(portal, **settings)
    heir = (await browser.ask("POST", KEYS, {})).ok()
    shown_by_api = (await portal.get(f"{path}/{heir['prefix']}")).ok()
    assert {name: shown_by_api[name] for name in settings} == settings
    row = await published_row(portal, heir["api_key"])
    assert row.bucket == key["prefix"], "limits of its own would be as much again"
    narrower: Json = {"expires_at": in_days(1), "allowed_ips": ["203.0.113.7"]}
    less = (await browser.ask("POST", KEYS, narrower)).ok()
    assert less["expires_at"] == narrower["expires_at"]
    wider: Json = {
        "expires_at": {"expires_at": in_days(8)},
        "allowed_ips": {"allowed_ips": ["203.0.0.0/16"]},
    }
    for field, body in wider.items():
        refused = (await browser.ask("POST", KEYS, body)).refused(400, field=field)
        assert "may do no more than the key that you are logged in with" in refused["error"]
    (await browser.ask("POST", KEYS, {"allowed_ips": ["203.0.113.7", "::/0"]})).refused(400, field="allowed_ips")
    third = await logged_in(portal, heir["api_key"])
    grandchild = (await third.ask("POST", KEYS, {})).ok()
    assert (await published_row(portal, grandchild["api_key"])).bucket == key["prefix"], "still the same counters"


BOUNDS: dict[str, Json] = {
    "an end": {"expires_at": in_days(3)},
    "addresses": {"allowed_ips": ["203.0.113.0/24"]},
    "slugs": {"slugs": [SLUG]},
    "rate limits": {"rate_limits": RATES},
    "spend limits": {"spend_limits": SPEND},
}


@pytest.mark.parametrize("name", BOUNDS)
async def test_a_restricted_key_neither_rotates_nor_revokes_a_freer_one(sqlite_portal: ControlPlane, name: str) -> None:
    """A rotation gives a key like the rotated one; a revocation could end the work of others."""
    browser, path, key = await customer(sqlite_portal, **BOUNDS[name])
    freer = await minted(sqlite_portal, path)
    twin = await minted(sqlite_portal, path, **BOUNDS[name])
    for answer in (
        await rotate(browser, freer["prefix"]),
        await browser.ask("DELETE", f"{KEYS}/{freer['prefix']}"),
    ):
        answer.refused(403, "KEY_OUT_OF_REACH")
    has_counters = "limits" in name
    assert (await rotate(browser, twin["prefix"])).status == (403 if has_counters else 200)
    items = {item["prefix"]: item["may_change"] for item in (await browser.get(KEYS)).ok()["items"]}
    assert (items[key["prefix"]], items[freer["prefix"]], items[twin["prefix"]]) == (True, False, not has_counters)
    new = (await rotate(browser, key["prefix"])).ok()
    again = await logged_in(sqlite_portal, new["api_key"])
    (await rotate(again, freer["prefix"])).refused(403, "KEY_OUT_OF_REACH")
    (await again.ask("DELETE", f"{KEYS}/{key['prefix']}")).ok()


async def test_a_replaced_key_cannot_outlast_its_end_by_the_keys_it_makes(sqlite_portal: ControlPlane) -> None:
    browser, path, key = await customer(sqlite_portal)
    new = (await rotate(browser, key["prefix"])).ok()
    end = (await sqlite_portal.get(f"{path}/{key['prefix']}")).ok()["expires_at"]
    assert (await browser.ask("POST", KEYS, {})).ok()["expires_at"] == end
    (await browser.ask("POST", KEYS, {"expires_at": in_days(1)})).refused(400, field="expires_at")
    (await browser.ask("DELETE", f"{KEYS}/{new['prefix']}")).refused(403, "KEY_OUT_OF_REACH")
    (await rotate(browser, new["prefix"])).refused(403, "KEY_OUT_OF_REACH")


async def test_a_slug_that_the_group_lost_is_not_passed_on(sqlite_portal: ControlPlane) -> None:
    browser, path, _ = await customer(sqlite_portal, slugs=[SLUG, OTHER_SLUG])
    group = path.removesuffix("/api_keys")
    (await sqlite_portal.patch(group, {"models": [{"slug": SLUG}]})).ok()
    heir = (await browser.ask("POST", KEYS, {})).ok()
    assert (await sqlite_portal.get(f"{path}/{heir['prefix']}")).ok()["slugs"] == [SLUG]
    (await sqlite_portal.patch(group, {"models": []})).ok()
    last = (await browser.ask("POST", KEYS, {})).ok()
    assert (await sqlite_portal.get(f"{path}/{last['prefix']}")).ok()["slugs"] == [], "none, which is not all"


async def test_keys_of_another_group_and_of_the_workspace_are_not_found(portal: ControlPlane) -> None:
    browser, path, _ = await customer(portal)
    elsewhere = await minted(portal, await group_path(portal, "elsewhere"))
    for prefix in (elsewhere["prefix"], portal.key.partition(".")[0], "tg_none", "..%2fkeys", "%00"):
        assert (await rotate(browser, prefix)).status == 404
        assert (await browser.ask("DELETE", f"{KEYS}/{prefix}")).status == 404
    assert len((await portal.get(path)).ok()["items"]) == 1


async def test_a_key_that_is_disabled_or_ended_manages_nothing(portal: ControlPlane) -> None:
    browser, path, key = await customer(portal)
    (await portal.patch(f"{path}/{key['prefix']}", {"disabled": True})).ok()
    (await browser.ask("POST", KEYS, {})).refused(401)
    (await portal.patch(f"{path}/{key['prefix']}", {"disabled": False})).ok()
    (await browser.ask("POST", KEYS, {})).ok()
    (await portal.delete(f"{path}/{key['prefix']}")).ok()
    (await browser.ask("POST", KEYS, {})).refused(401)


# How many, how often.


async def test_a_group_gets_a_hundred_keys_and_no_more(portal: ControlPlane) -> None:
    browser, path, key = await customer(portal)
    group_id = path.split("/")[4]
    async with portal.store.write() as tx:
        rows = [
            {
                **{"prefix": f"tg_{n:012}", "digest": f"digest{n}", "kind": "FEDERATED", "created_at_ms": n},
                **{"workspace_id": portal.workspace_id, "group_id": group_id},
            }
            for n in range(97)
        ]
        await tx.conn.execute(insert(api_keys), rows)
    answers = await asyncio.gather(*(browser.ask("POST", KEYS, {}) for _ in range(4)))
    assert sorted(answer.status for answer in answers) == [200, 200, 409, 409]
    assert "has 100 keys or more; revoke those" in (await rotate(browser, key["prefix"])).refused(409)["error"]
    (await browser.ask("DELETE", f"{KEYS}/tg_{5:012}")).ok()
    (await browser.ask("POST", KEYS, {"name": "<b>"})).ok()
    (await portal.post(path, {})).ok()
    pages = []
    url = f"{KEYS}?limit=60"
    for _ in range(2):
        page = (await browser.get(url)).ok()
        pages += [item["prefix"] for item in page["items"]]
        url = f"{KEYS}?cursor={page['pagination']['cursor']}"
    assert len(set(pages)) == 101
    assert page["pagination"] == {"has_more": False, "cursor": None}


async def test_a_cursor_is_of_one_groups_list(sqlite_portal: ControlPlane) -> None:
    browser, path, _ = await customer(sqlite_portal)
    await minted(sqlite_portal, path)
    cursor = (await browser.get(f"{KEYS}?limit=1")).ok()["pagination"]["cursor"]
    other, _, _ = await customer(sqlite_portal, "other")
    (await other.get(f"{KEYS}?cursor={cursor}")).refused(400)


async def test_changes_have_a_rate(sqlite_portal: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("control.throttle.CUSTOMER_KEYS", Allowance("customer_keys", 3, 3_600_000))
    browser, path, _ = await customer(sqlite_portal)
    other, _, _ = await customer(sqlite_portal, "other")
    answers = [await browser.ask("DELETE", f"{KEYS}/tg_none") for _ in range(3)]
    assert {answer.status for answer in answers} == {404}
    assert (await browser.ask("POST", KEYS, {})).refused(429, "RATE_LIMITED")["retry_after"] > 1
    (await browser.get(KEYS)).ok()
    (await other.ask("POST", KEYS, {})).ok()
    assert len((await sqlite_portal.get(path)).ok()["items"]) == 1
