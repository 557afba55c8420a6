"""The output item that a stream is writing: its events, and the whole item at its end.

Pure. One item is open at a time. A delta is written from prepared bytes; all other events are serialized.
"""

import orjson

from proxy.dialects.middle.gathering import Budget, Gathered
from proxy.dialects.middle.reading import Json
from proxy.dialects.middle.request import ToolCall
from proxy.dialects.responses.output_items import (
    IN_PROGRESS,
    CallItems,
    message_item,
    reasoning_item,
    refusal_part,
    text_part,
)


class Frames:
    """The SSE frames of one answer, numbered in order."""

    __slots__ = ("_number", "_output")

    def __init__(self) -> None:
        self._number = 0
        self._output: list[bytes] = []

    def add(self, kind: str, members: Json) -> None:
        self.add_serialized(kind, orjson.dumps(members)[1:])

    def add_serialized(self, kind: str, rest: bytes) -> None:
        """`rest`: the members after type and number, with the closing brace."""
        name = kind.encode()
        opening = b'event: %b\ndata: {"type":"%b","sequence_number":%d,' % (name, name, self._number)
        self._output.append(opening + rest + b"\n\n")
        self._number += 1

    def add_delta(self, opening: bytes, text: str, ending: bytes) -> None:
        """`opening` and `ending`: as `delta_opening` and the open item prepared them."""
        self._output.append(b'%b%d,"delta":%b%b' % (opening, self._number, orjson.dumps(text), ending))
        self._number += 1

    def drain(self) -> bytes:
        """Return the frames since the last call."""
        frames = self._output[0] if len(self._output) == 1 else b"".join(self._output)
        self._output.clear()
        return frames


def delta_opening(kind: str, place: Json) -> bytes:
    """A delta's frame up to its number. `place`: the members that say where it belongs."""
    name = kind.encode()
    return b'event: %b\ndata: {"type":"%b",%b,"sequence_number":' % (name, name, orjson.dumps(place)[1:-1])


_PLAIN_ENDING = b"}\n\n"
_TEXT_ENDING = b',"logprobs":[]}\n\n'


class OpenMessage:
    """A message. Its texts and refusals are parts of its content."""

    __slots__ = (
        "_budget",
        "_content",
        "_frames",
        "_gathered",
        "_id",
        "_index",
        "_kind",
        "_logprobs",
        "_opening",
        "ended",
    )

    def __init__(self, frames: Frames, id: str, index: int, budget: Budget) -> None:
        self._frames = frames
        self._id = id
        self._index = index
        self._budget = budget
        self._content: list[Json] = []
        self._kind = ""
        """`output_text` or `refusal`: the open part; empty if none is open."""
        self._gathered = Gathered(budget)
        self._logprobs: list[Json] = []
        self._opening = b""
        self.ended = False
        """True if the open part is complete. It is closed by what follows, which says whether the item is complete."""
        frames.add("response.output_item.added", {"output_index": index, "item": message_item(id, [], IN_PROGRESS)})

    def text(self, text: str, logprobs: list[Json]) -> None:
        if self._kind != "output_text" or self.ended:
            self._open_part("output_text", text_part("", []))
        self._gathered.add(text)
        ending = _TEXT_ENDING
        if logprobs:
            self._logprobs += logprobs
            ending = b',"logprobs":%b}\n\n' % orjson.dumps(without_bytes(logprobs))
            self._budget.spend(len(ending))
        self._frames.add_delta(self._opening, text, ending)

    def refusal(self, text: str) -> None:
        if self._kind != "refusal" or self.ended:
            self._open_part("refusal", refusal_part(""))
        self._gathered.add(text)
        self._frames.add_delta(self._opening, text, _PLAIN_ENDING)

    def end(self, status: str) -> Json:
        """Write the last events. Returns the whole item."""
        self._close_part()
        item = message_item(self._id, self._content, status)
        self._frames.add("response.output_item.done", {"output_index": self._index, "item": item})
        return item

    def _place(self) -> Json:
        return {"item_id": self._id, "output_index": self._index, "content_index": len(self._content)}

    def _open_part(self, kind: str, part: Json) -> None:
        self._close_part()
        self._kind = kind
        self.ended = False
        self._gathered = Gathered(self._budget)
        self._logprobs = []
        self._opening = delta_opening(f"response.{kind}.delta", self._place())
        self._frames.add("response.content_part.added", self._place() | {"part": part})

    def _close_part(self) -> None:
        if not self._kind:
            return
        place = self._place()
        text = self._gathered.text()
        if self._kind == "refusal":
            part = refusal_part(text)
            self._frames.add("response.refusal.done", place | {"refusal": text})
        else:
            part = text_part(text, self._logprobs)
            members = {"text": text, "logprobs": without_bytes(self._logprobs)}
            self._frames.add("response.output_text.done", place | members)
        self._frames.add("response.content_part.done", place | {"part": part})
        self._content.append(part)
        self._kind = ""


