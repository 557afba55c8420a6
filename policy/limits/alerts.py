"""Alerts on limits: at which percents of a limit its use is told, and when a percent may be told again.

See docs/reference/events-and-webhooks.md#alerts.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

LIMIT_ALERT = "LIMIT_ALERT"
LIMIT_REACHED = "LIMIT_REACHED"
BALANCE_EXHAUSTED = "BALANCE_EXHAUSTED"
"""The types of messages about limits and balances. Webhooks ask for all by the first."""
MAX_PERCENTS = 5
WHOLE = 100
"""The percent of a limit that leaves no room. Messages of types LIMIT_REACHED and BALANCE_EXHAUSTED have it."""


class IllegalPercentsError(ValueError):
    """A list of percents breaks a rule. The message names the rule."""


class LimitName(NamedTuple):
    """The limit of a group that an alert is about. `slug`: "" where a limit holds for all slugs together."""

    kind: str
    slug: str
    type: str
    unit: str


class PastAlert(NamedTuple):
    """A percent that was told of a limit in a window, and the limit's figures then.

    `threshold`: in place of that of a balance, all that was deposited by then, which grows with each top-up.
    """

    message_type: str
    percent: int
    threshold: int
    use: int


class ReachedLimit(NamedTuple):
    """A DAY or MONTH limit whose use leaves no room, and which has refused a call. The group: whose counters count it.

    A spend limit, which holds for all slugs together, has "" for slug and type; a balance has "" for the unit, too.
    `deposited`: what was paid into the balance, as decimal text; a refusal by another figure is older than the last
    top-up. Proxies report it to control, with the names of these members.
    """

    workspace_id: str
    group_id: str
    slug: str
    type: str
    unit: str
    deposited: str = ""

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "ReachedLimit":
        """Raises KeyError or TypeError that says what is wrong. An older proxy does not tell the last one."""
        members = {"deposited": "", **wire}
        for name in cls._fields:
            if not isinstance(members[name], str):
                raise TypeError(f"{name} must be text")
        return cls(**{name: members[name] for name in cls._fields})


def check_percents(percents: Sequence[int]) -> None:
    """Raise `IllegalPercentsError` unless these are at most five different whole numbers from 1 to 100."""
    if len(percents) > MAX_PERCENTS:
        raise IllegalPercentsError(f"alert_percents has at most {MAX_PERCENTS} numbers; leave out the others")
    if any(not 1 <= percent <= WHOLE for percent in percents):
        raise IllegalPercentsError(f"each number of alert_percents is a whole number from 1 to {WHOLE}")
    if len(set(percents)) < len(percents):
        raise IllegalPercentsError("alert_percents has each number once; leave out the repeated ones")


def crossed_percents(percents: Sequence[int], threshold: int, use: int) -> list[int]:
    """The percents that the use has come to. A limit of 0 has none: nothing of it can be used."""
    return [percent for percent in percents if threshold and use * WHOLE >= percent * threshold]


def rearmed(alerts: Sequence[PastAlert], threshold: int, use: int, *, deposited: int | None = None) -> list[PastAlert]:
    """The alerts that may be told again: the threshold was raised, and their percents were above the use then.

    `alerts`: all of one limit and window. The use at the raise is known to be at most the present one. If more calls
    came since, it is taken for the old threshold, or for the highest use that was told if that is more.
    `deposited`: of a balance. It is raised by each top-up, also by one of less than what was withdrawn before, and each
    top-up can be exhausted.
    """
    raised_to = threshold if deposited is None else deposited
    highest_use = max((one.use for one in alerts), default=0)
    return [
        one
        for one in alerts
        if one.threshold < raised_to
        and (
            one.message_type == BALANCE_EXHAUSTED
            or one.percent * threshold > WHOLE * min(use, max(one.threshold, highest_use))
        )
    ]
