"""Reads the messages of a Chat Completions request into turns.

Pure. A message becomes one turn; a `tool` message becomes a user's turn with one result.
"""

from base64 import b64decode
from collections.abc import Callable

from proxy.dialects.chat_completions.reasoning import read_reasoning
from proxy.dialects.middle.reading import (
    Json,
    objects_at,
    optional,
    require_known_members,
    require_list,
    require_object,
    require_text,
)
from proxy.dialects.middle.request import (
    ASSISTANT,
    BASE64,
    DEVELOPER,
    PLAIN_TEXT,
    SYSTEM,
    URL,
    USER,
    Audio,
    ConversationTurn,
    Document,
    Image,
    Refusal,
    Source,
    Text,
    ToolCall,
    ToolResult,
    TurnPart,
)
from proxy.dialects.vendor_rules.data_urls import media_and_data
from proxy.errors import UntranslatableError

_ROLES = {"system": SYSTEM, "developer": DEVELOPER, "user": USER}
_COMMON = frozenset(("role", "content", "name", "cache_control"))
_ASSISTANT_MEMBERS = _COMMON | {
    *("refusal", "tool_calls", "annotations", "reasoning_content", "reasoning", "reasoning_details", "extra_content")
}
"""`annotations` describe a past answer; no vendor reads them again."""
_TOOL_MEMBERS = _COMMON | {"tool_call_id"}
_CALL_MEMBERS = frozenset(("id", "type", "index", "extra_content", "cache_control"))
_NEUTRAL_MEMBERS: dict[str, tuple[object, ...]] = {"tool_calls": ([],)}
_CACHES = frozenset(("type", "cache_control", "prompt_cache_breakpoint"))


def read_turns(messages: list[object]) -> list[ConversationTurn]:
    """Raises `UntranslatableError` with the path below `messages`."""
    customs = set[str]()
    return [
        _conversation_turn(require_object(entry, f"messages.{n}"), f"messages.{n}", customs)
        for n, entry in enumerate(messages)
    ]


def _conversation_turn(message: Json, field: str, customs: set[str]) -> ConversationTurn:
    """`customs`: the ids of the calls of custom tools so far, whose results are custom too."""
    role = message.get("role")
    if role == "assistant":
        require_known_members(message, field, _ASSISTANT_MEMBERS, _NEUTRAL_MEMBERS)
        parts = _assistant_parts(message, field)
        customs.update(part.id for part in parts if isinstance(part, ToolCall) and part.custom)
        turn = ConversationTurn(ASSISTANT, parts)
    elif role == "tool":
        require_known_members(message, field, _TOOL_MEMBERS, _NEUTRAL_MEMBERS)
        turn = ConversationTurn(USER, [_tool_result(message, field, customs)])
    elif isinstance(role, str) and role in _ROLES:
        require_known_members(message, field, _COMMON, _NEUTRAL_MEMBERS)
        turn = ConversationTurn(
            _ROLES[role], _content_parts(message.get("content"), f"{field}.content", rich=role == "user")
        )
    else:
        raise UntranslatableError(f"{field}.role")
    if message.get("name") is not None and role != "tool":
        turn.name = require_text(message["name"], f"{field}.name")
    if message.get("cache_control") is not None and turn.parts and turn.parts[-1].cache is None:
        turn.parts[-1].cache = require_object(message["cache_control"], f"{field}.cache_control")
    turn.field = field
    return turn


def _assistant_parts(message: Json, field: str) -> list[TurnPart]:
    parts: list[TurnPart] = [*read_reasoning(message, field)]
    if message.get("content") is not None:
        parts += _content_parts(message["content"], f"{field}.content", rich=False)
    if message.get("refusal") is not None:
        parts.append(Refusal(require_text(message["refusal"], f"{field}.refusal"), field=f"{field}.refusal"))
    parts += [_tool_call(call, path) for call, path in objects_at(message, "tool_calls", f"{field}.tool_calls")]
    return parts


