"""Writes turns as the messages of a Chat Completions request.

Pure. A user's turn becomes `tool` messages, then a user's message. Images and documents of results follow the run of
`tool` messages in a user's message, since `tool` messages hold only text.
"""

from collections.abc import Callable, Iterable
from hashlib import sha256

from proxy.dialects.chat_completions.reasoning import returned_members
from proxy.dialects.chat_completions.tool_writer import written_call
from proxy.dialects.middle.reading import Json
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
    Reasoning,
    Refusal,
    Source,
    Text,
    ToolCall,
    ToolResult,
)
from proxy.errors import UntranslatableError

MAX_CALL_ID_CHARS = 40
"""OpenAI refuses a longer id."""
_SEE_BELOW = "(see the attachment below)"


class TurnWriter:
    """Writes the turns of one request. `is_native`: the target is OpenAI's own API."""

    __slots__ = ("_attached", "_is_native", "_messages")

    def __init__(self, *, is_native: bool) -> None:
        self._is_native = is_native
        self._messages: list[Json] = []
        self._attached: list[Json] = []
        """Parts of results that wait for the end of the run of `tool` messages."""

    def write(self, turns: list[ConversationTurn]) -> list[Json]:
        """Raises `UntranslatableError` for a part that Chat Completions has nothing like."""
        _refuse_prefill(turns)
        for turn in turns:
            if turn.role == USER:
                self._write_user(turn)
                continue
            self._write_attached()
            if turn.role == ASSISTANT:
                self._write_assistant(turn)
            else:
                self._write_system(turn)
        self._write_attached()
        return self._messages

    def _add(self, message: Json, turn: ConversationTurn) -> None:
        self._messages.append(message | {"name": turn.name} if turn.name is not None else message)

    def _content(self, parts: list[Json]) -> str | list[Json]:
        """One text as a string; several as one where the target is another vendor's: not every server takes parts."""
        if len(parts) == 1 or not self._is_native:
            texts = [part["text"] for part in parts if part["type"] == "text"]
            if len(texts) == len(parts):
                return "\n".join(texts)
        return parts

    def _write_system(self, turn: ConversationTurn) -> None:
        role = DEVELOPER if turn.role == DEVELOPER and self._is_native else SYSTEM
        _refuse_others(turn.parts, Text)
        texts = [_text(part)[0] for part in turn.parts if isinstance(part, Text)]
        if texts:
            self._add({"role": role, "content": self._content(texts)}, turn)

    def _write_user(self, turn: ConversationTurn) -> None:
        others: list[ContentPart] = []
        for part in turn.parts:
            if isinstance(part, ToolResult):
                self._write_result(part)
            else:
                others.append(part)
        if others:
            parts = [*self._attached, *(one for part in others for one in _written(part))]
            self._attached = []
            self._add({"role": "user", "content": self._content(parts)}, turn)

    def _write_attached(self) -> None:
        if self._attached:
            self._messages.append({"role": "user", "content": self._content(self._attached)})
            self._attached = []

    def _write_result(self, result: ToolResult) -> None:
        parts = [one for part in result.parts for one in _written(part)]
        texts = [part["text"] for part in parts if part["type"] == "text"]
        attached = [part for part in parts if part["type"] != "text"]
        text = "\n".join(texts) if texts else _SEE_BELOW if attached else ""
        if result.is_error:
            text = f"Error: {text}" if text else "Error"
        self._messages.append({"role": "tool", "tool_call_id": _call_id(result.call_id), "content": text})
        self._attached += attached

    def _write_assistant(self, turn: ConversationTurn) -> None:
        texts = [part.text for part in turn.parts if isinstance(part, Text)]
        refusals = [part.text for part in turn.parts if isinstance(part, Refusal)]
        calls = [part for part in turn.parts if isinstance(part, ToolCall)]
        _refuse_others(turn.parts, Text, Refusal, ToolCall, Reasoning)
        if not (texts or refusals or calls):
            return
        returned, extras = returned_members([part for part in turn.parts if isinstance(part, Reasoning)])
        message: Json = {"role": "assistant", "content": "".join(texts) if texts else None, **returned}
        if refusals:
            message["refusal"] = "".join(refusals)
        if calls:
            message["tool_calls"] = [
                written_call(call, _call_id(call.id), call.extra or extras.get(call.id), is_native=self._is_native)
                for call in calls
            ]
        self._add(message, turn)


def _refuse_prefill(turns: list[ConversationTurn]) -> None:
    """Raise for a last turn that the model would have to continue: here it begins another message."""
    last = turns[-1] if turns else None
    if last is not None and last.role == ASSISTANT and any(isinstance(p, Text) and p.text for p in last.parts):
        raise UntranslatableError(last.field, "the target of this slug cannot continue an assistant's message")


def _refuse_others(parts: Iterable[ContentPart], *kinds: type[ContentPart]) -> None:
    for part in parts:
        if not isinstance(part, kinds):
            raise UntranslatableError(part.field)


def _call_id(id: str) -> str:
    """The id, or a hash of one that is too long; the same for a call and its result."""
    if len(id) <= MAX_CALL_ID_CHARS:
        return id
    return f"call_{sha256(id.encode()).hexdigest()[:32]}"


def _written(part: ContentPart) -> list[Json]:
    writer = _PART_WRITERS.get(type(part))
    if writer is None:
        raise UntranslatableError(part.field)
    return writer(part)


def _text(part: Text) -> list[Json]:
    return [{"type": "text", "text": part.text}]


def _image(part: Image) -> list[Json]:
    image: Json = {"url": _url(part.source)}
    if part.detail is not None:
        image["detail"] = part.detail
    return [{"type": "image_url", "image_url": image}]


def _document(part: Document) -> list[Json]:
    if part.source.kind == URL:
        raise UntranslatableError(part.field, "the target of this slug takes documents only as data")
    if part.source.kind == PLAIN_TEXT:
        lines = [line for line in (part.title, part.context, part.source.data) if line]
        return [{"type": "text", "text": "\n".join(lines)}]
    file = {"filename": part.title or "document.pdf", "file_data": _url(part.source)}
    context = [{"type": "text", "text": part.context}] if part.context else []
    return [*context, {"type": "file", "file": file}]


def _audio(part: Audio) -> list[Json]:
    return [{"type": "input_audio", "input_audio": {"data": part.data, "format": part.format}}]


def _url(source: Source) -> str:
    return source.data if source.kind == URL else f"data:{source.media_type};base64,{source.data}"


_PART_WRITERS: dict[type[ContentPart], Callable[..., list[Json]]] = {
    Text: _text,
    Image: _image,
    Document: _document,
    Audio: _audio,
}
