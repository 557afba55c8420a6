"""Reads the input items of a Responses request as turns: adjacent items of one side become one turn.

Pure. Raises `UntranslatableError` for an item or a content part that has no counterpart.
"""

from base64 import b64decode
from collections.abc import Callable

from policy.endpoints import RESPONSES
from proxy.dialects.middle.reading import (
    Json,
    objects_at,
    optional,
    require_known_members,
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
    Reasoning,
    Refusal,
    Source,
    Text,
    ToolCall,
    ToolResult,
    TurnPart,
)
from proxy.dialects.middle.sealing import MARK
from proxy.dialects.responses.tool_names import joined_name
from proxy.dialects.vendor_rules.data_urls import media_and_data
from proxy.errors import UntranslatableError

_ROLES = {"system": SYSTEM, "developer": DEVELOPER, "user": USER, "assistant": ASSISTANT}
_STATES = frozenset(("id", "type", "status"))
_MESSAGE = _STATES | {"role", "content", "phase"}
_TEXT = frozenset(("type", "text", "annotations", "logprobs", "prompt_cache_breakpoint"))
_IMAGE = frozenset(("type", "image_url", "detail", "prompt_cache_breakpoint"))
_FILE = frozenset(("type", "file_data", "file_url", "filename", "prompt_cache_breakpoint"))
_CALL = _STATES | {"call_id", "name", "arguments", "namespace", "input"}
_OUTPUT = _STATES | {"call_id", "output", "name", "namespace"}
_REASONING = _STATES | {"summary", "content", "encrypted_content"}
_DIRECT: dict[str, tuple[object, ...]] = {"caller": ({"type": "direct"},), "async": (False,)}
_PDF = "application/pdf"


def read_items(items: list[tuple[Json, str]]) -> list[ConversationTurn]:
    """The turns of these items, each with its path. `additional_tools` must be read elsewhere."""
    turns: list[ConversationTurn] = []
    for item, field in items:
        kind = item.get("type")
        if kind is None or kind == "message":
            _add_message(item, field, turns)
        elif isinstance(kind, str) and kind in _PARTS:
            role, read = _PARTS[kind]
            _add_part(role, read(item, field), field, turns)
        else:
            raise UntranslatableError(f"{field}.type")
    return turns


def _add_part(role: str, part: TurnPart, field: str, turns: list[ConversationTurn]) -> None:
    """Add a part to its turn: calls and reasoning to the assistant's, results to the results before them."""
    last = turns[-1] if turns else None
    if last is None or last.role != role or (role == USER and not isinstance(last.parts[-1], ToolResult)):
        last = ConversationTurn(role, [], field=field)
        turns.append(last)
    last.parts.append(part)


def _add_message(item: Json, field: str, turns: list[ConversationTurn]) -> None:
    require_known_members(item, field, _MESSAGE, {})
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise UntranslatableError(f"{field}.role")
    parts = read_content(item.get("content"), f"{field}.content")
    last = turns[-1] if turns else None
    if (
        role == ASSISTANT
        and last is not None
        and last.role == ASSISTANT
        and not isinstance(last.parts[-1], Text | Refusal)
    ):
        last.parts += parts
    elif parts:
        turns.append(ConversationTurn(_ROLES[role], parts, field=field))


def read_content(content: object, field: str) -> list[TurnPart]:
    """Content as parts, without empty texts."""
    if isinstance(content, str):
        return [Text(content, field=field)] if content else []
    parts: list[TurnPart] = []
    for part, at in objects_at({"content": content}, "content", field):
        kind = part.get("type")
        read = _CONTENT.get(kind) if isinstance(kind, str) else None
        if read is None:
            raise UntranslatableError(f"{at}.type")
        parts.append(read(part, at))
    return [part for part in parts if not isinstance(part, Text) or part.text]


def _text(part: Json, field: str) -> Text:
    require_known_members(part, field, _TEXT, {})
    return Text(require_text(part.get("text"), f"{field}.text"), field=field)


def _refusal(part: Json, field: str) -> Refusal:
    require_known_members(part, field, frozenset(("type", "refusal")), {})
    return Refusal(require_text(part.get("refusal"), f"{field}.refusal"), field=field)


def _image(part: Json, field: str) -> Image:
    require_known_members(part, field, _IMAGE, {})
    url = require_text(part.get("image_url"), f"{field}.image_url")
    detail = optional(require_text, part, "detail", field)
    return Image(_source(url, f"{field}.image_url"), None if detail == "auto" else detail, field=field)


