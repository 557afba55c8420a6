"""The trees with a HARD spend limit, by whether all reservations are known to be in their hash.

The states are described in `control/records/spend.py`.

See docs/reference/money.md#how-spend-is-counted.
"""

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.dialects import postgresql, sqlite

from control.edges.sql.one_of import one_of
from control.edges.sql.spend.tables import spend_rebuilds
from control.edges.sql.store import Connection, WriteTx
from control.records.spend import COMPLETE, DROPPED


async def hard_trees(conn: Connection) -> dict[str, str]:
    """The state of each tree, by its root."""
    return dict(map(tuple, await conn.execute(select(spend_rebuilds.c.root_id, spend_rebuilds.c.state))))


async def put_states(tx: WriteTx, states: Mapping[str, str]) -> None:
    """Set the states of these trees."""
    if not states:
        return
    dialect: Any = sqlite if tx.conn.dialect.name == "sqlite" else postgresql
    insert = dialect.insert(spend_rebuilds)
    statement = insert.on_conflict_do_update(index_elements=["root_id"], set_={"state": insert.excluded.state})
    await tx.conn.execute(statement, [{"root_id": root_id, "state": state} for root_id, state in states.items()])


async def end_wait(tx: WriteTx, root_id: str, state: str) -> None:
    """Note that a tree waits no longer, unless it waits for something else now than this state says."""
    table = spend_rebuilds
    await tx.conn.execute(
        table.update().where(table.c.root_id == root_id, table.c.state == state).values(state=COMPLETE)
    )


async def forget_dropped(tx: WriteTx, root_ids: Collection[str]) -> None:
    """Forget these trees where they still are DROPPED."""
    table = spend_rebuilds
    await tx.conn.execute(delete(table).where(one_of(table.c.root_id, root_ids), table.c.state == DROPPED))
