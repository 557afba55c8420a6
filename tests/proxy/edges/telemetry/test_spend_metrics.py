"""Spend by slug and entity: the sum of the calls' costs to the last digit, and calls that have no price.

See docs/reference/metrics.md.
"""

from collections import defaultdict
from dataclasses import replace
from decimal import Decimal
from random import Random

import pytest

from policy.billing import NO_DETAILS, Details, Tokens
from policy.prices import DAY_MS, LongContext, Price, cost_figures, token_prices
from policy.snapshot import PriceRow
from proxy.accounting.request_report import RequestReport
from proxy.accounting.slug_prices import SlugPrices
from proxy.edges.telemetry.metrics import WorkerMetrics
from proxy.edges.telemetry.supervisor.totals import MetricTotals
from tests.proxy.edges.telemetry.test_metrics import Line, call, counts, route_of, value

SLUG = "org/m"
SPEND = "tollgate_spend_total"
UNPRICED = "tollgate_unpriced_calls_total"
CHEAP = Price(SLUG, DAY_MS, "EUR", token_prices(Decimal("0.000000000001"), Decimal(2)), Decimal("0.000000000003"))
DEAR = Price(
    *(
        SLUG,
        2 * DAY_MS,
        "EUR",
        token_prices(Decimal(3), Decimal(15), cached_input=Decimal("0.3"), cache_write=Decimal(4)),
    ),
    per_call=Decimal("0.1"),
    per_server_tool_call=Decimal("0.01"),
    long_context=LongContext(80, token_prices(Decimal(6), Decimal("22.5"), audio_input=Decimal(50))),
    service_tiers=(("flex", Decimal("0.5001")),),
)
ROWS = {"org/m": (CHEAP, DEAR), "org/n": (CHEAP, replace(DEAR, currency="USD"))}


def slug_prices(slug: str = SLUG) -> SlugPrices:
    return SlugPrices(PriceRow(slug, "ws", ROWS[slug]))


def price_at(report: RequestReport, slug: str) -> Price | None:
    valid = [price for price in ROWS[slug] if price.valid_from_ms <= report.ended_at_ms]
    return valid[-1] if valid else None


def cost_of(report: RequestReport, price: Price) -> Decimal:
    """The cost of one call by itself."""
    assert report.tokens is not None
    is_charged = report.status < 400 and not report.is_count
    figures = cost_figures(report.tokens, report.details, is_charged=is_charged)
    return price.cost(figures, report.details.service_tier, is_long=price.is_long(report.tokens.input))


def random_calls(random: Random) -> list[RequestReport]:
    prices = {slug: slug_prices(slug) for slug in ROWS}
    calls = []
    for _ in range(400):
        slug = random.choice(tuple(ROWS))
        input = random.randrange(1, 100)
        figures = [random.choice((0, 0, random.randrange(60))) for _ in range(8)]
        details = random.choice((NO_DETAILS, Details(service_tier="default"), Details._make((*figures, "flex"))))
        report = call(
            random.choice("ab"),
            random.choice((200, 429, 500)),
            random.choice(
                (None, Tokens(input=input, output=random.randrange(99), cached_input=random.randrange(input)))
            ),
            slug,
        )
        ended_at_ms = random.choice((DAY_MS - 1, DAY_MS, 2 * DAY_MS - 1, 2 * DAY_MS))
        is_count = random.random() < 0.1
        bill = report.bill and report.bill._replace(details=details)
        calls.append(
            replace(report, ended_at_ms=ended_at_ms, bill=bill, is_count=is_count, route=route_of(prices[slug]))
        )
    return calls


@pytest.mark.parametrize("together", [1, 7, 400])
async def test_spend_is_the_sum_of_the_costs_of_single_calls(together: int) -> None:
    calls = random_calls(Random(together))
    totals = MetricTotals(100, lambda: ())
    metrics = WorkerMetrics(Line(totals))
    costs: defaultdict[tuple[str, str, str], Decimal] = defaultdict(Decimal)
    unpriced: defaultdict[str, int] = defaultdict(int)
    for number, report in enumerate(calls, 1):
        metrics.finished(report)
        if number % together == 0:
            metrics.flush()
        slug = report.labels.slug
        price = price_at(report, slug)
        if report.tokens is not None and price is None:
            unpriced[slug] += 1
        elif report.tokens is not None and price is not None:
            costs[report.labels.external_entity_id, slug, price.currency] += cost_of(report, price)
    metrics.close()
    assert len(costs) == 6
    for (entity, slug, currency), amount in costs.items():
        where = {"workspace": "ws", "external_entity_id": entity, "model_slug": slug, "currency": currency}
        assert value(totals, SPEND, **where) == float(amount)
    assert {slug: value(totals, UNPRICED, workspace="ws", model_slug=slug) for slug in ROWS} == unpriced


async def test_refused_and_direct_calls_are_neither_spend_nor_unpriced() -> None:
    totals = MetricTotals(100, lambda: ())
    metrics = WorkerMetrics(Line(totals))
    metrics.finished(replace(call(status=429), route=route_of(slug_prices())))
    metrics.finished(call(slug="", model_id="mdl_1"))
    metrics.close()
    text = totals.text()[0].decode()
    assert "\ntollgate_spend_total{" not in text
    assert "\ntollgate_unpriced_calls_total{" not in text


async def test_amounts_far_apart_are_added_exactly() -> None:
    """A float of the sum would have lost the small ones."""
    totals = MetricTotals(100, lambda: ())
    metrics = WorkerMetrics(Line(totals))
    dear = SlugPrices(PriceRow(SLUG, "ws", (replace(CHEAP, per_call=Decimal("999999999999.5")),)))
    cheap = slug_prices()
    for prices in (dear, *[cheap] * 3000, dear):
        metrics.finished(replace(call(tokens=Tokens()), ended_at_ms=DAY_MS, route=route_of(prices)))
        metrics.flush()
    units = totals._spend["ws", "acme", SLUG, "EUR"]
    assert units == 2 * 9_999_999_999_995 * 10**21 + 9000 * 10**10


def test_spend_of_a_deleted_slug_is_removed_with_its_other_series() -> None:
    totals = MetricTotals(100, lambda: ())
    spend = [["ws", "a", "org/m", "EUR", 1, "5"], ["ws", "a", "org/m", "", 1, ""], ["ws", "b", "org/n", "", 1, ""]]
    totals.add(0, counts() | {"spend": spend})
    totals.forget_slugs({"org/m"})
    assert value(totals, UNPRICED, workspace="ws", model_slug="org/m") is None
    assert value(totals, UNPRICED, workspace="ws", model_slug="org/n") == 1
    assert "EUR" not in totals.text()[0].decode()
