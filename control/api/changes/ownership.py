"""The member `managed_by` of what policy files may own (docs/reference/management-api.md#ownership)."""

from typing import Annotated

from pydantic import Field

from control.api.protocol.schemas import RequestV1, ResponseV1, TimeText
from control.resources.changes.ownership import OwnerChange

OwnerName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=255,
        # No control characters, and none that are invisible or change the direction of a terminal's text.
        pattern=r"^[^\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]+$",
        examples=["production"],
    ),
]


class OwnableRequestV1(RequestV1):
    """A write that may name the policy file that makes it."""

    managed_by: OwnerName | None = Field(
        None, description="The policy file that owns the resource. Null releases it; left out, the owner stays."
    )

    def owner_change(self) -> OwnerChange | None:
        """None when the write says nothing about the owner."""
        return OwnerChange(self.managed_by) if "managed_by" in self.model_fields_set else None


class ManagedByV1(ResponseV1):
    """The policy file that owns the resource. `drifted`: something else changed the resource after `applied_at`."""

    name: str
    applied_at: TimeText
    drifted: bool


class OwnableResponseV1(ResponseV1):
    """A resource that a policy file may own."""

    managed_by: ManagedByV1 | None = Field(
        None, exclude_if=lambda value: value is None, description="Present only when a policy file owns the resource."
    )
