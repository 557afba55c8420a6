"""Answers that a translation could lose or change: calls, numbers, and what comes only once or under an id alone."""

from typing import Any

import orjson

from policy.billing import Tokens
from policy.endpoints import CHAT_COMPLETIONS, MESSAGES, RESPONSES
from tests.upstream.oddities.row import (
    JSON,
    TARGET_MODEL,
    Json,
    Oddity,
    Seen,
    chat_chunk,
    chat_usage,
    frames,
    message_text,
    response_text,
    sends,
)

BILLED = Tokens(input=12, output=5)
TRANSLATED = (MESSAGES, RESPONSES)
"""The callers of a Chat Completions server who get a translation."""


def call(index: int | None, id: str | None, name: str | None, arguments: str | None) -> Json:
    """A delta of a tool call."""
    function = {"name": name, "arguments": arguments}
    delta = {"index": index, "id": id, "function": {key: value for key, value in function.items() if value is not None}}
    return chat_chunk({"tool_calls": [{key: value for key, value in delta.items() if value is not None}]})


def calls(*deltas: Json) -> Any:
    return sends(frames(*deltas, chat_chunk(finish="tool_calls"), chat_usage(), "[DONE]"))


def seen_call(*arguments: str) -> dict[str, Seen]:
    """Return the view that callers of the other dialects have of calls: the pieces of their arguments, in order."""
    pieces = tuple(b'"partial_json":%b' % orjson.dumps(piece) for piece in arguments)
    whole = b'"arguments":%b' % orjson.dumps("".join(arguments))
    return {MESSAGES: Seen(has=pieces), RESPONSES: Seen(has=(whole,))}


def whole(body: Json) -> Any:
    return sends(orjson.dumps(body), label=JSON)


def chat_whole(message: Json, finish: str = "stop", **members: Any) -> Json:
    choice = {"index": 0, "message": {"role": "assistant"} | message, "finish_reason": finish}
    usage = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": TARGET_MODEL, "usage": usage}
    return body | {"choices": [choice]} | members


def message_whole(*content: Json, stop: str = "end_turn") -> Json:
    usage = {"input_tokens": 12, "output_tokens": 5}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": TARGET_MODEL, "usage": usage}
    return message | {"content": [*content], "stop_reason": stop, "stop_sequence": None}


def message_stream(*blocks: tuple[Json, list[Json]]) -> Any:
    """A stream of these blocks, each with its deltas, between the first and the last events of a text."""
    start, *_, ending, stop = message_text()
    events = [start]
    for number, (block, deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": number, "content_block": block})
        events += [{"type": "content_block_delta", "index": number, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": number})
    return sends(frames(*events, ending, stop))


def response_items(*items: Json) -> Json:
    """The event that ends a Responses stream of these items, and repeats all of it."""
    ended = response_text("x")[-1]
    return ended | {"response": ended["response"] | {"output": [*items]}}


def input_delta(text: str) -> Json:
    return {"type": "input_json_delta", "partial_json": text}


SAID = response_text("Hello", " there")
ITEM: Json = SAID[-2]["item"]
FUNCTION = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": '{"a":1}'}
CLOCK = FUNCTION | {"id": "fc_2", "call_id": "c2", "name": "clock", "arguments": '{"b":2}'}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]}
AT_ONCE = {CHAT_COMPLETIONS: Seen(text="Hello there"), MESSAGES: Seen(text="Hello there"), RESPONSES: Seen()}
"""Views of a text without deltas. A caller of the same dialect gets the server's own events."""
BIG = "123456789012345678901234567890"
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}

