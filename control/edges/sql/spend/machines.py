"""The machines of the proxy, by the last that each told: the incarnations of its workers that may still give events."""

from collections.abc import Collection
from typing import Any

import orjson
from sqlalchemy import delete, select
from sqlalchemy.dialects import postgresql, sqlite

from control.edges.sql.spend.tables import spend_machines
from control.edges.sql.store import Connection, WriteTx


async def put_machine(tx: WriteTx, machine: str, incarnations: Collection[str]) -> None:
    """Keep what a machine tells now. It replaces what it told before."""
    dialect: Any = sqlite if tx.conn.dialect.name == "sqlite" else postgresql
    values = {"incarnations": orjson.dumps(sorted(incarnations)).decode(), "reported_at_ms": tx.now_ms}
    statement = dialect.insert(spend_machines).values(machine=machine, **values)
    await tx.conn.execute(statement.on_conflict_do_update(index_elements=["machine"], set_=values))


async def named_incarnations(conn: Connection) -> set[str]:
    """The incarnations that any machine names."""
    texts = (await conn.execute(select(spend_machines.c.incarnations))).scalars()
    return {incarnation for text in texts for incarnation in orjson.loads(text)}


async def silent_machines(conn: Connection, before_ms: int) -> list[str]:
    """The machines that have told nothing since then."""
    query = select(spend_machines.c.machine).where(spend_machines.c.reported_at_ms < before_ms)
    return list((await conn.execute(query)).scalars())


async def delete_machines(tx: WriteTx, machines: Collection[str], before_ms: int) -> None:
    """Delete these machines, unless they have told something since then."""
    table = spend_machines
    await tx.conn.execute(
        delete(table).where(table.c.machine.in_(sorted(machines)), table.c.reported_at_ms < before_ms)
    )
