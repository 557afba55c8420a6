"""The machines of the proxy, by the last that each told: the incarnations of its workers that may still give events.

See docs/reference/money.md#how-spend-is-counted.
"""

from collections.abc import Mapping
from typing import Any

import orjson
from sqlalchemy import delete, select
from sqlalchemy.dialects import postgresql, sqlite

from control.edges.sql.spend.tables import spend_machines
from control.edges.sql.store import Connection, WriteTx
from control.records.spend import ProxyMachine


async def machine_of(conn: Connection, name: str) -> ProxyMachine | None:
    """Return what a machine told last; None if it told nothing, or is gone."""
    row = (await conn.execute(select(spend_machines).where(spend_machines.c.machine == name))).first()
    return None if row is None else _machine(row)


async def all_machines(conn: Connection) -> list[ProxyMachine]:
    """All machines that may still give events, by name."""
    return [_machine(row) for row in await conn.execute(select(spend_machines).order_by(spend_machines.c.machine))]


async def put_machine(
    tx: WriteTx, name: str, incarnations: frozenset[str], rebuilt: Mapping[str, str] | None = None
) -> None:
    """Keep what a machine tells now. It replaces what it told before."""
    dialect: Any = sqlite if tx.conn.dialect.name == "sqlite" else postgresql
    values = {
        "incarnations": orjson.dumps(sorted(incarnations)).decode(),
        "reported_at_ms": tx.now_ms,
        "rebuilt": orjson.dumps(rebuilt or {}, option=orjson.OPT_SORT_KEYS).decode(),
    }
    statement = dialect.insert(spend_machines).values(machine=name, **values)
    await tx.conn.execute(statement.on_conflict_do_update(index_elements=["machine"], set_=values))


async def named_incarnations(conn: Connection) -> set[str]:
    """The incarnations that any machine names."""
    texts = (await conn.execute(select(spend_machines.c.incarnations))).scalars()
    return {incarnation for text in texts for incarnation in orjson.loads(text)}


async def delete_machine(tx: WriteTx, name: str) -> None:
    """Delete a machine: no incarnation of it gives events any more."""
    await tx.conn.execute(delete(spend_machines).where(spend_machines.c.machine == name))


def _machine(row: Any) -> ProxyMachine:
    return ProxyMachine(
        name=row.machine,
        incarnations=frozenset(orjson.loads(row.incarnations)),
        rebuilt=orjson.loads(row.rebuilt),
        reported_at_ms=row.reported_at_ms,
    )
