"""Comparison of keys: a key makes, replaces and revokes only those that may do no more than itself.

See docs/reference/console.md#keys-of-customers.
"""

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network

from policy.keys.settings import KeySettings

Network = IPv4Network | IPv6Network


def excess_of(settings: KeySettings, bounds: KeySettings) -> str | None:
    """The first member by which a key with `settings` may do more than one with `bounds`; None if it may not.

    Limits of the key's own count as equal only if they are: whether both keys share the counters is another question.
    """
    end_ms = settings.expires_at_ms
    if bounds.expires_at_ms is not None and (end_ms is None or end_ms > bounds.expires_at_ms):
        return "expires_at"
    if bounds.allowed_ips and not _are_within(settings.allowed_ips, bounds.allowed_ips):
        return "allowed_ips"
    if bounds.slugs is not None and (settings.slugs is None or not set(settings.slugs) <= set(bounds.slugs)):
        return "slugs"
    if bounds.rate_limits and settings.rate_limits != bounds.rate_limits:
        return "rate_limits"
    if bounds.spend_limits and settings.spend_limits != bounds.spend_limits:
        return "spend_limits"
    return None


def has_own_limits(settings: KeySettings) -> bool:
    """Return whether calls with the key count in a bucket of its own, too."""
    return bool(settings.rate_limits or settings.spend_limits)


def _are_within(networks: Sequence[str], bounds: Sequence[str]) -> bool:
    """Return whether each network is inside one of `bounds`. No networks are all addresses."""
    outer_networks = [ip_network(text) for text in bounds]
    return bool(networks) and all(_is_within(ip_network(text), outer_networks) for text in networks)


def _is_within(network: Network, bounds: Sequence[Network]) -> bool:
    return any(
        network.version == outer.version and network.subnet_of(outer)  # type: ignore[arg-type]  # of one version
        for outer in bounds
    )
