"""A customer's usage page: the figures of its own group alone, by session and by link.

See docs/reference/console.md#usage-page.
"""

import base64
import logging
from typing import Any

import pytest

from control.edges.sql.events.rows import delete_events_before
from control.resources.workspaces import set_workspace
from control.throttle import Allowance
from policy.billing import Tokens
from policy.credentials import prefix_of
from policy.prices import DAY_MS, date_text
from tests.control.api.console.browser import Browser, logged_in
from tests.control.billing import clock_ms, event, ingest_and_reader
from tests.control.plane import SLUG, Answer, ControlPlane, Json, rate, running_plane
from tests.ports import own_port
from tests.waiting import stay_within_one_day

DATA = "/console/usage/data"
SETTLED_MS = 120_000
"""The age of the newest calls: those of the last minute are not on the page, as they are not final."""


@pytest.fixture
def within_one_day() -> None:
    stay_within_one_day(SETTLED_MS / 1e3)


async def customer(plane: ControlPlane, entity: str = "blue", **more: Any) -> tuple[Json, Json]:
    """A group, and a key of it."""
    group = await plane.group(entity, **more)
    path = f"/v1/gateway/groups/{group['id']}/api_keys"
    return group, (await plane.post(path, {"name": f"key of {entity}"})).ok()


async def take(plane: ControlPlane, group: Json, key: str, *calls: tuple[int, str]) -> None:
    """Store calls: a time and a slug each, with 100 input tokens, 30 of them cached, and 20 output tokens."""
    ingest, _ = ingest_and_reader(plane.store, 1e9)
    whose = {"workspace_id": plane.workspace_id, "group_id": group["id"], "api_key_prefix": key}
    whose["external_entity_id"] = group["metadata"]["external_entity_id"]
    tokens = Tokens(input=100, output=20, cached_input=30)
    events = [event(at_ms, at_ms, model_slug=slug, tokens=tokens, **whose) for at_ms, slug in calls]
    await ingest.commit(events)


def sums(calls: int, whole: int | None = None) -> Json:
    """Sums of so many calls, and of `whole` ones with groups below."""
    below = figures_of(calls if whole is None else whole)
    return {**figures_of(calls), "with_groups_below": below}


def figures_of(calls: int) -> Json:
    return {
        "calls": calls,
        "uncached_input_tokens": 70 * calls,
        "cached_input_tokens": 30 * calls,
        "output_tokens": 20 * calls,
    }


async def mint(plane: ControlPlane, group: Json, body: Json | None = None, **more: Any) -> Answer:
    return await plane.post(f"/v1/gateway/groups/{group['id']}/usage_links", body or {}, **more)


async def link_of(plane: ControlPlane, group: Json, **more: Any) -> str:
    """The path of a link."""
    url: str = (await mint(plane, group, more)).ok()["url"]
    origin = Browser(plane).origin
    assert url.startswith(f"{origin}/console/embed/")
    return url.removeprefix(origin)


@pytest.mark.usefixtures("within_one_day")
async def test_usage_page_sums_the_calls_of_the_group_by_day_slug_and_key(plane: ControlPlane) -> None:
    group, key = await customer(plane)
    other, other_key = await customer(plane, "red")
    now = await clock_ms(plane.store) - SETTLED_MS
    today = now // DAY_MS * DAY_MS
    await take(plane, group, key["prefix"], (today - 30 * DAY_MS, "acme/chat"), (today - DAY_MS, "acme/code"))
    await take(plane, group, "tg_revokedlong", (today - DAY_MS + 1, "acme/chat"), (today - 31 * DAY_MS, "acme/chat"))
    await take(plane, other, other_key["prefix"], (today - DAY_MS + 2, "acme/chat"))
    usage = (await (await logged_in(plane, key["api_key"])).get(DATA)).ok()
    assert usage["group"] == {"id": group["id"], "external_entity_id": "blue", "name": None}
    figures = {date_text(today - 30 * DAY_MS): sums(1), date_text(today - DAY_MS): sums(2)}
    dates = [date_text(today - back * DAY_MS) for back in range(30, -1, -1)]
    assert usage["days"] == [{"date": date, **figures.get(date, sums(0))} for date in dates]
    assert usage["slugs"] == [{"slug": "acme/chat", **sums(2)}, {"slug": "acme/code", **sums(1)}]
    names = {name: key[name] for name in ("prefix", "name", "created_at")}
    (shown_key,) = usage["keys"]
    assert shown_key.pop("last_used_at") is not None
    assert shown_key == {**names, "calls": 2}


