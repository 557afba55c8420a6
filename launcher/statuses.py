"""The statuses that the launcher sets, in the words of the management API. Pure.

See docs/reference/management-api.md#deployments.
"""

WAKING_UP = "WAKING_UP"
LOADING_MODEL = "LOADING_MODEL"
FAILED = "FAILED"
_WAY = ("SCALED_TO_ZERO", WAKING_UP, LOADING_MODEL, FAILED)
"""Each may be set from the one before it."""
_ENTRIES = {"DEPLOYING": "SCALED_TO_ZERO"}
"""Statuses that have the same moves as one on the way."""


def moves(present: str, target: str) -> tuple[str, ...]:
    """The statuses to set one after the other, from `present` to `target`. None if `target` is not ahead."""
    present = _ENTRIES.get(present, present)
    if present not in _WAY or target not in _WAY:
        return ()
    return _WAY[_WAY.index(present) + 1 : _WAY.index(target) + 1]
