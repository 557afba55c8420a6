"""Last events wait for the usage until something lets them go: the rule of `finish.py`, for each target dialect."""

import re
from typing import Any

import pytest

from policy.billing import Tokens
from proxy.accounting.metering import AnswerReader
from proxy.dialects.finish import WAITS_FOR_USAGE, ChunkRoles, Role
from proxy.dialects.messages.passing import EVENTS as MESSAGES_STREAM
from proxy.dialects.responses.passing import EVENTS as RESPONSES_STREAM
from tests.proxy.dialects.samples import CHAT, SLUG, SSE, VENDOR_B, answer_reader, events, frames, received

CHAT_USAGE = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}


def chunk(index: int = 0, finish: str | None = None, usage: Any = None, **delta: Any) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return frames({"model": "m", "choices": [choice]} | ({"usage": usage} if usage else {}), has_done=False)


def passed(text: bytes) -> bytes:
    """Return the bytes that the caller gets: with the slug as the model."""
    return text.replace(b'"model":"m"', b'"model":"%b"' % SLUG.encode())


def reader(path: str = CHAT, **members: Any) -> AnswerReader:
    asks: dict[str, Any] = {"model": SLUG, "stream": True, "stream_options": {"include_usage": True}} | members
    return answer_reader(received(asks, path), VENDOR_B, SSE)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_finish_and_usage_leave_together(path: str) -> None:
    answer = reader(path)
    usage = frames({"model": "m", "choices": [], "usage": CHAT_USAGE}, has_done=False)
    assert answer.feed(chunk(content="a")) == passed(chunk(content="a"))
    assert answer.feed(chunk(finish="stop")) == answer.feed(b": keep-alive\n\n") == b""
    assert answer.feed(usage) == passed(chunk(finish="stop") + b": keep-alive\n\n" + usage)


def test_finish_of_one_choice_leaves_when_another_writes_on() -> None:
    answer = reader(n=2)
    deltas = [chunk(0, content="a"), chunk(1, content="b"), chunk(1, content="c")]
    assert [answer.feed(delta) for delta in deltas] == [passed(delta) for delta in deltas]
    assert answer.feed(chunk(0, "stop")) == b""
    assert answer.feed(chunk(1, content="d")) == passed(chunk(0, "stop") + chunk(1, content="d"))
    assert answer.feed(chunk(1, content="e")) == passed(chunk(1, content="e"))
    assert not answer.waits


def test_usage_beside_one_choices_finish_does_not_end_the_others() -> None:
    answer = reader(n=2)
    finish = chunk(0, "stop", CHAT_USAGE)
    assert answer.feed(finish) == passed(finish)
    assert answer.waited() == b""
    assert not answer.ended
    assert answer.feed(chunk(1, content="b")) == passed(chunk(1, content="b"))


def test_text_in_the_finish_waits_with_it() -> None:
    answer = reader()
    assert answer.feed(chunk(content="a")) == passed(chunk(content="a"))
    assert answer.feed(chunk(finish="stop", content="b")) == b""
    assert answer.waits
    assert answer.waited() == passed(chunk(finish="stop", content="b"))
    assert not answer.ended
    assert answer.feed(b"data: [DONE]\n\n") == b""
    assert (answer.ended, answer.end()) == (True, b"data: [DONE]\n\n")


def test_finish_beside_every_text_holds_the_latest_one_only() -> None:
    answer = reader()
    texts = [chunk(finish="stop", content=text) for text in "abc"]
    assert [answer.feed(text) for text in texts] == [b"", passed(texts[0]), passed(texts[1])]
    assert answer.feed(b"data: [DONE]\n\n") == b""
    assert answer.end() == passed(texts[2]) + b"data: [DONE]\n\n"


def test_finish_and_usage_beside_every_text_end_nothing() -> None:
    answer = reader()
    texts = [chunk(finish="stop", usage=CHAT_USAGE, content=text) for text in "abc"]
    for text in texts:
        assert answer.feed(text) == passed(text)
        assert not answer.waits


def test_usage_of_zero_lets_nothing_go() -> None:
    answer = reader()
    answer.feed(chunk(content="a"))
    assert answer.feed(chunk(finish="stop", usage=CHAT_USAGE | {"completion_tokens": 0})) == b""


