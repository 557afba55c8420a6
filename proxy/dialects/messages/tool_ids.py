"""Gives tool calls ids that Messages accepts: letters, digits, `_` and `-`, and no id twice in a conversation.

Pure.
"""

import re
from collections import deque

_OTHER = re.compile(r"[^A-Za-z0-9_-]")


def accepted_id(given: str) -> str:
    """`given` with `_` in place of other characters; may be empty."""
    return _OTHER.sub("_", given)


class ToolIds:
    """The ids of one conversation. Results follow their calls; of several calls with one id, in their order."""

    __slots__ = ("_latest", "_repeated", "_used", "_waiting")

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._repeated: dict[str, int] = {}
        """How many calls had an id, by the id as Messages accepts it."""
        self._latest: dict[str, str] = {}
        self._waiting: dict[str, deque[str]] = {}
        """Calls that have no result yet, by the id that the caller gave."""

    def of_call(self, given: str) -> str:
        name = accepted_id(given) or f"call_{len(self._used)}"
        written = name
        number = self._repeated.get(name, 1)
        while written in self._used:
            number += 1
            written = f"{name}_{number}"
        self._repeated[name] = number
        self._used.add(written)
        self._latest[given] = written
        self._waiting.setdefault(given, deque()).append(written)
        return written

    def of_result(self, given: str) -> str:
        if waiting := self._waiting.get(given):
            return waiting.popleft()
        return self._latest.get(given) or accepted_id(given) or "call_0"
