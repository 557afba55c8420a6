"""The order of a report by each of its sums, page by page, on hourly sums and events.

See docs/reference/usage-reports.md#the-report.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, get_args

import pytest

from control.api.billing.usage_totals import OrderSum
from control.records.times import time_text
from control.resources.billing.report_groups import ReportGroup
from control.resources.billing.report_reader import ReportReader
from policy.billing import BillingEvent
from tests.control.api.test_cost_sums import DAYS_S, calls_of, prices_of, set_prices, stored
from tests.control.api.test_hourly_sums import maker
from tests.control.plane import ControlPlane, Json
from tests.control.reports import PATH, report


def sum_of(item: Json, name: str) -> Any:
    return Decimal((item["cost"] or {}).get("EUR", 0)) if name == "cost" else item.get(name, 0)


def calls_in_groups(plane: ControlPlane, first_day_ms: int) -> list[BillingEvent]:
    """Calls of three groups: one above the others."""
    calls = calls_of(3, first_day_ms, 24, plane.workspace_id)
    paths = {"c-0": "grp_0/", "c-1": "grp_0/grp_1/", "c-2": "grp_0/grp_2/"}
    return [
        call._replace(
            group_id=f"grp_{call.external_entity_id[-1]}",
            group_path=paths[call.external_entity_id],
            api_key_prefix=f"tg_{number % 5}",
        )
        for number, call in enumerate(calls)
    ]


_ROLLUP = {"rollup": "true"}
_QUERIES: list[tuple[str, dict[str, str]]] = [
    *((by, {}) for by in ("entity", "key", "slug", "day")),
    ("entity", _ROLLUP),
    *((by, {**_ROLLUP, "external_entity_id": "c-0"}) for by in ("slug", "day")),
]


@pytest.mark.parametrize(("by", "query"), _QUERIES)
async def test_each_sum_orders_the_items_over_all_pages(
    plane: ControlPlane, first_day_ms: int, by: str, query: dict[str, str]
) -> None:
    """Ties are in the order of names, whatever the direction."""
    await set_prices(plane, prices_of(first_day_ms))
    await stored(plane.store, calls_in_groups(plane, first_day_ms))
    await maker(plane.store, 4.5 * DAYS_S).make()
    plain = await report(plane, first_day_ms, by, **query)
    assert all(len({sum_of(item, name) for item in plain}) > 1 for name in get_args(OrderSum))
    for name in get_args(OrderSum):
        currency = {"currency": "EUR"} if name == "cost" else {}
        for direction, sign in (("desc", -1), ("asc", 1)):
            items = await report(
                plane,
                first_day_ms,
                by,
                order_by=name,
                order=direction,
                limit=max(1, len(plain) // 2),
                **query,
                **currency,
            )
            assert items == sorted(plain, key=lambda item: sign * sum_of(item, name)), (name, direction)


@pytest.mark.parametrize(
    ("order", "reads_of_slugs"),
    [({"order_by": "cost"}, 1), ({"order_by": "cost", "currency": "EUR"}, 0), ({"order_by": "calls"}, 0)],
)
async def test_an_order_reads_the_window_once_for_a_page_and_its_totals(
    plane: ControlPlane,
    first_day_ms: int,
    order: dict[str, str],
    reads_of_slugs: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The exception is the first page of costs in a currency that nobody names: it has to find the currency."""
    reads = 0
    by_slug = ReportReader.by_slug

    async def counted(reader: ReportReader) -> Sequence[ReportGroup]:
        nonlocal reads
        reads += 1
        return await by_slug(reader)

    monkeypatch.setattr(ReportReader, "by_slug", counted)
    await set_prices(plane, prices_of(first_day_ms)[:1])
    await stored(plane.store, calls_of(3, first_day_ms, 60, plane.workspace_id))
    params: Json = {"start": time_text(first_day_ms), "group_by": "key", "limit": 10, **order}
    answer = (await plane.get(PATH, params=params)).ok()
    totals = answer["totals"]
    items = answer["items"]
    while (cursor := answer["pagination"]["cursor"]) is not None:
        answer = (await plane.get(PATH, params={"cursor": cursor})).ok()
        items += answer["items"]
    assert (len(items), reads) == (60, reads_of_slugs)
    assert [sum_of(totals, name) for name in get_args(OrderSum)] == [
        sum(sum_of(item, name) for item in items) for name in get_args(OrderSum)
    ]
