"""Prepaid balances of groups over HTTP, on both databases (docs/reference/management-api.md#balances)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from sqlalchemy import insert, select

from control.edges.sql.spend.balance_rows import HOUR_MS, credits_before, drawn_units
from control.edges.sql.spend.rebuilds import put_states
from control.edges.sql.spend.tables import balance_credits, balance_draws, older_spend_proxies
from control.edges.sql.tables import published
from control.errors import SpendNotCountedError, UsageUnavailableError
from control.records.spend import COMPLETE
from policy.billing import Tokens
from policy.limits.kinds import KINDS
from tests.control.billing import clock_ms, event, ingest_and_reader
from tests.control.plane import SLUG, TOKEN, Answer, ControlPlane, Json, running_plane
from tests.fakes.balances import FakeBalances

PATH = "/v1/gateway/groups"
PRICE = {"slug": SLUG, "valid_from": "2020-01-01", "currency": "EUR", "output_per_million": "1000000"}
UNITS = 10**22


@pytest.fixture
def source() -> FakeBalances:
    return FakeBalances()


@pytest.fixture
async def counted(database_url: str, source: FakeBalances) -> AsyncIterator[ControlPlane]:
    """A control plane whose hashes are in memory."""
    async with running_plane(database_url, balances=source) as plane:
        yield plane


async def credit(plane: ControlPlane, group: Json, amount: str, reference: str, **more: Any) -> Answer:
    body = {"amount": amount, "currency": "EUR", "reference": reference} | more
    return await plane.post(f"{PATH}/{group['id']}/balance/credits", body)


async def balance_of(plane: ControlPlane, group: Json) -> Json:
    return (await plane.get(f"{PATH}/{group['id']}/balance")).ok()  # type: ignore[no-any-return]  # JSON


async def entries_of(plane: ControlPlane, group: Json, **query: Any) -> Json:
    return (await plane.get(f"{PATH}/{group['id']}/balance/entries", params=query)).ok()  # type: ignore[no-any-return]


async def complete(plane: ControlPlane, group: Json) -> None:
    """Let all reservations of a root's tree be known."""
    async with plane.store.write() as tx:
        await put_states(tx, {group["id"]: COMPLETE})


async def call(plane: ControlPlane, group: Json, number: int, output: int, **more: Any) -> None:
    """Commit a call whose price is 1 per output token."""
    ingest, _ = ingest_and_reader(plane.store)
    fields = {"workspace_id": plane.workspace_id, "group_id": group["id"], "group_path": f"{group['id']}/"}
    one = event(number, **{**fields, "tokens": Tokens(output=output), "balance_group": group["id"], **more})
    await ingest.commit([one])


async def price(plane: ControlPlane, **more: Any) -> None:
    (await plane.put("/v1/gateway/prices", PRICE | {"input_per_million": "0"} | more)).ok()


async def test_credits_add_up(counted: ControlPlane) -> None:
    group = await counted.group("one")
    assert (await counted.get(f"{PATH}/{group['id']}/balance")).refused(404, "NOT_FOUND")["error"].endswith("makes one")
    nothing: Json = {"items": [], "pagination": {"has_more": False, "cursor": None}}
    assert await entries_of(counted, group) == nothing
    assert (await counted.get(f"{PATH}/grp_x/balance/entries")).status == 404
    first = (await credit(counted, group, "100.5", "a", note="first")).ok()
    at = first.pop("timestamp")
    assert first == {"amount": "100.50", "currency": "EUR", "reference": "a", "note": "first"}
    (await credit(counted, group, "0.000000000001", "b")).ok()
    assert await balance_of(counted, group) == {
        "currency": "EUR",
        "credited": "100.500000000001",
        "spent": "0.00",
        "reserved": "0.00",
        "available": "100.500000000001",
    }
    page = await entries_of(counted, group)
    assert [(one["reference"], one["amount"]) for one in page["items"]] == [("b", "0.000000000001"), ("a", "100.50")]
    assert page["items"][1] == first | {"type": "CREDIT", "timestamp": at, "slug": None, "calls": None}


