"""The `degraded` list of `/readyz`: control serves, but something that others depend on does not work.

The checks run at most once a second, however often `/readyz` is asked.
"""

import time
from collections.abc import Sequence
from typing import Protocol

from control.edges.sql import secret_rows
from control.edges.sql.store import Connection, Store, current_revision
from policy.sealing import SealedWithUnknownKeyError, unseal

KEPT_S = 1.0
READ_ONLY_REMEDY = "Free space, remount the disk, or point TOLLGATE_DATABASE_URL to the primary"
_SECRETS_CHECKED = 100
_NO_REDIS = "TOLLGATE_REDIS_URL is not set: no hints, no usage figures, request limits count per process"


class Probe(Protocol):
    async def trouble(self, revision: int) -> str: ...


class ReadinessChecks:
    """`redis`: None where control runs without one. `keys`: of TOLLGATE_SECRET_KEY."""

    def __init__(self, store: Store, keys: Sequence[bytes], redis: Probe | None) -> None:
        self._store = store
        self._keys = keys
        self._redis = redis
        self._degraded: list[str] = []
        self._checked_at_s = float("-inf")

    async def degraded(self) -> list[str]:
        """One `name: text` for each thing that does not work. `DatabaseUnavailableError`: control is not ready."""
        async with self._store.read() as conn:
            revision = await current_revision(conn)
            if time.monotonic() - self._checked_at_s <= KEPT_S:
                return self._degraded
            self._checked_at_s = time.monotonic()
            redis = await self._redis.trouble(revision) if self._redis is not None else _NO_REDIS
            secrets = await self._secrets_trouble(conn)
        reason = await self._store.write_trouble()
        unwritable = reason and f"{reason}. {READ_ONLY_REMEDY}"
        troubles = {"database_read_only": unwritable, "redis": redis, "secrets": secrets}
        self._degraded = [f"{name}: {text}" for name, text in troubles.items() if text]
        return self._degraded

    async def _secrets_trouble(self, conn: Connection) -> str:
        newest = await secret_rows.newest(conn, _SECRETS_CHECKED)
        unreadable = sum(not self._can_unseal(record.id, record.ciphertext) for record in newest)
        if not unreadable:
            return ""
        return (
            f"{unreadable} of the newest {len(newest)} secrets cannot be opened. Put their key into TOLLGATE_SECRET_KEY"
        )

    def _can_unseal(self, id: str, ciphertext: str) -> bool:
        try:
            unseal(self._keys, id, ciphertext)
        except SealedWithUnknownKeyError:
            return False
        return True
