"""The name by which the hash of a tree counts a key with limits of its own, and the plan of its rate limits.

See docs/reference/limits.md#limits-of-keys.
"""

from policy.limits.effective import Plan, plan_of_limits
from policy.limits.limit import Limit
from policy.spend.spend_hash import spend_key

KEY_NAME = "key_"


def key_name(bucket: str) -> str:
    """The name that counts what the keys of a rotation use: `bucket` is the prefix of the first. No group has it."""
    return KEY_NAME + bucket


def key_of_name(name: str) -> str | None:
    """The prefix of the key that has this name. None: it is that of a group."""
    return name.removeprefix(KEY_NAME) if name.startswith(KEY_NAME) else None


def key_plan(root_group: str, bucket: str, limits: tuple[Limit, ...]) -> Plan:
    """The plan of a key's own limits. Its hash also counts what the tree of its group spends."""
    return plan_of_limits("", key_name(bucket), spend_key(root_group), limits)
