"""The state of a key at a moment, in one word for people.

See docs/reference/management-api.md#settings-of-a-key.
"""

from enum import StrEnum

from policy.keys.settings import KeySettings


class KeyState(StrEnum):
    """The state of a key. Calls with a DISABLED or an EXPIRED one are refused.

    REPLACED: a newer key took its place, and it works until its `expires_at`.
    """

    ACTIVE = "ACTIVE"
    REPLACED = "REPLACED"
    DISABLED = "DISABLED"
    EXPIRED = "EXPIRED"


def key_state(settings: KeySettings, is_replaced: bool, now_ms: int) -> KeyState:
    """Return the state of a key. One that is disabled and has expired is EXPIRED: to enable it would not revive it."""
    if settings.expires_at_ms is not None and settings.expires_at_ms <= now_ms:
        return KeyState.EXPIRED
    if settings.disabled:
        return KeyState.DISABLED
    return KeyState.REPLACED if is_replaced else KeyState.ACTIVE
