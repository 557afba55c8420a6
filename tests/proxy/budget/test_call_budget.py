"""A governed call stays within its budget of Python calls, C calls and bytecodes. Prints them by part: `pytest -s`."""

from decimal import Decimal

import pytest

from policy.limits.kinds import Unit
from policy.snapshot import Row
from policy.spend.balances import Balance
from policy.spend.limits import SpendEnforcement, SpendLimit
from proxy.edges.telemetry.gen_ai_counts import GenAiCounts
from tests.proxy.budget.canned_worker import ANSWER, CALLERS, REQUEST, SLUG, canned_worker, group_row, price_row
from tests.proxy.budget.counting import Spent, check, report, spent_per_call

PRICE = price_row(input="3", output="15", tiers={"flex": "0.5"})


def spending_rows(enforcement: SpendEnforcement) -> tuple[Row, Row]:
    """A price, and a spend limit of the callers' group."""
    limit = SpendLimit(Unit.DAY, Decimal(10**9), "EUR", enforcement)
    return PRICE, group_row(2, "customer-2", limit)


def prepaid_rows() -> tuple[Row, Row]:
    """A price, and the balance of a group above the callers', from which they draw."""
    return PRICE, group_row(0, "customer-0", balance=Balance("EUR", Decimal(10**9)))


def test_canned_call_is_a_governed_call() -> None:
    with canned_worker() as (runner, worker):
        callers = runner.run(worker.serve(4))
        assert worker.loop.redis.takes == CALLERS * 4
        assert worker.journal.pending == 0
    body = ANSWER.partition(b"\r\n\r\n")[2].replace(b'"gpt"', b'"%b"' % SLUG.encode())
    assert all(answer.endswith(body) for caller in callers for answer in caller.answers)


def test_governed_call_stays_within_its_budget() -> None:
    check(spent_per_call, report, calls=101.8, c_calls=161, bytecodes=4_672)


def test_call_of_a_priced_slug_stays_within_its_budget() -> None:
    """A price takes two Python calls and 0.7 µs."""
    check(lambda: spent_per_call(REQUEST, PRICE), report, calls=103.6, c_calls=162, bytecodes=4_739)


def test_otlp_metrics_cost_a_call_the_count_of_it_alone() -> None:
    """The count is made of up to 64 ended calls at once. All else is as it is without OTLP, in the same budget."""
    path = "proxy/edges/telemetry/gen_ai_counts.py"
    counts = GenAiCounts()

    def without_the_count() -> Spent:
        spent = spent_per_call(gen_ai=counts)
        figures = (spent.calls, spent.c_calls, spent.bytecodes)
        count = [sum(one for place, one in figure.items() if place[0] == path) for figure in figures]
        calls, c_calls, bytecodes = count
        assert calls <= 0.1
        assert c_calls <= 5
        assert 0 < bytecodes <= 136
        return Spent(*({place: one for place, one in figure.items() if place[0] != path} for figure in figures))

    check(without_the_count, report, calls=101.8, c_calls=161, bytecodes=4_674)


@pytest.mark.parametrize("enforcement", SpendEnforcement)
def test_canned_call_with_a_spend_limit_is_counted_by_it(enforcement: SpendEnforcement) -> None:
    with canned_worker() as (runner, worker):
        worker.publish(*spending_rows(enforcement))
        callers = runner.run(worker.serve(4))
        assert worker.loop.redis.spend_takes == CALLERS * 4
    assert all(answer.startswith(b"HTTP/1.1 200") for caller in callers for answer in caller.answers)


def test_call_with_a_soft_spend_limit_stays_within_its_budget() -> None:
    rows = spending_rows(SpendEnforcement.SOFT)
    check(lambda: spent_per_call(REQUEST, *rows), report, calls=124, c_calls=184, bytecodes=5_462)


def test_call_with_a_hard_spend_limit_stays_within_its_budget() -> None:
    rows = spending_rows(SpendEnforcement.HARD)
    check(lambda: spent_per_call(REQUEST, *rows), report, calls=133, c_calls=194, bytecodes=5_790)


def test_canned_call_that_draws_from_a_balance_is_counted_by_it() -> None:
    with canned_worker() as (runner, worker):
        worker.publish(*prepaid_rows())
        callers = runner.run(worker.serve(4))
        assert worker.loop.redis.spend_takes == CALLERS * 4
    assert all(answer.startswith(b"HTTP/1.1 200") for caller in callers for answer in caller.answers)


def test_call_that_draws_from_a_balance_stays_within_its_budget() -> None:
    rows = prepaid_rows()
    check(lambda: spent_per_call(REQUEST, *rows), report, calls=133, c_calls=194, bytecodes=5_790)
