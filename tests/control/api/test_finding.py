"""Finding by a part of a name, the list of all keys, and the month's usage beside groups and keys, on both databases.

See docs/reference/management-api.md#search.
"""

from typing import Any

import pytest

from control.edges.sql.events.clock import database_ms
from control.records.times import time_text
from control.resources.billing import month_usage
from policy.billing import BillingEvent, Tokens
from policy.limits.kinds import Unit
from policy.limits.windows import window_at
from tests.control.api.test_cost_sums import stored
from tests.control.api.test_requests import post, row
from tests.control.billing import event
from tests.control.plane import ControlPlane, Json
from tests.control.reports import price, report

SEARCH = "/v1/gateway/search"
KEYS = "/v1/gateway/api_keys"
GROUPS = "/v1/gateway/groups"
HTML = "<img src=x onerror=alert(1)>"


async def search(plane: ControlPlane, text: str, **more: Any) -> Json:
    return (await plane.get(SEARCH, params={"q": text, **more})).ok()  # type: ignore[no-any-return]  # JSON


async def entities(plane: ControlPlane, text: str, **more: Any) -> list[str]:
    return [group["external_entity_id"] for group in (await search(plane, text, **more))["groups"]]


async def minted(plane: ControlPlane, group_id: str, name: str | None = None) -> str:
    """The prefix of a new key."""
    body = {} if name is None else {"name": name}
    return str((await plane.post(f"{GROUPS}/{group_id}/api_keys", body)).ok()["prefix"])


async def named_group(plane: ControlPlane, entity: str, name: str | None = None) -> str:
    """Create a group, and return its id."""
    body = {"metadata": {"external_entity_id": entity, "name": name}, "models": [{"slug": "acme/chat"}]}
    return str((await plane.post(GROUPS, body)).ok()["id"])


async def test_a_group_is_met_by_a_part_of_each_of_its_names(plane: ControlPlane) -> None:
    ids = {}
    for entity, name in (("acme-1", "Blue Whale"), ("acme", HTML), ("big_acme", None), ("50%", None)):
        ids[entity] = await named_group(plane, entity, name)
    assert await entities(plane, "ACME") == ["acme", "acme-1", "big_acme"], "what is it, what begins with it, the rest"
    assert await entities(plane, "e wha") == ["acme-1"]
    assert await entities(plane, " onerror=") == ["acme"]
    assert await entities(plane, ids["big_acme"][-8:].lower()) == ["big_acme"]
    assert await entities(plane, "%") == ["50%"]
    assert await entities(plane, "g_a") == ["big_acme"], "not any character"
    answer = await search(plane, "acme", limit=2)
    assert (len(answer["groups"]), answer["more"]) == (2, ["groups"])
    assert answer["groups"][0] == {"id": ids["acme"], "external_entity_id": "acme", "name": HTML}


async def endpoint_of(plane: ControlPlane, slug: str) -> str:
    """Create an endpoint, and return its id."""
    target = {"provider": "OPENAI", "secret_id": await plane.secret(), "target_model": "m"}
    return str((await plane.post("/v1/gateway/endpoints", {"slug": slug, "targets": [target]})).ok()["id"])


async def test_slugs_keys_and_requests_are_met(plane: ControlPlane) -> None:
    group = await plane.group("customer")
    prefix = await minted(plane, group["id"], "Laptop of Ü")
    endpoint = await endpoint_of(plane, "acme/summaries")
    (await post(plane, row(plane, 5, request_id="req-of-theirs", status=429, slug=""))).ok()
    assert (await search(plane, "MARIES"))["slugs"] == [{"endpoint_id": endpoint, "slug": "acme/summaries"}]
    key = {"prefix": prefix, "name": "Laptop of Ü", "type": "FEDERATED"}
    expected_key = {**key, "group": {"id": group["id"], "external_entity_id": "customer", "name": None}}
    for text in (prefix, prefix[:8], "top of Ü", "LAPTOP"):
        assert (await search(plane, text))["keys"] == [expected_key], text
    assert (await search(plane, prefix[3:]))["keys"] == [], "a prefix is met from its beginning on"
    (own,) = (await search(plane, plane.key.split(".")[0]))["keys"]
    assert (own["type"], own["group"]) == ("WORKSPACE_MANAGE_ALL", None)
    expected = {"request_id": "req-of-theirs", "timestamp": time_text(5), "status": 429, "slug": None}
    assert (await search(plane, "req-of-theirs"))["requests"] == [expected]
    assert (await search(plane, "req-of"))["requests"] == []


