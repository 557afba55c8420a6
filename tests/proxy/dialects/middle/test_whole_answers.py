"""A caller gets the form of answer that he asked for, with all that the other form says.

Servers stream to callers who want a whole answer, and do not stream to callers who want a stream.
"""

from copy import deepcopy
from typing import Any

import orjson
import pytest

from policy.billing import MAX_REPORTED_TOKENS, Details, Tokens
from proxy.dialects.answer_translation import TranslatingBodyReader, TranslatingStreamReader
from proxy.dialects.chat_completions.dialect import DIALECT as CHAT
from proxy.dialects.messages.dialect import DIALECT as MESSAGES
from proxy.dialects.middle.answer import (
    END,
    MAX_TOKENS,
    TOOL_CALLS,
    Answer,
    Failed,
    Started,
    Stop,
    Stopped,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from proxy.dialects.middle.dialect import AnswerContext, Dialect
from proxy.dialects.middle.request import AnswerPart, Reasoning, Refusal, Request, Text, ToolCall
from proxy.dialects.middle.whole_answers import GatheredAnswer
from proxy.dialects.middle.whole_answers import events_of as events_of_answer
from proxy.dialects.responses.dialect import DIALECT as RESPONSES
from proxy.errors import UpstreamResetError
from proxy.json_text.exact_numbers import loads_exactly
from tests.fakes.seals import seals_of
from tests.proxy.dialects.assembling import assembled
from tests.proxy.dialects.test_streams import CALLER_DIALECTS, RECORDED, events_of, recorded, told

OF_OTHER_DIALECTS = ("custom-call", "only-done-events")
"""Recorded answers with a custom tool, which no caller of Messages can offer."""


def context(streams: bool) -> AnswerContext:
    return AnswerContext("acme/chat", Request([]), 1_700_000_000, seals_of(), streams=streams)


def translated(
    target_dialect: Dialect, caller_dialect: Dialect, answer: bytes, *, is_stream: bool, streams: bool
) -> bytes:
    answer_context = context(streams)
    reader: TranslatingStreamReader | TranslatingBodyReader
    if is_stream:
        reader = TranslatingStreamReader(
            target_dialect, caller_dialect, answer_context, target_dialect.new_meter(MAX_REPORTED_TOKENS)
        )
    else:
        reader = TranslatingBodyReader(
            target_dialect, caller_dialect, answer_context, target_dialect.new_body_meter(MAX_REPORTED_TOKENS)
        )
    return reader.feed(answer) + reader.end()


def read(dialect: Dialect, answer: bytes, *, streams: bool) -> Answer:
    return assembled(events_of(dialect, answer)) if streams else dialect.read_answer(orjson.loads(answer))


@pytest.mark.parametrize(
    ("target_dialect", "name", "caller_dialect"),
    [
        (target_dialect, name, caller_dialect)
        for target_dialect, name in RECORDED
        for caller_dialect in (CHAT, MESSAGES, RESPONSES)
        if caller_dialect is not MESSAGES or name not in OF_OTHER_DIALECTS
    ],
)
@pytest.mark.parametrize("streams", [True, False])
def test_caller_reads_the_same_whether_the_target_streams(
    target_dialect: Dialect, name: str, caller_dialect: Dialect, streams: bool
) -> None:
    whole, stream = recorded(target_dialect, name)
    body = orjson.dumps(whole)
    of_body = translated(target_dialect, caller_dialect, body, is_stream=False, streams=streams)
    of_stream = translated(target_dialect, caller_dialect, stream, is_stream=True, streams=streams)
    assert told(read(caller_dialect, of_stream, streams=streams), caller_dialect) == told(
        read(caller_dialect, of_body, streams=streams), caller_dialect
    )
    if not streams:
        assert usage_of(of_stream) == usage_of(of_body)


ANSWERS = {
    "nothing": [],
    "an empty text": [Text("")],
    "two texts": [Text("a"), Text("b")],
    "a refusal behind a text": [Text("a"), Refusal("no"), Refusal("never")],
    "calls between texts": [
        ToolCall("1", "f", "{}"),
        Text("a"),
        ToolCall("2", "g", '{"a":1}'),
        ToolCall("3", "g", "{}"),
    ],
    "a custom call": [ToolCall("1", "f", "plain", custom=True)],
    "a call with a vendor's member": [ToolCall("1", "f", "{}", extra={"google": {"thought_signature": "x"}})],
    "reasoning with and without something to return": [
        Reasoning("a"),
        Reasoning("b", "MESSAGES", {"type": "thinking", "thinking": "b", "signature": "s"}),
        Reasoning("", "MESSAGES", {"type": "redacted_thinking", "data": "x"}),
        Reasoning("c"),
        Text("d"),
    ],
}
LOGPROBS = [{"token": "a", "logprob": -0.5, "bytes": None, "top_logprobs": []}]


@pytest.mark.parametrize("parts", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("logprobs", [None, LOGPROBS])
def test_events_add_up_to_their_answer(parts: list[AnswerPart], logprobs: list[dict[str, Any]] | None) -> None:
    has_text = any(isinstance(part, Text) for part in parts)
    stop = Stop(MAX_TOKENS, word="their-word")
    details = Details(reasoning=3, cache_write=4)
    answer = Answer("id", 7, deepcopy(parts), stop, logprobs if has_text else None, details)
    assert assembled(events_of_answer(answer)) == answer


@pytest.mark.parametrize("parts", ANSWERS.values(), ids=ANSWERS)
@CALLER_DIALECTS
@pytest.mark.parametrize("tokens", [None, Tokens(input=9, output=5, cached_input=2)])
def test_events_gather_to_the_whole_answer(
    parts: list[AnswerPart], caller_dialect: Dialect, tokens: Tokens | None
) -> None:
    answer = Answer("id", 7, deepcopy(parts), Stop(END), None, Details(reasoning=3))
    gathered = GatheredAnswer(caller_dialect, context(streams=False))
    for event in events_of_answer(answer):
        assert gathered.write([event]) == b""
    assert told(read(caller_dialect, gathered.end(tokens), streams=False), caller_dialect) == told(
        caller_dialect.read_answer(caller_dialect.write_answer(answer, context(streams=False), tokens)), caller_dialect
    )


@CALLER_DIALECTS
def test_deltas_of_parallel_calls_may_alternate(caller_dialect: Dialect) -> None:
    gathered = GatheredAnswer(caller_dialect, context(streams=False))
    gathered.write([Started("id"), ToolCallStarted(0, "1", "f"), ToolCallDelta(0, '{"a":1'), TextDelta("x")])
    gathered.write([ToolCallStarted(1, "2", "g"), ToolCallDelta(1, '{"b":'), ToolCallDelta(0, "1e400}")])
    gathered.write(
        [ToolCallStarted(2, "3", "h"), ToolCallDelta(1, "100000000000000000000}"), Stopped(Stop(TOOL_CALLS))]
    )
    whole = gathered.end(None)
    parts = [part for part in caller_dialect.read_answer(loads_exactly(whole)).parts if isinstance(part, ToolCall)]
    assert [(part.id, part.name) for part in parts] == [("1", "f"), ("2", "g"), ("3", "h")]
    for arguments in ('"a":11e400', '"b":100000000000000000000'):
        assert arguments in whole.decode().replace("\\", "")


@CALLER_DIALECTS
def test_failure_is_the_whole_answer(caller_dialect: Dialect) -> None:
    gathered = GatheredAnswer(caller_dialect, context(streams=False))
    gathered.write(
        [Started("id"), TextDelta("x"), Failed("api_error", "overloaded"), TextDelta("y"), Stopped(Stop(END))]
    )
    assert gathered.failed
    assert orjson.loads(gathered.end(None)) == {"error": {"message": "overloaded", "type": "api_error"}}


@CALLER_DIALECTS
def test_stream_that_broke_off_is_no_whole_answer(caller_dialect: Dialect) -> None:
    gathered = GatheredAnswer(caller_dialect, context(streams=False))
    gathered.write([Started("id"), TextDelta("x")])
    with pytest.raises(UpstreamResetError):
        gathered.end(None)


def usage_of(answer: bytes) -> Any:
    return orjson.loads(answer)["usage"]
