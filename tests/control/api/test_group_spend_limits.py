"""`spend_limits` of groups over HTTP, on both databases (docs/reference/management-api.md#spend-limits)."""

from collections.abc import AsyncIterator, Sequence
from decimal import Decimal
from typing import Any

import orjson
import pytest
from sqlalchemy import select, text, update

from control.edges.sql import group_rows
from control.edges.sql.spend.tables import older_spend_proxies
from control.edges.sql.store import WriteTx
from control.edges.sql.tables import groups, published
from control.errors import SpendNotCountedError
from control.records.spend import SpendReading, SpendUse
from policy.limits.kinds import KINDS
from policy.spend.effective import SpendBound
from tests.control.plane import SLUG, TOKEN, ControlPlane, Json, running_plane

PATH = "/v1/gateway/groups"
EXCEEDS = "Child group exceeds parent group limit."
DAY_MS = 86_400_000


def limit(amount: Any, unit: str = "DAY", currency: str = "EUR", **more: Any) -> Json:
    """A spend limit as the API shows it."""
    return {"unit": unit, "amount": amount, "currency": currency, "enforcement": "SOFT"} | more


def without_enforcement(amount: Any, unit: str = "DAY", currency: str = "EUR") -> Json:
    return {"unit": unit, "amount": amount, "currency": currency}


async def limited(
    plane: ControlPlane, entity: str, limits: Sequence[Json], parent: str | None = None, mode: str = "CASCADING"
) -> Json:
    return await plane.group(entity, parent, mode=mode, spend_limits=list(limits))


async def set_limits(plane: ControlPlane, group: Json, limits: Sequence[Json]) -> Any:
    return await plane.patch(f"{PATH}/{group['id']}", {"spend_limits": list(limits)})


async def test_spend_limits_are_set_shown_replaced_and_removed(plane: ControlPlane) -> None:
    request = [without_enforcement("250", "MONTH"), limit("0012.500")]
    group = await limited(plane, "one", request)
    own = [limit("12.50"), limit("250.00", "MONTH")]
    assert group["spend_limits"] == own, "DAY first, amounts as they are shown everywhere"
    assert group["effective_spend_limits"] == [each | {"source_group": group["id"]} for each in own]
    one = f"{PATH}/{group['id']}"
    assert (await plane.get(one)).ok() == group
    assert (await plane.get(PATH)).ok()["items"] == [group]
    (item,) = (await plane.get(f"{PATH}?effective_models=false&usage=true")).ok()["items"]
    assert item["effective_spend_limits"] == group["effective_spend_limits"]
    bodies: list[Json] = [{"metadata": {"name": "x"}}, {"models": [], "spend_limits": None}]
    for body in bodies:
        assert (await plane.patch(one, body)).ok()["spend_limits"] == own, "unchanged"
    changed = (await set_limits(plane, group, [limit("0")])).ok()
    assert changed["spend_limits"] == [limit("0.00")], "which refuses every call"
    removed = (await set_limits(plane, group, [])).ok()
    assert (removed["spend_limits"], removed["effective_spend_limits"]) == ([], [])
    assert (await plane.patch(one, {"spend_limits": None})).status == 400, "says nothing"


async def test_groups_without_spend_limits_show_empty_lists(plane: ControlPlane) -> None:
    group = await plane.group("one")
    assert (group["spend_limits"], group["effective_spend_limits"]) == ([], [])


LARGEST = "999999999999.999999999999"


async def test_amounts_keep_all_their_digits(plane: ControlPlane) -> None:
    group = await limited(plane, "one", [limit(LARGEST, currency="JPY"), limit("0.000000000001", "MONTH", "JPY")])
    assert [each["amount"] for each in group["spend_limits"]] == [LARGEST, "0.000000000001"]


