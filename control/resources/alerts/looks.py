"""A look at groups: reads how much of their limits is used, and tells each percent that was crossed, once.

What is told, and that it was, is written in one transaction, with the group's tree locked and unchanged since it was
read. So any number of processes may look at the same groups, at any time, with figures of any age.

See docs/decisions/0078-alerts-are-looked-for.md.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

from control.edges.sql.alerts import rows
from control.edges.sql.alerts.top_ups import last_top_ups
from control.edges.sql.events.clock import database_ms
from control.edges.sql.group_rows import load_records, lock_root
from control.edges.sql.store import Connection, Store, WriteTx
from control.records.ids import new_id
from control.records.limits.alerts import Alert, LimitFigures, WatchedGroup
from control.resources.alerts.balance_figures import BalanceReader, balance_figures, balance_readings
from control.resources.alerts.news import LimitNews, limit_news
from control.resources.alerts.spend_figures import spend_figures
from control.resources.alerts.usage_figures import CalendarSource, RefusedLimits, usage_figures
from control.resources.spend.group_spend import SpendSource
from control.resources.webhook_messages import queue_alerts
from policy.limits.alerts import LimitName
from policy.limits.groups import Enforcement
from policy.limits.windows import DAY_MS

LATE_MS = 120_000
"""The time after the end of a window for which it is looked at, too: calls of its last seconds are committed late."""


@dataclass(frozen=True, slots=True)
class FigureSources:
    """The counters of usage limits, of spend limits and of balances."""

    usage: CalendarSource
    spend: SpendSource
    balances: BalanceReader


@dataclass(frozen=True, slots=True)
class _Look:
    """A group, the figures of its limits, and which of them have refused a call since the last look."""

    group: WatchedGroup
    figures: Sequence[LimitFigures]
    refused: Collection[LimitName]

    def news(self, alerts: rows.AlertsOfLimits) -> list[LimitNews]:
        """The news of its limits after these alerts on them."""
        pairs = ((one, alerts.get((one.limit, one.window.start_ms), ())) for one in self.figures)
        news = (limit_news(one, past, self.refused) for one, past in pairs)
        return [one for one in news if one is not None]


async def look_at(store: Store, sources: FigureSources, group_ids: Collection[str]) -> list[Alert]:
    """Look at groups of one workspace and at the ancestors that count their calls. Returns what was told.

    Groups that change meanwhile are left for another look. Raises `UsageUnavailableError`; then nothing was told.
    """
    moments = _moments(await sources.usage.now_ms())
    async with store.read() as conn:
        groups = await _watched_groups(conn, group_ids)
        refused = await rows.refused_limits(conn, [group.id for group in groups])
        groups = [group for group in groups if group.has_percents or refused[group.id]]
    figures = await _figures(sources, groups, refused, moments)
    readings = await balance_readings(sources.balances, groups, refused)
    async with store.read() as conn:
        top_ups = await last_top_ups(conn, readings)
        balances = balance_figures(groups, readings, top_ups)
        for group_id, of_balance in balances.items():
            figures[group_id].append(of_balance)
        looks = [_Look(group, figures[group.id], refused[group.id]) for group in groups]
        past = await rows.past_alerts(conn, [look.group.id for look in looks], _starts(looks))
    alerts: list[Alert] = []
    for look in looks:
        if look.refused or look.news(past[look.group.id]):
            alerts += await store.transact(partial(_tell, look=look))
    return alerts


def _moments(clock_ms: int) -> list[int]:
    """The times whose windows are looked at: now, and the end of yesterday if that was just now."""
    since_midnight_ms = clock_ms % DAY_MS
    return [clock_ms, clock_ms - since_midnight_ms - 1] if since_midnight_ms < LATE_MS else [clock_ms]


async def _watched_groups(conn: Connection, group_ids: Collection[str]) -> list[WatchedGroup]:
    """The groups with these ids, and the ancestors whose counters count their calls, with their paths.

    A balance counts the calls of all below it, in both modes.
    """
    below = await load_records(conn, group_ids)
    ancestors = await load_records(conn, {id for record in below.values() for id in record.ancestor_ids})
    records = {**ancestors, **below}
    watched: dict[str, WatchedGroup] = {}
    for record in below.values():
        path = (record, *(records[id] for id in record.ancestor_ids))
        is_cascading = record.group.enforcement is Enforcement.CASCADING
        for level, of in enumerate(path):
            if level == 0 or is_cascading or of.balance is not None:
                watched[of.group.id] = WatchedGroup(path[level:])
    return [*watched.values()]


async def _figures(
    sources: FigureSources, groups: Sequence[WatchedGroup], refused: RefusedLimits, moments: Sequence[int]
) -> dict[str, list[LimitFigures]]:
    """The figures of the limits in windows, of each group."""
    figures: dict[str, dict[tuple[LimitName, int], LimitFigures]] = {group.id: {} for group in groups}
    for at_ms in moments:
        for by_group in (
            await usage_figures(sources.usage, groups, refused, at_ms),
            await spend_figures(sources.spend, groups, refused, at_ms),
        ):
            for group_id, some in by_group.items():
                figures[group_id] |= {(one.limit, one.window.start_ms): one for one in some}
    return {group_id: [*by_limit.values()] for group_id, by_limit in figures.items()}


def _starts(looks: Sequence[_Look]) -> set[int]:
    return {figures.window.start_ms for look in looks for figures in look.figures}


async def _tell(tx: WriteTx, look: _Look) -> list[Alert]:
    """Tell the news of a group, unless its path was changed or another process has told them."""
    group = look.group
    await lock_root(tx, group.record.root_id)
    if await rows.stamps_of(tx.conn, group.stamps) != group.stamps:
        return []
    past = await rows.past_alerts(tx.conn, [group.id], _starts([look]))
    alerts: list[Alert] = []
    for news in look.news(past[group.id]):
        if news.is_raised:
            await rows.rearm(tx, group.id, news.figures, news.again)
        alerts += news.alerts(group, partial(new_id, "alt"))
    await rows.insert_alerts(tx, alerts, await database_ms(tx.conn))
    await rows.delete_refusals(tx, group.id, look.refused)
    await queue_alerts(tx, group.workspace_id, group.record.path, alerts)
    return alerts