def test_usage_before_the_finish_passes() -> None:
    answer = reader()
    usage = frames({"model": "m", "choices": [], "usage": CHAT_USAGE}, has_done=False)
    assert answer.feed(usage) == passed(usage)
    assert answer.feed(chunk(finish="stop")) == b""


def test_last_event_is_supplied_where_nothing_else_is_missing() -> None:
    answer = reader()
    finish = chunk(finish="stop", usage=CHAT_USAGE)
    assert answer.feed(finish) == passed(finish)
    assert answer.waited() == b""
    assert (answer.ended, answer.end()) == (True, b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("path", "last"), [(CHAT, b"data: [DONE]\n\n"), ("/v1/messages", b'{"type":"message_stop"}\n\n')]
)
def test_answer_without_usage_ends_some_waits_after_its_finish(path: str, last: bytes) -> None:
    answer = reader(path, stream_options=None, max_tokens=9, messages=[{"role": "user", "content": "x"}])
    answer.feed(chunk(content="a"))
    output = answer.feed(chunk(finish="stop"))
    for _ in range(WAITS_FOR_USAGE - 1):
        output += answer.waited()
        output += answer.feed(b": keep-alive\n\n")
        assert (answer.ended, bool(answer.waits)) == (False, True)
    output += answer.waited()
    assert (answer.ended, answer.waits) == (True, 0)
    assert len(re.findall(rb'"(?:finish|stop)_reason":"', output)) == 1
    assert answer.end().endswith(last)


def test_report_in_a_late_wait_is_believed() -> None:
    answer = reader()
    answer.feed(chunk(content="a"))
    answer.feed(chunk(finish="stop"))
    for _ in range(WAITS_FOR_USAGE - 1):
        answer.waited()
    answer.feed(frames({"model": "m", "choices": [], "usage": CHAT_USAGE}, has_done=False))
    assert answer.waited() == b""
    assert answer.ended
    assert answer.reported.tokens == Tokens(input=10, output=3)


@pytest.mark.parametrize("members", [{"n": 2}, {}])
def test_finish_that_may_not_be_the_last_one_ends_nothing(members: Any) -> None:
    answer = reader(**members)
    answer.feed(chunk(content="a"))
    answer.feed(chunk(finish="stop") if members else chunk(finish="stop", content="b"))
    answer.waited()
    assert (answer.ended, answer.waits) == (False, 0)


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
def test_output_after_the_wait_for_the_usage_is_read_on(path: str) -> None:
    answer = reader(path, stream_options=None, max_tokens=9, messages=[{"role": "user", "content": "x"}])
    answer.feed(chunk(content="a"))
    answer.feed(chunk(finish="stop"))
    answer.waited()
    assert b'"there"' in answer.feed(chunk(content="there"))
    assert answer.waits == 0
    last = answer.feed(chunk(finish="length") + b"data: [DONE]\n\n") + answer.end()
    assert b'"length"' in last or b'"max_tokens"' in last


def test_failure_ends_a_wait_later_unless_output_follows() -> None:
    answer = reader()
    failure = frames({"error": {"message": "x"}}, has_done=False)
    assert answer.feed(failure) == failure
    first = answer.waits
    assert answer.feed(b": keep-alive\n\n") == b": keep-alive\n\n"
    assert answer.waits == first
    assert answer.feed(chunk(content="a")) == passed(chunk(content="a"))
    assert answer.waits > first
    assert answer.waited() == b""
    assert (answer.ended, answer.failed, answer.end()) == (True, True, b"")


def test_each_wait_has_a_number_of_its_own() -> None:
    answer = reader(n=2)
    numbers = []
    for _ in range(2):
        answer.feed(chunk(0, "stop"))
        numbers.append(answer.waits)
        answer.feed(chunk(1, content="b"))
        numbers.append(answer.waits)
    assert numbers == [1, 0, 2, 0]


def test_failure_leaves_at_once_behind_what_was_held() -> None:
    answer = reader()
    failure = frames({"error": {"message": "x"}}, has_done=False)
    answer.feed(chunk(finish="stop"))
    assert answer.feed(failure) == passed(chunk(finish="stop")) + failure


