"""Balances beside the entries of their ledger: equal, late, busy, and different."""

import asyncio
from collections.abc import Mapping
from typing import Any

from commands.reconcile.balance_check import BalanceCheck
from commands.reconcile.journal_check import Difference
from tests.commands.fake_api import FakeApi, page

GROUP = {"id": "a", "metadata": {"external_entity_id": "customer-a"}}
LOOKS = 3


def entry(amount: str, kind: str = "DRAW") -> dict[str, Any]:
    return {"type": kind, "amount": amount}


def balance(spent: str, credited: str = "8.00") -> dict[str, Any]:
    return {"currency": "EUR", "credited": credited, "spent": spent}


CREDITS = (entry("10.00", "CREDIT"), entry("-2.00", "CREDIT"))


def run(balances: Any, entries: Any = None) -> tuple[int, int, list[Difference]]:
    """The number of balances, of looks, and the differences."""
    api = FakeApi({"GET /v1/gateway/groups/a/balance": balances, "GET /v1/gateway/groups/a/balance/entries": entries})
    check = BalanceCheck(api, LOOKS, 0)
    differences = asyncio.run(check.differences(GROUP))
    return check.compared, sum(path.endswith("/balance") for _, path, _, _ in api.requests), differences


def later(*answers: Any) -> Any:
    """Give these answers, one after the other, and then the last one."""
    remaining = list(answers)

    def answer(_body: Any, _query: Mapping[str, Any]) -> Any:
        return remaining.pop(0) if len(remaining) > 1 else remaining[0]

    return answer


def test_group_without_a_balance_is_not_compared() -> None:
    assert run(None) == (0, 1, [])


def test_equal_sums_are_no_difference() -> None:
    entries = page(*CREDITS, entry("-1.0000000000000000000001"), entry("-0.5"))
    assert run(balance("1.5000000000000000000001"), entries) == (1, 1, [])


def test_figures_that_differ_are_read_again() -> None:
    entries = page(*CREDITS, entry("-1"))
    assert run(later(balance("0"), balance("0.5"), balance("1")), entries) == (1, 3, [])


def test_difference_in_the_last_digit_is_told_with_both_amounts() -> None:
    entries = page(*CREDITS, entry("-1"))
    for spent in ("0.9999999999999999999999", "1.0000000000000000000001"):
        compared, looks, (difference,) = run(balance(spent), entries)
        assert (compared, looks) == (1, LOOKS)
        assert difference.where == "a (customer-a), balance, EUR"
        assert (difference.ours, difference.theirs) == ("1", spent)


def test_calls_that_go_on_are_counted_later_than_they_are_entries() -> None:
    entries = later(*(page(*CREDITS, entry(f"-{number}")) for number in (2, 3, 4)))
    assert run(later(balance("1"), balance("2"), balance("3")), entries)[2] == []
    entries = later(*(page(*CREDITS, entry(f"-{number}")) for number in (2, 3, 4)))
    assert len(run(later(balance("0.1"), balance("1.1"), balance("1.9")), entries)[2]) == 1


def test_credited_is_the_sum_of_the_credits() -> None:
    (difference,) = run(balance("0", "8.01"), page(*CREDITS))[2]
    assert difference.what == "credited differs from the sum of the credits"
    assert (difference.ours, difference.theirs) == ("8.00", "8.01")


def test_group_that_is_deleted_meanwhile_is_no_difference() -> None:
    def gone(_body: Any, _query: Mapping[str, Any]) -> Any:
        api.answers.clear()
        return balance("1")

    api = FakeApi({"GET /v1/gateway/groups/a/balance": gone, "GET /v1/gateway/groups/a/balance/entries": page()})
    assert asyncio.run(BalanceCheck(api, LOOKS, 0).differences(GROUP)) == []
