"""The settings of a federated key: its end, the addresses and slugs it is good for, and limits of its own.

See docs/reference/management-api.md#api-keys.
"""

from dataclasses import dataclass
from typing import Any

from policy.limits.limit import Limit, limit_from_wire, limit_to_wire
from policy.spend.limits import SpendLimit, spend_limit_to_wire, spend_limits_from_wire

Wire = dict[str, Any]
MEMBERS = frozenset(("expires_at_ms", "disabled", "allowed_ips", "slugs", "rate_limits", "spend_limits"))


@dataclass(frozen=True, slots=True)
class KeySettings:
    """The settings of one key. With all defaults, the key may do what its group may."""

    expires_at_ms: int | None = None
    """The time (ms since 1970) from which the key is refused."""
    disabled: bool = False
    allowed_ips: tuple[str, ...] = ()
    """The networks that may use the key, in canonical CIDR text; none: all."""
    slugs: tuple[str, ...] | None = None
    """The slugs that the key may call, of those that its group may call. None: all of them."""
    rate_limits: tuple[Limit, ...] = ()
    """The key's own limits, over all its slugs."""
    spend_limits: tuple[SpendLimit, ...] = ()

    @property
    def has_limits(self) -> bool:
        """True if limits of the key's own bind its calls."""
        return bool(self.rate_limits or self.spend_limits)


NO_SETTINGS = KeySettings()


def key_settings_to_wire(settings: KeySettings) -> Wire:
    """Encode what differs from the default, for the database and the snapshot."""
    wire: Wire = {}
    if settings.expires_at_ms is not None:
        wire["expires_at_ms"] = settings.expires_at_ms
    if settings.disabled:
        wire["disabled"] = True
    if settings.allowed_ips:
        wire["allowed_ips"] = list(settings.allowed_ips)
    if settings.slugs is not None:
        wire["slugs"] = list(settings.slugs)
    if settings.rate_limits:
        wire["rate_limits"] = [limit_to_wire(limit) for limit in settings.rate_limits]
    if settings.spend_limits:
        wire["spend_limits"] = [spend_limit_to_wire(limit) for limit in settings.spend_limits]
    return wire


def key_settings_from_wire(wire: Wire) -> KeySettings:
    """Decode settings.

    Raises ValueError, KeyError, TypeError or AttributeError for what this version does not know: to ignore it would
    widen the key.
    """
    if unknown := wire.keys() - MEMBERS:
        raise ValueError(f"unknown members: {', '.join(sorted(unknown))}")
    slugs = wire.get("slugs")
    return KeySettings(
        expires_at_ms=wire.get("expires_at_ms"),
        disabled=wire.get("disabled", False),
        allowed_ips=tuple(wire.get("allowed_ips", ())),
        slugs=None if slugs is None else tuple(slugs),
        rate_limits=tuple([limit_from_wire(limit) for limit in wire.get("rate_limits", ())]),
        spend_limits=spend_limits_from_wire(wire.get("spend_limits", ())),
    )
