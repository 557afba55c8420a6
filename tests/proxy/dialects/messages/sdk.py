"""Checks bodies and streams against the vendor's SDK: its types, and its own accumulator of streams."""

from collections.abc import Iterable
from functools import cache
from typing import Any

import anthropic
import anthropic.types as sdk
import httpx2
import orjson
from anthropic.types.message_create_params import MessageCreateParams
from pydantic import TypeAdapter

Json = dict[str, Any]

_SAMPLING = ("temperature", "top_p", "top_k")
"""Members of the API that this SDK's type no longer lists."""
_REQUEST: TypeAdapter[Any] = TypeAdapter(MessageCreateParams)
_MESSAGE: TypeAdapter[Any] = TypeAdapter(sdk.Message)
_EVENT: TypeAdapter[Any] = TypeAdapter(sdk.RawMessageStreamEvent)


def check_request(body: Json) -> None:
    """Raises unless `body` has the form of a request, without coercion and without unknown members."""
    content = {name: _in_blocks(value, name) for name, value in body.items() if name not in _SAMPLING}
    assert _consumed(_REQUEST.validate_json(orjson.dumps(content), strict=True)) == content


def _in_blocks(value: object, name: str = "") -> object:
    """`value` with content as blocks only: the SDK's type would take text for an iterable of blocks."""
    if isinstance(value, dict):
        return {inner: value[inner] if inner == "input" else _in_blocks(value[inner], inner) for inner in value}
    if isinstance(value, list):
        return [_in_blocks(inner) for inner in value]
    return [{"type": "text", "text": value}] if isinstance(value, str) and name in ("content", "system") else value


def _consumed(value: object) -> object:
    """`value` with its lazily validated lists; the validation drops unknown members."""
    if isinstance(value, dict):
        return {name: _consumed(inner) for name, inner in value.items()}
    if isinstance(value, str) or not isinstance(value, Iterable):
        return value
    return [_consumed(inner) for inner in value]


def parse_message(body: Json) -> sdk.Message:
    message: sdk.Message = _MESSAGE.validate_json(orjson.dumps(body), strict=True)
    assert not unknown_members(message), unknown_members(message)
    return message


def payloads(stream: bytes) -> list[Json]:
    """The events of a stream. Checks that each frame names its event."""
    events: list[Json] = []
    for frame in stream.split(b"\n\n")[:-1]:
        name, data = frame.split(b"\n", 1)
        events.append(orjson.loads(data.removeprefix(b"data: ")))
        assert name == b"event: " + events[-1]["type"].encode()
    return events


def check_events(events: Iterable[Json]) -> None:
    """Raises unless each event has its documented form, and the blocks come one at a time."""
    open_index: int | None = None
    following = 0
    for event in events:
        _EVENT.validate_json(orjson.dumps(event), strict=True)
        if event["type"] == "content_block_start":
            assert open_index is None
            assert event["index"] == following
            open_index = following
            following = following + 1
        elif event["type"] == "content_block_delta":
            assert event["index"] == open_index
        elif event["type"] == "content_block_stop":
            assert event["index"] == open_index
            open_index = None
        else:
            assert open_index is None


@cache
def _client() -> tuple[anthropic.Anthropic, list[bytes]]:
    """One client for all tests, since making one takes long, and the streams that answer its next calls."""
    streams: list[bytes] = []
    transport = httpx2.MockTransport(
        lambda _: httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=streams.pop())
    )
    return anthropic.Anthropic(api_key="k", http_client=httpx2.Client(transport=transport)), streams


def accumulated(stream: bytes) -> sdk.Message:
    """The message that the SDK makes of a stream."""
    client, streams = _client()
    streams.append(stream)
    with client.messages.stream(model="m", max_tokens=9, messages=[{"role": "user", "content": "x"}]) as events:
        return events.get_final_message()


def unknown_members(value: object) -> list[str]:
    """Members of a parsed object, at any depth, that its type does not have."""
    if isinstance(value, list):
        return [name for item in value for name in unknown_members(item)]
    extra = getattr(value, "model_extra", None)
    if extra is None:
        return []
    fields = type(value).model_fields  # type: ignore[attr-defined]
    return [*extra, *(name for field in fields for name in unknown_members(getattr(value, field)))]
