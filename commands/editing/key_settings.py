"""The settings of a federated key: their flags, changes of their lists, its state as people read it.

See docs/reference/management-api.md#settings-of-a-key.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from commands.editing.known_names import slugs as known_slugs
from commands.editing.spend_limits import changed_spend_limits, parse_spend_limits, spend_limit_text
from commands.times import end_time, span_s, until_text
from policy.limits.kinds import RATE_UNITS, LimitType

T = TypeVar("T")
ANY = "any"
NEVER = "never"
_RATE = re.compile(rf"({'|'.join(LimitType)})/({'|'.join(RATE_UNITS)})=([0-9]{{1,16}}|none)", re.IGNORECASE)
_EXPECTED_RATE = "expected TYPE/UNIT=N, such as REQUEST/MINUTE=60; none in place of N removes the limit"
_LISTS = ("rate_limits", "spend_limits")
"""Lists that are sent whole when one item changes."""


@dataclass(frozen=True, slots=True)
class RateLimitChange:
    """The key's own rate limit of a type. `threshold` None removes it."""

    type: str
    unit: str
    threshold: int | None


def _parse_rates(
    _context: click.Context, _option: click.Parameter, texts: Sequence[str]
) -> tuple[RateLimitChange, ...]:
    return tuple([_rate(text) for text in texts])


def _rate(text: str) -> RateLimitChange:
    form = _RATE.fullmatch(text)
    if form is None:
        raise click.BadParameter(f"{text!r}: {_EXPECTED_RATE}")
    type, unit, threshold = form.groups()
    return RateLimitChange(type.upper(), unit.upper(), None if threshold.lower() == "none" else int(threshold))


def _parse_end(_context: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    if text is None or text == NEVER:
        return text
    try:
        return end_time(text, datetime.now(UTC))
    except ValueError as error:
        raise click.BadParameter(f"{error}, or {NEVER}") from None


def _parse_list(_context: click.Context, _option: click.Parameter, texts: Sequence[str]) -> tuple[str, ...]:
    if ANY in texts and len(texts) > 1:
        raise click.BadParameter(f"{ANY} stands alone")
    return tuple(texts)


def parse_overlap(_context: click.Context, _option: click.Parameter, text: str) -> int:
    """The callback of `--overlap`: seconds. Raises click.BadParameter."""
    try:
        return span_s(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


_OPTIONS = (
    click.option(
        "--expires",
        callback=_parse_end,
        metavar="TIME",
        help="The time from which calls are refused: so long from now (12h, 30d), ISO 8601, or never.",
    ),
    click.option(
        "--allow-ip",
        "allowed_ips",
        multiple=True,
        callback=_parse_list,
        metavar="CIDR",
        help="An address or network that may use the key, such as 203.0.113.0/24. May be repeated; any alone: all.",
    ),
    click.option(
        "--slug",
        "slugs",
        multiple=True,
        callback=_parse_list,
        shell_complete=known_slugs,
        help="A slug of the group that the key may call. May be repeated; any alone: all of the group's.",
    ),
    click.option(
        "--rate-limit",
        "rate_limits",
        multiple=True,
        callback=_parse_rates,
        metavar="TYPE/UNIT=N",
        help="The key's own limit over all its slugs, such as REQUEST/MINUTE=60; N may be none. May be repeated.",
    ),
    click.option(
        "--spend-limit",
        "spend_limits",
        multiple=True,
        callback=parse_spend_limits,
        metavar="UNIT=AMOUNT,CURRENCY",
        help="What the key's calls may cost in a DAY or MONTH, such as DAY=100.00,EUR, or DAY=100.00,EUR,HARD, which"
        " is never exceeded; DAY=none removes it. May be repeated.",
    ),
)


SETTINGS = "--expires, --allow-ip, --slug, --rate-limit and --spend-limit"
"""The flags, for messages."""


def with_settings(command: Callable[..., T]) -> Callable[..., T]:
    """Give a command the flags of a key's settings, which it passes to `settings_of` and `changed_lists`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def settings_of(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are sent as flags say them: end, addresses and slugs. Null: no restriction."""
    members: dict[str, Any] = {}
    if flags["expires"] is not None:
        members["expires_at"] = None if flags["expires"] == NEVER else flags["expires"]
    for name in ("allowed_ips", "slugs"):
        if flags[name]:
            members[name] = None if ANY in flags[name] else list(flags[name])
    return members


def changes_lists(flags: Mapping[str, Any]) -> bool:
    """Return whether flags change single limits, so that the whole list must be known."""
    return any(flags[name] for name in _LISTS)


def changed_lists(present: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """The lists of limits as the flags change them. `present`: the key as it is, or what a file says of it."""
    members: dict[str, Any] = {}
    if flags["rate_limits"]:
        rates = {limit["type"]: limit for limit in present.get("rate_limits") or ()}
        for change in flags["rate_limits"]:
            rates.pop(change.type, None)  # a key has one limit per type, of either unit
            if change.threshold is not None:
                rates[change.type] = {"type": change.type, "unit": change.unit, "threshold": change.threshold}
        members["rate_limits"] = list(rates.values())
    if flags["spend_limits"]:
        members["spend_limits"] = changed_spend_limits(present.get("spend_limits") or (), flags["spend_limits"])
    return members


def state_text(key: Mapping[str, Any], now: datetime) -> str | None:
    """The state of a key as people read it: `active, expires in 3 d`. None if the API does not show it."""
    state = key.get("state")
    if state is None:
        return None
    end = key.get("expires_at")
    rest = None if end is None else until_text(end, now)
    match state:
        case "REPLACED":
            return f"rotated, ends in {rest}"
        case "ACTIVE" if rest is not None:
            return f"active, expires in {rest}"
        case _:
            return str(state).lower()


def readable(key: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """The key with its state and its limits as people read them."""
    members = dict(key)
    if "state" in key:
        members["state"] = state_text(key, now)
    if "rate_limits" in key:
        members["rate_limits"] = [f"{one['threshold']} {one['type']}/{one['unit']}" for one in key["rate_limits"]]
    if "spend_limits" in key:
        members["spend_limits"] = [spend_limit_text(one) for one in key["spend_limits"]]
    return members
