"""Writes the turns of a conversation for a Messages target.

Pure. Adjacent turns of one role become one message. Text that is blank is left out, since Messages refuses it.
"""

from collections.abc import Callable, Sequence

import orjson

from policy.endpoints import MESSAGES
from proxy.dialects.messages.block_reader import INVALID_JSON
from proxy.dialects.messages.tool_ids import ToolIds, accepted_id
from proxy.dialects.middle.request import (
    ASSISTANT,
    DEVELOPER,
    PLAIN_TEXT,
    SYSTEM,
    URL,
    USER,
    Audio,
    ContentPart,
    ConversationTurn,
    Document,
    Image,
    Json,
    Reasoning,
    Refusal,
    Source,
    Text,
    ToolCall,
    ToolResult,
    TurnPart,
)
from proxy.errors import UntranslatableError
from proxy.json_text.exact_numbers import loads_exactly

_ROLES = {SYSTEM: SYSTEM, DEVELOPER: SYSTEM, USER: USER, ASSISTANT: ASSISTANT}
_PDF = "application/pdf"
_PLAIN = "text/plain"


class TurnWriter:
    """Writes one conversation."""

    def __init__(self, *, has_system_turns: bool = True) -> None:
        """`has_system_turns`: whether the model takes system messages after the first turn."""
        self._has_system_turns = has_system_turns
        self._ids = ToolIds()
        self._writers: dict[type[ContentPart], Callable[..., list[Json]]] = {
            Text: _text,
            Refusal: _text,
            Image: _image,
            Document: _document,
            Audio: _refused,
            Reasoning: _reasoning,
            ToolCall: self._tool_call,
            ToolResult: self._tool_result,
        }

    def write(self, turns: list[ConversationTurn]) -> tuple[str | list[Json], list[Json]]:
        """The members `system` and `messages`."""
        leading = next((n for n, turn in enumerate(turns) if _ROLES[turn.role] != SYSTEM), len(turns))
        prompts = [blocks for turn in turns[:leading] if (blocks := self._turn_blocks(turn))]
        messages: list[Json] = []
        if leading == len(turns) and prompts:  # Messages needs a user's message
            messages.append({"role": USER, "content": prompts.pop()})
        system = [block for blocks in prompts for block in blocks]
        for turn in turns[leading:]:
            role = _ROLES[turn.role]
            blocks = self._turn_blocks(turn)
            if role == SYSTEM and not self._has_system_turns:
                system += blocks
            elif blocks:
                _add(messages, role, blocks)
        for message in messages:
            message["content"] = _short(_results_first(message["content"]))
        _strip_prefill(messages)
        return _short(system), messages

    def _turn_blocks(self, turn: ConversationTurn) -> list[Json]:
        parts = _named(turn.parts, turn.name) if turn.name else turn.parts
        return self._blocks(parts)

    def _blocks(self, parts: Sequence[TurnPart]) -> list[Json]:
        blocks: list[Json] = []
        for part in parts:
            entries = self._writers[type(part)](part)
            if part.cache is not None and entries and "thinking" not in entries[-1]["type"]:
                entries[-1]["cache_control"] = part.cache
            blocks += entries
        return blocks

    def _tool_call(self, call: ToolCall) -> list[Json]:
        arguments = {"input": call.arguments} if call.custom else input_of(call.arguments)
        name = accepted_id(call.name)  # past calls may be of tools that are no longer offered
        return [{"type": "tool_use", "id": self._ids.of_call(call.id), "name": name, "input": arguments}]

    def _tool_result(self, result: ToolResult) -> list[Json]:
        block: Json = {"type": "tool_result", "tool_use_id": self._ids.of_result(result.call_id)}
        if content := self._blocks(result.parts):
            block["content"] = _short(content)
        return [block | ({"is_error": True} if result.is_error else {})]


def _add(messages: list[Json], role: str, blocks: list[Json]) -> None:
    """Add blocks to the message of their role, or begin it.

    A system message must follow a user's and precede an assistant's, so what a user says after it goes before it.
    """
    at = len(messages)
    if role == USER and messages and messages[-1]["role"] == SYSTEM:
        at -= 1
    if at and messages[at - 1]["role"] == role:
        messages[at - 1]["content"] += blocks
    else:
        messages.insert(at, {"role": role, "content": blocks})


def has_open_tool_loop(messages: list[Json]) -> bool:
    """Return whether the turn that goes on called tools without having begun with this vendor's reasoning."""
    for message in reversed(messages):
        content = message["content"]
        kinds = [block["type"] for block in content] if isinstance(content, list) else ["text"]
        if message["role"] == USER and "tool_result" not in kinds:
            return False
        if message["role"] == ASSISTANT and "tool_use" in kinds and "thinking" not in kinds[0]:
            return True
    return False


def input_of(arguments: str) -> Json:
    """The arguments of a tool call as an object. A model may write invalid JSON; its text is then the only member."""
    try:
        value = loads_exactly(arguments) if arguments.strip() else {}
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {INVALID_JSON: arguments}


def _named(parts: list[TurnPart], name: str) -> list[TurnPart]:
    """The parts with the participant's name before the first text."""
    for number, part in enumerate(parts):
        if isinstance(part, Text):
            return [*parts[:number], Text(f"[{name}]: {part.text}", cache=part.cache), *parts[number + 1 :]]
    return parts


def _short(blocks: list[Json]) -> str | list[Json]:
    """The content as text where it is one text without further members."""
    if len(blocks) == 1 and blocks[0].keys() == {"type", "text"}:
        return str(blocks[0]["text"])
    return blocks


def _results_first(blocks: list[Json]) -> list[Json]:
    return sorted(blocks, key=lambda block: block["type"] != "tool_result")


def _strip_prefill(messages: list[Json]) -> None:
    """Strip the white space at the end of an assistant's beginning: Messages refuses it."""
    if not messages or messages[-1]["role"] != ASSISTANT:
        return
    content = messages[-1]["content"]
    if isinstance(content, str):
        messages[-1]["content"] = content.rstrip()
    elif content[-1]["type"] == "text":
        content[-1]["text"] = content[-1]["text"].rstrip()


def _text(part: Text | Refusal) -> list[Json]:
    return [{"type": "text", "text": part.text}] if part.text.strip() else []


def _image(image: Image) -> list[Json]:
    return [{"type": "image", "source": _source(image.source)}]


def _document(document: Document) -> list[Json]:
    source = document.source
    if source.kind == PLAIN_TEXT:
        member: Json = {"type": "text", "media_type": _PLAIN, "data": source.data}
    elif source.kind != URL and source.media_type != _PDF:
        raise UntranslatableError(document.field, "the target of this slug reads PDF and plain text only")
    else:
        member = _source(source)
    block: Json = {"type": "document", "source": member}
    if document.title:
        block["title"] = document.title
    if document.context:
        block["context"] = document.context
    return [block]


def _source(source: Source) -> Json:
    if source.kind == URL:
        return {"type": "url", "url": source.data}
    return {"type": "base64", "media_type": source.media_type, "data": source.data}


def _refused(part: ContentPart) -> list[Json]:
    raise UntranslatableError(part.field)


def _reasoning(part: Reasoning) -> list[Json]:
    """The vendor's own block. Other vendors' reasoning is left out: this one cannot verify it."""
    return [part.native] if part.dialect == MESSAGES and part.native is not None else []
