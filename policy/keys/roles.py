"""Roles of workspace keys and of people who log in to the console."""

from enum import StrEnum


class Role(StrEnum):
    """Limits what its holder may do on the management API.

    `viewer` reads; `billing` reads, and changes prices, statements and credits; `operator` changes policy and keys;
    `admin` may do everything.
    """

    VIEWER = "viewer"
    BILLING = "billing"
    OPERATOR = "operator"
    ADMIN = "admin"
