"""The spend of a key, of each spend limit of its own (docs/reference/management-api.md#spend-of-a-key)."""

from collections.abc import Sequence

from control.records.policy import KeyRecord
from control.resources.spend.group_spend import BoundSpend, SpendSource, read_spend
from policy.spend.effective import KeySpend, SpendPlan
from policy.spend.key_names import key_name
from policy.spend.spend_hash import spend_key


async def read_key_spend(source: SpendSource | None, key: KeyRecord) -> Sequence[BoundSpend]:
    """The spend of each limit, by all keys of its rotation. Raises as `read_spend` does."""
    limits = key.key_settings.spend_limits
    if not limits or key.spend_root_id is None:
        return []
    own = KeySpend(key_name(key.bucket or key.prefix), limits)
    plan = SpendPlan(key.group_id or "", spend_key(key.spend_root_id), (own.name,), limits[0].currency, own.bounds)
    return await read_spend(source, plan)
