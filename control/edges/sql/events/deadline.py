"""The deadline of transactions that stamp events: a quarter of the holdback (`clock.py` explains why this suffices).

See docs/reference/events-and-webhooks.md#the-holdback.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import text

from control.edges.sql.store import WriteTx
from control.errors import IngestTooSlowError

SHORTEST_HOLDBACK_S = 0.2
"""The shortest holdback with a guarantee: below it no transaction meets its deadline of a quarter. Tests go below."""
LONGEST_STATEMENT_S = 600.0


@asynccontextmanager
async def within_deadline(tx: WriteTx, holdback_s: float) -> AsyncIterator[None]:
    """Raise `IngestTooSlowError` at the end if what is within took too long. The transaction is then to roll back.

    It is checked at the end, because a cancelled SQLite statement may keep its lock. PostgreSQL aborts a statement that
    hangs by itself.
    """
    if holdback_s < SHORTEST_HOLDBACK_S:
        yield
        return
    began_s = time.monotonic()
    deadline_s = holdback_s / 4
    if tx.conn.dialect.name == "postgresql":
        limit_ms = str(int(min(deadline_s, LONGEST_STATEMENT_S) * 1000))
        await tx.conn.execute(text("SELECT set_config('statement_timeout', :ms, true)"), {"ms": limit_ms})
    yield
    if time.monotonic() - began_s > deadline_s:
        raise IngestTooSlowError
