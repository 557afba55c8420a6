"""Relates budgets of thinking tokens to efforts.

Pure.
"""

_LOW_BELOW, _MEDIUM_BELOW = 4096, 16384
"""Token budgets."""


def effort_of_budget(tokens: int) -> str:
    """The effort that comes nearest to a budget of thinking tokens."""
    if tokens < _LOW_BELOW:
        return "low"
    return "medium" if tokens < _MEDIUM_BELOW else "high"
