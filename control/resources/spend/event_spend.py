"""The amounts that events add to what the groups of their trees have spent, and to what is drawn from their balances.

See docs/reference/money.md#how-spend-is-counted.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from control.edges.sql.billing.price_rows import prices_between
from control.edges.sql.spend.counted_trees import TreeEvents
from control.edges.sql.store import Connection
from control.long_work import OPERATOR, beside
from control.records.spend import SpendTree, SpentEvent, TreeEvent, TreeWithdrawal
from control.resources.billing.event_costs import EventCosts
from policy.spend.balances import balance_name


async def costs_of(conn: Connection, events: Sequence[TreeEvent]) -> Mapping[str, EventCosts]:
    """The costs of these events, which are in the order of time, by workspace: by the prices of now."""
    slugs: dict[str, set[str]] = defaultdict(set)
    for event in events:
        slugs[event.workspace_id].add(event.model_slug)
    times = (events[0].timestamp_ms, events[-1].timestamp_ms) if events else (0, 0)
    return {id: EventCosts(await prices_between(conn, id, of_one, *times)) for id, of_one in slugs.items()}


async def spent_events(
    trees: Iterable[SpendTree], batch: TreeEvents, costs: Mapping[str, EventCosts]
) -> Mapping[str, Sequence[SpentEvent]]:
    """The amounts that the events and the withdrawals add, by the root of their tree, in the order of time."""
    by_root = {tree.root_id: tree for tree in trees}

    def of_trees() -> Mapping[str, Sequence[SpentEvent]]:
        spent: dict[str, list[SpentEvent]] = defaultdict(list)
        for event in batch.events:
            tree = by_root[event.root_id]
            key = tree.counting_key(event.api_key_prefix, batch.buckets)
            spent[event.root_id].append(_spent(tree, event, costs[event.workspace_id], key))
        for withdrawal in batch.withdrawals:
            spent[withdrawal.root_id].append(_withdrawn(withdrawal))
        for root_id in {withdrawal.root_id for withdrawal in batch.withdrawals}:
            spent[root_id].sort(key=attrgetter("at_ms"))
        return spent

    return await beside(OPERATOR, len(batch.events) + len(batch.withdrawals), of_trees)


def _spent(tree: SpendTree, event: TreeEvent, costs: EventCosts, key: Sequence[str]) -> SpentEvent:
    cost = costs.units_of(event)
    is_counted = cost is not None and cost[0] == tree.currency
    balance, draw = _draw(event)
    return SpentEvent(
        at_ms=event.timestamp_ms,
        key=event.idempotency_key,
        groups=(*tree.counting_groups(event.group_path), *key) if is_counted else (),
        units=cost[1] if cost is not None and is_counted else 0,
        balance=balance,
        draw=draw,
    )


def _draw(event: TreeEvent) -> tuple[str, int]:
    """The name of the balance that the event draws from, and the units; "" and 0 if from none.

    The event alone says it, and no list of balances, which may be older than this one. If its group is deleted, the
    sweep forgets what is drawn.
    """
    if event.draw is None or event.balance_group not in event.group_path.split("/"):
        return "", 0
    return balance_name(event.balance_group), int(event.draw)


def _withdrawn(withdrawal: TreeWithdrawal) -> SpentEvent:
    return SpentEvent(
        at_ms=withdrawal.timestamp_ms,
        key=withdrawal.key,
        groups=(),
        units=0,
        balance=balance_name(withdrawal.group_id),
        draw=withdrawal.units,
    )
