"""The sums of what is drawn from the prepaid balances of a tree, by the ledger.

See docs/reference/money.md#how-spend-is-counted.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from sqlalchemy import select, text

from control.edges.sql.events.partitions import part_of, partitions_of
from control.edges.sql.group_rows import balance_of
from control.edges.sql.spend.balance_rows import drawn_in_tree
from control.edges.sql.spend.counted_trees import units_withdrawn
from control.edges.sql.spend.tables import IS_WITHDRAWAL, balance_credits
from control.edges.sql.store import Connection
from control.edges.sql.tables import HAS_BALANCE, groups
from control.records.spend import SpendTree
from policy.spend.balances import Balance

_FAR_MS = 1 << 62
_CHUNK_DIGITS = 12
_DRAW_DIGITS = 4 * _CHUNK_DIGITS
"""More than any draw has. SQLite has no numbers for them, so they are added in chunks."""
_PADDED = {
    "sqlite": f"substr('{'0' * _DRAW_DIGITS}' || e.draw, -{_DRAW_DIGITS})",
    "postgresql": f"lpad(e.draw, {_DRAW_DIGITS}, '0')",
}


async def balances_of_tree(conn: Connection, root_id: str) -> dict[str, Balance]:
    """The balance of each group of the tree that has one, by group."""
    query = select(groups.c.id, groups.c.balance).where(groups.c.root_id == root_id, HAS_BALANCE)
    rows = [(id, balance_of(text)) for id, text in await conn.execute(query)]
    return {id: balance for id, balance in rows if balance is not None}


async def drawn_through(conn: Connection, tree: SpendTree, through_ms: int) -> Mapping[str, int]:
    """The units (10^-22) drawn from each balance of the tree through this time, withdrawals included, by group.

    Events and withdrawals through this time must be final. The groups need have no balance now: in a database that was
    set back, their events may come before their credits do.
    """
    # The connection sees one snapshot: a draw is in the ledger if and only if its event is there.
    drawn = await drawn_in_tree(conn, tree.root_id)
    for group_id, units in (await _withdrawn(conn, tree, through_ms)).items():
        drawn[group_id] = drawn.get(group_id, 0) + units
    if drawn:
        for group_id, units in (await _drawn_after(conn, tree, through_ms)).items():
            if group_id in drawn:  # the workspace has other trees
                drawn[group_id] -= units
    return drawn


async def _withdrawn(conn: Connection, tree: SpendTree, through_ms: int) -> Mapping[str, int]:
    credits = balance_credits.c
    query = (
        select(credits.group_id, credits.amount)
        .join(groups, groups.c.id == credits.group_id)
        .where(groups.c.root_id == tree.root_id, IS_WITHDRAWAL, credits.timestamp_ms <= through_ms)
    )
    withdrawn: dict[str, int] = defaultdict(int)
    for group_id, amount in await conn.execute(query):
        withdrawn[group_id] += units_withdrawn(amount)
    return withdrawn


async def _drawn_after(conn: Connection, tree: SpendTree, through_ms: int) -> Mapping[str, int]:
    """The draws of the events of the workspace after this time, by group."""
    part = part_of(await partitions_of(conn), through_ms + 1, _FAR_MS)
    if part is None:
        return {}
    padded = _PADDED[conn.dialect.name]
    starts = range(1, _DRAW_DIGITS, _CHUNK_DIGITS)
    chunks = ", ".join(f"sum(CAST(substr({padded}, {start}, {_CHUNK_DIGITS}) AS BIGINT))" for start in starts)
    query = (
        f"SELECT e.balance_group, {chunks} FROM {part.sql} AS e"  # noqa: S608 (ours)
        " WHERE e.workspace_id = :workspace AND e.timestamp_ms > :through AND e.draw IS NOT NULL"
        " GROUP BY e.balance_group"
    )
    values = {"workspace": tree.workspace_id, "through": through_ms, **part.bounds}
    return {group_id: _joined(sums) for group_id, *sums in await conn.execute(text(query), values)}


def _joined(sums: Sequence[int]) -> int:
    units = 0
    for chunk in sums:
        units = units * 10**_CHUNK_DIGITS + int(chunk)
    return units
