"""Decides which series of `/metrics` a credential may read, by the policy replica. Used by the supervisor only."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from policy.credentials import digest_of, equals_token, may_export_metrics
from proxy.directory_values import KeyHolder
from proxy.edges.policy.supervisor.replica_listing import NoReplicaFileError, open_replica_listing
from proxy.errors import PolicyUnavailableError
from runtime.metrics_text import ALL_WORKSPACES


class MetricsKeys:
    """`confirm` refreshes the replica from control: an unknown key may have been minted just now."""

    def __init__(self, replica_path: Path, metrics_token: str, confirm: Callable[[], Awaitable[bool]]) -> None:
        self._replica_path = replica_path
        self._metrics_token = metrics_token
        self._confirm = confirm

    async def workspace_shown(self, credential: str) -> str | None:
        """The workspace whose series the credential may read: every one with the operator's token. None: of none.

        Raises `PolicyUnavailableError` when the key is unknown and control cannot be reached.
        """
        if equals_token(credential, self._metrics_token):
            return ALL_WORKSPACES
        digest = digest_of(credential)
        holder = await asyncio.to_thread(self._holder_of, digest)
        if holder is None:
            if not await self._confirm():
                raise PolicyUnavailableError
            holder = await asyncio.to_thread(self._holder_of, digest)
        if holder is None or not may_export_metrics(holder.key.kind):
            return None
        return holder.key.workspace_id

    def _holder_of(self, digest: str) -> KeyHolder | None:
        try:
            with open_replica_listing(self._replica_path, ()) as listing:
                return listing.directory.key_holder(digest)
        except NoReplicaFileError:
            raise PolicyUnavailableError from None
