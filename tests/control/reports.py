"""Helpers for tests of usage reports: store calls, read reports, and compare them to the list of events."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from decimal import Decimal
from itertools import repeat
from typing import Any

from hypothesis import strategies as st

from control.edges.sql.events.rows import delete_events_before
from control.records.times import time_text
from policy.billing import Tokens
from policy.prices import DAY_MS, date_text
from tests.control.billing import event, ingest_and_reader
from tests.control.plane import ControlPlane, Json

PATH = "/v1/gateway/usage_report"
PRICES = "/v1/gateway/prices"
NAMES: dict[str, tuple[str, ...]] = {
    "day": ("day",),
    "slug": ("slug",),
    "entity": ("external_entity_id",),
    "key": ("external_entity_id", "api_key_prefix"),
}
SUMS = ("calls", "input_tokens", "output_tokens", "cached_input_tokens")
GROUPINGS = sorted(NAMES)


def tokens(input: int, output: int, cached_input: int) -> Tokens:
    return Tokens(input=input, output=output, cached_input=cached_input)


async def price(plane: ControlPlane, slug: str, valid_from_ms: int, **more: Any) -> Json:
    body = {"slug": slug, "valid_from": date_text(valid_from_ms), "currency": "EUR"}
    amounts = {"input_per_million": "3", "cached_input_per_million": "0.3", "output_per_million": "15"}
    return (await plane.put(PRICES, {**body, **amounts, **more})).ok()  # type: ignore[no-any-return]  # JSON


async def take(
    plane: ControlPlane, *calls: tuple[int, str, str, str, Tokens], more: Sequence[dict[str, Any]] = ()
) -> None:
    """Store calls: timestamp, slug, entity, key, tokens. None is restamped. `more`: other fields of each."""
    ingest, _ = ingest_and_reader(plane.store, 1e9)
    names = ("model_slug", "external_entity_id", "api_key_prefix", "tokens")
    events = [
        event(number, at_ms, workspace_id=plane.workspace_id, **dict(zip(names, rest, strict=True)), **fields)
        for number, ((at_ms, *rest), fields) in enumerate(zip(calls, more or repeat({}), strict=False))
    ]
    await ingest.commit(events)


async def report(plane: ControlPlane, start_ms: int, by: str, **more: Any) -> list[Json]:
    """All items, page by page; the window must stay the same."""
    params = {"start": time_text(start_ms), "group_by": by, **more}
    answer = await _answered(plane, PATH, params)
    items = answer["items"]
    window = answer["window"]
    while answer["pagination"]["has_more"]:
        answer = await _answered(plane, PATH, {"cursor": answer["pagination"]["cursor"]})
        assert answer["window"] == window
        items += answer["items"]
    return items  # type: ignore[no-any-return]  # JSON


async def _answered(plane: ControlPlane, path: str, params: dict[str, Any]) -> Json:
    """Ask again when the key's limit of calls a second says so: these tests read many pages."""
    while (answer := await plane.get(path, params=params)).status == 429:
        await asyncio.sleep(answer.body["retry_after"])
    return answer.ok()  # type: ignore[no-any-return]  # JSON


async def events_of(plane: ControlPlane, start_ms: int, **more: Any) -> list[Json]:
    answer = await _answered(plane, "/v1/gateway/events", {"start_time": time_text(start_ms), **more})
    assert not answer["pagination"]["has_more"]
    return answer["items"]  # type: ignore[no-any-return]  # JSON


def name_of(listed: Json, by: str) -> tuple[str, ...]:
    """The group that an event of the list belongs to."""
    names = {"day": "timestamp", "slug": "modelSlug", "external_entity_id": "externalEntityId"}
    names_of_line = tuple(listed[{**names, "api_key_prefix": "apiKeyPrefix"}[name]] for name in NAMES[by])
    return (names_of_line[0][:10],) if by == "day" else names_of_line


def added_up(listed: list[Json], by: str) -> dict[tuple[str, ...], Json]:
    """The report that the list of events implies, without money."""
    sums: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for one in listed:
        token_counts = one["tokens"]
        counts = {"input_tokens": token_counts["inputTokens"], "output_tokens": token_counts["outputTokens"]}
        counts["cached_input_tokens"] = token_counts["cachedInputTokens"]
        sums[name_of(one, by)].update({"calls": 1, **counts})
    return {name: {key: sums_of_name[key] for key in SUMS} for name, sums_of_name in sorted(sums.items())}


def sums_by_name(items: list[Json], by: str) -> dict[tuple[str, ...], Json]:
    return {tuple(item[name] for name in NAMES[by]): {key: item[key] for key in SUMS} for item in items}


