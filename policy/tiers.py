"""The model API's own ceilings: requests and tokens per minute of a workspace, by its tier (spec 8.2; decisions 3).

A call to a PLATFORM_MODEL_API target is taken from these buckets too: one pair per workspace, apart from its groups.
"""

from dataclasses import dataclass

from policy.effective import Bound, Plan
from policy.limits import Limit, LimitType, Unit


@dataclass(frozen=True, slots=True)
class Tier:
    """What a workspace may ask of the model API in any rolling minute."""

    requests_per_minute: int
    tokens_per_minute: int


DEFAULT_TIERS = {
    "basic": Tier(15, 100_000),
    "verified": Tier(120, 500_000),
    "pro": Tier(120, 1_000_000),
}


def tier_plan(workspace_id: str, tier: Tier) -> Plan:
    """The plan that counts a call against its workspace's tier. Its hash is nobody's group's: `tier` has no slug."""
    limits = (
        Limit(LimitType.REQUEST, Unit.MINUTE, tier.requests_per_minute),
        Limit(LimitType.TOKEN, Unit.MINUTE, tier.tokens_per_minute),
    )
    bounds = tuple(Bound(limit, workspace_id, workspace_id) for limit in limits)
    return Plan("model API", workspace_id, f"tg:{{tier|{workspace_id}}}", bounds)