@pytest.mark.usefixtures("within_one_day")
async def test_usage_page_has_the_calls_of_the_group_and_those_with_all_groups_below(plane: ControlPlane) -> None:
    """Deleted groups too. A later group with the same external id starts at 0."""
    top, key = await customer(plane, "top")
    below, below_key = await customer(plane, "below", parent=top["id"])
    now = await clock_ms(plane.store) - SETTLED_MS
    today = now // DAY_MS * DAY_MS
    await take(plane, top, key["prefix"], (today - DAY_MS, "acme/chat"), (now, "acme/chat"))
    await take(plane, below, below_key["prefix"], (today - 9, "acme/chat"), (today - 8, "acme/code"))
    (await plane.delete(f"/v1/gateway/groups/{below['id']}")).ok()
    _, later_key = await customer(plane, "below")
    usage = (await (await logged_in(plane, key["api_key"])).get(DATA)).ok()
    by_date = {day.pop("date"): day for day in usage["days"]}
    assert by_date[date_text(today - DAY_MS)] == sums(1, 3)
    assert by_date[date_text(today)] == usage["totals"]["day"] == sums(1, 1)
    is_same_month = date_text(today - DAY_MS)[:7] == date_text(today)[:7]
    assert usage["totals"]["month"] == (sums(2, 4) if is_same_month else sums(1, 1))
    assert usage["slugs"] == [{"slug": "acme/chat", **sums(2, 3)}, {"slug": "acme/code", **sums(0, 1)}]
    later = (await (await logged_in(plane, later_key["api_key"])).get(DATA)).ok()
    assert (later["totals"]["month"], later["slugs"]) == (sums(0), [])


async def test_link_shows_the_same_without_a_session(plane: ControlPlane) -> None:
    group, key = await customer(plane)
    own = (await (await logged_in(plane, key["api_key"])).get(DATA)).ok()
    linked = (await Browser(plane).get(f"{await link_of(plane, group)}/data")).ok()
    assert linked.pop("as_of") >= own.pop("as_of")
    assert linked == own


async def test_usage_page_shows_every_limit_and_names_no_other_group(plane: ControlPlane) -> None:
    company = await plane.group("company", models=[rate(5)], mode="CASCADING")
    daily = {"slug": SLUG, "usage_limits": [{"type": "TOKEN", "unit": "DAY", "threshold": 4}]}
    _, key = await customer(plane, "blue", parent=company["id"], models=[daily])
    await customer(plane, "red", parent=company["id"])
    usage = (await (await logged_in(plane, key["api_key"])).get(DATA)).ok()
    limits = [(limit["type"], limit["unit"], limit["threshold"], limit["own"]) for limit in usage["limits"]]
    assert limits == [("REQUEST", "MINUTE", 5, False), ("TOKEN", "DAY", 4, True)]
    shared, own = usage["limits"]
    assert (shared["current_usage"], shared["resets_in_s"], shared["binds"]) == (None, None, True)
    assert (own["current_usage"], own["binds"]) == (0, True)
    assert own["resets_in_s"] > 0
    for hidden in (company["id"], "company", "red", plane.workspace_id, plane.key.partition(".")[0]):
        assert hidden not in str(usage)


async def test_usage_page_is_503_while_the_counters_are_away(sqlite_url: str) -> None:
    async with running_plane(sqlite_url, redis_url=f"redis://127.0.0.1:{own_port()}/0") as plane:
        group, _ = await customer(plane, models=[rate(5)])
        path = await link_of(plane, group)
        (await Browser(plane).get(f"{path}/data")).refused(503, "COUNTERS_UNAVAILABLE")
        assert (await Browser(plane).get(path)).status == 200


async def test_usage_page_is_for_keys_of_groups_alone(sqlite_plane: ControlPlane) -> None:
    (await Browser(sqlite_plane).get(DATA)).refused(401, "UNAUTHORIZED")
    (await sqlite_plane.get(DATA)).refused(401)
    (await (await logged_in(sqlite_plane)).get(DATA)).refused(403, "MISSING_SCOPE")