async def test_policy_has_what_was_paid_in(counted: ControlPlane) -> None:
    group = await counted.group("one")
    await complete(counted, group)
    assert "balance" not in await published_group(counted, group), "an older proxy knows no such member"
    for amount, reference in (("10", "a"), ("5", "b"), ("-7", "c")):
        (await credit(counted, group, amount, reference)).ok()
    assert (await published_group(counted, group))["balance"] == {"currency": "EUR", "deposited": "15.00"}
    (await counted.patch(f"{PATH}/{group['id']}", {"metadata": {"name": "x"}})).ok()
    assert (await published_group(counted, group))["balance"]["deposited"] == "15.00", "other changes keep it"
    answer = (await counted.get(f"{PATH}/{group['id']}")).ok()
    assert "balance" not in answer


async def published_group(plane: ControlPlane, group: Json) -> Json:
    async with plane.store.read() as conn:
        query = select(published.c.body).where(published.c.kind == "group", published.c.id == group["id"])
        body: Json = orjson.loads((await conn.execute(query)).scalar_one())
        return body


async def test_a_credit_leaves_a_groups_owner_without_drift(counted: ControlPlane) -> None:
    group = await counted.group("one")
    (await counted.patch(f"{PATH}/{group['id']}", {"managed_by": "file"})).ok()
    (await credit(counted, group, "10", "a")).ok()
    answer = (await counted.get(f"{PATH}/{group['id']}")).ok()
    assert answer["managed_by"]["drifted"] is False


async def test_the_same_reference_is_the_same_credit(counted: ControlPlane, source: FakeBalances) -> None:
    group, other = await counted.group("one"), await counted.group("two")
    await complete(counted, group)
    answers = await asyncio.gather(*(credit(counted, group, "10.0", "a") for _ in range(5)))
    assert len({orjson.dumps(answer.ok()) for answer in answers}) == 1
    first = answers[0].ok()
    assert (await credit(counted, group, "10.00", "a", note="later")).ok() == first
    for amount, currency in (("10.01", "EUR"), ("-10", "EUR"), ("10", "USD")):
        refused = (await credit(counted, group, amount, "a", currency=currency)).refused(409, "CONFLICT")
        assert "'a' is of 10.00 EUR" in refused["error"]
    withdrawn = (await credit(counted, group, "-4", "w")).ok()
    source.trouble = UsageUnavailableError()
    assert (await credit(counted, group, "-4", "w")).ok() == withdrawn, "even without Redis"
    source.trouble = None
    (await credit(counted, other, "10", "a")).ok()
    figures = await balance_of(counted, group)
    assert (figures["credited"], figures["available"]) == ("6.00", "6.00")
    async with counted.store.read() as conn:
        assert len((await conn.execute(select(balance_credits.c.key))).all()) == 3


