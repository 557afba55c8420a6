"""Webhooks and the deliveries of their messages. Values only; times are epoch milliseconds."""

from dataclasses import dataclass
from typing import NamedTuple

PENDING = "PENDING"
DELIVERED = "DELIVERED"
DEAD = "DEAD"
"""The statuses of a delivery."""


@dataclass(frozen=True, slots=True)
class WebhookRecord:
    """One endpoint of a customer. Secrets are sealed."""

    id: str
    workspace_id: str
    url: str
    description: str | None
    enabled: bool
    secret: str
    previous_secret: str | None
    previous_until_ms: int | None
    created_at_ms: int
    updated_at_ms: int
    managed_by: str | None = None
    managed_at_ms: int | None = None
    include_details: bool = False
    event_types: str = '["API_BILLING_USAGE"]'
    """A JSON array."""
    group_id: str | None = None
    """The group that it is told of, with those below it. None: all groups."""


class Receiver(NamedTuple):
    """An enabled webhook, as far as it decides what its messages hold."""

    webhook_id: str
    include_details: bool
    group_id: str | None = None

    def is_told_of(self, group_path: str) -> bool:
        """Return whether it is told of the group with this path."""
        return self.group_id is None or self.group_id in group_path.split("/")


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """One message to one webhook, through all its attempts.

    `costs`: JSON, what each of its events costs by the prices of when it was queued. None: it has no details.
    """

    id: str
    webhook_id: str
    type: str
    event_keys: str
    status: str
    attempts: int
    attempt_log: str
    created_at_ms: int
    retry_since_ms: int
    next_attempt_at_ms: int
    lease: str | None
    leased_until_ms: int
    ended_at_ms: int | None
    costs: str | None = None
    body: str | None = None
    """The message. None: it is made of its events."""


@dataclass(frozen=True, slots=True)
class DeliveryAttempt:
    """The result of one attempt. `retry_after_ms`: what the receiver asked for."""

    at_ms: int
    duration_ms: int
    status_code: int | None
    error: str | None
    retry_after_ms: int = 0

    @property
    def succeeded(self) -> bool:
        return self.status_code is not None and 200 <= self.status_code < 300
