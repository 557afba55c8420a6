"""Writes turns as the input items of a Responses request.

Pure. Raises `UntranslatableError` for a part that the dialect cannot say, with the caller's path.
"""

from collections.abc import Iterator
from hashlib import sha256
from itertools import groupby

from policy.endpoints import RESPONSES
from proxy.dialects.middle.reading import Json
from proxy.dialects.middle.request import (
    ASSISTANT,
    DEVELOPER,
    PLAIN_TEXT,
    SYSTEM,
    URL,
    ConversationTurn,
    Document,
    Image,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    ToolResult,
    TurnPart,
)
from proxy.errors import UntranslatableError

MAX_CALL_ID_CHARS = 64

_PDF = "application/pdf"


def write_items(turns: list[ConversationTurn], *, developer: bool) -> list[Json]:
    """`developer`: whether the target knows this role."""
    custom = {part.id for turn in turns for part in turn.parts if isinstance(part, ToolCall) and part.custom}
    items: list[Json] = []
    for turn in turns:
        role = SYSTEM if turn.role == DEVELOPER and not developer else turn.role
        parts = _with_name(turn)
        for kind, group in groupby(parts, _kind):
            if kind == "message":
                content = [one for part in group for one in _content(part, output=role == ASSISTANT)]
                items.append(_message(role, content, len(items)))
            else:
                items += _items(group, custom)
    return items


def call_id(vendor_id: str) -> str:
    """Return a call's id in the form that the dialect takes; the same for a call and its result."""
    if len(vendor_id) <= MAX_CALL_ID_CHARS:
        return vendor_id
    return f"call_{sha256(vendor_id.encode()).hexdigest()[:40]}"


def _kind(part: TurnPart) -> str:
    return "item" if isinstance(part, Reasoning | ToolCall | ToolResult) else "message"


def _with_name(turn: ConversationTurn) -> list[TurnPart]:
    """The parts, the first text preceded by the participant's name, for which the dialect has no member."""
    if not turn.name:
        return turn.parts
    parts = list(turn.parts)
    for place, part in enumerate(parts):
        if isinstance(part, Text):
            parts[place] = Text(f"[{turn.name}]: {part.text}", field=part.field)
            break
    return parts


def _message(role: str, content: list[Json], place: int) -> Json:
    """A message item. One of the assistant's needs an id: some servers refuse it without."""
    if role != ASSISTANT:
        return {"type": "message", "role": role, "content": content}
    return {"type": "message", "id": f"msg_{place}", "status": "completed", "role": role, "content": content}


def _items(parts: Iterator[TurnPart], custom: set[str]) -> Iterator[Json]:
    for part in parts:
        if isinstance(part, ToolCall):
            yield _call(part)
        elif isinstance(part, ToolResult):
            yield _output(part, is_custom=part.custom or part.call_id in custom)
        elif isinstance(part, Reasoning) and part.dialect == RESPONSES and part.native is not None:
            yield part.native


def _call(call: ToolCall) -> Json:
    kind, member = ("custom_tool_call", "input") if call.custom else ("function_call", "arguments")
    text = call.arguments if call.custom or call.arguments.strip() else "{}"
    return {"type": kind, "call_id": call_id(call.id), "name": call.name, member: text}


def _output(result: ToolResult, *, is_custom: bool) -> Json:
    kind = "custom_tool_call_output" if is_custom else "function_call_output"
    parts: list[Text | Image | Document] = result.parts
    if result.is_error:
        parts = _as_error(parts)
    output: str | list[Json]
    if all(isinstance(part, Text) for part in parts) and len(parts) <= 1:
        output = "".join(part.text for part in parts if isinstance(part, Text))
    else:
        output = [one for part in parts for one in _content(part, output=False)]
    return {"type": kind, "call_id": call_id(result.call_id), "output": output}


def _as_error(parts: list[Text | Image | Document]) -> list[Text | Image | Document]:
    first = next((part for part in parts if isinstance(part, Text)), None)
    if first is None:
        return [Text("Error"), *parts]
    return [Text(f"Error: {part.text}") if part is first else part for part in parts]


def _content(part: TurnPart, *, output: bool) -> list[Json]:
    """A part of a message or of a tool's output. `output`: in a message of the assistant's."""
    if isinstance(part, Text):
        return [{"type": "output_text", "text": part.text, "annotations": []} if output else _input_text(part.text)]
    if isinstance(part, Refusal):
        return [{"type": "refusal", "refusal": part.text} if output else _input_text(part.text)]
    if isinstance(part, Image) and not output:
        return [{"type": "input_image", "image_url": _url(part), "detail": part.detail or "auto"}]
    if isinstance(part, Document) and not output:
        return _document(part)
    raise UntranslatableError(part.field)


def _input_text(text: str) -> Json:
    return {"type": "input_text", "text": text}


def _url(part: Image | Document) -> str:
    source = part.source
    return source.data if source.kind == URL else f"data:{source.media_type};base64,{source.data}"


def _document(part: Document) -> list[Json]:
    """A file; of plain text, a text. What is said about a file goes before it."""
    if part.source.kind == PLAIN_TEXT:
        return [_input_text("\n".join(line for line in (part.title, part.context, part.source.data) if line))]
    file: Json = {"type": "input_file"}
    if part.source.kind == URL:
        file |= {"file_url": _url(part)} | ({"filename": part.title} if part.title else {})
    elif part.source.media_type == _PDF:
        file |= {"filename": part.title or "document.pdf", "file_data": _url(part)}
    else:
        raise UntranslatableError(part.field, "the target of this slug takes PDF or plain text")
    return [*([_input_text(part.context)] if part.context else []), file]
