"""Gives tool calls ids that Messages accepts: letters, digits, `_` and `-`, and no id twice in a conversation.

Pure.
"""

import re
from collections import deque

_OTHER = re.compile(r"[^A-Za-z0-9_-]")


def accepted_id(id: str) -> str:
    """Return `id` with `_` in place of other characters; may be empty."""
    return _OTHER.sub("_", id)


class ToolIds:
    """The ids of one conversation. Results follow their calls; of several calls with one id, in their order."""

    __slots__ = ("_latest", "_queues", "_repeated", "_unique_ids")

    def __init__(self) -> None:
        self._unique_ids: set[str] = set()
        self._repeated: dict[str, int] = {}
        """Number of calls that had an id, by the id as Messages accepts it."""
        self._latest: dict[str, str] = {}
        self._queues: dict[str, deque[str]] = {}
        """Calls that have no result yet, by the id that the caller gave."""

    def of_call(self, id: str) -> str:
        name = accepted_id(id) or f"call_{len(self._unique_ids)}"
        unique_id = name
        number = self._repeated.get(name, 1)
        while unique_id in self._unique_ids:
            number += 1
            unique_id = f"{name}_{number}"
        self._repeated[name] = number
        self._unique_ids.add(unique_id)
        self._latest[id] = unique_id
        self._queues.setdefault(id, deque()).append(unique_id)
        return unique_id

    def of_result(self, id: str) -> str:
        if queue := self._queues.get(id):
            return queue.popleft()
        return self._latest.get(id) or accepted_id(id) or "call_0"
