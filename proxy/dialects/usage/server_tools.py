"""Counts the calls of tools that a Responses provider ran itself, by the items of its output.

See docs/reference/events-and-webhooks.md#server-tool-calls.
"""

from typing import Any

Json = dict[str, Any]

SERVER_TOOLS = frozenset(("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"))
"""The types of such items. Tools that the caller or a third party runs are none: functions, MCP, shells, computers."""
_FREE_ACTIONS = frozenset(("open_page", "find_in_page"))
"""The parts of a web search that have no price of their own."""
ITEM_EVENTS = frozenset(("response.output_item.added", "response.output_item.done"))
MAX_ITEMS = 10_000
MAX_ID_CHARS = 100
"""Most items of a stream that are told apart, and the part of an id that tells them apart."""


class ServerToolCalls:
    """The calls of one answer: a whole one, or a stream whose events come in order."""

    __slots__ = ("_calls", "_places")

    def __init__(self) -> None:
        self._places: dict[object, bool] = {}
        """True for an item that is a call that counts, by its place in the output."""
        self._calls = 0
        """The calls in the list of all output."""

    @property
    def number(self) -> int:
        return max(self._calls, sum(self._places.values()))

    def observe_item(self, event: Json) -> None:
        """Read an event about one item. The last one about a place counts."""
        item = event.get("item")
        if isinstance(item, dict) and _is_one_of(SERVER_TOOLS, item.get("type")):
            place = event.get("output_index")
            key = place if type(place) is int else str(item.get("id"))[:MAX_ID_CHARS]
            if key in self._places or len(self._places) < MAX_ITEMS:
                self._places[key] = _counts(item)

    def observe_output(self, output: object) -> None:
        """Read the list of all output."""
        if isinstance(output, list):
            self._calls = sum(map(_counts, output))


def _counts(item: object) -> bool:
    """Return whether an item of the output is a call of a server tool, and no part of one without a price."""
    if not isinstance(item, dict) or not _is_one_of(SERVER_TOOLS, item.get("type")):
        return False
    action = item.get("action")
    return not (isinstance(action, dict) and _is_one_of(_FREE_ACTIONS, action.get("type")))


def _is_one_of(kinds: frozenset[str], kind: object) -> bool:
    return isinstance(kind, str) and kind in kinds