REFUSED: dict[str, tuple[Json, str]] = {
    "nothing": ({"amount": "0"}, "must not be 0"),
    "nothing below 0": ({"amount": "-0.00"}, "must not be 0"),
    "a number": ({"amount": 10}, "valid string"),
    "too many digits": ({"amount": "1.0000000000001"}, "at most 12 digits"),
    "too much": ({"amount": "1000000000000"}, "at most 12 digits"),
    "a sign": ({"amount": "+1"}, "at most 12 digits"),
    "another script's digits": ({"amount": "١"}, "at most 12 digits"),
    "no currency": ({"currency": "eur"}, "three capital letters"),
    "no reference": ({"reference": ""}, "at least 1 character"),
    "a long reference": ({"reference": "x" * 256}, "at most 255 characters"),
    "a long note": ({"note": "x" * 1001}, "at most 1000 characters"),
    "an unknown field": ({"id": "x"}, "unknown field"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_illegal_credits_are_refused(sqlite_plane: ControlPlane, case: str) -> None:
    group = await sqlite_plane.group("one")
    more, message = REFUSED[case]
    body = (await credit(sqlite_plane, group, **({"amount": "1", "reference": "a"} | more))).refused(400)
    assert message in body["error"]


async def test_deposits_stay_below_what_policy_can_hold(sqlite_plane: ControlPlane) -> None:
    group = await sqlite_plane.group("one")
    (await credit(sqlite_plane, group, "999999999999.999999999998", "a")).ok()
    (await credit(sqlite_plane, group, "0.000000000001", "b")).ok()
    refused = (await credit(sqlite_plane, group, "0.000000000001", "c")).refused(409, "CONFLICT")
    assert "1000000000000" in refused["error"]


async def test_unknown_groups_are_not_credited(sqlite_plane: ControlPlane) -> None:
    group = await sqlite_plane.group("one")
    other = await sqlite_plane.another_workspace()
    for id, key in (("grp_x", sqlite_plane.key), (group["id"], other["api_key"])):
        body = {"amount": "1", "currency": "EUR", "reference": "a"}
        assert (await sqlite_plane.post(f"{PATH}/{id}/balance/credits", body, key=key)).status == 404
        assert (await sqlite_plane.get(f"{PATH}/{id}/balance", key=key)).status == 404


async def test_a_tree_has_one_currency(counted: ControlPlane) -> None:
    limits = [{"unit": "DAY", "amount": "1", "currency": "USD"}]
    root = await counted.group("root")
    child = await counted.group("child", root["id"], spend_limits=limits)
    for group in (root, child):
        refused = (await credit(counted, group, "1", "a")).refused(409, "CONFLICT")
        assert f"those of group {child['id']} are in USD; use USD" in refused["error"]
    (await counted.patch(f"{PATH}/{child['id']}", {"spend_limits": []})).ok()
    (await credit(counted, child, "1", "a")).ok()
    refused = (await credit(counted, root, "1", "a", currency="USD")).refused(409)
    assert (
        f"currency: all spend limits and balances of a group tree have one currency, and those of group {child['id']}"
        in refused["error"]
    )
    assert (await credit(counted, child, "1", "b", currency="USD")).status == 409
    for group in (root, child):
        refused = (await counted.patch(f"{PATH}/{group['id']}", {"spend_limits": limits})).refused(409)
        assert f"those of group {child['id']} are in EUR" in refused["error"]
    assert (await counted.try_group("new", root["id"], spend_limits=limits)).status == 409
    (await counted.try_group("other", spend_limits=limits)).ok()


async def test_older_proxies_keep_a_group_from_its_first_credit(counted: ControlPlane) -> None:
    group, other = await counted.group("one"), await counted.group("two")
    (await credit(counted, group, "1", "a")).ok()
    older = f"/internal/v1/snapshot?limit_kinds={len(KINDS)}&spend_limits=2"
    (await counted.get(older, key=TOKEN)).ok()
    async with counted.store.read() as conn:
        assert (await conn.execute(select(older_spend_proxies.c.spend_level))).scalars().all() == [2]
    refused = (await credit(counted, other, "1", "a")).refused(409, "CONFLICT")
    assert "does not know prepaid balances" in refused["error"]
    (await credit(counted, group, "1", "b")).ok()


async def test_withdrawals_take_room_and_are_counted_once(counted: ControlPlane, source: FakeBalances) -> None:
    group = await counted.group("one")
    (await credit(counted, group, "10", "a")).ok()
    (await credit(counted, group, "-1", "early")).refused(503, "COUNTERS_UNAVAILABLE")
    await complete(counted, group)
    source.calls[group["id"]] = 2 * 10**12
    source.drawn[group["id"]] = 3 * UNITS + 1
    refused = (await credit(counted, group, "-5", "w")).refused(409, "CONFLICT")
    assert "only 4.9999999999999999999999 EUR of the balance is available" in refused["error"]
    withdrawn = (await credit(counted, group, "-4.9", "w")).ok()
    assert withdrawn["amount"] == "-4.90"
    (one,) = source.withdrawals.values()
    assert source.given_back == []
    figures = await balance_of(counted, group)
    sums = {"credited": "5.10", "spent": "3.0000000000000000000001", "reserved": "2.00"}
    assert figures == sums | {"currency": "EUR", "available": "0.0999999999999999999999"}
    async with counted.store.read() as conn:
        latest = (await credits_before(conn, group["id"], None, 1))[0]
    assert latest.key == one.key
    source.count(latest.timestamp_ms)
    assert await balance_of(counted, group) == figures, "counted"
    assert [entry["amount"] for entry in (await entries_of(counted, group))["items"]] == ["-4.90", "10.00"]


async def test_nothing_is_withdrawn_without_a_balance_or_redis(
    sqlite_plane: ControlPlane,
) -> None:
    group = await sqlite_plane.group("one")
    refused = (await credit(sqlite_plane, group, "-1", "a")).refused(409, "CONFLICT")
    assert "only 0.00 EUR" in refused["error"]
    (await credit(sqlite_plane, group, "1", "a")).ok()
    (await credit(sqlite_plane, group, "-1", "b")).refused(503, "COUNTERS_UNAVAILABLE")


async def test_a_withdrawal_that_fails_is_given_back(counted: ControlPlane, source: FakeBalances) -> None:
    group = await counted.group("one")
    await complete(counted, group)
    (await credit(counted, group, "10", "a")).ok()
    for error in (UsageUnavailableError(), SpendNotCountedError()):
        source.late_trouble = error
        (await credit(counted, group, "-10", "w")).refused(503, "COUNTERS_UNAVAILABLE")
        assert source.withdrawals == {}
        assert len(source.given_back) == 1
        source.given_back.clear()
    source.late_trouble = None
    (await credit(counted, group, "-10", "w")).ok()
    assert (await balance_of(counted, group))["available"] == "0.00"


async def test_a_balance_is_unknown_while_redis_is_away(counted: ControlPlane, source: FakeBalances) -> None:
    group = await counted.group("one")
    (await credit(counted, group, "10", "a")).ok()
    source.trouble = UsageUnavailableError()
    (await counted.get(f"{PATH}/{group['id']}/balance")).refused(503, "COUNTERS_UNAVAILABLE")
    (await credit(counted, group, "10", "b")).ok()
    assert len((await entries_of(counted, group))["items"]) == 2


async def test_reservations_that_are_missing_make_nothing_negative(counted: ControlPlane, source: FakeBalances) -> None:
    group = await counted.group("one")
    await complete(counted, group)
    (await credit(counted, group, "10", "a")).ok()
    (await credit(counted, group, "-4", "w")).ok()
    source.withdrawals.clear()
    figures = await balance_of(counted, group)
    assert (figures["reserved"], figures["available"]) == ("0.00", "6.00")


async def test_calls_draw_by_hour_and_slug(plane: ControlPlane) -> None:
    await price(plane)
    await price(plane, slug="acme/other", output_per_million="500000")
    group = await plane.group("one")
    (await credit(plane, group, "10", "a")).ok()
    hour_ms = await clock_ms(plane.store) // HOUR_MS * HOUR_MS + 100 * HOUR_MS  # later than now: it keeps its time
    await call(plane, group, 1, 2, ended_at_ms=hour_ms)
    await call(plane, group, 2, 1, ended_at_ms=hour_ms + HOUR_MS - 1)
    await call(plane, group, 2, 1, ended_at_ms=hour_ms + HOUR_MS - 1)  # again
    await call(plane, group, 3, 3, ended_at_ms=hour_ms, model_slug="acme/other")
    await call(plane, group, 4, 1, ended_at_ms=hour_ms + HOUR_MS)
    await call(plane, group, 5, 0, ended_at_ms=hour_ms + 5 * HOUR_MS)  # draws nothing
    items = (await entries_of(plane, group))["items"]
    assert [(one["type"], one["slug"], one["calls"], one["amount"]) for one in items] == [
        ("DRAW", SLUG, 1, "-1.00"),
        ("DRAW", "acme/other", 1, "-1.50"),
        ("DRAW", SLUG, 2, "-3.00"),
        ("CREDIT", None, None, "10.00"),
    ]
    paged = []
    page = await entries_of(plane, group, limit=1)
    while True:
        paged += page["items"]
        if not page["pagination"]["has_more"]:
            break
        page = await entries_of(plane, group, cursor=page["pagination"]["cursor"])
    assert paged == items
    figures = await balance_of(plane, group)
    assert figures == {"currency": "EUR", "credited": "10.00", "spent": "5.50", "reserved": "0.00", "available": "4.50"}
    await price(plane, output_per_million="9000000")
    assert (await balance_of(plane, group))["spent"] == "5.50", "a price that changes later changes no draw"


async def test_a_group_with_credit_is_deleted_only_if_it_is_forfeited(plane: ControlPlane) -> None:
    await price(plane)
    root = await plane.group("root")
    group = await plane.group("one", root["id"])
    (await credit(plane, group, "2.5", "a")).ok()
    path = f"{root['id']}/{group['id']}/"
    await call(plane, group, 1, 2, group_path=path)
    for one in (root, group):
        refused = (await plane.delete(f"{PATH}/{one['id']}")).refused(409, "CONFLICT")
        assert f"0.50 EUR is left in the balance of group {group['id']}" in refused["error"]
        assert (await plane.delete(f"{PATH}/{one['id']}?forfeit=false")).status == 409
    assert (await plane.delete(f"{PATH}/{group['id']}?forfeit=maybe")).status == 400
    (await plane.get(f"{PATH}/{group['id']}")).ok()
    (await plane.delete(f"{PATH}/{root['id']}?forfeit=true")).ok()
    async with plane.store.read() as conn:
        for table in (balance_credits, balance_draws):
            assert (await conn.execute(select(table))).all() == []
    trail = (await plane.get("/v1/audit_events")).ok()["items"]
    assert trail[0]["action"] == "group.delete"
    assert trail[0]["before"]["credit_forfeited"] == {"amount": "0.50", "currency": "EUR"}
    await call(plane, group, 2, 1, group_path=path)  # its call ends later: there is nothing to draw from
    async with plane.store.read() as conn:
        assert await drawn_units(conn, [group["id"]]) == {}


async def test_a_group_whose_credit_is_drawn_is_deleted(plane: ControlPlane) -> None:
    await price(plane)
    group, beside = await plane.group("one"), await plane.group("two")
    for each in (group, beside):
        (await credit(plane, each, "2", "a")).ok()
    await call(plane, group, 1, 3)
    (await plane.delete(f"{PATH}/{group['id']}")).ok()
    assert (await balance_of(plane, beside))["available"] == "2.00"


async def test_credits_are_audited(plane: ControlPlane) -> None:
    group = await plane.group("one")
    for _ in range(2):
        (await credit(plane, group, "2.5", "a", note="cash")).ok()
    first, second = (await plane.get("/v1/audit_events")).ok()["items"][:2]
    assert (first["action"], second["action"]) == ("balance.credit", "group.create")
    assert first["resource"].startswith(f"groups/{group['id']}/balance/credits/")
    assert first["before"] is None
    assert first["after"] == {"reference": "a", "amount": "2.50", "currency": "EUR", "note": "cash"}


async def test_a_ledger_of_many_calls_stays_exact(plane: ControlPlane) -> None:
    group = await plane.group("one")
    (await credit(plane, group, "1", "a")).ok()
    largest = {"group_id": group["id"], "slug": SLUG, "whole": 5, "picos": 10**12 - 1, "last": 10**12 - 100}
    async with plane.store.write() as tx:
        await tx.conn.execute(insert(balance_draws), [largest | {"hour_ms": hour, "calls": 1} for hour in range(3)])
    async with plane.store.read() as conn:
        assert await drawn_units(conn, [group["id"]]) == {group["id"]: 3 * (6 * UNITS - 1)}