@pytest.mark.usefixtures("within_one_day")
async def test_deleted_days_are_left_out(sqlite_url: str) -> None:
    async with running_plane(sqlite_url, event_retention_days=2.0) as plane:
        group, key = await customer(plane)
        now = await clock_ms(plane.store)
        await take(plane, group, key["prefix"], *((now - age * DAY_MS - SETTLED_MS, "acme/chat") for age in range(4)))
        async with plane.store.write() as tx:
            await delete_events_before(tx, plane.workspace_id, now - 2 * DAY_MS, 100)
        usage = (await Browser(plane).get(f"{await link_of(plane, group)}/data")).ok()
        assert [(day["date"], day["calls"]) for day in usage["days"]][-1] == (date_text(now - SETTLED_MS), 1)
        assert len(usage["days"]) == 2


async def test_link_ends_with_its_key_its_group_and_the_onboarding(sqlite_plane: ControlPlane) -> None:
    plane = sqlite_plane
    group, _ = await customer(plane)
    minter = (await plane.post("/v1/api_keys", {"type": "WORKSPACE_MANAGE_ALL"})).ok()
    url = (await mint(plane, group, key=minter["api_key"])).ok()["url"]
    path = url.removeprefix(Browser(plane).origin)
    assert (await Browser(plane).get(path)).status == 200
    (await plane.delete(f"/v1/api_keys/{minter['prefix']}")).ok()
    await assert_over(plane, path)
    path = await link_of(plane, group)
    await set_workspace(plane.store, "workspace acme", onboarded=False)
    await assert_over(plane, path)
    await set_workspace(plane.store, "workspace acme", onboarded=True)
    assert (await Browser(plane).get(path)).status == 200
    (await plane.delete(f"/v1/gateway/groups/{group['id']}")).ok()
    await assert_over(plane, path)


async def test_expired_link_says_so(sqlite_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    group, _ = await customer(sqlite_plane)
    origins = ["https://portal.example"]
    path = await link_of(sqlite_plane, group, expires_in_s=60, frame_origins=origins)
    answer = await Browser(sqlite_plane).get(path)
    assert answer.status == 200
    later = await clock_ms(sqlite_plane.store) + 61_000
    monkeypatch.setattr("control.resources.console.usage_links.now_ms", lambda: later)
    await assert_over(sqlite_plane, path, "https://portal.example")


async def assert_over(plane: ControlPlane, path: str, framed_by: str = "'none'") -> None:
    page = await Browser(plane).get(path)
    assert (page.status, page.headers["Content-Type"]) == (404, "text/html; charset=utf-8")
    assert "expired or is not valid any more" in page.body
    assert page.headers["Content-Security-Policy"].endswith(f"; frame-ancestors {framed_by}")
    refusal = (await Browser(plane).get(f"{path}/data")).refused(404, "NOT_FOUND")
    assert "ask for a new one" in refusal["error"]


async def test_forged_links_open_nothing(sqlite_plane: ControlPlane) -> None:
    group, _ = await customer(sqlite_plane)
    path = await link_of(sqlite_plane, group)
    flipped = path[:-3] + ("A" if path[-3] != "A" else "B") + path[-2:]
    for forged in (flipped, path[:-8], "/console/embed/x", "/console/embed/%00", "/console/embed/%ff", f"{path}AAAA"):
        await assert_over(sqlite_plane, forged)


async def test_embedded_page_may_be_framed_by_the_origins_of_its_link_alone(sqlite_plane: ControlPlane) -> None:
    group, _ = await customer(sqlite_plane)
    origins = ["https://Portal.example", "http://127.0.0.1:3000", "https://portal.example"]
    for frame_origins, ancestors in ((origins, "https://portal.example http://127.0.0.1:3000"), ([], "'none'")):
        answer = await Browser(sqlite_plane).get(await link_of(sqlite_plane, group, frame_origins=frame_origins))
        assert answer.status == 200
        assert answer.headers["Content-Security-Policy"].endswith(f"; frame-ancestors {ancestors}")
        assert "X-Frame-Options" not in answer.headers
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.body == (await Browser(sqlite_plane).get("/console/usage")).body
        assert answer.headers["Cache-Control"] == "no-store"


NO_ORIGINS = (
    "",
    "*",
    "https://*",
    "https://*.example",
    "portal.example",
    "https://",
    "https:///",
    "https://a/",
    "https://a/path",
    "https://a?b",
    "https://a#b",
    "https://user@a",
    "https://a:0",
    "https://a:65536",
    "https://a:x",
    "https://a:",
    "ftp://a",
    "data:text/html,x",
    "https://a b",
    "https://a;script-src *",
    "https://a, https://b",
    "https://a\r\nX: y",
    "https://a\n",
    "https://-a",
    "https://a..b",
    "https://\u212a.example",
    "https://ü.example",
    "'self'",
    "null",
    "https://" + "a" * 64,
    "https://" + "a." * 130 + "a",
)


async def test_what_is_no_origin_is_refused(sqlite_plane: ControlPlane) -> None:
    group, _ = await customer(sqlite_plane)
    for origin in NO_ORIGINS:
        refusal = (await mint(sqlite_plane, group, {"frame_origins": ["https://a", origin]})).refused(400)
        assert refusal["details"][0]["field"] == "frame_origins.1", origin


async def test_links_are_only_read(sqlite_plane: ControlPlane) -> None:
    group, _ = await customer(sqlite_plane)
    path = await link_of(sqlite_plane, group)
    for place in (path, f"{path}/data"):
        head = await Browser(sqlite_plane).ask("HEAD", place)
        assert (head.status, head.body or "") == (200, "")
        assert int(head.headers["Content-Length"]) > 0
        for method in ("POST", "DELETE", "OPTIONS"):
            (await Browser(sqlite_plane).ask(method, place)).refused(405)


async def test_links_are_bounded(sqlite_plane: ControlPlane) -> None:
    group, _ = await customer(sqlite_plane)
    for body in ({"expires_in_s": 59}, {"expires_in_s": 2_592_001}, {"expires_in_s": "60"}):
        (await mint(sqlite_plane, group, body)).refused(400)
    (await mint(sqlite_plane, group, {"frame_origins": [f"https://h{n}" for n in range(9)]})).refused(400)
    long = [f"https://{n}{'a' * 60}.{'b' * 63}.{'c' * 63}.{'d' * 40}" for n in range(8)]
    path = await link_of(sqlite_plane, group, frame_origins=long, expires_in_s=2_592_000)
    assert (await Browser(sqlite_plane).get(path)).status == 200


async def test_link_to_a_group_of_another_workspace_is_404(plane: ControlPlane) -> None:
    group, _ = await customer(plane)
    other = await plane.another_workspace()
    (await mint(plane, group, key=other["api_key"])).refused(404, "NOT_FOUND")
    (await mint(plane, {"id": "grp_nothing"})).refused(404, "NOT_FOUND")


async def test_link_tells_neither_the_workspace_nor_the_key_that_made_it(sqlite_plane: ControlPlane) -> None:
    group, _ = await customer(sqlite_plane)
    token = (await link_of(sqlite_plane, group)).rpartition("/")[2]
    carried = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)) + token.encode()
    prefix = prefix_of(sqlite_plane.key)
    for text in (sqlite_plane.workspace_id, prefix, prefix.removeprefix("tg_"), group["id"]):
        assert text.encode() not in carried