class OpenReasoning:
    """A reasoning item, its text as a summary."""

    __slots__ = ("_frames", "_gathered", "_id", "_index", "_opening", "ended", "sealed")

    def __init__(self, frames: Frames, id: str, index: int, budget: Budget) -> None:
        self._frames = frames
        self._id = id
        self._index = index
        self._gathered = Gathered(budget)
        self._opening = b""
        self.ended = False
        self.sealed = ""
        """The vendor's own block, sealed, once it came."""
        frames.add("response.output_item.added", {"output_index": index, "item": reasoning_item(id, "")})

    def text(self, text: str) -> None:
        if not self._opening:
            self._opening = delta_opening("response.reasoning_summary_text.delta", self._place())
            part = {"type": "summary_text", "text": ""}
            self._frames.add("response.reasoning_summary_part.added", self._place() | {"part": part})
        self._gathered.add(text)
        self._frames.add_delta(self._opening, text, _PLAIN_ENDING)

    def end(self, status: str) -> Json:
        """Write the last events. Returns the whole item, which has no status."""
        text = self._gathered.text()
        if self._opening:
            place = self._place()
            self._frames.add("response.reasoning_summary_text.done", place | {"text": text})
            part = {"type": "summary_text", "text": text}
            self._frames.add("response.reasoning_summary_part.done", place | {"part": part})
        item = reasoning_item(self._id, text, self.sealed)
        self._frames.add("response.output_item.done", {"output_index": self._index, "item": item})
        return item

    def _place(self) -> Json:
        return {"item_id": self._id, "output_index": self._index, "summary_index": 0}


class OpenToolCall:
    """A tool call. The input of a custom tool that the target knows as a function comes whole at its end."""

    __slots__ = ("_call", "_calls", "_frames", "_gathered", "_id", "_index", "_is_custom", "_opening", "ended")

    def __init__(
        self, frames: Frames, place: tuple[str, int], call: ToolCall, calls: CallItems, budget: Budget
    ) -> None:
        self._frames = frames
        self._call = call
        self._calls = calls
        self._id, self._index = place
        self._gathered = Gathered(budget)
        self._is_custom = calls.is_custom(call)
        self._opening = delta_opening(f"response.{self._word()}.delta", self._place())
        self.ended = False
        item = calls.item(self._id, call, IN_PROGRESS)
        frames.add("response.output_item.added", {"output_index": self._index, "item": item})

    def arguments(self, text: str) -> None:
        self._gathered.add(text)
        if self._is_custom and not self._call.custom:
            return
        self._frames.add_delta(self._opening, text, _PLAIN_ENDING)

    def end(self, status: str) -> Json:
        """Write the last events. Returns the whole item."""
        self._call.arguments = self._gathered.text()
        item = self._calls.item(self._id, self._call, status)
        if self._is_custom and not self._call.custom and item["input"]:
            self._frames.add_delta(self._opening, item["input"], _PLAIN_ENDING)
        member = "input" if self._is_custom else "arguments"
        self._frames.add(f"response.{self._word()}.done", self._place() | {member: item[member]})
        self._frames.add("response.output_item.done", {"output_index": self._index, "item": item})
        return item

    def _word(self) -> str:
        return "custom_tool_call_input" if self._is_custom else "function_call_arguments"

    def _place(self) -> Json:
        return {"item_id": self._id, "output_index": self._index}


OpenItem = OpenMessage | OpenReasoning | OpenToolCall


def without_bytes(logprobs: list[Json]) -> list[Json]:
    """Log probabilities in the form of the events."""
    return [_short(one) | {"top_logprobs": [_short(top) for top in one["top_logprobs"]]} for one in logprobs]


def _short(one: Json) -> Json:
    return {"token": one["token"], "logprob": one["logprob"]}
