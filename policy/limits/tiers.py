"""The model API's own ceilings: requests and tokens per minute of a workspace, by its tier.

A call to a PLATFORM_MODEL_API target is taken from these buckets too: one pair per workspace, apart from its groups.

See docs/reference/limits.md#model-api-tiers.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from policy.limits.effective import Bound, Plan
from policy.limits.limit import Limit, LimitType, Unit

_FIGURES = re.compile(r"(?P<requests>[0-9]{1,15})/(?P<tokens>[0-9]{1,15})")


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
LOWEST_TIER = "basic"
CUSTOM = "custom"
"""`custom=requests/tokens` as a workspace's tier carries the figures of that workspace alone."""


class UnknownTierError(ValueError):
    """No tier has that name; the message lists those that there are."""

    def __init__(self, name: str, tiers: Mapping[str, Tier]) -> None:
        known = ", ".join(sorted(tiers))
        super().__init__(
            f"no tier is called {name!r}; known are {known}, and {CUSTOM}=REQUESTS/TOKENS for a workspace's own "
            "figures. TOLLGATE_MODEL_API_TIERS defines further ones, here and for the proxies"
        )


def parse_tiers(text: str) -> Mapping[str, Tier]:
    """`name=requests/tokens` per minute, comma-separated, beside or instead of the defaults of the same name."""
    tiers = dict(DEFAULT_TIERS)
    for entry in filter(None, map(str.strip, text.split(","))):
        name, _, figures = entry.partition("=")
        tier = _tier(figures)
        if not name or tier is None:
            raise ValueError("expected name=requests/tokens, comma-separated, each 1 or more a minute")
        tiers[name] = tier
    return tiers


def check_tier(name: str, tiers: Mapping[str, Tier]) -> None:
    """Raise `UnknownTierError` unless `name` has figures, in `tiers` or of its own."""
    if find_tier(name, tiers) is None:
        raise UnknownTierError(name, tiers)


def find_tier(name: str, tiers: Mapping[str, Tier]) -> Tier | None:
    """The figures of a workspace's tier; None when nobody has set any."""
    kind, has_figures, figures = name.partition("=")
    return _tier(figures) if has_figures and kind == CUSTOM else tiers.get(name)


def tier_in_force(name: str, tiers: Mapping[str, Tier]) -> Tier:
    """The same; a tier without figures counts as the lowest, never as "unlimited"."""
    return find_tier(name, tiers) or tiers[LOWEST_TIER]


def _tier(figures: str) -> Tier | None:
    match = _FIGURES.fullmatch(figures)
    if match is None or not int(match["requests"]) or not int(match["tokens"]):
        return None
    return Tier(int(match["requests"]), int(match["tokens"]))


def tier_plan(workspace_id: str, tier: Tier) -> Plan:
    """The plan that counts a call against its workspace's tier. Its hash is nobody's group's: `tier` has no slug."""
    limits = (
        Limit(LimitType.REQUEST, Unit.MINUTE, tier.requests_per_minute),
        Limit(LimitType.TOKEN, Unit.MINUTE, tier.tokens_per_minute),
    )
    bounds = tuple(Bound(limit, workspace_id, workspace_id) for limit in limits)
    return Plan("model API", workspace_id, f"tg:{{tier|{workspace_id}}}", bounds)
