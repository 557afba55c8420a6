"""Refreshes the keys of identity providers: every few minutes, and at once when a proxy met a key that it lacks.

Several processes may do so at once: each attempt is claimed in the database. Attempts on one provider keep a distance,
so tokens with made-up keys cannot have an issuer asked more often.

See docs/reference/management-api.md#identity-provider.
"""

import asyncio
import logging
from dataclasses import dataclass, field

from control.edges.sql.identity import provider_rows
from control.edges.sql.store import Store, WriteTx, now_ms
from control.errors import DatabaseUnavailableError
from control.records.identity.providers import IdentityProviderRecord
from control.resources.identity.key_source import Documents, fetch_keys
from control.resources.identity.providers import fetched_record

REFRESH_S = 300.0
RETRY_S = 30.0
"""Time between two attempts that nobody asked for, after one that succeeded and after one that failed."""
GAP_S = 5.0
"""The least time between the starts of two attempts on one provider."""
LONGEST_ATTEMPT_S = 12.0
"""Discovery and keys, and the two transactions. An attempt that takes longer has died with its process."""
_LOOK_EVERY_S = 5.0
_LOOK_AGAIN_S = 0.1
_AT_ONCE = 8
"""The most providers whose keys are fetched at once."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeyRefresher:
    """Refreshes keys. `refresh` may be called at any time, `run` once."""

    store: Store
    documents: Documents
    _under_way: dict[str, asyncio.Task[bool]] = field(default_factory=dict)
    """The attempts of this process, by provider."""

    async def refresh(self, id: str) -> bool:
        """Have the keys of a provider fetched, unless that was just done. Return whether the last attempt succeeded.

        False, too, if there is no such provider any more.
        """
        task = self._under_way.get(id)
        if task is None:
            task = asyncio.create_task(self._refresh(id, int(GAP_S * 1000)))
            self._under_way[id] = task
            task.add_done_callback(lambda _task: self._under_way.pop(id, None))
        return await asyncio.shield(task)

    async def run(self) -> None:
        """Refresh what is due, for ever."""
        while True:
            try:
                await self.refresh_due()
            except DatabaseUnavailableError as error:
                log.warning(
                    "Refreshing keys of identity providers failed (%s); proxies keep those that they have. Check the"
                    " database.",
                    error.reason,
                )
            await asyncio.sleep(_LOOK_EVERY_S)

    async def refresh_due(self) -> None:
        at_ms = now_ms()
        async with self.store.read() as conn:
            bounds = (at_ms - int(REFRESH_S * 1000), at_ms - int(RETRY_S * 1000))
            ids = await provider_rows.due_ids(conn, *bounds, _AT_ONCE)
        await asyncio.gather(*(self.refresh(id) for id in ids))

    async def close(self) -> None:
        """End the attempts that are under way, and close the source of documents."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.documents.close()

    async def _refresh(self, id: str, gap_ms: int) -> bool:
        async def claim(tx: WriteTx) -> IdentityProviderRecord | None:
            return await provider_rows.claim_provider(tx, id, tx.now_ms - gap_ms)

        claimed = await self.store.transact(claim)
        return await (self._last_outcome(id) if claimed is None else self._fetch(claimed))

    async def _fetch(self, claimed: IdentityProviderRecord) -> bool:
        fetched = await fetch_keys(self.documents, claimed.issuer, claimed.jwks_url)

        async def work(tx: WriteTx) -> None:
            present = await provider_rows.lock_provider(tx, claimed.workspace_id)
            if present is None or (present.id, present.jwks_url) != (claimed.id, claimed.jwks_url):
                return  # it was put anew or deleted meanwhile
            record = fetched_record(present, fetched, tx.now_ms)
            await provider_rows.put_provider(tx, record)
            if record.key_set != present.key_set:
                provider_rows.publish_provider(tx, record)

        await self.store.transact(work)
        if fetched.error and claimed.last_error is None:
            log.warning(
                "Keys of the identity provider of workspace %s cannot be refreshed (%s); proxies go on with those that"
                " they have, and cannot know new ones. Its owner checks issuer, jwks_url and TLS; it is tried again"
                " every %.0f s.",
                claimed.workspace_id,
                fetched.error,
                RETRY_S,
            )
        return not fetched.error

    async def _last_outcome(self, id: str) -> bool:
        """The outcome of the last attempt, once it has ended: another process may be at it."""
        while True:
            async with self.store.read() as conn:
                record = await provider_rows.find_by_id(conn, id)
            if record is None:
                return False
            age_s = (now_ms() - record.attempted_at_ms) / 1000
            if record.ended_at_ms >= record.attempted_at_ms or not 0 <= age_s < LONGEST_ATTEMPT_S:
                return record.last_error is None
            await asyncio.sleep(_LOOK_AGAIN_S)
