"""Levels: how much of the policy a proxy knows. Each includes those below it.

A proxy tells control its level when it asks for policy. Control stores nothing above the lowest of the last day: an
older proxy would ignore it, and a limit would not bind, or a key be good for more than was set.

See docs/reference/management-api.md#internal-api.
"""

from enum import IntEnum


class PolicyLevel(IntEnum):
    """Each is named after what the version knew that first had it. 0: none of it."""

    SOFT_SPEND_LIMITS = 1
    HARD_SPEND_LIMITS = 2
    BALANCES = 3
    KEY_SETTINGS = 4
    """Settings of federated keys, roles of workspace keys."""


POLICY_LEVEL = max(PolicyLevel)
"""The level of this version."""