CALLS = st.lists(
    st.tuples(
        st.integers(0, 3 * DAY_MS),
        st.sampled_from(["acme/chat", "acme/embed", "acme/free"]),
        st.sampled_from(["customer-1", "customer-2", "Kunde ü", "z"]),
        st.sampled_from(["tg_a", "tg_b", "tg_c"]),
        st.builds(lambda a, b, c: tokens(max(a, c), b, c), *[st.integers(0, 2**40)] * 3),
    ),
    max_size=12,
)


EXAMPLES: list[Any] = [
    (0, "acme/chat", "customer-1", "tg_a", tokens(2**40, 7, 2**39)),  # before the window
    (5_000, "acme/chat", "customer-1", "tg_a", tokens(2**40, 2**40, 2**39)),
    (DAY_MS - 1, "acme/chat", "Kunde ü", "tg_b", tokens(1, 1, 1)),  # the last millisecond of the first price
    (DAY_MS, "acme/chat", "Kunde ü", "tg_a", tokens(3, 0, 0)),
    (DAY_MS, "acme/embed", "Kunde ü", "tg_a", tokens(999_999, 0, 1)),  # without a price on that day
    (2 * DAY_MS, "acme/embed", "customer-1", "tg_c", tokens(0, 0, 0)),
    (3 * DAY_MS, "acme/free", "z", "tg_a", tokens(5, 6, 0)),
]


async def store_calls(plane: ControlPlane, first_day_ms: int, calls: list[Any]) -> None:
    """Set prices that change, and store calls, whose times are relative to the first day."""
    await price(plane, "acme/chat", first_day_ms)
    await price(plane, "acme/chat", first_day_ms + DAY_MS, input_per_million="0.000000000001", per_call="7")
    await price(plane, "acme/embed", first_day_ms + 2 * DAY_MS, currency="USD")
    await take(plane, *((first_day_ms + call[0], *call[1:]) for call in calls))


async def check_reports_equal_events(plane: ControlPlane, first_day_ms: int, start: int, limit: int) -> None:
    """Compare reports of all groupings, with and without filters, from `start` after the first day on."""
    start_ms = first_day_ms + start
    listed = await events_of(plane, start_ms, limit=1000)
    for by in GROUPINGS:
        items = await report(plane, start_ms, by, limit=limit)
        assert sums_by_name(items, by) == added_up(listed, by)
        assert [tuple(item[name] for name in NAMES[by]) for item in items] == sorted(added_up(listed, by))
        assert total_of(items) == money_of(listed, first_day_ms)
        assert sum(item["unpriced_calls"] for item in items) == unpriced(listed, first_day_ms)
        theirs = await report(plane, start_ms, by, limit=limit, external_entity_id="Kunde ü")
        of_them = [one for one in listed if one["externalEntityId"] == "Kunde ü"]
        assert sums_by_name(theirs, by) == added_up(of_them, by)
        assert total_of(theirs) == money_of(of_them, first_day_ms)
        through_it = await report(plane, start_ms, by, limit=limit, model_slug="acme/chat")
        of_slug = [one for one in listed if one["modelSlug"] == "acme/chat"]
        assert sums_by_name(through_it, by) == added_up(of_slug, by)
        assert total_of(through_it) == money_of(of_slug, first_day_ms)


async def forget_events(plane: ControlPlane) -> None:
    async with plane.store.write() as tx:
        await delete_events_before(tx, plane.workspace_id, 1 << 60, 10_000)


def rate_at(one: Json, first_day_ms: int) -> tuple[str, Decimal, Decimal] | None:
    """Currency, price of input and price per call of an event, by the prices of the test."""
    slug = one["modelSlug"]
    day = one["timestamp"][:10]
    if slug == "acme/chat":
        changed = day >= date_text(first_day_ms + DAY_MS)
        return ("EUR", Decimal("0.000000000001"), Decimal(7)) if changed else ("EUR", Decimal(3), Decimal(0))
    if slug == "acme/embed" and day >= date_text(first_day_ms + 2 * DAY_MS):
        return "USD", Decimal(3), Decimal(0)
    return None


def money_of(listed: list[Json], first_day_ms: int) -> dict[str, Decimal]:
    totals: dict[str, Decimal] = defaultdict(Decimal)
    for one in listed:
        if (rate := rate_at(one, first_day_ms)) is not None:
            currency, input, per_call = rate
            token_counts = one["tokens"]
            cached = token_counts["cachedInputTokens"]
            parts = (
                input * (token_counts["inputTokens"] - cached),
                Decimal("0.3") * cached,
                15 * token_counts["outputTokens"],
            )
            totals[currency] += sum(parts, Decimal(0)) / 1_000_000 + per_call
    return dict(totals)


def unpriced(listed: list[Json], first_day_ms: int) -> int:
    return sum(rate_at(one, first_day_ms) is None for one in listed)


def total_of(items: list[Json]) -> dict[str, Decimal]:
    totals: dict[str, Decimal] = defaultdict(Decimal)
    for item in items:
        for currency, amount in (item["cost"] or {}).items():
            totals[currency] += Decimal(amount)
    return dict(totals)
