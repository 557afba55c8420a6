"""Roles of people and of workspace keys (docs/reference/roles.md)."""

from enum import StrEnum


class Role(StrEnum):
    """A role; `policy.permissions` says what each may do. Not a ladder: each of two may do what the other may not."""

    VIEWER = "viewer"
    BILLING = "billing"
    OPERATOR = "operator"
    ADMIN = "admin"
