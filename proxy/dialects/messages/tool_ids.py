"""Gives tool calls ids that Messages accepts: letters, digits, `_` and `-`, and no id twice in a conversation.

Pure.
"""

import re

_OTHER = re.compile(r"[^A-Za-z0-9_-]")


def accepted_id(given: str) -> str:
    """`given` with `_` in place of other characters; may be empty."""
    return _OTHER.sub("_", given)


class ToolIds:
    """The ids of one conversation. A result belongs to the last call before it that has its id."""

    __slots__ = ("_current", "_used", "_waiting")

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._current: dict[str, str] = {}
        self._waiting: list[str] = []
        """Calls without an id that have no result yet."""

    def of_call(self, given: str) -> str:
        name = accepted_id(given) or f"call_{len(self._used)}"
        written, number = name, 1
        while written in self._used:
            number += 1
            written = f"{name}_{number}"
        self._used.add(written)
        self._current[given] = written
        if not given:
            self._waiting.append(written)
        return written

    def of_result(self, given: str) -> str:
        if not given and self._waiting:
            return self._waiting.pop(0)
        return self._current.get(given) or accepted_id(given) or "call_0"
