"""Bounds of long context: sums keep the calls above each bound of the workspace's prices apart.

A price may have a bound that no earlier one had. Sums of its slug that are made already, and may have calls on both
sides of it, are then made again from the events.

See docs/decisions/0065-hourly-sums.md.
"""

from collections.abc import Collection

from sqlalchemy import func, select, text, update

from control.edges.sql.billing.tables import hourly_sum_progress, hourly_sums
from control.edges.sql.events.partitions import part_of, partitions_of
from control.edges.sql.store import Connection, WriteTx
from control.errors import SumsWithoutEventsError, TooManyBoundsError
from policy.prices import CONTEXT_BOUNDS, DAY_MS, Price, date_text

MAX_BOUNDS = 100
"""The most bounds of a workspace: each event that is added up is compared with all of them."""
_HOUR_MS = 3_600_000
_BOUND = {
    "sqlite": "json_extract(other_members, '$.long_context.above_input_tokens')",
    "postgresql": "CAST(CAST(other_members AS json) #>> '{long_context,above_input_tokens}' AS bigint)",
}


async def context_bounds(conn: Connection, workspace_id: str) -> Collection[int]:
    """The bounds by which the workspace's calls are kept apart: those of its prices, and those that vendors have."""
    query = (
        f"SELECT DISTINCT {_BOUND[conn.dialect.name]} AS bound FROM prices"  # noqa: S608 (ours)
        " WHERE workspace_id = :workspace AND other_members IS NOT NULL"
    )
    bounds = (await conn.execute(text(query), {"workspace": workspace_id})).scalars()
    return {*CONTEXT_BOUNDS, *(bound for bound in bounds if bound is not None)}


async def keep_apart(tx: WriteTx, workspace_id: str, price: Price) -> None:
    """See to it that sums tell which calls have the price's long context, before it is stored. The workspace is locked.

    Raises SumsWithoutEventsError if some do not, and their events are deleted; TooManyBoundsError if it is a bound too
    many.
    """
    if price.long_context is None:
        return
    bound = price.long_context.above_input_tokens
    bounds = await context_bounds(tx.conn, workspace_id)
    if bound not in bounds and len(bounds) >= MAX_BOUNDS:
        raise TooManyBoundsError(MAX_BOUNDS)
    # Locked, so that nobody adds events meanwhile who does not know the bound.
    progress = select(hourly_sum_progress.c.until_ms).where(hourly_sum_progress.c.workspace_id == workspace_id)
    until_ms = (await tx.conn.execute(progress.with_for_update())).scalar()
    if until_ms is None or await _is_known(tx.conn, workspace_id, price, bound):
        return
    mixed_ms = await _first_mixed_hour(tx.conn, workspace_id, price, bound, until_ms)
    if mixed_ms is None:
        return
    if not await _has_events(tx.conn, workspace_id, price.slug, mixed_ms):
        raise SumsWithoutEventsError(bound, date_text(mixed_ms), CONTEXT_BOUNDS)
    again = update(hourly_sum_progress).values(until_ms=mixed_ms)
    await tx.conn.execute(again.where(hourly_sum_progress.c.workspace_id == workspace_id))


async def _is_known(conn: Connection, workspace_id: str, price: Price, bound: int) -> bool:
    """Return whether all sums of the slug from the price's date on keep the calls above the bound apart."""
    if bound in CONTEXT_BOUNDS:
        return True
    query = (
        "SELECT count(*) FROM prices WHERE workspace_id = :workspace AND slug = :slug"  # noqa: S608 (ours)
        f" AND other_members IS NOT NULL AND valid_from_ms <= :from AND {_BOUND[conn.dialect.name]} = :bound"
    )
    values = {"workspace": workspace_id, "slug": price.slug, "from": price.valid_from_ms, "bound": bound}
    return bool((await conn.execute(text(query), values)).scalar_one())


async def _first_mixed_hour(conn: Connection, workspace_id: str, price: Price, bound: int, until_ms: int) -> int | None:
    """The first hour that has a sum of the slug with calls on both sides of the bound, as far as a sum can tell."""
    sums = hourly_sums.c
    query = select(func.min(sums.hour_ms)).where(
        sums.workspace_id == workspace_id,
        sums.day_ms >= price.valid_from_ms,
        sums.hour_ms < until_ms,
        sums.model_slug == price.slug,
        sums.above_input_tokens < bound,
        sums.input_tokens > bound,
    )
    first_ms: int | None = (await conn.execute(query)).scalar()
    return first_ms


async def _has_events(conn: Connection, workspace_id: str, slug: str, hour_ms: int) -> bool:
    """Return whether the slug's events of the hour are all kept. Then those of later hours are, too."""
    part = part_of(await partitions_of(conn), hour_ms, hour_ms + _HOUR_MS)
    if part is None:
        return False
    query = (
        "SELECT (SELECT sum(h.calls) FROM hourly_sums AS h WHERE h.workspace_id = :workspace AND h.day_ms = :day"  # noqa: S608 (ours)
        " AND h.hour_ms = :hour AND h.model_slug = :slug) <= (SELECT count(*)"
        f" FROM {part.sql} AS e WHERE e.workspace_id = :workspace AND e.timestamp_ms >= :hour"
        " AND e.timestamp_ms < :end AND e.model_slug = :slug)"
    )
    values = {
        "workspace": workspace_id,
        "slug": slug,
        "day": hour_ms - hour_ms % DAY_MS,
        "hour": hour_ms,
        "end": hour_ms + _HOUR_MS,
    }
    return bool((await conn.execute(text(query), {**values, **part.bounds})).scalar())
