"""A stream says what the whole body says, however its bytes are cut, in each dialect and for callers of each."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import orjson
import pytest

from policy.billing import MAX_REPORTED_TOKENS
from proxy.dialects import sse
from proxy.dialects.answer_translation import TranslatingBodyReader, TranslatingStreamReader
from proxy.dialects.chat_completions.dialect import DIALECT as CHAT
from proxy.dialects.messages.dialect import DIALECT as MESSAGES
from proxy.dialects.middle.answer import Answer, AnswerEvent
from proxy.dialects.middle.dialect import AnswerContext, Dialect
from proxy.dialects.middle.request import Reasoning, Request, Text
from proxy.dialects.responses.dialect import DIALECT as RESPONSES
from tests.fakes.seals import seals_of, unseal
from tests.proxy.dialects.assembling import assembled
from tests.proxy.dialects.chat_completions.recorded import RECORDED as CHAT_ANSWERS
from tests.proxy.dialects.messages.recorded import RECORDED as MESSAGES_ANSWERS
from tests.proxy.dialects.responses.recorded import RECORDED as RESPONSES_ANSWERS

SPOKEN = [(CHAT, CHAT_ANSWERS), (MESSAGES, MESSAGES_ANSWERS), (RESPONSES, RESPONSES_ANSWERS)]
RECORDED = [(dialect, name) for dialect, answers in SPOKEN for name in answers]
ANSWERS: dict[str, dict[str, Any]] = {dialect.name: dict(answers) for dialect, answers in SPOKEN}
CASES = pytest.mark.parametrize(("target_dialect", "name"), RECORDED, ids=[f"{d.name}-{name}" for d, name in RECORDED])
CALLER_DIALECTS = pytest.mark.parametrize(
    "caller_dialect", [CHAT, MESSAGES, RESPONSES], ids=lambda dialect: dialect.name
)


def recorded(target_dialect: Dialect, name: str) -> tuple[Any, bytes]:
    whole, frames = ANSWERS[target_dialect.name][name]
    return (orjson.loads(whole) if isinstance(whole, bytes) else whole), b"".join(frames)


def context() -> AnswerContext:
    return AnswerContext("acme/chat", Request([]), 1_700_000_000, seals_of())


def events_of(dialect: Dialect, stream: bytes) -> Iterator[AnswerEvent]:
    reader = dialect.new_stream_reader()
    framer = sse.Framer()
    for piece, kind in framer.split(stream):
        data = sse.data_of(piece) if kind == sse.FRAME else b""
        if data.strip() == b"[DONE]":
            yield from reader.done_received()
        elif data:
            yield from reader.read(orjson.loads(data))


def translated(target_dialect: Dialect, caller_dialect: Dialect, pieces: Iterable[bytes]) -> bytes:
    reader = TranslatingStreamReader(
        target_dialect, caller_dialect, context(), target_dialect.new_meter(MAX_REPORTED_TOKENS)
    )
    return b"".join([reader.feed(piece) for piece in pieces]) + reader.end()


def told(answer: Answer, caller_dialect: Dialect) -> tuple[object, ...]:
    """Return the common content: without white space and order in JSON, and without the bytes of tokens (Responses).

    A message of Chat Completions has no order between reasoning, text and calls.
    """
    logprobs = [{**token, "bytes": None, "top_logprobs": len(token["top_logprobs"])} for token in answer.logprobs or []]
    parts = [(type(part).__name__, _plain(asdict(part))) for part in answer.parts]
    if caller_dialect is CHAT:
        calls = [part for part in parts if part[0] == "ToolCall"]
        texts = {kind: "".join(p.text for p in answer.parts if isinstance(p, kind)) for kind in (Text, Reasoning)}
        return answer.id, calls, texts, answer.stop, logprobs
    return answer.id, parts, answer.stop, logprobs


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, str) and (sealed := unseal(value)) is not None:
        return sealed
    try:
        return orjson.loads(value) if isinstance(value, str) else value
    except orjson.JSONDecodeError:
        return value


@CASES
def test_stream_is_read_as_the_whole_answer(target_dialect: Dialect, name: str) -> None:
    whole, stream = recorded(target_dialect, name)
    assert assembled(events_of(target_dialect, stream)) == target_dialect.read_answer(whole)


@pytest.mark.parametrize(
    ("target_dialect", "name", "caller_dialect"),
    # No caller of Messages can offer a custom tool, so no such answer comes to one.
    [
        (target_dialect, name, caller_dialect)
        for target_dialect, name in RECORDED
        for caller_dialect in (CHAT, MESSAGES, RESPONSES)
        if caller_dialect is not MESSAGES or name not in ("custom-call", "only-done-events")
    ],
)
def test_caller_of_a_stream_reads_what_the_caller_of_a_body_reads(
    target_dialect: Dialect, name: str, caller_dialect: Dialect
) -> None:
    whole, stream = recorded(target_dialect, name)
    body = TranslatingBodyReader(
        target_dialect, caller_dialect, context(), target_dialect.new_body_meter(MAX_REPORTED_TOKENS)
    )
    body.feed(orjson.dumps(whole))
    answer = caller_dialect.read_answer(orjson.loads(body.end()))
    streamed = assembled(events_of(caller_dialect, translated(target_dialect, caller_dialect, [stream])))
    assert told(streamed, caller_dialect) == told(answer, caller_dialect)


@CASES
@CALLER_DIALECTS
def test_callers_stream_does_not_depend_on_segments(
    target_dialect: Dialect, name: str, caller_dialect: Dialect
) -> None:
    _, stream = recorded(target_dialect, name)
    expected = translated(target_dialect, caller_dialect, [stream])
    assert translated(target_dialect, caller_dialect, [stream[at : at + 1] for at in range(len(stream))]) == expected


def telling_places(stream: bytes) -> list[int]:
    """Cuts at the ends of lines, in the names of fields and in characters, and a few within long data."""
    in_name = (
        place for line in re.finditer(rb"^", stream, re.MULTILINE) for place in range(line.start(), line.start() + 9)
    )
    in_mark = (
        place for mark in re.finditer(rb"[\r\n\x80-\xff]", stream) for place in range(mark.start() - 1, mark.end() + 2)
    )
    return sorted(place for place in {*in_name, *in_mark, *range(0, len(stream), 13)} if 0 <= place < len(stream))


def assert_cuts_change_nothing(target_dialect: Dialect, stream: bytes, places: Iterable[int]) -> None:
    caller_dialect = MESSAGES if target_dialect is not MESSAGES else CHAT
    expected = translated(target_dialect, caller_dialect, [stream])
    for place in places:
        assert translated(target_dialect, caller_dialect, [stream[:place], stream[place:]]) == expected


@CASES
def test_cut_in_two_gives_the_same_stream(target_dialect: Dialect, name: str) -> None:
    _, stream = recorded(target_dialect, name)
    assert_cuts_change_nothing(target_dialect, stream, telling_places(stream))


@CASES
@pytest.mark.soak
def test_every_cut_in_two_gives_the_same_stream(target_dialect: Dialect, name: str) -> None:
    _, stream = recorded(target_dialect, name)
    assert_cuts_change_nothing(target_dialect, stream, range(len(stream)))


@CASES
@CALLER_DIALECTS
def test_stream_that_breaks_off_is_never_closed(target_dialect: Dialect, name: str, caller_dialect: Dialect) -> None:
    """The caller must see that the answer is not complete."""
    _, frames = ANSWERS[target_dialect.name][name]
    half = translated(target_dialect, caller_dialect, frames[: len(frames) // 2])
    with pytest.raises(AssertionError):
        assembled(events_of(caller_dialect, half))