async def test_link_is_audited_and_its_token_is_written_nowhere(
    sqlite_plane: ControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    group, _ = await customer(sqlite_plane)
    path = await link_of(sqlite_plane, group, frame_origins=["https://portal.example"])
    token = path.rpartition("/")[2]
    reads = (f"{path}/data", f"{path}/requests?request_id=r-1", f"{path}/statement?month=2026-11")
    for place in (path, *reads, f"{path}/nothing", f"{path}x"):
        await Browser(sqlite_plane).get(place)
    newest = (await sqlite_plane.get("/v1/audit_events")).ok()["items"]
    (audit_entry,) = [entry for entry in newest if entry["action"] == "usage_link.create"]
    assert audit_entry["resource"] == f"groups/{group['id']}/usage_links"
    assert audit_entry["after"].keys() == {"expires_at", "frame_origins"}
    assert token not in str(newest)
    assert token[:40] not in caplog.text
    assert all(token[:40] not in str(record.__dict__) for record in caplog.records)


async def test_looks_at_one_page_are_bounded_and_leave_the_operator_alone(
    sqlite_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("control.throttle.USAGE_PAGE", Allowance("usage_page", 3, 3_600_000))
    group, key = await customer(sqlite_plane)
    path = await link_of(sqlite_plane, group)
    browser = await logged_in(sqlite_plane, key["api_key"])
    for place in (f"{path}/data", DATA, f"{path}/data"):
        (await browser.get(place)).ok()
    for place in (DATA, f"{path}/data"):
        assert (await browser.get(place)).refused(429, "RATE_LIMITED")["retry_after"] > 1
    (await sqlite_plane.get("/v1/gateway/groups")).ok()
    other, _ = await customer(sqlite_plane, "red")
    (await browser.get(f"{await link_of(sqlite_plane, other)}/data")).ok()