async def test_nothing_of_another_workspace_is_met(plane: ControlPlane) -> None:
    other = await plane.another_workspace()
    group = await plane.group("customer")
    prefix = await minted(plane, group["id"], "customers laptop")
    await endpoint_of(plane, "acme/customer")
    (await post(plane, row(plane, 5, request_id="customer"))).ok()
    for text in ("customer", prefix, group["id"], "a", "tg_"):
        answer = (await plane.get(SEARCH, params={"q": text}, key=other["api_key"])).ok()
        assert (answer["groups"], answer["slugs"], answer["requests"]) == ([], [], []), text
        assert {key["prefix"] for key in answer["keys"]} <= {other["api_key"].split(".")[0]}
    listed = (await plane.get(KEYS, key=other["api_key"])).ok()["items"]
    assert [key["prefix"] for key in listed] == [other["api_key"].split(".")[0]]
    for parameters in ({"q": prefix}, {"external_entity_id": "customer"}, {"type": "FEDERATED"}):
        assert (await plane.get(KEYS, params=parameters, key=other["api_key"])).ok()["items"] == []


async def test_only_a_key_that_manages_may_look(plane: ControlPlane) -> None:
    group = await plane.group("customer")
    federated = (await plane.post(f"{GROUPS}/{group['id']}/api_keys", {})).ok()["api_key"]
    invoking = (await plane.post("/v1/api_keys", {"type": "WORKSPACE_INVOKE"})).ok()["api_key"]
    for key in (federated, invoking):
        for path in (f"{SEARCH}?q=a", KEYS):
            assert (await plane.get(path, key=key)).status == 403


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        *(({}, "q"), ({"q": ""}, "q"), ({"q": "   "}, "q"), ({"q": "a" * 129}, "q")),
        *(({"q": "a", "limit": "0"}, "limit"), ({"q": "a", "limit": "21"}, "limit"), ({"q": "a", "of": "b"}, "of")),
    ],
)
async def test_a_bad_search_names_its_field(plane: ControlPlane, parameters: Json, field: str) -> None:
    (await plane.get(SEARCH, params=parameters)).refused(400, field=field)


async def test_all_keys_are_listed_newest_first_page_by_page(plane: ControlPlane) -> None:
    prefixes = [plane.key.split(".")[0]]
    for number in range(4):
        group = await plane.group(f"customer-{number}")
        prefixes += [await minted(plane, group["id"], f"key {number} {one}") for one in ("a", "b")]
    prefixes.append((await plane.post("/v1/api_keys", {"type": "WORKSPACE_INVOKE", "name": "ci"})).ok()["prefix"])
    listed = await listed_keys(plane, limit=3)
    places = [(key["created_at"], key["prefix"]) for key in listed]
    assert places == sorted(places, reverse=True)
    assert {key["prefix"] for key in listed} == set(prefixes)
    assert all("month" not in key for key in listed)
    assert [key["name"] for key in await listed_keys(plane, q="Y 2 A", limit=1)] == ["key 2 a"]
    assert {key["prefix"] for key in await listed_keys(plane, q=prefixes[3])} == {prefixes[3]}
    assert {key["name"] for key in await listed_keys(plane, external_entity_id="customer-1", limit=1)} == {
        "key 1 a",
        "key 1 b",
    }
    assert len(await listed_keys(plane, type="FEDERATED", limit=3)) == 8
    assert [key["name"] for key in await listed_keys(plane, type="WORKSPACE_INVOKE")] == ["ci"]
    (await plane.get(KEYS, params={"type": "OTHER"})).refused(400, field="type")
    (await plane.get(KEYS, params={"q": ""})).refused(400, field="q")


