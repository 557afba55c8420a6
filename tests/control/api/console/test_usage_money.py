"""The money on a customer's usage page, where the operator shows it: costs, spend limits and the balance, of its own.

See docs/reference/console.md#usage-page.
"""

from collections.abc import AsyncIterator, Sequence
from decimal import Decimal
from typing import Any

import pytest

from control.errors import SpendNotCountedError
from control.records.spend import SpendReading, SpendUse
from policy.prices import DAY_MS
from policy.spend.effective import SpendBound
from tests.control.api.console.browser import logged_in
from tests.control.api.console.test_usage_page import DATA, SETTLED_MS, customer, take
from tests.control.billing import clock_ms
from tests.control.plane import SLUG, ControlPlane, Json, running_plane
from tests.waiting import stay_within_one_day

MONEY = ("cost", "unpriced_calls", "spend_limits", "balance")
LIMIT = {"unit": "MONTH", "amount": "10.00", "currency": "EUR", "enforcement": "SOFT"}


class CountedSpend:
    """Counters that have seen each group spend 1.5 and reserve 0.25; or, with `is_counting`, that are being counted."""

    is_counting = False

    async def spend_of(self, bounds: Sequence[SpendBound], key: str, at_ms: int | None = None) -> SpendReading:
        if self.is_counting:
            raise SpendNotCountedError
        return SpendReading(30 * DAY_MS, (SpendUse(Decimal("1.5"), Decimal("0.25")),) * len(bounds))


@pytest.fixture
def counters() -> CountedSpend:
    return CountedSpend()


@pytest.fixture
async def portal(database_url: str, counters: CountedSpend) -> AsyncIterator[ControlPlane]:
    """A control plane that shows customers money."""
    async with running_plane(database_url, portal_cost=True, spend=counters) as plane:
        yield plane


async def page_of(plane: ControlPlane, key: Json) -> Json:
    page: Json = (await (await logged_in(plane, key["api_key"])).get(DATA)).ok()
    return page


async def set_price(plane: ControlPlane) -> None:
    """A call of `take` costs 0.00013 EUR from the first day on."""
    price = {"slug": SLUG, "currency": "EUR", "valid_from": "2020-01-01"}
    rates = {"input_per_million": "1", "cached_input_per_million": "0", "output_per_million": "3"}
    (await plane.put("/v1/gateway/prices", {**price, **rates})).ok()


async def test_without_the_setting_no_money_is_shown(sqlite_plane: ControlPlane) -> None:
    group, key = await customer(sqlite_plane, spend_limits=[LIMIT])
    await set_price(sqlite_plane)
    await take(sqlite_plane, group, key["prefix"], (await clock_ms(sqlite_plane.store) - SETTLED_MS, SLUG))
    page = await page_of(sqlite_plane, key)
    assert page["totals"]["month"]["calls"] >= 0
    assert [word for word in MONEY if word in str(page)] == []


async def test_sums_have_their_cost(portal: ControlPlane) -> None:
    stay_within_one_day(SETTLED_MS / 1e3)
    top, key = await customer(portal, "top")
    below, below_key = await customer(portal, "below", parent=top["id"])
    await set_price(portal)
    at_ms = await clock_ms(portal.store) - SETTLED_MS
    await take(portal, top, key["prefix"], (at_ms, SLUG), (at_ms + 1, "acme/free"))
    await take(portal, below, below_key["prefix"], (at_ms + 2, SLUG))
    page = await page_of(portal, key)
    day = page["totals"]["day"]
    assert (day["cost"], day["unpriced_calls"]) == ({"EUR": "0.00013"}, 1)
    assert day["with_groups_below"]["cost"] == {"EUR": "0.00026"}
    assert page["totals"]["month"]["cost"] == page["days"][-1]["cost"] == {"EUR": "0.00013"}
    slugs: dict[str, Any] = {one["slug"]: one for one in page["slugs"]}
    assert (slugs[SLUG]["cost"], slugs["acme/free"]["cost"]) == ({"EUR": "0.00013"}, None)
    assert page["days"][0]["cost"] is None


async def test_spend_of_a_limit_is_shown_only_to_the_group_that_it_counts(portal: ControlPlane) -> None:
    company, own_key = await customer(portal, "company", mode="CASCADING", spend_limits=[LIMIT])
    _, key = await customer(portal, "blue", parent=company["id"])
    (limit,) = (await page_of(portal, own_key))["spend_limits"]
    figures = {"spent": "1.50", "reserved": "0.25", "remaining": "8.25", "reset_at": "1970-02-01T00:00:00.000Z"}
    assert limit == {**LIMIT, "own": True, **figures}
    (limit,) = (await page_of(portal, key))["spend_limits"]
    assert limit == {**LIMIT, "own": False, **dict.fromkeys(figures)}


async def test_page_is_shown_while_spend_is_being_counted(portal: ControlPlane, counters: CountedSpend) -> None:
    counters.is_counting = True
    _, key = await customer(portal, spend_limits=[LIMIT])
    page = await page_of(portal, key)
    assert (page["spend_limits"][0]["spent"], page["balance"]) == (None, None)
    assert page["totals"]["day"]["calls"] == 0


async def test_balance_is_shown_to_its_own_group_alone(portal: ControlPlane) -> None:
    company, own_key = await customer(portal, "company")
    _, key = await customer(portal, "blue", parent=company["id"])
    credit = {"amount": "20.00", "currency": "EUR", "reference": "invoice 1"}
    (await portal.post(f"/v1/gateway/groups/{company['id']}/balance/credits", credit)).ok()
    balance = (await page_of(portal, own_key))["balance"]
    amounts = {"credited": "20.00", "spent": "0.00", "reserved": "0.00", "available": "20.00"}
    assert balance == {"currency": "EUR", **amounts}
    assert (await page_of(portal, key))["balance"] is None
