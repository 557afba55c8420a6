"""Queries on `training_backend`: what the trainer reported last."""

import orjson
from sqlalchemy import select

from control.edges.sql.store import Connection
from control.edges.sql.training.tables import training_backend
from control.resources.training.records import BackendRecord
from policy.training.resources import Host


async def find_backend(conn: Connection) -> BackendRecord | None:
    """None: no trainer has ever reported."""
    columns = (training_backend.c[name] for name in BackendRecord.__dataclass_fields__)
    row = (await conn.execute(select(*columns))).one_or_none()
    if row is None:
        return None
    hosts = tuple(map(Host.from_wire, orjson.loads(row.hosts)))
    return BackendRecord(row.trainer, row.backend, row.reason, row.has_sessions, hosts, row.reported_at_ms)
