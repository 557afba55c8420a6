"""Decides by the policy replica which API keys may read `/metrics`. Used by the supervisor only."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from policy.credentials import KeyKind, digest_of, may_export_metrics
from proxy.edges.policy.supervisor.replica_listing import NoReplicaFileError, open_replica_listing
from proxy.exchange import PolicyUnavailableError


class MetricsKeys:
    """`confirm` refreshes the replica from control: an unknown key may have been minted just now."""

    def __init__(self, replica_path: Path, confirm: Callable[[], Awaitable[bool]]) -> None:
        self._replica_path = replica_path
        self._confirm = confirm

    async def may_export(self, key: str) -> bool:
        """Raises `PolicyUnavailableError` when the key is unknown and control cannot be reached."""
        digest = digest_of(key)
        kind = await asyncio.to_thread(self._kind_of, digest)
        if kind is None:
            if not await self._confirm():
                raise PolicyUnavailableError
            kind = await asyncio.to_thread(self._kind_of, digest)
        return kind is not None and may_export_metrics(kind)

    def _kind_of(self, digest: str) -> KeyKind | None:
        try:
            with open_replica_listing(self._replica_path, ()) as listing:
                caller = listing.directory.key_holder(digest)
        except NoReplicaFileError:
            raise PolicyUnavailableError from None
        return caller.key.kind if caller is not None else None
