"""Limits as the management API takes and shows them, made from the table of kinds (`policy/limits/kinds.py`).

See docs/reference/management-api.md#limit-objects.
"""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from control.api.protocol.schemas import INTEGRAL, RequestV1
from policy.limits.kinds import RATE_UNITS, USAGE_TYPES, USAGE_UNITS, LimitType, Unit
from policy.limits.limit import MAX_THRESHOLD, MIN_THRESHOLD

if TYPE_CHECKING:
    TypeName = str
    UsageTypeName = str
    UnitName = str
    RateUnitName = str
    UsageUnitName = str
else:  # a type checker reads only literals that are written out
    TypeName = Literal[tuple(type.value for type in LimitType)]
    UsageTypeName = Literal[tuple(type.value for type in USAGE_TYPES)]
    UnitName = Literal[tuple(unit.value for unit in Unit)]
    RateUnitName = Literal[tuple(unit.value for unit in RATE_UNITS)]
    UsageUnitName = Literal[tuple(unit.value for unit in USAGE_UNITS)]

ONE_PER_TYPE = "At most one per type."
ONE_PER_KIND = "At most one per type and unit."
_Threshold = Annotated[int, Field(ge=MIN_THRESHOLD, le=MAX_THRESHOLD, examples=[1000]), INTEGRAL]


class RateLimitV1(RequestV1):
    """A limit of at most `threshold` in any rolling window of its unit; of CONCURRENT_REQUEST, at any time."""

    type: TypeName
    unit: RateUnitName
    threshold: _Threshold


class UsageLimitV1(RequestV1):
    """A limit of at most `threshold` in each window of its unit, by the UTC calendar."""

    type: UsageTypeName
    unit: UsageUnitName
    threshold: _Threshold
