"""Alerts on limits: which limits are watched, how much of them is used, what is told. Values only."""

from dataclasses import dataclass
from typing import NamedTuple

from control.records.policy import GroupRecord
from policy.limits.alerts import LimitName
from policy.limits.groups import Enforcement
from policy.spend.balances import Balance

USAGE = "USAGE"
"""The kind of DAY and MONTH limits."""
SPEND = "SPEND"
"""The kind of spend limits. Their names have neither slug nor type."""
BALANCE = "BALANCE"
"""The kind of prepaid balances. Their names have no unit, either."""


class LimitWindow(NamedTuple):
    """A window of a limit."""

    start_ms: int
    end_ms: int


ENDLESS = LimitWindow(0, 0)
"""The window of balances: messages have null in its place."""


class GroupStamp(NamedTuple):
    """The time of a group's last change, and its balance, which credits change at other times."""

    updated_at_ms: int
    balance: Balance | None


@dataclass(frozen=True, slots=True)
class WatchedGroup:
    """A group whose limits are watched. `path`: itself, its parent, and so on to the root."""

    path: tuple[GroupRecord, ...]

    @property
    def record(self) -> GroupRecord:
        return self.path[0]

    @property
    def id(self) -> str:
        return self.path[0].group.id

    @property
    def workspace_id(self) -> str:
        return self.path[0].group.workspace_id

    @property
    def has_percents(self) -> bool:
        """Return whether a limit that its own counters count can have percents."""
        sources = self.path[:1] if self.record.group.enforcement is Enforcement.CASCADING else self.path
        return any(one.alert_percents for one in sources)

    @property
    def stamps(self) -> dict[str, GroupStamp]:
        """The stamp of each group of the path: all that decides about a limit is in them."""
        return {one.group.id: GroupStamp(one.updated_at_ms, one.balance) for one in self.path}


@dataclass(frozen=True, slots=True)
class LimitFigures:
    """A watched limit, and how much of it is used in a window. `percents`: of the group that sets it.

    `currency`: of a spend limit or balance, whose threshold and use are in 10^-22 of it (`policy.prices.amount_of`);
    else "". `is_hard`: it refuses what would exceed it, so it may leave no room while its use is below the threshold.
    `deposited`: of a balance, all that was paid in; its threshold is what was credited at the last top-up.
    """

    limit: LimitName
    percents: tuple[int, ...]
    threshold: int
    use: int
    window: LimitWindow
    currency: str = ""
    is_hard: bool = False
    deposited: int | None = None

    @property
    def raised_to(self) -> int:
        """The figure that grows whenever the limit is raised, and only then."""
        return self.threshold if self.deposited is None else self.deposited

    @property
    def leaves_room(self) -> bool:
        """Return whether only calls in flight can have refused one. Proxies report no such refusal of a HARD limit."""
        return self.use < self.threshold and not self.is_hard


@dataclass(frozen=True, slots=True)
class Alert:
    """A message about a limit of a group."""

    id: str
    group_id: str
    external_entity_id: str
    message_type: str
    percent: int
    figures: LimitFigures