def test_ends_of_parts_wait_until_another_part_begins() -> None:
    answer = reader("/v1/responses", input="x")
    first, done_event, added = (
        events({"type": kind, "item": {}})
        for kind in ("response.output_text.delta", "response.output_item.done", "response.output_item.added")
    )
    assert answer.feed(first) == first
    assert answer.feed(done_event) == b""
    assert answer.feed(added) == done_event + added


@pytest.mark.parametrize(
    ("choices", "role"),
    [
        ([{"delta": {"content": "a"}, "finish_reason": None}], Role.OUTPUT),
        ([{"text": "a"}], Role.OUTPUT),
        ([{"delta": {"audio": {"data": "AA"}}}], Role.OUTPUT),
        ([{"delta": {"tool_calls": [{"index": 0}]}, "finish_reason": ""}], Role.OUTPUT),
        ([{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}], Role.OTHER),
        ([], Role.OTHER),
        (None, Role.OTHER),
        ([{"delta": {}, "finish_reason": "length"}], Role.FINISH),
        ([{"delta": {"content": "a"}, "finish_reason": "length"}], Role.OUTPUT_AND_FINISH),
        ([{"delta": {"content": "a"}}, {"index": 1, "delta": {}, "finish_reason": "stop"}], Role.OUTPUT_AND_FINISH),
    ],
)
def test_role_of_a_chunk(choices: Any, role: Role) -> None:
    assert ChunkRoles().of_event({"choices": choices}) is role


@pytest.mark.parametrize(
    ("frame", "role"),
    [
        (b'data: {"type": "content_block_stop", "index": 0}\n\n', Role.PART_END),
        (b'event: content_block_stop\ndata: {"index": 0}\n\n', Role.PART_END),
        (b'data: {"type":"message_stop"}\r\n\r\n', Role.LAST),
        (b"data: [DONE]\n\n", Role.LAST),
        (b'data: {"type":"ping"}\n\n', Role.OTHER),
        (b'data: {"type":"something_new"}\n\n', Role.OTHER),
        (b'data: {"type":"content_block_start","index":1}\n\n', Role.OUTPUT),
        (b'data: {"type":"message_delta","delta":{}}\n\n', None),
        (b'data: {"index":0,"type":"message_stop"}\n\n', None),
    ],
)
def test_role_of_a_messages_frame(frame: bytes, role: Role | None) -> None:
    assert MESSAGES_STREAM.roles.of_frame(frame) is role


@pytest.mark.parametrize(
    ("kind", "role"),
    [
        ("response.output_text.delta", Role.OUTPUT),
        ("response.reasoning_summary_part.added", Role.OUTPUT),
        ("response.output_text.done", Role.PART_END),
        ("response.function_call_arguments.done", Role.PART_END),
        ("response.web_search_call.completed", Role.OTHER),
        ("response.completed", Role.LAST),
        ("response.incomplete", Role.LAST),
        ("response.failed", Role.LAST),
        ("response.done.ish", Role.OTHER),
    ],
)
def test_role_of_a_responses_event(kind: str, role: Role) -> None:
    assert RESPONSES_STREAM.roles.of_event({"type": kind}) is role


def test_finish_of_messages_tells_why_it_stopped() -> None:
    roles = MESSAGES_STREAM.roles
    assert roles.of_event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}) is Role.FINISH
    assert roles.of_event({"type": "message_delta", "delta": {"stop_reason": None}}) is Role.OTHER


@pytest.mark.parametrize("size", [10, 600_000, 1_500_000, 5_000_000])
def test_last_event_of_any_size_ends_the_answer(size: int) -> None:
    usage = {"input_tokens": 9, "output_tokens": 4, "total_tokens": 13}
    delta = events({"type": "response.output_text.delta", "delta": "a"})
    last = events({"type": "response.completed", "response": {"output": "x" * size, "usage": usage}})
    stream = delta + last + b": junk\n\n"
    for step in (65_536, len(stream)):
        answer = reader("/v1/responses", input="x")
        out = b"".join(answer.feed(stream[start : start + step]) for start in range(0, len(stream), step))
        assert answer.ended
        assert len(out) < len(delta + last), "the end waits"
        assert out + answer.end() == delta + last
        assert answer.reported.tokens == Tokens(input=9, output=4)