_CALLS = (
    Oddity(
        name="Chat: the index counts up with each delta of a call",
        sends=calls(
            call(0, "c1", "weather", ""),
            call(1, None, None, '{"a"'),
            call(2, None, None, ":1"),
            call(3, None, None, "}"),
        ),
        views=seen_call('{"a"', ":1", "}"),
        billed=BILLED,
    ),
    Oddity(
        name="Chat: deltas of a call have no index",
        sends=calls(call(0, "c1", "weather", ""), call(None, None, None, '{"a":'), call(None, None, None, "1}")),
        views=seen_call('{"a":', "1}"),
        billed=BILLED,
    ),
    Oddity(
        name="Chat: two calls have the same index",
        sends=calls(call(0, "c1", "weather", '{"a":1}'), call(0, "c2", "clock", '{"b":2}')),
        views={caller: Seen(has=(b'"weather"', b'"clock"', b'{\\"a\\":1}', b'{\\"b\\":2}')) for caller in TRANSLATED},
        billed=BILLED,
    ),
    Oddity(
        name="Chat: the name of a call comes in a later delta",
        sends=calls(call(0, "c1", None, None), call(0, None, "weather", None), call(0, None, None, '{"a":1}')),
        views=seen_call('{"a":1}'),
        billed=BILLED,
    ),
    Oddity(
        name="Chat: the arguments of a streamed call are empty",
        sends=calls(call(0, "c1", "weather", "")),
        views=seen_call("{}"),
        billed=BILLED,
    ),
    Oddity(
        name="Chat: the arguments of a streamed call are null",
        sends=sends(
            frames(
                chat_chunk(
                    {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "weather", "arguments": None}}]}
                ),
                chat_chunk(finish="tool_calls"),
                chat_usage(),
                "[DONE]",
            )
        ),
        views=seen_call("{}"),
        billed=BILLED,
    ),
    Oddity(
        name="Chat: the arguments of a call in a whole answer are empty",
        sends=whole(
            chat_whole({"tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": ""}}]}, "tool_calls")
        ),
        views={MESSAGES: Seen(has=(b'"input":{}',)), RESPONSES: Seen(has=(b'"arguments":"{}"',))},
        billed=BILLED,
        stream=False,
    ),
    Oddity(
        name="Messages: the vendor's own tool is called after the caller's",
        sends=message_stream(
            ({"type": "tool_use", "id": "t1", "name": "weather", "input": {}}, [input_delta('{"a":1}')]),
            (SEARCH | {"input": {}}, [input_delta('{"query":"x"}')]),
        ),
        spoken=MESSAGES,
        views={
            CHAT_COMPLETIONS: Seen(has=(b'{\\"a\\":1}',), lacks=(b"query",)),
            RESPONSES: Seen(has=(b'"arguments":"{\\"a\\":1}"',), lacks=(b"query",)),
        },
        billed=BILLED,
    ),
    Oddity(
        name="Responses: the arguments of a streamed call are empty",
        sends=sends(frames(SAID[0], response_items(FUNCTION | {"arguments": ""}))),
        spoken=RESPONSES,
        views={CHAT_COMPLETIONS: Seen(has=(b'"arguments":"{}"',)), MESSAGES: Seen(has=(b'"partial_json":"{}"',))},
        billed=BILLED,
    ),
)
_ONLY_WHOLE = (
    Oddity(
        name="Responses: a stream has only its last event",
        sends=sends(frames(SAID[-1])),
        spoken=RESPONSES,
        views=AT_ONCE,
        billed=BILLED,
    ),
    Oddity(
        name="Responses: a text comes only with its item",
        sends=sends(frames(SAID[0], SAID[-2], SAID[-1])),
        spoken=RESPONSES,
        views=AT_ONCE,
        billed=BILLED,
    ),
    Oddity(
        name="Responses: a text comes only with its end",
        sends=sends(frames(SAID[0], SAID[-4], SAID[-1])),
        spoken=RESPONSES,
        views=AT_ONCE,
        billed=BILLED,
    ),
    Oddity(
        name="Responses: a call comes only with the last event",
        sends=sends(frames(response_items(ITEM, FUNCTION))),
        spoken=RESPONSES,
        views={
            caller: Seen(text="Hello there", has=(b'"weather"', b'{\\"a\\":1}', finish))
            for caller, finish in ((CHAT_COMPLETIONS, b'"tool_calls"}]'), (MESSAGES, b'"stop_reason":"tool_use"'))
        },
        billed=BILLED,
    ),
    Oddity(
        name="Responses: events name their item by its id alone",
        sends=sends(
            frames(
                SAID[0],
                *({name: value for name, value in event.items() if name != "output_index"} for event in SAID[1:-1]),
                {"type": "response.output_item.added", "item": FUNCTION | {"arguments": ""}},
                {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "delta": '{"a":1}'},
                {"type": "response.output_item.done", "item": FUNCTION},
                {"type": "response.output_item.added", "item": CLOCK | {"arguments": ""}},
                {"type": "response.function_call_arguments.delta", "item_id": "fc_2", "delta": '{"b":2}'},
                {"type": "response.output_item.done", "item": CLOCK},
                response_items(ITEM, FUNCTION, CLOCK),
            )
        ),
        spoken=RESPONSES,
        views={
            CHAT_COMPLETIONS: Seen(text="Hello there", has=(b'"weather"', b'"clock"', b'{"index":1,"id":"c2"')),
            MESSAGES: Seen(text="Hello there", has=(b'"weather"', b'"clock"', b'"index":2', b'"{\\"b\\":2}"')),
        },
        billed=BILLED,
    ),
    Oddity(
        name="Responses: reasoning comes only with the last event",
        sends=sends(frames(response_items(THOUGHT, ITEM))),
        spoken=RESPONSES,
        views={CHAT_COMPLETIONS: Seen(text="Hello there", has=(b'"reasoning_content":"Hm."',))},
        billed=BILLED,
    ),
)
_NUMBERS = (
    Oddity(
        name="Messages: an input holds an integer above 64 bits",
        sends=whole(
            message_whole(
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"n": orjson.Fragment(BIG)}}, stop="tool_use"
            )
        ),
        spoken=MESSAGES,
        views=Seen(has=(BIG.encode(),)),
        billed=BILLED,
        stream=False,
    ),
    Oddity(
        name="Chat: arguments hold an integer above 64 bits",
        sends=whole(
            chat_whole(
                {"tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": f'{{"n":{BIG}}}'}}]},
                "tool_calls",
            )
        ),
        views=Seen(has=(BIG.encode(),)),
        billed=BILLED,
        stream=False,
    ),
)
ROWS = (*_CALLS, *_ONLY_WHOLE, *_NUMBERS)
