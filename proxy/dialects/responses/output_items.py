"""Writes the output items of a Responses answer; the whole answer and the end of a stream share them.

Pure. The ids of items are derived from the answer's, so that both forms have the same.
"""

from dataclasses import dataclass
from hashlib import sha256

import orjson

from policy.endpoints import CHAT_COMPLETIONS
from proxy.dialects.middle.answer_reading import objects_in, text_in
from proxy.dialects.middle.reading import Json
from proxy.dialects.middle.request import Reasoning, Request, Tool, ToolCall
from proxy.dialects.middle.sealing import Seals
from proxy.dialects.responses.item_writer import call_id

IN_PROGRESS = "in_progress"
COMPLETED = "completed"
INCOMPLETE = "incomplete"
CUSTOM_INPUT = "input"
"""The argument that holds the text for a custom tool, where the target has functions only."""


@dataclass(frozen=True, slots=True)
class ItemIds:
    """The ids of one answer's items."""

    answer: str

    def of(self, prefix: str, index: int) -> str:
        """`index`: the item's, in the output."""
        return f"{prefix}_{self.answer}{index:02}"


def item_ids(answer_id: str, created_s: int) -> ItemIds:
    return ItemIds(sha256(f"{answer_id} {created_s}".encode()).hexdigest()[:32])


def response_id(vendors_id: str, created_s: int) -> str:
    """The vendor's id if it has the dialect's form; else derived from it and the time: some servers send one id."""
    if vendors_id.startswith("resp_"):
        return vendors_id
    return f"resp_{sha256(f'{vendors_id} {created_s}'.encode()).hexdigest()[:48]}"


def text_part(text: str, logprobs: list[Json]) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def refusal_part(text: str) -> Json:
    return {"type": "refusal", "refusal": text}


def message_item(id: str, content: list[Json], status: str) -> Json:
    return {"type": "message", "id": id, "status": status, "role": "assistant", "content": content}


def reasoning_item(id: str, text: str, sealed: str = "") -> Json:
    """A reasoning item. `sealed`: the vendor's own block, if there is one to return."""
    summary = [{"type": "summary_text", "text": text}] if text else []
    item: Json = {"type": "reasoning", "id": id, "summary": summary}
    return item | {"encrypted_content": sealed} if sealed else item


def sealed_block(reasoning: Reasoning, seals: Seals) -> str:
    """The vendor's own block, sealed; empty if there is none."""
    return "" if reasoning.native is None else seals.seal(reasoning.dialect, reasoning.native)


def as_shown(reasoning: Reasoning, request: Request) -> Reasoning:
    """Drop the text of reasoning, unless the caller asked for summaries: this dialect shows none by default."""
    return reasoning if shows_summaries(request) else Reasoning("", reasoning.dialect, reasoning.native)


def shows_summaries(request: Request) -> bool:
    return request.reasoning is not None and bool(request.reasoning.visible)


def extra_item(id: str, call: str, extra: Json, seals: Seals) -> Json:
    """A reasoning item before a call, which carries the vendor's opaque member of that call."""
    return reasoning_item(id, "", seals.seal(CHAT_COMPLETIONS, {"tool_call_extra": {call: extra}}))


class CallItems:
    """Writes tool calls as the caller knows its tools: with their namespaces, and custom ones with plain input."""

    __slots__ = ("_custom", "_namespaced")

    def __init__(self, tools: list[Tool]) -> None:
        self._custom = {tool.name for tool in tools if tool.custom is not None}
        self._namespaced = {tool.name: tool.namespaced for tool in tools if tool.namespaced is not None}

    def is_custom(self, call: ToolCall) -> bool:
        """Return whether the caller knows it as a custom tool's call; the target may have called a function."""
        return call.custom or call.name in self._custom

    def prefix(self, call: ToolCall) -> str:
        """Return the beginning of such items' ids."""
        return "ctc" if self.is_custom(call) else "fc"

    def item(self, id: str, call: ToolCall, status: str) -> Json:
        if self.is_custom(call):
            text = call.arguments if call.custom else custom_input(call.arguments)
            item = {"type": "custom_tool_call", "id": id, "call_id": call.id, "name": call.name, "input": text}
        else:
            item = {"type": "function_call", "id": id, "status": status, "call_id": call.id, "name": call.name}
            item["arguments"] = call.arguments
        if call.name in self._namespaced:
            namespace, item["name"] = self._namespaced[call.name]
            item["namespace"] = namespace
        return item


def custom_input(arguments: str) -> str:
    """The text for a custom tool; the arguments themselves where the model wrote them in another form."""
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    text = value.get(CUSTOM_INPUT) if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments


def id_of_call(vendor_id: str, ids: ItemIds, index: int) -> str:
    """Return the call's id as the caller gets it."""
    return call_id(vendor_id) if vendor_id else ids.of("call", index)


def with_bytes(logprobs: list[Json] | None) -> list[Json]:
    """Log probabilities with the members that Chat Completions leaves out or sends as null."""
    return [
        _token(one) | {"top_logprobs": list(map(_token, objects_in(one, "top_logprobs")))} for one in logprobs or []
    ]


def _token(one: Json) -> Json:
    token = text_in(one, "token")
    encoded = one.get("bytes")
    return {
        "token": token,
        "bytes": encoded if isinstance(encoded, list) else list(token.encode()),
        "logprob": one.get("logprob", 0.0),
    }
