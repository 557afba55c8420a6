"""Gives tools names that every vendor accepts, and finds the caller's names again in answers.

Pure. A name follows from the names of the call alone, so past calls have it in every turn and nothing is remembered.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from itertools import count

from proxy.dialects.middle.answer import AnswerEvent, ToolCallStarted
from proxy.dialects.middle.dialect import StreamReader
from proxy.dialects.middle.left_out import LeftOut
from proxy.dialects.middle.reading import Json
from proxy.dialects.middle.request import AnswerPart, ConversationTurn, Request, ToolCall

MAX_NAME_CHARS = 64
_ACCEPTED = re.compile(r"[A-Za-z0-9_-]{1,64}")
_OTHER = re.compile(r"[^A-Za-z0-9_-]")
_DIGEST_CHARS = 8


def accepted_names(request: Request) -> dict[str, str]:
    """Return an accepted name for each name of a tool or a past call that is none; mostly empty. All names differ."""
    names = {name for name in _names_in(request) if name}
    odd = sorted(name for name in names if _ACCEPTED.fullmatch(name) is None)
    others = names.difference(odd) if odd else set[str]()
    accepted: dict[str, str] = {}
    for name in odd:
        accepted[name] = short = next(short for short in _short_names(name) if short not in others)
        others.add(short)
    return accepted


def with_names(request: Request, names: dict[str, str]) -> Request:
    """A copy in which tools, the choice among them and past calls have these names."""
    choice = request.tool_choice
    return replace(
        request,
        turns=[_renamed_turn(turn, names) for turn in request.turns],
        tools=[replace(tool, name=names.get(tool.name, tool.name)) for tool in request.tools],
        tool_choice=choice and replace(choice, name=names.get(choice.name, choice.name)),
    )


def rename_calls(parts: list[AnswerPart], names: dict[str, str]) -> None:
    """Give the calls of an answer the caller's names, in place. `names`: by the name that the target knows."""
    for part in parts:
        if isinstance(part, ToolCall):
            part.name = names.get(part.name, part.name)


class RenamingStreamReader:
    """Reads a stream with another reader, and gives its calls the caller's names."""

    def __init__(self, reader: StreamReader, names: dict[str, str]) -> None:
        """`names`: by the name that the target knows."""
        self._reader = reader
        self._names = names

    @property
    def left_out(self) -> LeftOut:
        return self._reader.left_out

    def read(self, event: Json) -> list[AnswerEvent]:
        return self._renamed(self._reader.read(event))

    def done_received(self) -> list[AnswerEvent]:
        return self._renamed(self._reader.done_received())

    def finished(self) -> list[AnswerEvent]:
        return self._renamed(self._reader.finished())

    def _renamed(self, events: list[AnswerEvent]) -> list[AnswerEvent]:
        for event in events:
            if isinstance(event, ToolCallStarted):
                event.name = self._names.get(event.name, event.name)
        return events


def _names_in(request: Request) -> Iterator[str]:
    yield from (tool.name for tool in request.tools)
    yield from (part.name for turn in request.turns for part in turn.parts if isinstance(part, ToolCall))
    if request.tool_choice is not None:
        yield request.tool_choice.name


def _short_names(name: str) -> Iterator[str]:
    """Names that stand for one that is no accepted name, each with a digest of it. Another one follows a collision."""
    beginning = _OTHER.sub("_", name[: MAX_NAME_CHARS - _DIGEST_CHARS - 1])
    for attempt in count():
        digest = sha256(f"{name}{attempt or ''}".encode(errors="surrogatepass")).hexdigest()
        yield f"{beginning}_{digest[:_DIGEST_CHARS]}"


def _renamed_turn(turn: ConversationTurn, names: dict[str, str]) -> ConversationTurn:
    if not any(isinstance(part, ToolCall) and part.name in names for part in turn.parts):
        return turn
    parts = [
        replace(part, name=names.get(part.name, part.name)) if isinstance(part, ToolCall) else part
        for part in turn.parts
    ]
    return replace(turn, parts=parts)