async def listed_keys(plane: ControlPlane, **parameters: Any) -> list[Json]:
    return await all_items(plane, KEYS, **parameters)


async def all_items(plane: ControlPlane, path: str, **parameters: Any) -> list[Json]:
    page = (await plane.get(path, params=parameters)).ok()
    items: list[Json] = page["items"]
    while page["pagination"]["has_more"]:
        page = (await plane.get(path, params={"cursor": page["pagination"]["cursor"]})).ok()
        items += page["items"]
    return items


async def test_the_month_beside_groups_and_keys_is_that_of_the_reports(plane: ControlPlane) -> None:
    """Groups of a page may be above each other; the calls of a page's groups below it count, too."""
    month_ms = await month_start_ms(plane)
    await price(plane, "acme/chat", month_ms)
    ids: dict[str, str] = {}
    for name, parent in (("top", None), ("a", "top"), ("b", "a"), ("idle", "top"), ("alone", None)):
        ids[name] = (await plane.group(name, **({"parent": ids[parent]} if parent else {})))["id"]
    paths = {"top": "top", "a": "top a", "b": "top a b", "alone": "alone"}
    keys = {name: [await minted(plane, ids[name]) for _ in range(2)] for name in paths}
    calls: list[BillingEvent] = []
    for name, names in paths.items():
        path = "".join(f"{ids[one]}/" for one in names.split())
        for number, prefix in enumerate([*keys[name], keys[name][0]]):
            calls.append(
                event(
                    len(calls),
                    month_ms + len(calls),
                    workspace_id=plane.workspace_id,
                    group_id=ids[name],
                    group_path=path,
                    external_entity_id=name,
                    api_key_prefix=prefix,
                    model_slug="acme/chat" if number else "acme/free",
                    tokens=Tokens(input=100 + number, output=10),
                )
            )
    before = event(99, month_ms - 1, workspace_id=plane.workspace_id, group_id=ids["top"], external_entity_id="top")
    await stored(plane.store, [*calls, before])
    for limit in (1, 2, 100):
        groups = await all_items(plane, GROUPS, month="true", limit=limit)
        reported = await report(plane, month_ms, "entity", rollup="true")
        by_group = {group["id"]: group["month"] for group in groups if group["month"]["calls"]}
        assert by_group == {item.pop("group_id"): without(item, "external_entity_id") for item in reported}
        assert {group["month"]["calls"] for group in groups if group["id"] == ids["idle"]} == {0}
        listed = [key for key in await listed_keys(plane, month="true", limit=limit) if key["group"]]
        months = {key["prefix"]: key["month"] for key in listed if key["month"]["calls"]}
        by_key = await report(plane, month_ms, "key")
        assert months == {item.pop("api_key_prefix"): without(item, "external_entity_id") for item in by_key}
        assert len(months) == 8
    assert all("month" not in group for group in await all_items(plane, GROUPS))


async def test_a_month_that_takes_too_long_to_add_up_is_null(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(month_usage, "LONGEST_S", -1.0)
    month_ms = await month_start_ms(plane)
    id = await named_group(plane, "large")
    members = {"group_id": id, "group_path": f"{id}/", "external_entity_id": "large"}
    await stored(plane.store, [event(1, month_ms, workspace_id=plane.workspace_id, **members)])
    (group,) = await all_items(plane, GROUPS, month="true")
    assert group["month"] is None


def without(item: Json, name: str) -> Json:
    return {key: value for key, value in item.items() if key != name}


async def month_start_ms(plane: ControlPlane) -> int:
    async with plane.store.read() as conn:
        return window_at(Unit.MONTH, await database_ms(conn))[0]
