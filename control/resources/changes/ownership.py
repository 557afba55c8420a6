"""The policy file that owns a resource (docs/reference/management-api.md#ownership). No SQL, no HTTP.

A resource has drifted when its `updated_at_ms` is not that of its owner's last write: something else changed it.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

from control.records.policy import EndpointRecord, GroupRecord, PriceRecord, SecretRecord
from control.records.webhooks import WebhookRecord

R = TypeVar("R", EndpointRecord, GroupRecord, PriceRecord, SecretRecord, WebhookRecord)


@dataclass(frozen=True, slots=True)
class OwnerChange:
    """The owner that a write names. `name` None: nobody owns the resource any longer."""

    name: str | None


def with_owner(record: R, change: OwnerChange | None) -> R:
    """The record as this write leaves it. `change` None: the write comes from something other than the owner."""
    if change is None:
        return record
    applied_at_ms = None if change.name is None else record.updated_at_ms
    return replace(record, managed_by=change.name, managed_at_ms=applied_at_ms)


def has_drifted(record: R) -> bool:
    """Return whether something other than the owner wrote the resource after the owner did."""
    return record.managed_by is not None and record.managed_at_ms != record.updated_at_ms