def _tool_call(call: Json, field: str) -> ToolCall:
    kind = call.get("type", "function")
    if kind not in ("function", "custom"):
        raise UntranslatableError(f"{field}.type")
    require_known_members(call, field, _CALL_MEMBERS | {kind}, {})
    path = f"{field}.{kind}"
    text = "arguments" if kind == "function" else "input"
    inner = require_object(call.get(kind), path)
    require_known_members(inner, path, frozenset(("name", text)), {})
    extra = call.get("extra_content")
    cache = call.get("cache_control")
    return ToolCall(
        require_text(call.get("id"), f"{field}.id"),
        require_text(inner.get("name"), f"{path}.name"),
        optional(require_text, inner, text, path) or "",
        custom=kind == "custom",
        extra=require_object(extra, f"{field}.extra_content") if extra is not None else None,
        cache=require_object(cache, f"{field}.cache_control") if cache is not None else None,
        field=field,
    )


def _tool_result(message: Json, field: str, customs: set[str]) -> ToolResult:
    id = require_text(message.get("tool_call_id"), f"{field}.tool_call_id")
    parts = _content_parts(message.get("content"), f"{field}.content", rich=True)
    for part in parts:
        if not isinstance(part, Text | Image | Document):
            raise UntranslatableError(f"{part.field}.type")
    return ToolResult(
        id,
        [part for part in parts if isinstance(part, Text | Image | Document)],
        custom=id in customs,
        field=field,
    )


def _content_parts(content: object, field: str, *, rich: bool) -> list[TurnPart]:
    """The parts of a message's content. `rich`: it may hold more than text."""
    if isinstance(content, str):
        return [Text(content, field=field)]
    parts: list[TurnPart] = []
    for number, entry in enumerate(require_list(content, field)):
        path = f"{field}.{number}"
        part = require_object(entry, path)
        kind = part.get("type")
        reader = _PART_READERS.get(kind) if isinstance(kind, str) else None
        if not isinstance(kind, str) or reader is None or (kind not in _PLAIN and not rich):
            raise UntranslatableError(f"{path}.type")
        require_known_members(part, path, _CACHES | {kind}, {})
        read = reader(part, path)
        read.field = path
        if part.get("cache_control") is not None:
            read.cache = require_object(part["cache_control"], f"{path}.cache_control")
        parts.append(read)
    return parts


def _image(part: Json, field: str) -> Image:
    path = f"{field}.image_url"
    image = require_object(part.get("image_url"), path)
    require_known_members(image, path, frozenset(("url", "detail")), {})
    url = require_text(image.get("url"), f"{path}.url")
    detail = image.get("detail")
    if (inline := media_and_data(url)) is not None:
        media, encoded = inline
        source = Source(BASE64, encoded, media)
    elif url.startswith(("https://", "http://")):
        source = Source(URL, url)
    else:
        raise UntranslatableError(f"{path}.url", "must be an http URL or base64 data")
    return Image(source, detail=require_text(detail, f"{path}.detail") if detail is not None else None)


def _document(part: Json, field: str) -> Document:
    path = f"{field}.file"
    file = require_object(part.get("file"), path)
    require_known_members(file, path, frozenset(("file_data", "filename", "format")), {})
    data = require_text(file.get("file_data"), f"{path}.file_data")
    title = file.get("filename")
    inline = media_and_data(data)
    if inline is None:
        raise UntranslatableError(f"{path}.file_data", "must be a data URL with base64 data")
    media, encoded = inline
    if media == "text/plain":
        source = Source(PLAIN_TEXT, _decoded(encoded, f"{path}.file_data"), "text/plain")
    else:
        source = Source(BASE64, encoded, media)
    return Document(source, title=require_text(title, f"{path}.filename") if title is not None else None)


def _decoded(encoded: str, field: str) -> str:
    try:
        return b64decode(encoded, validate=True).decode()
    except ValueError:
        raise UntranslatableError(field, "must be UTF-8 text in base64") from None


def _audio(part: Json, field: str) -> Audio:
    path = f"{field}.input_audio"
    audio = require_object(part.get("input_audio"), path)
    require_known_members(audio, path, frozenset(("data", "format")), {})
    return Audio(require_text(audio.get("data"), f"{path}.data"), require_text(audio.get("format"), f"{path}.format"))


def _text(part: Json, field: str) -> Text:
    return Text(require_text(part.get("text"), f"{field}.text"))


def _refusal(part: Json, field: str) -> Refusal:
    return Refusal(require_text(part.get("refusal"), f"{field}.refusal"))


_PLAIN = ("text", "refusal")
_PART_READERS: dict[str, Callable[[Json, str], Text | Refusal | Image | Document | Audio]] = {
    "text": _text,
    "refusal": _refusal,
    "image_url": _image,
    "file": _document,
    "input_audio": _audio,
}
