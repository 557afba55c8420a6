"""A workspace's tier is a name with figures or its own figures. It is never unlimited."""

import pytest

from policy.limits.tiers import DEFAULT_TIERS, Tier, UnknownTierError, check_tier, parse_tiers, tier_in_force


def test_custom_figures_win_over_the_setting_and_the_setting_over_the_defaults() -> None:
    tiers = parse_tiers("acme=500/2000000, pro=1/2")
    assert tier_in_force("custom=600/9000", tiers) == Tier(600, 9000)
    assert tier_in_force("acme", tiers) == Tier(500, 2_000_000)
    assert tier_in_force("pro", tiers) == Tier(1, 2)


@pytest.mark.parametrize(
    "name", ["", "gold", "custom", "custom=1", "custom=0/1", "custom=1/0", "custom=-1/1", "pro=9/9"]
)
def test_tier_without_figures_is_unknown_and_counts_as_the_lowest(name: str) -> None:
    with pytest.raises(UnknownTierError, match="known are basic, pro, verified"):
        check_tier(name, DEFAULT_TIERS)
    assert tier_in_force(name, DEFAULT_TIERS) == DEFAULT_TIERS["basic"]