def _file(part: Json, field: str) -> Document:
    require_known_members(part, field, _FILE, {"detail": ("auto",)})
    title = optional(require_text, part, "filename", field)
    if part.get("file_url") is not None:
        url = require_text(part["file_url"], f"{field}.file_url")
        return Document(_source(url, f"{field}.file_url"), title, field=field)
    data = require_text(part.get("file_data"), f"{field}.file_data")
    if data[:5].lower() != "data:":
        return Document(Source(BASE64, data, _PDF), title, field=field)
    source = _source(data, f"{field}.file_data")
    if source.media_type == "text/plain":
        source = _decoded(source, f"{field}.file_data")
    return Document(source, title, field=field)


def _audio(part: Json, field: str) -> Audio:
    require_known_members(part, field, frozenset(("type", "input_audio")), {})
    audio = require_object(part.get("input_audio"), f"{field}.input_audio")
    data = require_text(audio.get("data"), f"{field}.input_audio.data")
    return Audio(data, require_text(audio.get("format"), f"{field}.input_audio.format"), field=field)


def _source(url: str, field: str) -> Source:
    if (inline := media_and_data(url)) is not None:
        media, encoded = inline
        return Source(BASE64, encoded, media)
    if not url.startswith(("https://", "http://")):
        raise UntranslatableError(field, "must be an http URL or base64 data")
    return Source(URL, url)


def _decoded(source: Source, field: str) -> Source:
    try:
        return Source(PLAIN_TEXT, b64decode(source.data, validate=True).decode(), "text/plain")
    except ValueError:
        raise UntranslatableError(field, "must be UTF-8 text in base64") from None


def _call(item: Json, field: str) -> ToolCall:
    require_known_members(item, field, _CALL, _DIRECT)
    custom = item["type"] == "custom_tool_call"
    member = "input" if custom else "arguments"
    name = require_text(item.get("name"), f"{field}.name")
    if item.get("namespace") is not None:
        name = joined_name(require_text(item["namespace"], f"{field}.namespace"), name)
    arguments = optional(require_text, item, member, field) or ""
    return ToolCall(require_text(item.get("call_id"), f"{field}.call_id"), name, arguments, custom, field=field)


def _output(item: Json, field: str) -> ToolResult:
    require_known_members(item, field, _OUTPUT, _DIRECT)
    parts: list[Text | Image | Document] = []
    for part in read_content(item.get("output"), f"{field}.output"):
        if not isinstance(part, Text | Image | Document):
            raise UntranslatableError(part.field)
        parts.append(part)
    call_id = require_text(item.get("call_id"), f"{field}.call_id")
    return ToolResult(call_id, parts, custom=item["type"] == "custom_tool_call_output", field=field)


def _reasoning(item: Json, field: str) -> Reasoning:
    """A sealed block of another vendor, or an item of this dialect, which only a target of it can verify."""
    require_known_members(item, field, _REASONING, {})
    text = reasoning_text(item)
    sealed = item.get("encrypted_content")
    if isinstance(sealed, str) and sealed.startswith(MARK):
        return Reasoning(text, sealed=sealed, field=f"{field}.encrypted_content")
    return Reasoning(text, RESPONSES, native_item(item), field=field)


def reasoning_text(item: Json) -> str:
    """The summary of a reasoning item; else its raw reasoning."""
    summary = [part["text"] for part in _texts(item.get("summary"))]
    return "\n\n".join(summary or [part["text"] for part in _texts(item.get("content"))])


def native_item(item: Json) -> Json:
    """Return what the vendor must get back of a reasoning item."""
    members = {name: item[name] for name in ("type", "id", "summary", "content", "encrypted_content") if item.get(name)}
    return {"summary": []} | members


def _texts(value: object) -> list[Json]:
    parts = value if isinstance(value, list) else []
    return [part for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]


_PARTS: dict[str, tuple[str, Callable[[Json, str], TurnPart]]] = {
    "function_call": (ASSISTANT, _call),
    "custom_tool_call": (ASSISTANT, _call),
    "reasoning": (ASSISTANT, _reasoning),
    "function_call_output": (USER, _output),
    "custom_tool_call_output": (USER, _output),
}
_CONTENT: dict[str, Callable[[Json, str], TurnPart]] = {
    "input_text": _text,
    "output_text": _text,
    "text": _text,
    "summary_text": _text,
    "refusal": _refusal,
    "input_image": _image,
    "input_file": _file,
    "input_audio": _audio,
}
