"""The tiers of the model API: how many requests and tokens per minute a workspace may use.

A call to a PLATFORM_MODEL_API target also counts in its workspace's own pair of buckets, for all its groups together.

See docs/reference/limits.md#model-api-tiers.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from policy.limits.effective import Plan, plan_of_limits
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit

_FIGURES = re.compile(r"(?P<requests>[0-9]{1,15})/(?P<tokens>[0-9]{1,15})")


@dataclass(frozen=True, slots=True)
class Tier:
    """A workspace's limits for the model API in any rolling minute."""

    requests_per_minute: int
    tokens_per_minute: int


DEFAULT_TIERS = {
    "basic": Tier(15, 100_000),
    "verified": Tier(120, 500_000),
    "pro": Tier(120, 1_000_000),
}
LOWEST_TIER = "basic"
CUSTOM = "custom"
"""The tier `custom=requests/tokens` gives one workspace its own figures."""


class UnknownTierError(ValueError):
    """No tier has that name. The message lists the known ones."""

    def __init__(self, name: str, tiers: Mapping[str, Tier]) -> None:
        names = ", ".join(sorted(tiers))
        super().__init__(
            f"no tier is called {name!r}; known are {names}, and {CUSTOM}=REQUESTS/TOKENS for a workspace's own "
            "figures. TOLLGATE_MODEL_API_TIERS defines further ones, here and for the proxies"
        )


def parse_tiers(text: str) -> Mapping[str, Tier]:
    """Comma-separated `name=requests/tokens` per minute. Adds to the default tiers, or replaces those it names."""
    tiers = dict(DEFAULT_TIERS)
    for entry in filter(None, map(str.strip, text.split(","))):
        name, _, figures = entry.partition("=")
        tier = _tier(figures)
        if not name or tier is None:
            raise ValueError("expected name=requests/tokens, comma-separated, each 1 or more a minute")
        tiers[name] = tier
    return tiers


def check_tier(name: str, tiers: Mapping[str, Tier]) -> None:
    """Raise `UnknownTierError` unless `tiers` or the name itself gives figures."""
    if find_tier(name, tiers) is None:
        raise UnknownTierError(name, tiers)


def find_tier(name: str, tiers: Mapping[str, Tier]) -> Tier | None:
    """The figures of a workspace's tier. None if it has none."""
    kind, has_figures, figures = name.partition("=")
    return _tier(figures) if has_figures and kind == CUSTOM else tiers.get(name)


def tier_in_force(name: str, tiers: Mapping[str, Tier]) -> Tier:
    """The figures to enforce. A tier without figures counts as the lowest, never as unlimited."""
    return find_tier(name, tiers) or tiers[LOWEST_TIER]


def _tier(figures: str) -> Tier | None:
    match = _FIGURES.fullmatch(figures)
    if match is None or not int(match["requests"]) or not int(match["tokens"]):
        return None
    return Tier(int(match["requests"]), int(match["tokens"]))


def tier_plan(workspace_id: str, tier: Tier) -> Plan:
    """The plan that counts a call against its workspace's tier. No group's hash has this key: `tier` is no group id."""
    limits = (
        Limit(LimitType.REQUEST, Unit.MINUTE, tier.requests_per_minute),
        Limit(LimitType.TOKEN, Unit.MINUTE, tier.tokens_per_minute),
    )
    return plan_of_limits("model API", workspace_id, f"tg:{{tier|{workspace_id}}}", limits)
