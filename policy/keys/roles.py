"""Roles of workspace keys and of people who log in to the console (docs/reference/roles.md)."""

from enum import StrEnum


class Role(StrEnum):
    """A role; `policy.keys.permissions` says what each may do. No ladder: each of two may have what the other lacks."""

    VIEWER = "viewer"
    BILLING = "billing"
    OPERATOR = "operator"
    ADMIN = "admin"


def optional_role(text: str | None) -> Role | None:
    """The role of a stored key; None of one without."""
    return None if text is None else Role(text)