REFUSED = {
    "a rolling unit": ([limit("1", "MINUTE")], "spend_limits.0.unit", "'DAY' or 'MONTH'"),
    "no unit": ([{"amount": "1", "currency": "EUR"}], "spend_limits.0.unit", "required"),
    "one unit twice": ([limit("1"), limit("2")], "spend_limits", "at most one spend limit per unit"),
    "three": ([limit("1")] * 3, "spend_limits", "at most 2"),
    "a JSON number": ([limit(1)], "spend_limits.0.amount", "string"),
    "a float": ([limit(1.5)], "spend_limits.0.amount", "string"),
    "a negative amount": ([limit("-1")], "spend_limits.0.amount", "decimal text"),
    "an exponent": ([limit("1e3")], "spend_limits.0.amount", "decimal text"),
    "13 digits": ([limit("1" * 13)], "spend_limits.0.amount", "12 digits before"),
    "13 digits after the point": ([limit("0." + "1" * 13)], "spend_limits.0.amount", "12 after the point"),
    "a small currency": ([limit("1", currency="eur")], "spend_limits.0.currency", "three capital letters"),
    "no currency": ([{"unit": "DAY", "amount": "1"}], "spend_limits.0.currency", "required"),
    "another enforcement": ([limit("1", enforcement="FIRM")], "spend_limits.0.enforcement", "'SOFT' or 'HARD'"),
    "two currencies": ([limit("1"), limit("1", "MONTH", "USD")], "spend_limits", "one currency, not EUR and USD"),
    "an unknown member": ([limit("1", slug=SLUG)], "spend_limits.0.slug", "unknown field"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_illegal_spend_limits_are_refused_by_field(sqlite_plane: ControlPlane, name: str) -> None:
    limits, field, message = REFUSED[name]
    group = await sqlite_plane.group("before")
    created = await sqlite_plane.try_group("one", spend_limits=limits)
    for answer in (created, await set_limits(sqlite_plane, group, limits)):
        (detail,) = answer.refused(400, "INVALID_REQUEST")["details"]
        assert detail["field"] == field
        assert message.lower() in detail["message"].lower()
    assert (await sqlite_plane.get(f"{PATH}/{group['id']}")).ok() == group


async def test_null_enforcement_is_the_default(sqlite_plane: ControlPlane) -> None:
    group = await limited(sqlite_plane, "one", [limit("1", enforcement=None)])
    assert group["spend_limits"] == [limit("1.00")]


async def test_all_limits_up_a_cascading_tree_are_effective(plane: ControlPlane) -> None:
    root = await limited(plane, "root", [limit("9"), limit("100", "MONTH")])
    middle = await limited(plane, "middle", [], root["id"])
    leaf = await limited(plane, "leaf", [limit("50", "MONTH")], middle["id"])
    assert leaf["effective_spend_limits"] == [
        limit("50.00", "MONTH", source_group=leaf["id"]),
        limit("9.00", source_group=root["id"]),
        limit("100.00", "MONTH", source_group=root["id"]),
    ]
    assert (await plane.get(PATH)).ok()["items"] == [root, middle, leaf]


async def test_the_nearest_limits_of_an_independent_tree_are_effective(plane: ControlPlane) -> None:
    root = await limited(plane, "root", [limit("9"), limit("100", "MONTH")], mode="INDEPENDENT")
    child = await limited(plane, "child", [limit("500", "MONTH")], root["id"], "INDEPENDENT")
    assert child["effective_spend_limits"] == [
        limit("9.00", source_group=root["id"]),
        limit("500.00", "MONTH", source_group=child["id"]),
    ]
    (await set_limits(plane, root, [limit("1", "MONTH")])).ok()


async def test_an_amount_is_never_above_an_ancestors(plane: ControlPlane) -> None:
    """Holds for creating, raising the child and lowering the ancestor, across a level without its own limit."""
    root = await limited(plane, "root", [limit("10.5")])
    middle = await limited(plane, "middle", [], root["id"])
    above = await plane.try_group("above", middle["id"], spend_limits=[limit("10.500000000001")])
    assert above.refused(400, "CHILD_EXCEEDS_PARENT_LIMIT")["error"] == EXCEEDS
    leaf = await limited(plane, "leaf", [limit("10.50")], middle["id"])
    assert (await set_limits(plane, leaf, [limit("10.51")])).refused(400)["error"] == EXCEEDS
    assert (await set_limits(plane, root, [limit("10.49")])).refused(400)["error"] == EXCEEDS
    assert (await set_limits(plane, middle, [limit("10.49")])).refused(400)["error"] == EXCEEDS, "a new one"
    assert (await set_limits(plane, middle, [limit("1", "MONTH")])).ok(), "of another unit"
    assert (await set_limits(plane, leaf, [limit("1.01", "MONTH")])).refused(400)["error"] == EXCEEDS
    (await set_limits(plane, root, [])).ok()
    (await set_limits(plane, leaf, [limit("11")])).ok()
    assert (await set_limits(plane, root, [limit("10.5")])).refused(400)["error"] == EXCEEDS, "one that was removed"
    (await set_limits(plane, root, [limit("11")])).ok()


async def test_a_refused_amount_names_the_group_and_what_would_pass(plane: ControlPlane) -> None:
    root = await limited(plane, "root", [limit("10.5")])
    leaf = await limited(plane, "leaf", [limit("9"), limit("5", "MONTH")], root["id"])
    above = await plane.try_group("above", root["id"], spend_limits=[limit("10.51")])
    (detail,) = above.refused(400, "CHILD_EXCEEDS_PARENT_LIMIT", "spend_limits")["details"]
    assert detail["message"] == (
        "spend per DAY: 10.51 EUR is above the 10.50 EUR of root, a group above this one. Choose at most 10.50"
        " EUR, or raise it there first"
    )
    shared = {"name": None, "slug": None, "type": "SPEND", "currency": "EUR"}
    of_root = {"group_id": root["id"], "external_entity_id": "root", "unit": "DAY", "threshold": "10.50"}
    assert detail["conflict"] == {**shared, **of_root, "minimum": None, "maximum": "10.50"}
    details = (await set_limits(plane, root, [limit("4", "MONTH"), limit("8")])).refused(400)["details"]
    of_leaf = {"group_id": leaf["id"], "external_entity_id": "leaf"}
    assert [one["conflict"] for one in details] == [
        {**shared, **of_leaf, "unit": "DAY", "threshold": "9.00", "minimum": "9.00", "maximum": None},
        {**shared, **of_leaf, "unit": "MONTH", "threshold": "5.00", "minimum": "5.00", "maximum": None},
    ]


async def test_amounts_of_many_descendants_are_checked(
    sqlite_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_rows, "_LARGEST_BATCH", 2)
    plane = sqlite_plane
    root = await limited(plane, "root", [])
    for number in range(1, 6):
        await limited(plane, f"c{number}", [limit(str(number))], root["id"])
    assert (await set_limits(plane, root, [limit("4.99")])).refused(400)["error"] == EXCEEDS
    (await set_limits(plane, root, [limit("5")])).ok()


async def test_groups_of_other_trees_bind_nothing(plane: ControlPlane) -> None:
    await limited(plane, "other", [limit("1")])
    root = await limited(plane, "root", [limit("5", currency="USD")])
    await limited(plane, "child", [limit("5", currency="USD")], root["id"])
    sibling = await limited(plane, "sibling", [], root["id"])
    (await set_limits(plane, sibling, [limit("1", currency="USD")])).ok()


@pytest.mark.parametrize("mode", ["INDEPENDENT", "CASCADING"])
async def test_a_tree_has_one_currency(plane: ControlPlane, mode: str) -> None:
    root = await limited(plane, "root", [], mode=mode)
    first = await limited(plane, "first", [limit("1")], root["id"], mode)
    second = await limited(plane, "second", [], root["id"], mode)
    dollars = [limit("1", "MONTH", "USD")]
    body = (await plane.try_group("third", root["id"], spend_limits=dollars)).refused(409, "CONFLICT")
    assert f"those of group {first['id']} are in EUR; use EUR" in body["error"]
    for group in (root, second):
        (await set_limits(plane, group, dollars)).refused(409, "CONFLICT")
    assert (await set_limits(plane, first, dollars)).ok()["spend_limits"] == [limit("1.00", "MONTH", "USD")], "alone"
    (await set_limits(plane, second, dollars)).ok()
    (await set_limits(plane, first, [limit("1")])).refused(409, "CONFLICT")
    (await set_limits(plane, first, [])).ok()
    (await plane.delete(f"{PATH}/{second['id']}")).ok()
    (await set_limits(plane, root, [limit("1")])).ok()


async def test_a_deleted_tree_leaves_no_spend_limits(plane: ControlPlane) -> None:
    root = await limited(plane, "root", [limit("5")])
    await limited(plane, "child", [limit("5")], root["id"])
    (await plane.delete(f"{PATH}/{root['id']}")).ok()
    async with plane.store.read() as conn:
        assert (await conn.execute(select(groups.c.id))).all() == []
    assert (await plane.get(f"{PATH}/{root['id']}/spend")).status == 404


async def published_body(plane: ControlPlane, group: Json) -> Json:
    async with plane.store.read() as conn:
        body: Json = orjson.loads((await conn.execute(select(published.c.body).filter_by(id=group["id"]))).scalar_one())
    return body


async def test_proxies_are_told_of_spend_limits_where_there_are_some(plane: ControlPlane) -> None:
    group = await plane.group("one")
    assert "spend_limits" not in await published_body(plane, group), "an older proxy serves it"
    (await set_limits(plane, group, [limit("3")])).ok()
    (await plane.patch(f"{PATH}/{group['id']}", {"metadata": {"name": "x"}})).ok()
    assert (await published_body(plane, group))["spend_limits"] == [limit("3.00")]
    (await set_limits(plane, group, [])).ok()
    assert "spend_limits" not in await published_body(plane, group)


OLDER = f"/internal/v1/snapshot?limit_kinds={len(KINDS)}"


@pytest.mark.parametrize("query", ["", "&spend_limits=0"])
async def test_spend_limits_are_refused_while_an_older_proxy_asks(plane: ControlPlane, query: str) -> None:
    group = await limited(plane, "before", [limit("3")])
    (await plane.get(f"{OLDER}&spend_limits=1", key=TOKEN)).ok()
    (await set_limits(plane, group, [limit("4")])).ok()
    (await plane.get(OLDER + query, key=TOKEN)).ok()
    refused = await plane.try_group("after", spend_limits=[limit("1")])
    assert "does not know spend limits. Update all proxies" in refused.refused(409, "CONFLICT")["error"]
    (await set_limits(plane, group, [limit("5")])).refused(409, "CONFLICT")
    (await plane.patch(f"{PATH}/{group['id']}", {"metadata": {"name": "x"}})).ok()
    (await set_limits(plane, group, [])).ok()
    usage = [{"type": "OUTPUT_TOKEN", "unit": "MONTH", "threshold": 5}]
    await plane.group("kinds", models=[{"slug": SLUG, "usage_limits": usage}])

    async def age(tx: WriteTx) -> None:
        await tx.conn.execute(update(older_spend_proxies).values(asked_at_ms=tx.now_ms - DAY_MS - 1))

    await plane.store.transact(age)
    (await set_limits(plane, group, [limit("5")])).ok()


async def test_hard_limits_are_refused_while_a_proxy_asks_that_knows_soft_ones(plane: ControlPlane) -> None:
    hard = [limit("3", enforcement="HARD")]
    (await plane.get(f"{OLDER}&spend_limits=2", key=TOKEN)).ok()
    group = await limited(plane, "before", hard)
    assert group["effective_spend_limits"] == [limit("3.00", enforcement="HARD", source_group=group["id"])]
    assert (await published_body(plane, group))["spend_limits"] == [limit("3.00", enforcement="HARD")]
    (await plane.get(f"{OLDER}&spend_limits=1", key=TOKEN)).ok()
    refused = await plane.try_group("after", spend_limits=hard)
    assert "does not know HARD spend limits. Update all proxies" in refused.refused(409, "CONFLICT")["error"]
    (await set_limits(plane, group, hard)).refused(409, "CONFLICT")
    (await set_limits(plane, group, [limit("4")])).ok()


async def test_a_proxys_level_is_a_whole_number(sqlite_plane: ControlPlane) -> None:
    answer = await sqlite_plane.get("/internal/v1/snapshot?spend_limits=soft", key=TOKEN)
    assert answer.refused(400)["details"][0]["field"] == "spend_limits"


async def test_changes_of_spend_limits_are_in_the_audit_trail(plane: ControlPlane) -> None:
    group = await limited(plane, "one", [limit("3")])
    (await set_limits(plane, group, [limit("4", "MONTH")])).ok()
    events = (await plane.get("/v1/audit_events")).ok()["items"]
    changes = {event["action"]: event for event in events if event["action"].startswith("group.")}
    assert changes["group.create"]["after"]["spend_limits"] == [limit("3.00")]
    update_event = changes["group.update"]
    sides = [update_event[side]["spend_limits"] for side in ("before", "after")]
    assert sides == [[limit("3.00")], [limit("4.00", "MONTH")]]


async def test_a_group_that_an_older_control_creates_has_no_spend_limits(plane: ControlPlane) -> None:
    statement = (
        "INSERT INTO groups (id, workspace_id, root_id, path, enforcement, external_entity_id, models, created_at_ms,"
        " updated_at_ms) VALUES ('grp_1', :workspace, 'grp_1', 'grp_1/', 'CASCADING', 'old', '[]', 1, 1)"
    )
    async with plane.store.write() as tx:
        await tx.conn.execute(text(statement), {"workspace": plane.workspace_id})
    assert (await plane.get(f"{PATH}/grp_1")).ok()["spend_limits"] == []


async def test_another_workspaces_groups_are_not_found(plane: ControlPlane) -> None:
    group = await limited(plane, "one", [limit("3")])
    other = (await plane.another_workspace())["api_key"]
    one = f"{PATH}/{group['id']}"
    (await plane.get(f"{one}/spend", key=other)).refused(404, "NOT_FOUND")
    (await plane.patch(one, {"spend_limits": []}, key=other)).refused(404, "NOT_FOUND")
    child = {"metadata": {"external_entity_id": "c"}, "models": [{"slug": "other/chat"}]}
    child |= {"hierarchy": {"parent_group_id": group["id"]}, "spend_limits": [limit("1")]}
    (await plane.post(PATH, child, key=other)).refused(404, "NOT_FOUND")
    assert (await plane.get(one)).ok() == group


async def test_without_redis_nothing_is_spent(plane: ControlPlane) -> None:
    root = await limited(plane, "root", [limit("10", "MONTH")])
    child = await limited(plane, "child", [limit("5")], root["id"])
    items = (await plane.get(f"{PATH}/{child['id']}/spend")).ok()["items"]
    assert [(item["unit"], item["source_group"]) for item in items] == [("DAY", child["id"]), ("MONTH", root["id"])]
    for item in items:
        assert item["reset_at"].endswith("T00:00:00.000Z")
        assert (item["spent"], item["reserved"], item["remaining"]) == ("0.00", "0.00", item["amount"])
    assert (await plane.get(f"{PATH}/{(await plane.group('free'))['id']}/spend")).ok() == {"items": []}


NOON_MS = 1_772_280_000_000  # 2026-02-28T12:00:00Z


class Counters:
    """A `SpendSource` that has one figure for all limits, or none."""

    use: SpendUse | None = None

    async def spend_of(self, bounds: Sequence[SpendBound], key: str) -> SpendReading:
        assert key == f"tg:{{{bounds[-1].source_group}|group}}"
        if self.use is None:
            raise SpendNotCountedError
        return SpendReading(NOON_MS, (self.use,) * len(bounds))


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
async def counted(sqlite_url: str, counters: Counters) -> AsyncIterator[ControlPlane]:
    """A control plane that reads those counters."""
    async with running_plane(sqlite_url, spend=counters) as plane:
        yield plane


async def test_spend_shows_what_is_left_of_each_limit(counted: ControlPlane, counters: Counters) -> None:
    root = await limited(counted, "root", [limit("10", "MONTH")])
    child = await limited(counted, "child", [limit("2.5")], root["id"])
    counters.use = SpendUse(spent=Decimal("2.4000000000000000000001"), reserved=Decimal("0.2"))
    day, month = (await counted.get(f"{PATH}/{child['id']}/spend")).ok()["items"]
    assert day == limit(
        "2.50",
        spent="2.4000000000000000000001",
        reserved="0.20",
        remaining="-0.1000000000000000000001",
        reset_at="2026-03-01T00:00:00.000Z",
        source_group=child["id"],
    )
    assert (month["remaining"], month["source_group"]) == ("7.3999999999999999999999", root["id"])
    assert month["reset_at"] == "2026-03-01T00:00:00.000Z"


async def test_spend_that_is_not_counted_yet_is_503(counted: ControlPlane) -> None:
    group = await limited(counted, "one", [limit("3")])
    answer = await counted.get(f"{PATH}/{group['id']}/spend")
    assert "try again in a minute" in answer.refused(503, "COUNTERS_UNAVAILABLE")["error"]
    free = await counted.group("free")
    assert (await counted.get(f"{PATH}/{free['id']}/spend")).ok() == {"items": []}
