"""The amounts that events add to what the groups of their trees have spent.

See docs/reference/money.md#how-spend-is-counted.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from control.edges.sql.billing.price_rows import prices_between
from control.edges.sql.store import Connection
from control.long_work import OPERATOR, beside
from control.records.spend import SpendTree, SpentEvent, TreeEvent
from control.resources.billing.event_costs import EventCosts


async def costs_of(conn: Connection, events: Sequence[TreeEvent]) -> Mapping[str, EventCosts]:
    """The costs of these events, which are in the order of time, by workspace: by the prices of now."""
    slugs: dict[str, set[str]] = defaultdict(set)
    for event in events:
        slugs[event.workspace_id].add(event.model_slug)
    times = (events[0].timestamp_ms, events[-1].timestamp_ms) if events else (0, 0)
    return {id: EventCosts(await prices_between(conn, id, of_one, *times)) for id, of_one in slugs.items()}


async def spent_events(
    trees: Iterable[SpendTree], events: Sequence[TreeEvent], costs: Mapping[str, EventCosts]
) -> Mapping[str, Sequence[SpentEvent]]:
    """The amounts that the events add, by the root of their tree, in the order of time."""
    by_root = {tree.root_id: tree for tree in trees}

    def of_trees() -> Mapping[str, Sequence[SpentEvent]]:
        spent: dict[str, list[SpentEvent]] = defaultdict(list)
        for event in events:
            spent[event.root_id].append(_spent(by_root[event.root_id], event, costs[event.workspace_id]))
        return spent

    return await beside(OPERATOR, len(events), of_trees)


def _spent(tree: SpendTree, event: TreeEvent, costs: EventCosts) -> SpentEvent:
    cost = costs.units_of(event)
    if cost is None or cost[0] != tree.currency:
        return SpentEvent(event.timestamp_ms, event.idempotency_key, (), 0)
    groups = tree.counting_groups(event.group_path)
    return SpentEvent(event.timestamp_ms, event.idempotency_key, groups, cost[1])
