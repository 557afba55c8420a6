"""Features that models of the vendor lack, by their names, if they were released before. Other models have them.

Pure. The lists are closed: a model that is older than a feature does not gain it.
"""

import re

_WITHOUT_SYSTEM_TURNS = re.compile(r"claude-(?:\d|instant|sonnet-5\b|(?:opus|sonnet|haiku)-4(?![-.](?:[89]|\d\d)\b))")
"""System messages after the first turn came with Opus 4.8."""
_WITHOUT_ADAPTIVE_THINKING = re.compile(r"claude-(?:\d|instant|(?:opus|sonnet|haiku)-4(?![-.](?:[6-9]|\d\d)\b))")
"""Adaptive thinking came with Opus 4.6. Before, a budget of thinking tokens was required."""
_BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 24576, "max": 24576}
_DEFAULT_BUDGET = 8192
_MIN_BUDGET = 1024


def has_system_turns(model: str) -> bool:
    return _WITHOUT_SYSTEM_TURNS.search(model) is None


def has_adaptive_thinking(model: str) -> bool:
    """Return whether the model decides how much to think, guided by an effort."""
    return _WITHOUT_ADAPTIVE_THINKING.search(model) is None


def budget_of_effort(effort: str | None, cap: int | None) -> int:
    """The budget of thinking tokens that says the same as an effort; 0 if the cap on output tokens allows none."""
    budget = _DEFAULT_BUDGET if effort is None else _BUDGETS.get(effort, _DEFAULT_BUDGET)
    if cap is None:
        return budget
    budget = min(budget, cap * 3 // 4)
    return budget if budget >= _MIN_BUDGET else 0
