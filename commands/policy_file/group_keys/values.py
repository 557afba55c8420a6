"""A key of a group as a policy file and the API describe it, in the same terms. Pure.

See docs/reference/policy-files.md#keys.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from policy.keys.networks import canonical_network
from policy.limits.limit import Limit, SlugLimits, check_slug_limits, limit_of, limit_to_wire
from policy.spend.limits import (
    SpendEnforcement,
    SpendLimit,
    check_spend_limits,
    spend_limit_from_wire,
    spend_limit_to_wire,
)

ANY = "any"
NEVER = "never"
Settings = Mapping[str, Any]
"""Members of a key's settings by name, as values that can be compared. None: no restriction."""


@dataclass(frozen=True, slots=True)
class GroupKey:
    """A key of the group with this external id. A file names it by `name` or by `prefix`.

    `settings`: of a file, those that it names. `state`: of a key of the workspace.
    """

    group: str
    name: str | None = None
    prefix: str | None = None
    settings: Settings = field(default_factory=dict)
    state: str = "ACTIVE"

    @property
    def key(self) -> str:
        return f"{self.group}/{self.prefix if self.name is None else self.name}"

    @property
    def is_in_use(self) -> bool:
        """Return whether neither its end nor a rotation has retired it."""
        return self.state not in ("EXPIRED", "REPLACED")


class SettingError(ValueError):
    """A setting has no meaning. `name`: which one."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name


def settings_from_wire(item: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a file or the API names. Raises SettingError."""
    settings: dict[str, Any] = {}
    for name, read in _READERS.items():
        if name in item:
            try:
                settings[name] = read(item[name])
            except ValueError as error:
                raise SettingError(name, str(error)) from None
    return settings


def settings_to_wire(settings: Settings) -> dict[str, Any]:
    """The same members as the API takes them."""
    return {name: _WRITERS[name](value) for name, value in settings.items()}


def restrictions(settings: Settings) -> dict[str, Any]:
    """The settings that differ from those of a key on which nothing is set."""
    return {name: value for name, value in settings.items() if value not in (None, False, ())}


def _end(text: str | None) -> int | None:
    """Epoch milliseconds."""
    if text in (None, NEVER):
        return None
    try:
        moment = datetime.fromisoformat(str(text))
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        return round(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ValueError("must be ISO 8601, such as 2027-01-31 or 2027-01-31T08:00:00Z, or never") from None


def _end_text(end_ms: int | None) -> str | None:
    if end_ms is None:
        return None
    return datetime.fromtimestamp(end_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _networks(texts: Sequence[str] | None) -> tuple[str, ...] | None:
    return _restricted([ANY] if texts is None else [text if text == ANY else canonical_network(text) for text in texts])


def _slug_names(slugs: Sequence[str] | None) -> tuple[str, ...] | None:
    return _restricted([ANY] if slugs is None else slugs)


def _restricted(items: Sequence[str]) -> tuple[str, ...] | None:
    if not items:
        raise ValueError(f"must not be empty; [{ANY}] takes the restriction away")
    if ANY in items and len(items) > 1:
        raise ValueError(f"{ANY} stands alone")
    return None if ANY in items else tuple(sorted(set(items)))


def _rates(items: Sequence[Mapping[str, Any]]) -> tuple[Limit, ...]:
    limits = [limit_of(item["type"], item["unit"], item["threshold"]) for item in items]
    check_slug_limits(SlugLimits("rate_limits", tuple(limits)))
    return tuple(sorted(limits, key=lambda limit: limit.type))


def _spend(items: Sequence[Mapping[str, Any]]) -> tuple[SpendLimit, ...]:
    soft = {"enforcement": SpendEnforcement.SOFT.value}
    limits = [spend_limit_from_wire({**soft, **item, "amount": str(item["amount"])}) for item in items]
    check_spend_limits(limits)
    return tuple(sorted(limits, key=lambda limit: limit.unit))


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "expires_at": _end,
    "disabled": bool,
    "allowed_ips": _networks,
    "slugs": _slug_names,
    "rate_limits": _rates,
    "spend_limits": _spend,
}
_WRITERS: Mapping[str, Callable[[Any], Any]] = {
    "expires_at": _end_text,
    "disabled": bool,
    "allowed_ips": lambda networks: None if networks is None else list(networks),
    "slugs": lambda slugs: None if slugs is None else list(slugs),
    "rate_limits": lambda limits: list(map(limit_to_wire, limits)),
    "spend_limits": lambda limits: list(map(spend_limit_to_wire, limits)),
}
