"""Reads the content of a Messages caller's turns: text or blocks.

Pure. Raises `UntranslatableError` for blocks of the vendor's own tools, which no other vendor can run.
"""

from collections.abc import Callable
from typing import cast

import orjson

from policy.endpoints import MESSAGES
from proxy.dialects.middle.reading import (
    Json,
    objects_at,
    require_flag,
    require_known_members,
    require_object,
    require_text,
)
from proxy.dialects.middle.request import (
    ASSISTANT,
    BASE64,
    PLAIN_TEXT,
    SYSTEM,
    URL,
    USER,
    Document,
    Image,
    Reasoning,
    Source,
    Text,
    ToolCall,
    ToolResult,
    TurnPart,
)
from proxy.dialects.middle.sealing import MARK
from proxy.dialects.vendor_rules.data_urls import accepted_media
from proxy.errors import UntranslatableError

INVALID_JSON = "INVALID_JSON"
"""The only member of an input whose text was not a JSON object. Its value is that text."""

_OFF: tuple[object, ...] = ({"enabled": False}, {})


def read_blocks(content: object, field: str, role: str) -> list[TurnPart]:
    """The parts of a turn; `field` is the path of its content. Raises `UntranslatableError`."""
    if isinstance(content, str):
        return [Text(content, field=field)]
    blocks = objects_at({"content": content if content is not None else ""}, "content", field)
    return [_content_part(block, path, role) for block, path in blocks]


def _content_part(block: Json, field: str, role: str) -> TurnPart:
    kind = block.get("type")
    reader = _READERS[role].get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise UntranslatableError(f"{field}.type")
    part = reader(block, field)
    part.field = field
    if block.get("cache_control") is not None:
        part.cache = require_object(block["cache_control"], f"{field}.cache_control")
    return part


def _known(block: Json, field: str, *names: str, **neutral: tuple[object, ...]) -> None:
    require_known_members(block, field, frozenset(("type", "cache_control", *names)), neutral)


def _text(block: Json, field: str) -> Text:
    _known(block, field, "text", "citations")  # citations of past text request nothing
    return Text(require_text(block.get("text"), f"{field}.text"))


def _image(block: Json, field: str) -> Image:
    _known(block, field, "source", transformations=({"oversized_image": "downsize"}, {}))
    return Image(_source(require_object(block.get("source"), f"{field}.source"), f"{field}.source"))


def _document(block: Json, field: str) -> Document:
    _known(block, field, "source", "title", "context", citations=_OFF)
    member = require_object(block.get("source"), f"{field}.source")
    path = f"{field}.source"
    if member.get("type") == "content":
        source = Source(PLAIN_TEXT, _joined(member, "content", path), "text/plain")
    elif member.get("type") == "text":
        source = Source(PLAIN_TEXT, require_text(member.get("data"), f"{path}.data"), "text/plain")
    else:
        source = _source(member, path)
    document = Document(source)
    if block.get("title") is not None:
        document.title = require_text(block["title"], f"{field}.title")
    if block.get("context") is not None:
        document.context = require_text(block["context"], f"{field}.context")
    return document


def _source(source: Json, field: str) -> Source:
    if source.get("type") == "url":
        return Source(URL, require_text(source.get("url"), f"{field}.url"))
    if source.get("type") != "base64":
        raise UntranslatableError(f"{field}.type")
    media = accepted_media(require_text(source.get("media_type"), f"{field}.media_type"))
    return Source(BASE64, require_text(source.get("data"), f"{field}.data"), media)


def _search_result(block: Json, field: str) -> Document:
    _known(block, field, "content", "source", "title", citations=_OFF)
    title = require_text(block.get("title"), f"{field}.title")
    origin = require_text(block.get("source"), f"{field}.source")
    text = _joined(block, "content", field)
    return Document(Source(PLAIN_TEXT, text, "text/plain"), title=f"{title} ({origin})")


def _joined(container: Json, name: str, field: str) -> str:
    """The text of a member that is text or a list of text blocks."""
    if isinstance(container.get(name), str):
        return cast(str, container[name])
    texts: list[str] = []
    for block, path in objects_at(container, name, f"{field}.{name}"):
        if block.get("type") != "text":
            raise UntranslatableError(f"{path}.type")
        texts.append(_text(block, path).text)
    return "\n".join(texts)


def _tool_reference(block: Json, field: str) -> Text:
    """Names a tool whose loading was deferred. Other vendors load all tools at once."""
    _known(block, field, "tool_name")
    return Text(f"Tool available: {require_text(block.get('tool_name'), f'{field}.tool_name')}")


def _thinking(block: Json, field: str) -> Reasoning:
    _known(block, field, "thinking", "signature")
    text = require_text(block.get("thinking"), f"{field}.thinking")
    return _reasoning(text, block.get("signature") or "", f"{field}.signature", block)


def _redacted_thinking(block: Json, field: str) -> Reasoning:
    _known(block, field, "data")
    return _reasoning("", block.get("data"), f"{field}.data", block)


def _reasoning(text: str, opaque: object, field: str, block: Json) -> Reasoning:
    """`opaque`: what the vendor verifies, or what we sealed in its place."""
    sealed = require_text(opaque, field)
    if sealed.startswith(MARK):
        return Reasoning(text, sealed=sealed, field=field)
    if not sealed:
        return Reasoning(text)
    return Reasoning(text, MESSAGES, {name: value for name, value in block.items() if name != "cache_control"})


def _tool_use(block: Json, field: str) -> ToolCall:
    _known(block, field, "id", "name", "input", caller=({"type": "direct"},))
    arguments = require_object(block.get("input"), f"{field}.input")
    return ToolCall(
        require_text(block.get("id"), f"{field}.id"),
        require_text(block.get("name"), f"{field}.name"),
        _arguments(arguments, f"{field}.input"),
    )


def _arguments(arguments: Json, field: str) -> str:
    invalid = arguments.get(INVALID_JSON)
    if len(arguments) == 1 and isinstance(invalid, str):
        return invalid
    try:
        return orjson.dumps(arguments).decode()
    except orjson.JSONEncodeError:  # orjson parses deeper nesting than it serializes
        raise UntranslatableError(field, "nested too deeply to be written anew") from None


def _tool_result(block: Json, field: str) -> ToolResult:
    _known(block, field, "tool_use_id", "content", "is_error")
    parts = read_blocks(block.get("content") or [], f"{field}.content", _RESULT)
    result = ToolResult(
        require_text(block.get("tool_use_id"), f"{field}.tool_use_id"), cast("list[Text | Image | Document]", parts)
    )
    if block.get("is_error") is not None:
        result.is_error = require_flag(block["is_error"], f"{field}.is_error")
    return result


_RESULT = "result"
"""Key in place of a role, for the content of a tool's result."""
_Readers = dict[str, Callable[[Json, str], TurnPart]]
_MEDIA: _Readers = {"text": _text, "image": _image, "document": _document, "search_result": _search_result}
_READERS: dict[str, _Readers] = {
    SYSTEM: {"text": _text},
    USER: {**_MEDIA, "tool_result": _tool_result},
    _RESULT: {**_MEDIA, "tool_reference": _tool_reference},
    ASSISTANT: {
        "text": _text,
        "thinking": _thinking,
        "redacted_thinking": _redacted_thinking,
        "tool_use": _tool_use,
    },
}
"""The blocks that a turn of each role may have."""
