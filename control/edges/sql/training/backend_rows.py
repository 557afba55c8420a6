"""Queries on `training_backend`: what the trainer reported last. One row."""

from typing import Any

import orjson
from sqlalchemy import or_, select
from sqlalchemy.dialects import postgresql, sqlite

from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.training.tables import training_backend
from control.records.training import BackendRecord
from policy.training.resources import Host

_ROW = 1


async def find_backend(conn: Connection) -> BackendRecord | None:
    """None: no trainer has ever reported."""
    columns = (training_backend.c[name] for name in BackendRecord.__dataclass_fields__)
    row = (await conn.execute(select(*columns))).one_or_none()
    if row is None:
        return None
    hosts = tuple(map(Host.from_wire, orjson.loads(row.hosts)))
    return BackendRecord(row.trainer, row.backend, row.reason, row.has_sessions, hosts, row.reported_at_ms)


async def put_backend(tx: WriteTx, record: BackendRecord, silence_ms: int) -> bool:
    """Write a report. False if another trainer's is there that is not `silence_ms` old; nothing is written then."""
    values = {name: getattr(record, name) for name in BackendRecord.__dataclass_fields__}
    values["hosts"] = orjson.dumps([host.to_wire() for host in record.hosts]).decode()
    insert: Any = (sqlite if tx.conn.dialect.name == "sqlite" else postgresql).insert(training_backend)
    heard_ms = training_backend.c.reported_at_ms
    is_silent = ~heard_ms.between(record.reported_at_ms - silence_ms + 1, record.reported_at_ms + silence_ms - 1)
    statement = insert.values(id=_ROW, **values).on_conflict_do_update(
        index_elements=["id"], set_=values, where=or_(training_backend.c.trainer == record.trainer, is_silent)
    )
    return bool((await tx.conn.execute(statement)).rowcount)
