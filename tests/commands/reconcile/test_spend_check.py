"""Figures of counters beside those of events: equal, late, and different, in both modes and for both units."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from commands.reconcile import spend_check
from commands.reconcile.journal_check import Difference
from commands.reconcile.spend_check import SpendCheck, window_start
from tests.commands.fake_api import FakeApi, page


def group(id: str, mode: str = "CASCADING", limits: int = 1) -> dict[str, Any]:
    return {
        "id": id,
        "metadata": {"external_entity_id": f"customer-{id}"},
        "hierarchy": {"limit_enforcement": mode},
        "effective_spend_limits": [{"unit": "DAY"}] * limits,
    }


def item(
    spent: str, unit: str = "DAY", reset_at: str = "2026-12-01T00:00:00.000Z", source: str = "a"
) -> dict[str, Any]:
    return {"unit": unit, "currency": "EUR", "spent": spent, "reset_at": reset_at, "source_group": source}


def sums(id: str, whole: str, own: str) -> dict[str, Any]:
    return {"group_id": id, "cost": {"EUR": whole, "USD": "7"}, "own": {"cost": {"EUR": own}}}


def run(api: FakeApi) -> tuple[int, list[Difference]]:
    check = SpendCheck(api, lambda _count: None, pause_s=0)
    differences = asyncio.run(check.differences())
    return check.compared, differences


def api_of(groups: list[Any], spend: Any, *report: Any) -> FakeApi:
    answers = {"GET /v1/gateway/groups": page(*groups), "GET /v1/gateway/usage_report": page(*report)}
    return FakeApi({**answers, **{f"GET /v1/gateway/groups/{one['id']}/spend": spend for one in groups}})


@pytest.mark.parametrize(("mode", "spent"), [("CASCADING", "1.5000000000000000000001"), ("INDEPENDENT", "0.50")])
def test_equal_amounts_are_no_difference(mode: str, spent: str) -> None:
    report = sums("a", "1.5000000000000000000001", "0.5")
    assert run(api_of([group("a", mode)], {"items": [item(spent)]}, sums("older", "9", "9"), report)) == (1, [])


def test_limit_of_an_ancestor_is_compared_where_it_counts() -> None:
    above = {"items": [item("5", source="top"), item("0.5")]}
    assert run(api_of([group("a")], above, sums("a", "0.5", "0.5"))) == (1, [])
    of_the_nearest = {"items": [item("0.5", source="top")]}
    assert run(api_of([group("a", "INDEPENDENT")], of_the_nearest, sums("a", "9", "0.5"))) == (1, [])


def test_difference_in_the_last_digit_is_told_with_both_amounts() -> None:
    api = api_of([group("a")], {"items": [item("1.5")]}, sums("a", "1.5000000000000000000001", "0"))
    compared, (difference,) = run(api)
    assert compared == 1
    assert difference.where == "a (customer-a), DAY, EUR"
    assert (difference.ours, difference.theirs) == ("1.5000000000000000000001", "1.5")


def test_group_without_calls_has_spent_nothing() -> None:
    assert run(api_of([group("a")], {"items": [item("0.00")]})) == (1, [])


def test_groups_without_spend_limits_are_not_asked_for() -> None:
    api = api_of([group("a", limits=0)], {"items": [item("1")]})
    assert run(api) == (0, [])
    assert [path for _, path, _, _ in api.requests] == ["/v1/gateway/groups", "/v1/gateway/groups/a/balance"]


def test_balance_of_a_group_is_compared_too() -> None:
    api = api_of([group("a"), group("b", limits=0)], {"items": [item("0.5")]}, sums("a", "0.5", "0.5"))
    balance = {"currency": "EUR", "credited": "1.00", "spent": "0.25"}
    api.answers["GET /v1/gateway/groups/b/balance"] = balance
    api.answers["GET /v1/gateway/groups/b/balance/entries"] = page(
        {"type": "CREDIT", "amount": "1.00"}, {"type": "DRAW", "amount": "-0.2"}
    )
    check = SpendCheck(api, lambda _count: None, pause_s=0)
    (difference,) = asyncio.run(check.differences())
    assert difference.what == "spent differs from what the entries say that calls drew"
    assert (check.compared, check.balances_compared) == (1, 1)


def test_figures_that_differ_are_read_again() -> None:
    looks = iter(["1", "1", "2"])

    def spend(_body: Any, _query: Mapping[str, Any]) -> Any:
        return {"items": [item(next(looks))]}

    assert run(api_of([group("a")], spend, sums("a", "2", "0"))) == (1, [])


def test_reading_again_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spend_check, "PATIENCE_S", 3)
    api = api_of([group("a")], {"items": [item("1")]}, sums("a", "2", "0"))
    assert len(run(api)[1]) == 1
    assert [path for _, path, _, _ in api.requests].count("/v1/gateway/groups/a/spend") == 3


@pytest.mark.parametrize(
    ("unit", "reset_at", "start"),
    [
        ("DAY", "2026-12-01T00:00:00.000Z", "2026-11-30T00:00:00Z"),
        ("MONTH", "2026-12-01T00:00:00.000Z", "2026-11-01T00:00:00Z"),
        ("MONTH", "2027-01-01T00:00:00.000Z", "2026-12-01T00:00:00Z"),
    ],
)
def test_window_of_an_item_ends_at_its_reset(unit: str, reset_at: str, start: str) -> None:
    assert window_start(item("0", unit, reset_at)) == start
