"""Spend limits of groups in the API, and `GET /v1/gateway/groups/{id}/spend`. Amounts are decimal text.

See docs/reference/management-api.md#spend-limits and docs/reference/management-api.md#group-spend.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from control.api.billing.prices import AmountText, CurrencyText
from control.api.limit_schemas import UsageUnitName
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import RequestV1, ResponseV1, TimeText
from control.records.times import time_text
from control.resources.groups import read_group
from control.resources.spend.group_spend import BoundSpend, read_spend
from policy.keys.permissions import Permission
from policy.prices import amount_text
from policy.spend.effective import SpendBound, SpendPlan
from policy.spend.limits import (
    MAX_SPEND_LIMITS,
    SpendEnforcement,
    SpendLimit,
    spend_limit_from_wire,
    spend_limit_to_wire,
)

_SOFT = SpendEnforcement.SOFT.value
if TYPE_CHECKING:
    EnforcementName = str
else:  # a type checker reads only literals that are written out
    EnforcementName = Literal[tuple(mode.value for mode in SpendEnforcement)]
_Unit = Annotated[UsageUnitName, Field(description="The window, by the UTC calendar.")]


class SpendLimitRequestV1(RequestV1):
    """A limit of at most `amount` in each window of its unit, over all slugs of the group together."""

    unit: _Unit
    amount: AmountText = Field(description="Decimal text; 0 refuses all calls.", examples=["250.00"])
    currency: CurrencyText = Field(description="That of all spend limits of the group's tree.")
    enforcement: EnforcementName | None = Field(
        None,
        description="SOFT, the default: calls are admitted while what is spent and reserved is below the amount. HARD:"
        " a call is admitted only if the most that it can cost also fits, so the amount is never exceeded.",
    )


SpendLimitsRequest = Annotated[
    list[SpendLimitRequestV1],
    Field(
        max_length=MAX_SPEND_LIMITS,
        examples=[[{"unit": "MONTH", "amount": "250.00", "currency": "EUR"}]],
        description="At most one per unit. A list replaces the one before; an empty one removes all.",
    ),
]


class SpendLimitV1(ResponseV1):
    """A spend limit of a group."""

    unit: UsageUnitName
    amount: str = Field(examples=["250.00"])
    currency: str = Field(examples=["EUR"])
    enforcement: EnforcementName


class EffectiveSpendLimitV1(SpendLimitV1):
    """A spend limit that binds the group. `source_group`: the group that sets it, this one or an ancestor."""

    source_group: str


class BoundSpendV1(SpendLimitV1):
    """A spend limit, and what is spent of it.

    `spent`: the exact cost of the window's calls that are counted. `reserved`: of calls in flight, or not counted yet.
    `remaining`: of the amount; negative if more is spent and reserved. `reset_at`: the end of the window.
    """

    spent: str = Field(examples=["12.3456"])
    reserved: str = Field(examples=["0.02"])
    remaining: str = Field(examples=["237.6344"])
    reset_at: TimeText


class GroupSpendEntryV1(BoundSpendV1):
    """A spend limit that binds the group, and what is spent of it. `source_group`: the group that sets it."""

    source_group: str


class GroupSpendResponseV1(ResponseV1):
    """The spend limits that bind a group, from the group to its root, DAY before MONTH."""

    items: list[GroupSpendEntryV1]


def spend_limits_of(limits: Sequence[SpendLimitRequestV1]) -> tuple[SpendLimit, ...]:
    """The spend limits of a request."""
    return tuple(
        [spend_limit_from_wire({**one.model_dump(), "enforcement": one.enforcement or _SOFT}) for one in limits]
    )


def shown_effective(plan: SpendPlan | None) -> list[Mapping[str, Any]]:
    """The members of each `EffectiveSpendLimitV1`, in the order in which the limits are tried."""
    return [] if plan is None else [_shown_bound(bound) for bound in plan.bounds]


def _shown_bound(bound: SpendBound) -> dict[str, Any]:
    return {**spend_limit_to_wire(bound.limit), "source_group": bound.source_group}


async def _get_spend(request: ApiRequest) -> GroupSpendResponseV1:
    parts = request.dependencies
    group = await read_group(parts.store, request.workspace_id, request.path["group_id"])
    return GroupSpendResponseV1(items=[_entry(each) for each in await read_spend(parts.spend, group.spend_plan)])


def _entry(each: BoundSpend) -> GroupSpendEntryV1:
    return GroupSpendEntryV1(**shown_spend(each), source_group=each.bound.source_group)


def shown_spend(each: BoundSpend) -> dict[str, Any]:
    """The members of a `BoundSpendV1`."""
    return {
        **spend_limit_to_wire(each.bound.limit),
        "spent": amount_text(each.use.spent),
        "reserved": amount_text(each.use.reserved),
        "remaining": amount_text(each.remaining),
        "reset_at": time_text(each.resets_at_ms),
    }


OPERATIONS = (
    Operation(
        *("GET", "/v1/gateway/groups/{group_id}/spend", _get_spend),
        *("Get what is spent of a group's spend limits", GroupSpendResponseV1),
        errors=(404,),
        needs=Permission.READ,
    ),
)
