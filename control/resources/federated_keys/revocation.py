"""The end of a federated key, and of the counters of its own limits, which it may share with others.

See docs/reference/management-api.md#federated-keys.
"""

import asyncio
from contextlib import suppress

from control.edges.sql import group_rows, key_rows
from control.edges.sql.store import Store
from control.errors import DatabaseUnavailableError, UsageUnavailableError
from control.records.policy import KeyRecord
from control.records.usage import Bucket
from control.resources.group_usage import UsageSource
from control.resources.keys import KeyOwner, revoke_key
from policy.spend.key_names import key_name
from policy.spend.spend_hash import spend_key

_FORGET_TIMEOUT_S = 2.0


async def revoke_group_key(store: Store, usage: UsageSource | None, owner: KeyOwner, prefix: str) -> None:
    """Revoke a group's key for good; with the last one of a rotation its counters in Redis go, to save memory.

    What it has spent stays until its windows are past.
    """
    record = await revoke_key(store, owner, prefix)
    if usage is not None and record.settings is not None:
        with suppress(UsageUnavailableError, DatabaseUnavailableError, TimeoutError):
            async with asyncio.timeout(_FORGET_TIMEOUT_S):
                await _forget_counters(store, usage, record)


async def _forget_counters(store: Store, usage: UsageSource, record: KeyRecord) -> None:
    bucket = record.bucket or record.prefix
    async with store.read() as conn:
        group = await group_rows.find_group(conn, record.workspace_id, record.group_id or "")
        is_shared = await key_rows.is_bucket_used(conn, record.group_id or "", bucket)
    if group is not None and not is_shared:
        await usage.forget([Bucket(spend_key(group.root_id), key_name(bucket))])
