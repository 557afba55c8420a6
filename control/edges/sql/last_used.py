"""Records when workspace keys were last used: in memory, written every 30 seconds, without delaying a request.

The use of federated keys arrives with billing events. A crash loses what was not written yet.
"""

import asyncio
from contextlib import suppress

from sqlalchemy import and_, bindparam, or_, update

from control.edges.sql.store import Store, now_ms
from control.edges.sql.tables import api_keys
from control.errors import DatabaseUnavailableError

INTERVAL_S = 30.0


class LastUsed:
    """Uses by key prefix."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._noted: dict[str, int] = {}

    def note(self, key_prefix: str) -> None:
        self._noted[key_prefix] = now_ms()

    async def write_periodically(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self.write()

    async def write(self) -> None:
        """Write the uses since the last write. They are kept while the database is unreachable."""
        if self._noted:
            with suppress(DatabaseUnavailableError):
                await self._write()

    async def _write(self) -> None:
        noted = [{"key": prefix, "used_ms": used_ms} for prefix, used_ms in self._noted.items()]
        column = api_keys.c.last_used_at_ms
        earlier = or_(column.is_(None), column < bindparam("used_ms"))
        statement = update(api_keys).where(and_(api_keys.c.prefix == bindparam("key"), earlier))
        async with self._store.write() as tx:
            await tx.conn.execute(statement.values(last_used_at_ms=bindparam("used_ms")), noted)
        for use in noted:
            if self._noted.get(str(use["key"])) == use["used_ms"]:
                del self._noted[str(use["key"])]
