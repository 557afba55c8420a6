"""Keys that may do no more than another, member by member."""

from dataclasses import replace
from decimal import Decimal
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.keys.settings import NO_SETTINGS, KeySettings
from policy.keys.within import excess_of
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from policy.spend.limits import SpendLimit

RATE = Limit(LimitType.REQUEST, Unit.MINUTE, 5)
SPEND = SpendLimit(Unit.DAY, Decimal(5), "EUR")
BOUNDS = KeySettings(
    expires_at_ms=1000,
    allowed_ips=("203.0.113.0/24", "2001:db8::/32"),
    slugs=("acme/chat", "acme/code"),
    rate_limits=(RATE,),
    spend_limits=(SPEND,),
)
BEYOND: list[tuple[str, Any]] = [
    ("expires_at", {"expires_at_ms": None}),
    ("expires_at", {"expires_at_ms": 1001}),
    ("allowed_ips", {"allowed_ips": ()}),
    ("allowed_ips", {"allowed_ips": ("203.0.112.0/23",)}),
    ("allowed_ips", {"allowed_ips": ("203.0.113.1/32", "::/0")}),
    ("allowed_ips", {"allowed_ips": ("0.0.0.0/0",)}),
    ("slugs", {"slugs": None}),
    ("slugs", {"slugs": ("acme/chat", "acme/other")}),
    ("rate_limits", {"rate_limits": ()}),
    ("rate_limits", {"rate_limits": (replace(RATE, threshold=6),)}),
    ("spend_limits", {"spend_limits": ()}),
    ("spend_limits", {"spend_limits": (replace(SPEND, amount=Decimal(6)),)}),
]


@pytest.mark.parametrize(("member", "change"), BEYOND)
def test_a_key_with_more_is_beyond_in_that_member(member: str, change: dict[str, Any]) -> None:
    assert excess_of(replace(BOUNDS, **change), BOUNDS) == member


WITHIN: list[dict[str, Any]] = [
    {},
    {"expires_at_ms": 999},
    {"expires_at_ms": 0},
    {"allowed_ips": ("203.0.113.7/32",)},
    {"allowed_ips": ("2001:db8::/48", "203.0.113.0/24")},
    {"slugs": ()},
    {"slugs": ("acme/code",)},
    {"disabled": True},
]


@pytest.mark.parametrize("change", WITHIN)
def test_a_key_with_as_much_or_less_is_within(change: dict[str, Any]) -> None:
    assert excess_of(replace(BOUNDS, **change), BOUNDS) is None


def test_everything_is_within_a_key_on_which_nothing_is_set() -> None:
    for settings in (NO_SETTINGS, BOUNDS):
        assert excess_of(settings, NO_SETTINGS) is None
    assert excess_of(NO_SETTINGS, BOUNDS) is not None


NETWORKS = st.lists(st.sampled_from(["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "::/0", "2001:db8::/32"]), max_size=3)
ADDRESSES = [ip_address(text) for text in ("10.0.0.1", "10.1.0.1", "10.1.2.3", "192.0.2.1", "::1", "2001:db8::1")]


@given(NETWORKS, NETWORKS)
def test_no_address_reaches_a_key_that_does_not_reach_the_one_it_is_within(inner: list[str], outer: list[str]) -> None:
    def admits(networks: list[str], address: Any) -> bool:
        return not networks or any(address in ip_network(text) for text in networks)

    settings = KeySettings(allowed_ips=tuple(inner))
    if excess_of(settings, KeySettings(allowed_ips=tuple(outer))) is None:
        assert all(admits(outer, address) for address in ADDRESSES if admits(inner, address))
