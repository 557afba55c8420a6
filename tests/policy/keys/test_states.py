"""The state of a key, exact to the millisecond of its end."""

import pytest

from policy.keys.settings import KeySettings
from policy.keys.states import KeyState, key_state


@pytest.mark.parametrize(
    ("settings", "is_replaced", "state"),
    [
        (KeySettings(), False, KeyState.ACTIVE),
        (KeySettings(expires_at_ms=1001), False, KeyState.ACTIVE),
        (KeySettings(expires_at_ms=1000), False, KeyState.EXPIRED),
        (KeySettings(expires_at_ms=999), True, KeyState.EXPIRED),
        (KeySettings(disabled=True), True, KeyState.DISABLED),
        (KeySettings(disabled=True, expires_at_ms=1), False, KeyState.EXPIRED),
        (KeySettings(expires_at_ms=1001), True, KeyState.REPLACED),
    ],
)
def test_a_key_has_one_state(settings: KeySettings, is_replaced: bool, state: KeyState) -> None:
    assert key_state(settings, is_replaced, 1000) is state
