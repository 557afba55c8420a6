"""A body becomes a `Submission` within bounds, or a 400 that names the member; nothing else."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.async_requests.requests import RetryRules, Submission
from proxy.async_requests.submission import BOUNDS, MAX_SETTINGS_BYTES, parse_submission
from proxy.json_text import member_spans, sliced_json
from proxy.json_text.json_bounds import MAX_MEMBERS
from proxy.refusals import MalformedRequestError
from proxy.time_slices import Slices


async def parsed(raw: bytes | dict[str, Any]) -> Submission:
    return await parse_submission(raw if isinstance(raw, bytes) else orjson.dumps(raw), "w1", Slices())


async def fault(raw: bytes | dict[str, Any]) -> str:
    with pytest.raises(MalformedRequestError) as caught:
        await parsed(raw)
    return caught.value.message


def body_with(**members: Any) -> dict[str, Any]:
    return {"model_input": 1, **members}


# --- What is taken --------------------------------------------------------------------------------------------------


async def test_defaults_apply_to_what_is_absent() -> None:
    assert await parsed(b'{"model_input": {"x": 1.0}}') == Submission(
        b'{"x": 1.0}', None, 0, 600, RetryRules(max_attempts=3, initial_delay_ms=1000, max_delay_ms=5000)
    )


async def test_null_counts_as_absent() -> None:
    rules = {"max_attempts": None, "initial_delay_ms": 7, "max_delay_ms": None}
    body = body_with(webhook_endpoint=None, priority=None, max_time_in_queue_seconds=None)
    assert await parsed(body | {"inference_retry_config": None}) == Submission(b"1")
    assert await parsed(body | {"inference_retry_config": rules}) == Submission(
        b"1", retries=RetryRules(initial_delay_ms=7)
    )


async def test_every_member_is_read() -> None:
    body = body_with(
        webhook_endpoint="https://x.example/é",
        priority=2,
        max_time_in_queue_seconds=259_200,
        inference_retry_config={"max_attempts": 10, "initial_delay_ms": 10_000, "max_delay_ms": 60_000},
    )
    assert await parsed(body) == Submission(b"1", "https://x.example/é", 2, 259_200, RetryRules(10, 10_000, 60_000))


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "0",
        "-0.50E+1",
        '"a\\u0041\\/"',
        "[ 1 , 2 ]",
        '{ "model_input" : {"b":1,"a":1,"a":2} }',
        "[]",
        '""',
        "1.10",
    ],
)
@pytest.mark.parametrize("around", ["{%s}", '{"priority":1,%s}', '\n{ %s ,\t"priority" : 1 }\n'])
async def test_model_input_keeps_the_bytes_that_were_written(text: str, around: str) -> None:
    for name in ("model_input", "model\\u005finput"):
        for member in (f'"{name}":{text}', f'"{name}" \n : \t{text} \r\n '):
            assert (await parsed((around % member).encode())).model_input == text.encode()


async def test_of_a_duplicated_member_the_last_one_counts() -> None:
    raw = b'{"model_input": 1, "priority": 9, "model_input": [2 ], "priority": 2, "model_inpu\\u0074":3}'
    assert await parsed(raw) == Submission(b"3", priority=2)


async def test_large_model_input_is_cut_out_unchanged() -> None:
    text = b'{"image" : "%b", "prompt":"a \\"b\\" \\n"}' % (b"A" * 3_000_000)
    raw = b'{"priority":1,"model_input": %b  \n\n, "webhook_endpoint":"https://x.example/%b"}' % (text, b"w" * 500)
    assert await parsed(raw) == Submission(text, f"https://x.example/{'w' * 500}", 1)


async def test_large_body_with_duplicates_is_read_like_a_small_one() -> None:
    raw = b'{"model_input":1,"priority":2,"model_input":"%b"%b,"model_input":2%b}' % (
        b"A" * 600_000,
        b" " * 200_000,
        b" " * 200_000,
    )
    assert await parsed(raw) == Submission(b"2", priority=2)


@pytest.mark.parametrize("unit", [b"[1,2,3],", b"{},", b"0.125,", b'"a",', b'{"priority":7,"x":[[]]}, '])
@pytest.mark.parametrize("size", [200_000, 2_000_000])
async def test_model_input_may_hold_any_number_of_values(unit: bytes, size: int) -> None:
    text = b"[%b 1]" % (unit * (size // len(unit)))
    assert await parsed(b'{"priority":1,"model_input": %b ,"webhook_endpoint":null}' % text) == Submission(
        text, priority=1
    )


async def test_white_space_around_a_large_model_input_is_not_part_of_it() -> None:
    for space in (b"", b" ", b"\n" * 30_000):
        raw = space.join(
            (b"", b"{", b'"model_input"', b":", b'["%b"]' % (b"A" * 600_000), b",", b'"priority":2', b"}", b"")
        )
        assert await parsed(raw) == Submission(b'["%b"]' % (b"A" * 600_000), priority=2)


# --- What is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", BOUNDS)
async def test_number_out_of_bounds_is_refused_by_its_path(path: str) -> None:
    smallest, largest = BOUNDS[path]
    holder, _, name = path.rpartition(".")

    def body(value: object) -> dict[str, Any]:
        return body_with(**({holder: {name: value}} if holder else {name: value}))

    wrong = {
        smallest - 1: str(smallest - 1),
        largest + 1: str(largest + 1),
        2**63: str(2**63),
        1.0 * largest: f"{1.0 * largest}",
        f"{smallest}": f'"{smallest}"',
        True: "true",
        (): "a list",
    }
    for value, text in wrong.items():
        expected = f"{path} must be an integer from {smallest} to {largest}, not {text}"
        assert await fault(body(value)) == expected
    assert path in await fault(body({"a": 1}))
    assert await parsed(body(smallest)) != await parsed(body(largest))


async def test_number_beyond_any_integer_type_is_refused() -> None:
    raw = b'{"model_input":1,"inference_retry_config":{"max_delay_ms":1%b}}' % (b"0" * 30)
    assert await fault(raw) == "inference_retry_config.max_delay_ms must be an integer from 0 to 60000, not 1e+30"
    assert await fault(b'{"model_input":1,"priority":%b}' % (b"9" * 400)) == "the body is not valid JSON"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is not valid JSON"),
        (b'{"model_input":1', "the body is not valid JSON"),
        (b'{"model_input":NaN}', "the body is not valid JSON"),
        (b'{"model_input":"\xff"}', "the body is not valid JSON"),
        (b"[1]", "the body must be a JSON object"),
        (b'{"priority":1}', "model_input is missing: it is the JSON value that the model is sent"),
        (
            b'{"model_input":1,"webhook_endpoint":{}}',
            "webhook_endpoint must be a string, the URL that is told the result, not an object",
        ),
        (b'{"model_input":1,"inference_retry_config":[]}', "inference_retry_config must be an object, not a list"),
        (b'{"model_input":1,"inference_retry_config":"x"}', 'inference_retry_config must be an object, not "x"'),
        (
            b'{"model_input":1,"prio\\nrity":1}',
            'unknown member "prio\\nrity": the body may have model_input, webhook_endpoint, priority, '
            "max_time_in_queue_seconds, inference_retry_config",
        ),
        (
            b'{"model_input":1,"inference_retry_config":{"a":1,"max_attempts":1,"max_attempt":1}}',
            'unknown members "inference_retry_config.a", "inference_retry_config.max_attempt": inference_retry_config '
            "may have inference_retry_config.max_attempts, inference_retry_config.initial_delay_ms, "
            "inference_retry_config.max_delay_ms",
        ),
    ],
)
async def test_fault_is_named(body: bytes, message: str) -> None:
    assert await fault(body) == message


async def test_message_is_short_however_much_is_wrong() -> None:
    names = {f"{number}{'n' * 300}": 1 for number in range(900)}
    message = await fault(body_with(**names))
    assert len(message) < 500
    assert " and 895 more: " in message
    assert len(await fault(body_with(priority="p" * 1_000_000))) < 150


async def test_many_members_are_refused_even_under_one_name() -> None:
    for size in (MAX_MEMBERS, 100_000):
        raw = b'{"model_input":1%b}' % (b',"model_input":2' * size)
        assert await fault(raw) == "the body holds more than 1000 members"


async def test_settings_of_a_large_body_are_bounded() -> None:
    raw = b'{"model_input":"%b","webhook_endpoint":"%b"}' % (b"A" * 600_000, b"w" * MAX_SETTINGS_BYTES)
    assert await fault(raw) == f"the members other than model_input hold more than {MAX_SETTINGS_BYTES} bytes"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"model_input":"%b"', "the body is not valid JSON"),
        (b'{"model_input":"%b\\ud800"}', "the body is not valid JSON"),
        (b'["%b"]', "the body must be a JSON object"),
        (b'{"input":"%b"}', "model_input is missing: it is the JSON value that the model is sent"),
        (b'{"model_input":"%b","priority":3}', "priority must be an integer from 0 to 2, not 3"),
    ],
)
async def test_fault_of_a_large_body_is_named(body: bytes, message: str) -> None:
    assert await fault(body % (b"A" * 600_000)) == message


# --- Any JSON -------------------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
NUMBERS = st.integers(-2, 12) | st.sampled_from([10, 600, 259_200, 259_201, 60_000, 60_001, 10_000, 10_001])
RULES = st.dictionaries(
    st.sampled_from(["max_attempts", "initial_delay_ms", "max_delay_ms", "other"]), NUMBERS | VALUES, max_size=4
)
NEAR = st.dictionaries(
    st.sampled_from(
        [
            *("model_input", "webhook_endpoint", "priority", "max_time_in_queue_seconds"),
            *("inference_retry_config", "other"),
        ]
    ),
    NUMBERS | st.text() | RULES | VALUES,
)


@pytest.mark.parametrize("in_slices", [False, True])
@given(raw=(NEAR | VALUES).map(lambda value: json.dumps(value).encode()) | st.binary())
async def test_anything_is_taken_within_bounds_or_refused(in_slices: bool, raw: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if in_slices:
            patch.setattr(sliced_json, "AT_ONCE_BYTES", -1)
            patch.setattr(member_spans, "PIECE_BYTES", 3)
        try:
            submission = await parsed(raw)
        except MalformedRequestError:
            return
    body = orjson.loads(raw)
    assert orjson.loads(submission.model_input) == body["model_input"]
    assert submission.webhook_endpoint == body.get("webhook_endpoint")
    rules = submission.retries
    for path, value in (
        ("priority", submission.priority),
        ("max_time_in_queue_seconds", submission.max_time_in_queue_s),
        ("inference_retry_config.max_attempts", rules.max_attempts),
        ("inference_retry_config.initial_delay_ms", rules.initial_delay_ms),
        ("inference_retry_config.max_delay_ms", rules.max_delay_ms),
    ):
        smallest, largest = BOUNDS[path]
        assert type(value) is int
        assert smallest <= value <= largest
