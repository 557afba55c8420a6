"""Settings of a federated key, as the management API takes and shows them.

See docs/reference/management-api.md#settings-of-a-key.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from control.api.billing.group_spend import SpendLimitsRequest, SpendLimitV1, spend_limits_of
from control.api.limit_schemas import ONE_PER_TYPE, RateLimitV1
from control.api.protocol.schemas import RequestV1, ResponseV1, SlugText, TimeText
from control.api.protocol.times import parse_time_ns
from control.resources.federated_keys.rules import MAX_NETWORKS, MAX_SLUGS
from policy.keys.networks import MAX_NETWORK_CHARS
from policy.keys.settings import KeySettings
from policy.keys.states import KeyState
from policy.limits.limit import MAX_RATE_LIMITS, limit_of

if TYPE_CHECKING:
    KeyStateName = str
else:  # a type checker reads only literals that are written out
    KeyStateName = Literal[tuple(state.value for state in KeyState)]
_NS_PER_MS = 1_000_000


def _to_ms(value: Any) -> int:
    if not isinstance(value, str):
        raise ValueError("must be text: an ISO 8601 time such as 2026-01-31T12:00:00Z")
    return parse_time_ns(value) // _NS_PER_MS


ExpiryTime = Annotated[
    int,  # epoch milliseconds
    BeforeValidator(_to_ms, json_schema_input_type=str),
    Field(json_schema_extra={"type": "string", "format": "date-time"}, examples=["2027-01-31T12:00:00Z"]),
]
_NetworkText = Annotated[str, Field(min_length=1, max_length=MAX_NETWORK_CHARS, examples=["203.0.113.0/24"])]
Networks = Annotated[list[_NetworkText], Field(min_length=1, max_length=MAX_NETWORKS)]


class KeySettingsRequestV1(RequestV1):
    """Settings of a key. Null, or left out of a new key: what its group may do, all of it."""

    expires_at: ExpiryTime | None = Field(None, description="Calls are refused from then on. In the future.")
    allowed_ips: Networks | None = Field(
        None, description="The addresses and networks (CIDR) that may use the key. Null: all."
    )
    slugs: Annotated[list[SlugText], Field(min_length=1, max_length=MAX_SLUGS)] | None = Field(
        None, description="The slugs that the key may call, of those of its group. Null: all of the group's."
    )
    rate_limits: Annotated[list[RateLimitV1], Field(max_length=MAX_RATE_LIMITS)] | None = Field(
        None, description=f"The key's own, over all its slugs, beside its group's. {ONE_PER_TYPE}"
    )
    spend_limits: SpendLimitsRequest | None = None


class KeySettingsV1(ResponseV1):
    """Settings of a key, and whether it can be used now (`state`)."""

    state: KeyStateName
    expires_at: TimeText | None
    disabled: bool
    allowed_ips: list[str] | None = Field(description="In canonical CIDR notation. Null: all addresses.")
    slugs: list[str] | None = Field(description="Null: all slugs of the group.")
    rate_limits: list[RateLimitV1]
    spend_limits: list[SpendLimitV1]
    replaced_by: str | None = Field(description="The prefix of the key that rotation put in its place.")


def settings_of(body: KeySettingsRequestV1) -> KeySettings:
    """The settings of a new key."""
    return KeySettings(**changed_settings(body))


def changed_settings(body: KeySettingsRequestV1) -> Mapping[str, Any]:
    """The members of `KeySettings` that a request has. Null is the default of each."""
    changes: dict[str, Any] = {}
    fields = body.model_fields_set
    if "expires_at" in fields:
        changes["expires_at_ms"] = body.expires_at
    if "allowed_ips" in fields:
        changes["allowed_ips"] = tuple(body.allowed_ips or ())
    if "slugs" in fields:
        changes["slugs"] = None if body.slugs is None else tuple(body.slugs)
    if "rate_limits" in fields:
        changes["rate_limits"] = tuple([limit_of(one.type, one.unit, one.threshold) for one in body.rate_limits or ()])
    if "spend_limits" in fields:
        changes["spend_limits"] = spend_limits_of(body.spend_limits or ())
    return changes
