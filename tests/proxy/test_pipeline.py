"""The whole path on in-memory parts: every kind of answer and refusal, and what each one bills."""

import asyncio
import contextlib
import json
from dataclasses import asdict
from typing import Any

import pytest

from policy.billing import MAX_COUNT, Tokens
from policy.endpoints import Target, VendorCConfig
from policy.limits.limit import Limit, LimitType, Unit
from policy.snapshot import WorkspaceRow
from proxy.accounting.recovery import open_record
from proxy.capacity.worker_capacity import CapacityLimits
from proxy.exchange import (
    UpstreamCutError,
    UpstreamResetError,
    UpstreamTimeoutError,
    UpstreamUnreachableError,
)
from tests.fakes.directory import KEY, SLUG, WORKSPACE_KEY, platform
from tests.fakes.path import VENDOR_B, House, now_ms
from tests.fakes.upstream_client import SSE, FakeAnswer, answer
from tests.fakes.wire import FakeIncoming, FakeOutgoing, asking

ANSWER_TOKENS = 1
"""Tokens of an answer's text, which is a word or a letter."""
REQUEST_TOKENS = 1
"""Tokens of a request's text."""
USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12, "prompt_tokens_details": {"cached_tokens": 2}}
REPORTED = Tokens(input=7, output=5, cached_input=2)


def completion(**more: Any) -> bytes:
    message = {"role": "assistant", "content": "hello"}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return json.dumps({"id": "c1", "model": "their-model", "choices": choices, "usage": USAGE, **more}).encode()


def frame(**more: Any) -> bytes:
    return (
        b"data: "
        + json.dumps({"id": "c1", "object": "chat.completion.chunk", "model": "their-model", **more}).encode()
        + b"\n\n"
    )


def delta(text: str) -> bytes:
    return frame(choices=[{"index": 0, "delta": {"content": text}}])


DONE = b"data: [DONE]\n\n"


def streamed(*pieces: Any) -> FakeAnswer:
    return answer(headers=SSE, pieces=pieces)


@pytest.fixture
def house() -> House:
    return House()


# Answers.


async def test_call_is_answered_billed_and_counted_in_metrics(house: House) -> None:
    house.upstream.will(answer(completion()))
    outgoing = await house.serve(asking())
    assert (outgoing.status, outgoing.finished) == (200, True)
    assert outgoing.json["model"] == SLUG
    [opened], [closed] = house.journal.opened, house.journal.closed
    assert (closed.status, closed.tokens) == (200, REPORTED)
    assert (opened.workspace_id, opened.group_id, opened.model_slug) == ("w1", "g1", SLUG)
    assert (opened.api_key_prefix, opened.external_entity_id) == (KEY.partition(".")[0], "entity-1")
    [counted] = house.meters.calls
    assert (counted.status, counted.tokens, counted.external_entity_id) == (200, REPORTED, "entity-1")
    house.check_settled()


async def test_access_log_and_metrics_get_the_same_complete_record(house: House) -> None:
    house.upstream.will(answer(completion()))
    incoming = asking()
    outgoing = await house.serve(incoming)
    [logged] = house.access_log.records
    assert house.meters.calls == [logged]
    texts = {"method", "path", "request_id", "workspace_id", "group_id", "key_prefix", "slug", "cause"}
    assert {name: value for name, value in asdict(logged).items() if name in texts} == {
        "method": "POST",
        "path": incoming.target,
        "request_id": outgoing.header("x-request-id"),
        "workspace_id": "w1",
        "group_id": "g1",
        "key_prefix": KEY.partition(".")[0],
        "slug": SLUG,
        "cause": "",
    }
    assert (logged.request_bytes, logged.response_bytes) == (incoming.declared_bytes, outgoing.sent_bytes)
    assert abs(logged.ended_at_ms - now_ms()) < 60_000
    assert logged.first_byte_s is not None
    assert 0 < logged.ours_s <= logged.duration_s
    assert 0 < logged.upstream_s < logged.duration_s
    assert logged.first_byte_s <= logged.duration_s


@pytest.mark.parametrize(
    "asked", [asking(model="acme/unknown"), FakeIncoming().saying(b"{"), FakeIncoming("/v1/nothing")]
)
async def test_refused_call_is_counted_with_its_external_entity_id(house: House, asked: FakeIncoming) -> None:
    outgoing = await house.serve(asked)
    [counted] = house.meters.calls
    assert outgoing.status in (400, 404)
    assert (counted.status, counted.external_entity_id, counted.slug) == (outgoing.status, "entity-1", "")


DEEP = '{"a":' * 400 + "1" + "}" * 400


@pytest.mark.parametrize(
    "asked",
    [
        FakeIncoming().saying(f'{{"model":"{SLUG}","metadata":{DEEP}}}'.encode()),
        FakeIncoming(x_request_metadata=DEEP).saying({"model": SLUG}),
        FakeIncoming().saying(f'{{"model":"x","model":"{SLUG}","messages":[{DEEP}]}}'.encode()),
    ],
    ids=["metadata", "header", "a duplicate member, so that the body is encoded again"],
)
async def test_too_deeply_nested_json_is_a_400(house: House, asked: FakeIncoming) -> None:
    outgoing = await house.serve(asked)
    assert outgoing.status == 400
    assert "nested too deeply" in outgoing.json["error"]
    assert not house.upstream.calls


async def test_call_is_journaled_before_the_last_byte_is_sent(house: House) -> None:
    for upstream, asked in (
        (answer(completion()), asking()),
        (streamed(delta("a"), delta("b"), frame(choices=[], usage=USAGE), DONE), asking(stream=True)),
    ):
        outgoing = FakeOutgoing(entries=house.journal.entries)
        house.journal.entries.clear()
        house.upstream.will(upstream)
        await house.pipeline.handle(asked, outgoing)
        entries = house.journal.entries
        assert entries[-2:] == ["close", "finish"]
        assert entries.count("close") == 1
        assert entries[0] == "open"


async def test_stream_is_journaled_as_answered_before_its_first_bytes(house: House) -> None:
    outgoing = FakeOutgoing(entries=house.journal.entries)
    house.upstream.will(streamed(delta("a"), DONE))
    await house.pipeline.handle(asking(stream=True), outgoing)
    assert house.journal.entries == ["open", "answered", "write", "close", "finish"]


async def test_stream_passes_with_the_slug_as_its_model(house: House) -> None:
    house.upstream.will(streamed(delta("a"), delta("b"), frame(choices=[], usage=USAGE), DONE))
    outgoing = await house.serve(asking(stream=True))
    assert outgoing.header("content-type") == "text/event-stream"
    assert b"their-model" not in outgoing.body
    assert outgoing.body.count(SLUG.encode()) == 2, "the usage chunk that only the proxy asked for is removed"
    assert outgoing.body.endswith(DONE)
    assert house.journal.closed[0].tokens == REPORTED


async def test_head_is_sent_before_the_first_complete_frame(house: House) -> None:
    house.upstream.will(streamed(b"data: {", delta("a")[7:], DONE))
    outgoing = await house.serve(asking(stream=True))
    assert outgoing.pieces[0] == b""
    assert outgoing.finished


async def test_upstream_call_has_the_targets_model_and_credential(house: House) -> None:
    house.upstream.will(answer(completion()))
    await house.serve(asking())
    [sent] = house.upstream.calls
    assert sent.url == f"{VENDOR_B}/v1/chat/completions"
    assert json.loads(bytes(sent.body))["model"] == "their-model"
    headers = sent.headers
    assert headers["authorization"] == "Bearer sk-upstream-secret"
    assert KEY not in str(sent)


# Request ids, metadata, model listing.


async def test_valid_request_id_is_kept_and_an_invalid_one_replaced(house: House) -> None:
    for given, kept in (("my-id", True), ("no good", False)):
        house.upstream.will(answer(completion()))
        incoming = asking()
        incoming.fields.append(("x-request-id", given))
        outgoing = await house.serve(incoming)
        shown = outgoing.header("x-request-id")
        assert (shown == given) is kept
        assert shown == house.journal.opened[-1].request_id
        assert house.upstream.calls[-1].headers["x-request-id"] == shown


async def test_refusal_has_a_request_id(house: House) -> None:
    outgoing = await house.serve(FakeIncoming(authorization=None))
    assert len(outgoing.header("x-request-id") or "") == 26


@pytest.mark.parametrize(
    ("header", "body", "kept"),
    [
        ('{"a":1}', {"b": 2}, {"a": 1}),
        (None, {"b": 2}, {"b": 2}),
        (None, None, None),
    ],
)
async def test_request_metadata_comes_from_the_header_or_else_the_body(
    house: House, header: str | None, body: object, kept: object
) -> None:
    house.upstream.will(answer(completion()))
    incoming = asking(metadata=body) if body is not None else asking()
    if header is not None:
        incoming.fields.append(("x-request-metadata", header))
    await house.serve(incoming)
    assert house.journal.opened[0].request_metadata == kept


EXACT = '{"id":340282366920938463463374607431768211456,"deep":[{"n":-98765432109876543210,"x":0.1234567890123456789}]}'


@pytest.mark.parametrize("spaced", [False, True])
async def test_long_numbers_in_request_metadata_stay_exact(house: House, spaced: bool) -> None:
    text = EXACT.replace(":", " :\n ") if spaced else EXACT
    house.upstream.will(answer(completion()), answer(completion()), answer(completion()))
    await house.serve(FakeIncoming().saying(f'{{"model":"{SLUG}","metadata":{text}}}'.encode()))
    await house.serve(FakeIncoming(x_request_metadata=text.replace("\n", " ")).saying({"model": SLUG}))
    long = json.dumps("x" * 100_000)
    house.max_body_bytes = 1 << 20
    house.over(house.upstream)
    await house.serve(FakeIncoming().saying(f'{{"model":"{SLUG}","prompt":{long},"metadata":{text}}}'.encode()))
    for opened in house.journal.opened:
        assert b',"request_metadata":' + EXACT.encode() in open_record(opened)


async def test_request_metadata_of_long_numbers_is_bounded(house: House) -> None:
    numbers = ",".join(["1" * 100] * 700)
    outgoing = await house.serve(FakeIncoming().saying(f'{{"model":"{SLUG}","metadata":{{"n":[{numbers}]}}}}'.encode()))
    assert (outgoing.status, outgoing.json["error"]) == (400, "metadata is larger than 65536 bytes")


@pytest.mark.parametrize("header", ["nope", "[1]", "1", "", '{"a":"' + "x" * 4096 + '"}'])
async def test_malformed_request_metadata_header_is_a_400(house: House, header: str) -> None:
    incoming = asking()
    incoming.fields.append(("x-request-metadata", header))
    outgoing = await house.serve(incoming)
    assert outgoing.status == 400
    assert "x-request-metadata" in outgoing.json["error"]
    assert not house.journal.opened


async def test_listing_has_the_existing_models_that_the_key_may_call(house: House) -> None:
    outgoing = await house.serve(FakeIncoming("/v1/models", "GET"))
    assert outgoing.status == 200
    assert outgoing.json == {
        "object": "list",
        "data": [{"id": SLUG, "object": "model", "created": 0, "owned_by": "acme"}],
    }
    house.directory.endpoints.clear()
    assert (await house.serve(FakeIncoming("/v1/models", "GET"))).json["data"] == []


# Refusals before admission: nothing is consumed, nothing is billed.


def unread(incoming: FakeIncoming) -> FakeIncoming:
    incoming.parts.append(AssertionError("the body was read"))
    return incoming


@pytest.mark.parametrize(
    ("incoming", "status", "error"),
    [
        (FakeIncoming(authorization=None), 401, {"error": "Unauthorized"}),
        (FakeIncoming(authorization="Basic eDp5"), 401, {"error": "Unauthorized"}),
        (FakeIncoming(authorization="Bearer nonsense"), 403, {"error": "Authentication failed"}),
        (FakeIncoming(authorization=f"Bearer {KEY}x"), 403, {"error": "Authentication failed"}),
        (FakeIncoming(authorization=f"Bearer {WORKSPACE_KEY}"), 403, {"error": "Authentication failed"}),
        (FakeIncoming("/models/m1/production/predict"), 403, {"error": "Authentication failed"}),
        (FakeIncoming("/nowhere", authorization=None), 401, {"error": "Unauthorized"}),
    ],
)
async def test_unauthorized_call_is_refused_before_its_body_is_read(
    house: House, incoming: FakeIncoming, status: int, error: dict[str, str]
) -> None:
    outgoing = await house.serve(unread(incoming))
    assert (outgoing.status, outgoing.json) == (status, error)
    assert incoming.reads == 0
    house.check_settled()


@pytest.mark.parametrize("form", [f"bearer {KEY}", f"Api-Key {KEY}"])
async def test_each_form_of_a_credential_is_accepted(house: House, form: str) -> None:
    house.upstream.will(answer(completion()), answer(completion()))
    incoming = asking()
    incoming.fields[0] = ("authorization", form)
    assert (await house.serve(incoming)).status == 200
    incoming = asking()
    incoming.fields[0] = ("x-api-key", KEY)
    assert (await house.serve(incoming)).status == 200


async def test_unknown_key_is_confirmed_with_control_before_a_403(house: House) -> None:
    row = house.directory.keys.popitem()
    house.directory.keys.clear()
    house.directory.add_key(KEY)
    known = list(house.directory.keys.items())
    house.directory.keys.clear()
    assert row
    assert (await house.serve(asking())).status == 403
    house.directory.arrives_on_confirmation = known
    house.upstream.will(answer(completion()))
    assert (await house.serve(asking())).status == 200
    assert house.directory.confirmations == 2


async def test_missing_policy_is_a_503(house: House) -> None:
    house.directory.unconfirmable = True
    house.directory.keys.clear()
    assert (await house.serve(asking())).status == 503
    house.directory.away = True
    assert (await house.serve(asking())).status == 503
    assert (await house.serve(FakeIncoming("/v1/models", "GET"))).status == 503


@pytest.mark.parametrize(
    ("workspace", "status"),
    [
        (WorkspaceRow("w1", "suspended", "basic", True), 402),
        (WorkspaceRow("w1", "active", "basic", False), 403),
    ],
)
async def test_suspended_workspace_is_a_402_and_one_not_onboarded_a_403(
    house: House, workspace: WorkspaceRow, status: int
) -> None:
    house.directory.workspaces["w1"] = workspace
    assert (await house.serve(asking())).status == status


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"\xff\xfe", "JSON"),
        (b"[]", "object"),
        (b'"x"', "object"),
        (b"{}", "model"),
        (b'{"model":1}', "model"),
        (b'{"model":""}', "model"),
        (b'{"model":NaN}', "JSON"),
        (b"[" * 100_000, "JSON"),
    ],
)
async def test_invalid_body_is_a_400_that_names_the_fault(house: House, body: bytes, expected: str) -> None:
    outgoing = await house.serve(FakeIncoming().saying(body))
    assert outgoing.status == 400
    assert expected in outgoing.json["error"]


async def test_unknown_and_forbidden_slugs_get_the_same_404(house: House) -> None:
    house.directory.add_slug("acme/other", Target("VENDOR_B", secret_id="s1"))
    house.directory.add_slug("them/theirs", Target("VENDOR_B", secret_id="s1"), workspace_id="w2")
    answers = [await house.serve(asking(slug)) for slug in ("acme/none", "acme/other", "them/theirs")]
    assert [outgoing.status for outgoing in answers] == [404] * 3
    texts = [
        outgoing.json["error"].replace(slug, "?")
        for outgoing, slug in zip(answers, ("acme/none", "acme/other", "them/theirs"), strict=True)
    ]
    assert len(set(texts)) == 1


async def test_slug_of_another_workspace_is_a_404_even_if_the_group_allows_it(house: House) -> None:
    house.directory.add_slug(SLUG, Target("VENDOR_B", secret_id="s1"), workspace_id="w2")
    assert (await house.serve(asking())).status == 404


async def test_unknown_path_is_a_404_and_wrong_method_a_405(house: House) -> None:
    assert (await house.serve(FakeIncoming("/v1/nope"))).status == 404
    wrong = await house.serve(FakeIncoming("/v1/chat/completions", "GET"))
    assert (wrong.status, wrong.header("allow")) == (405, "POST")
    assert (await house.serve(FakeIncoming("/v1/models", "POST"))).header("allow") == "GET, HEAD"


async def test_compressed_body_is_a_415(house: House) -> None:
    incoming = asking()
    incoming.fields.append(("content-encoding", "gzip"))
    assert (await house.serve(incoming)).status == 415


async def test_413_names_both_sizes() -> None:
    house = House(max_body_bytes=100)
    declared = unread(FakeIncoming())
    declared.declared_bytes = 101
    outgoing = await house.serve(declared)
    assert outgoing.status == 413
    assert outgoing.json["error"] == "payload size of 101 bytes exceeds maximum size of 100 bytes"
    streaming = FakeIncoming()
    streaming.parts.extend([b"x" * 60, b"x" * 60, AssertionError("read on")])
    outgoing = await house.serve(streaming)
    assert outgoing.json["error"] == "payload size of 120 bytes exceeds maximum size of 100 bytes"
    exact = FakeIncoming().saying(b"x" * 100)
    assert (await house.serve(exact)).status == 400


async def test_body_of_too_many_values_is_refused_before_it_is_parsed(house: House) -> None:
    """Parsing 100 MB of `{},` would take 3 GB and block the loop for half a minute."""
    house = house.rebuilt(max_body_bytes=100_000_000)
    body = b'{"model":"acme/chat","messages":[' + b"{}," * 700_000 + b"{}]}"
    outgoing = await house.serve(FakeIncoming().saying(body))
    assert (outgoing.status, outgoing.json["error_code"]) == (400, "MALFORMED_REQUEST")
    assert "objects and lists" in outgoing.json["error"]


async def test_call_above_max_in_flight_is_a_529() -> None:
    house = House(capacity=CapacityLimits(max_in_flight=1))
    house.pipeline._capacity.enter()
    outgoing = await house.serve(asking())
    assert (outgoing.status, outgoing.json["error_code"]) == (529, "CAPACITY_EXHAUSTED")
    assert outgoing.header("retry-after") == "1"
    [record] = house.access_log.records
    assert (record.status, record.request_id) == (529, outgoing.header("x-request-id"))


async def test_body_above_max_held_bytes_is_a_529_and_releases_its_memory() -> None:
    house = House(capacity=CapacityLimits(max_held_bytes=150))
    outgoing = await house.serve(FakeIncoming().saying(b"x" * 151))
    assert (outgoing.status, outgoing.header("retry-after")) == (529, "1")
    for _ in range(3):
        assert (await house.serve(FakeIncoming().saying(b"x" * 150))).status == 400


async def test_buffered_answer_counts_against_max_held_bytes() -> None:
    """Many large answers of one customer's upstream must not fill the worker's memory."""
    house = House(capacity=CapacityLimits(max_held_bytes=5000))
    for _ in range(2):
        house.upstream.will(answer(completion(text="x" * 6000)))
        outgoing = await house.serve(asking())
        assert (outgoing.status, outgoing.header("retry-after")) == (529, "1")
        assert house.journal.closed[-1].tokens == Tokens()
        house.upstream.will(answer(completion(text="x" * 2000)))
        assert (await house.serve(asking())).status == 200
    assert house.pipeline._capacity.held_bytes == 0


async def test_request_body_is_released_when_the_answer_streams(house: House) -> None:
    upstream = streamed(delta("a"), asyncio.Event())
    house.upstream.will(upstream)
    task = asyncio.create_task(house.pipeline.handle(asking(stream=True), FakeOutgoing()))
    await asyncio.wait_for(upstream.waiting.wait(), 5)
    assert house.pipeline._capacity.held_bytes == 0
    task.cancel()
    await asyncio.wait([task])
    assert house.pipeline._capacity.held_bytes == 0


# Limits.


async def test_429_names_its_limit_and_consumes_nothing(house: House) -> None:
    house.directory.limit(Limit(LimitType.REQUEST, Unit.MINUTE, 1))
    house.upstream.will(answer(completion()))
    first = await house.serve(asking())
    assert first.header("x-ratelimit-limit-requests") == "1"
    assert first.header("x-ratelimit-remaining-requests") == "0"
    second = await house.serve(asking())
    assert second.status == 429
    assert second.json["error_code"] == "RATE_LIMITED"
    for word in ("REQUEST", "MINUTE", "1 ", SLUG):
        assert word in second.json["error"]
    assert "g1" not in second.body.decode()
    assert 1 <= int(second.header("retry-after") or 0) <= 61
    assert second.header("x-ratelimit-remaining-requests") == "0"
    assert len(house.upstream.calls) == len(house.journal.opened) == 1
    assert house.meters.decisions == [("admitted", "", ""), ("refused", "REQUEST", "MINUTE")]


async def test_429_for_a_reservation_has_a_short_retry_after(house: House) -> None:
    house.directory.limit(Limit(LimitType.TOKEN, Unit.DAY, 100))
    house.upstream.will(asyncio.Event())
    running = asyncio.create_task(house.serve(asking()))
    while not house.upstream.calls:
        await asyncio.sleep(0)
    refused = await house.serve(asking())
    assert (refused.status, refused.header("retry-after")) == (429, "61")
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_429_for_a_used_up_day_retries_at_midnight(house: House) -> None:
    house.directory.limit(Limit(LimitType.TOKEN, Unit.DAY, 12))
    house.upstream.will(answer(completion()))
    await house.serve(asking())
    refused = await house.serve(asking())
    reset_s = int(refused.header("retry-after") or 0)
    assert refused.status == 429
    assert abs(reset_s - (86_400 - now_ms() / 1000 % 86_400)) <= 2


async def test_estimate_is_capped_at_what_the_counters_can_store(house: House) -> None:
    house.directory.limit(Limit(LimitType.TOKEN, Unit.MINUTE, 10_000))
    house.upstream.will(answer(completion()))
    await house.serve(asking(max_tokens=2**64 - 1))
    [settled] = house.counters.settled
    assert settled.reservation.reserved_tokens == MAX_COUNT
    assert house.journal.opened[0].estimate.total == MAX_COUNT


async def test_estimate_is_reserved_and_reported_usage_is_settled(house: House) -> None:
    house.directory.limit(Limit(LimitType.TOKEN, Unit.MINUTE, 10_000))
    house.upstream.will(answer(completion()))
    incoming = asking(max_tokens=1, max_completion_tokens=100)
    size = incoming.declared_bytes or 0
    await house.serve(incoming)
    [settled] = house.counters.settled
    assert settled.reservation.reserved_tokens == -(-size // 4) + 100
    assert settled.actual_tokens == REPORTED.total
    assert house.journal.closed[0].numbers == (settled.number,)


async def test_unreachable_counters_are_a_503_and_counted(house: House) -> None:
    house.directory.limit(Limit(LimitType.REQUEST, Unit.MINUTE, 1))
    house.counters.away = True
    assert (await house.serve(asking())).status == 503
    assert house.meters.decisions == [("unavailable", "", "")]
    house.check_settled()


async def test_model_api_tier_limits_calls_besides_the_group(house: House) -> None:
    house.directory.add_slug(SLUG, Target("PLATFORM_MODEL_API", secret_id="s1", target_model="m"))
    house = house.rebuilt(settings=type(house.settings)({"PLATFORM_MODEL_API": VENDOR_B}))
    house.upstream.will(*(answer(completion()) for _ in range(15)))
    statuses = [(await house.serve(asking())).status for _ in range(16)]
    assert statuses == [200] * 15 + [429]


# Upstream failures: status, and what is billed.


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (UpstreamUnreachableError(), 503),
        (UpstreamResetError(), 502),
        (UpstreamTimeoutError(), 504),
        (RuntimeError("sk-upstream-secret"), 502),
    ],
)
async def test_call_without_an_upstream_answer_bills_nothing(house: House, failure: Exception, status: int) -> None:
    house.directory.limit(Limit(LimitType.TOKEN, Unit.MINUTE, 10_000))
    house.upstream.will(failure)
    outgoing = await house.serve(asking())
    assert outgoing.status == status
    assert b"sk-upstream-secret" not in outgoing.body
    [closed] = house.journal.closed
    assert (closed.status, closed.tokens) == (status, Tokens())
    assert house.counters.settled[0].actual_tokens == 0
    house.check_settled()


async def test_internal_error_is_logged_with_its_traceback(house: House, caplog: pytest.LogCaptureFixture) -> None:
    house.upstream.will(ZeroDivisionError("oops"))
    outgoing = await house.serve(asking())
    assert outgoing.header("x-request-id") in outgoing.json["error"]
    [record] = caplog.records
    assert record.exc_info is not None
    assert outgoing.header("x-request-id") in record.getMessage()  # type: ignore[operator] # a refusal has a request id
    assert house.access_log.records[0].cause == "bug"


@pytest.mark.parametrize(
    ("failure", "status"), [(UpstreamCutError(), 502), (UpstreamTimeoutError(), 504), (ValueError("bug"), 502)]
)
async def test_incomplete_plain_answer_is_an_error_and_bills_nothing(
    house: House, failure: Exception, status: int
) -> None:
    house.upstream.will(answer(pieces=[completion()[:20], failure]))
    outgoing = await house.serve(asking())
    assert (outgoing.status, outgoing.finished) == (status, True)
    assert house.journal.closed[0].tokens == Tokens()
    house.check_settled()


@pytest.mark.parametrize(
    ("failure", "status"), [(UpstreamCutError(), 502), (UpstreamTimeoutError(), 504), (ValueError("bug"), 502)]
)
async def test_incomplete_stream_is_aborted_and_bills_the_delivered_text(
    house: House, failure: Exception, status: int
) -> None:
    house.upstream.will(streamed(delta("a"), failure))
    outgoing = await house.serve(asking(stream=True))
    assert (outgoing.status, outgoing.aborted, outgoing.finished) == (200, True, False)
    [closed] = house.journal.closed
    assert closed.status == status
    assert closed.tokens == Tokens(input=REQUEST_TOKENS, output=ANSWER_TOKENS)
    assert house.meters.calls[0].status == status
    house.check_settled()


async def test_stream_that_ends_before_its_first_bytes_is_a_502(house: House) -> None:
    house.upstream.will(streamed(UpstreamCutError()))
    outgoing = await house.serve(asking(stream=True))
    assert (outgoing.status, outgoing.finished, outgoing.aborted) == (502, True, False)
    assert house.journal.closed[0].tokens == Tokens()


async def test_missing_usage_is_estimated_and_a_reported_zero_is_kept(house: House) -> None:
    house.upstream.will(answer(completion(usage=None)))
    await house.serve(asking())
    assert house.journal.closed[-1].tokens == Tokens(input=REQUEST_TOKENS, output=ANSWER_TOKENS)
    assert house.meters.unreported == ["missing"]
    house.upstream.will(answer(completion(usage={"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0})))
    await house.serve(asking())
    assert house.journal.closed[-1].tokens == Tokens()


@pytest.mark.parametrize("status", [400, 404, 409, 413, 422, 429, 500, 502, 503, 529])
async def test_upstream_error_passes_unchanged_and_bills_nothing(house: House, status: int) -> None:
    body = json.dumps({"error": {"message": "no"}}).encode()
    house.upstream.will(answer(body, status, [("content-type", "application/json"), ("x-ratelimit-limit-tokens", "1")]))
    outgoing = await house.serve(asking(stream=True))
    assert (outgoing.status, outgoing.body) == (status, body)
    assert outgoing.header("x-ratelimit-limit-tokens") is None
    assert house.journal.closed[0].tokens == Tokens()
    assert house.journal.closed[0].status == status


async def test_upstream_error_hides_the_credential_and_the_host(house: House) -> None:
    house.upstream.will(answer(b'{"error":"key sk-upstream-secret unknown at vendor-b.test"}', 400))
    outgoing = await house.serve(asking())
    assert outgoing.json == {"error": "key [hidden] unknown at [hidden]"}


async def test_rejected_target_credential_hides_the_vendors_message(house: House) -> None:
    house.upstream.will(answer(b'{"error":"your card"}', 402))
    outgoing = await house.serve(asking())
    assert (outgoing.status, outgoing.json["error"]) == (502, "Upstream rejected the target's credential")


@pytest.mark.parametrize(
    "upstream",
    [answer(b"", 302, [("location", "https://x")]), answer(completion(), 200, [("content-encoding", "gzip")])],
)
async def test_redirect_or_compressed_answer_is_a_502(house: House, upstream: FakeAnswer) -> None:
    house.upstream.will(upstream)
    outgoing = await house.serve(asking())
    assert (outgoing.status, outgoing.json["error"]) == (502, "Error making prediction")
    assert outgoing.header("location") is None
    assert upstream.closed


async def test_missing_target_secret_is_a_503(house: House) -> None:
    house.directory.secrets.clear()
    assert (await house.serve(asking())).status == 503
    assert not house.journal.opened


async def test_service_account_secret_is_never_sent_upstream(house: House) -> None:
    place = VendorCConfig("project", "here")
    house.directory.add_slug(SLUG, Target("VENDOR_C", secret_id="s1", vendor_c_config=place))
    house = house.rebuilt(settings=type(house.settings)({"VENDOR_C": "https://vendor-c.test"}))
    assert (await house.serve(asking())).status == 503
    assert not house.upstream.calls


async def test_full_journal_is_a_503_before_dispatch(house: House) -> None:
    house.directory.limit(Limit(LimitType.TOKEN, Unit.MINUTE, 10_000))
    house.journal.full = True
    assert (await house.serve(asking())).status == 503
    assert not house.upstream.calls
    assert house.counters.settled[0].actual_tokens == 0


@pytest.mark.parametrize(
    ("provider", "path", "more"),
    [
        ("VENDOR_A", "/v1/embeddings", {}),
        ("VENDOR_A", "/v1/chat/completions", {"n": 2}),
        ("VENDOR_B", "/v1/messages", {"top_k": 3}),
    ],
)
async def test_untranslatable_request_is_a_400_and_does_not_count(
    house: House, provider: str, path: str, more: dict[str, Any]
) -> None:
    house.directory.add_slug(SLUG, Target(provider, secret_id="s1", target_model="m"))
    house.directory.limit(Limit(LimitType.REQUEST, Unit.MINUTE, 1))
    for _ in range(2):
        incoming = asking(**more)
        incoming.target = path
        outgoing = await house.serve(incoming)
        assert (outgoing.status, outgoing.json["error_code"]) == (400, "UNTRANSLATABLE_REQUEST")
    assert not house.meters.decisions
    assert not house.journal.opened


# Callers that disconnect.


async def test_write_after_a_disconnect_is_a_499_and_bills_the_delivered_text(house: House) -> None:
    upstream = streamed(delta("a"), delta("b"), DONE)
    house.upstream.will(upstream)
    await house.pipeline.handle(asking(stream=True), FakeOutgoing(gone=True))
    assert house.journal.closed[0].status == 499
    assert house.journal.closed[0].tokens == Tokens(input=REQUEST_TOKENS, output=ANSWER_TOKENS)
    assert house.access_log.records[0].status == 499
    assert upstream.closed
    house.check_settled()


# Platform models.


@pytest.fixture
def platform_house(house: House) -> House:
    house.directory.add_slug(SLUG, platform())
    return house


async def test_platform_call_goes_to_a_production_replica(platform_house: House) -> None:
    platform_house.directory.deploy("ACTIVE", "http://10.0.0.5:8000")
    platform_house.upstream.will(answer(completion()))
    assert (await platform_house.serve(asking())).status == 200
    assert platform_house.upstream.calls[0].url == "http://10.0.0.5:8000/v1/chat/completions"
    assert "authorization" not in dict(platform_house.upstream.calls[0].headers)


async def test_failed_connection_is_retried_once_at_each_other_replica(platform_house: House) -> None:
    platform_house.directory.deploy("ACTIVE", "http://a", "http://b")
    platform_house.upstream.will(UpstreamUnreachableError(), answer(completion()))
    assert (await platform_house.serve(asking())).status == 200
    assert len({call.url for call in platform_house.upstream.calls}) == 2
    assert len(platform_house.journal.opened) == 1
    platform_house.upstream.will(UpstreamUnreachableError(), UpstreamUnreachableError())
    assert (await platform_house.serve(asking())).status == 503


async def test_reset_call_is_not_retried(platform_house: House) -> None:
    platform_house.directory.deploy("ACTIVE", "http://a", "http://b")
    platform_house.upstream.will(UpstreamResetError())
    assert (await platform_house.serve(asking())).status == 502
    assert len(platform_house.upstream.calls) == 1


async def test_five_resets_open_the_breaker(platform_house: House) -> None:
    platform_house.directory.deploy("ACTIVE", "http://a")
    platform_house.upstream.will(*(UpstreamResetError() for _ in range(5)))
    statuses = [(await platform_house.serve(asking())).status for _ in range(6)]
    assert statuses == [502] * 5 + [503]
    assert len(platform_house.upstream.calls) == 5


@pytest.mark.parametrize("status", ["INACTIVE", "FAILED", "DEPLOY_FAILED", "BUILDING", "DEACTIVATING"])
async def test_deployment_that_does_not_serve_is_a_503(platform_house: House, status: str) -> None:
    platform_house.directory.deploy(status, "http://a")
    assert (await platform_house.serve(asking())).status == 503
    assert not platform_house.journal.opened


async def test_active_deployment_without_replicas_is_a_503(platform_house: House) -> None:
    platform_house.directory.deploy("ACTIVE")
    assert (await platform_house.serve(asking())).status == 503


async def test_missing_model_environment_or_deployment_is_a_404(platform_house: House) -> None:
    assert (await platform_house.serve(asking())).status == 404
    platform_house.directory.deploy("ACTIVE", "http://a", environment="staging")
    assert (await platform_house.serve(asking())).status == 404
    platform_house.directory.deploy("ACTIVE", "http://a", workspace_id="w2")
    assert (await platform_house.serve(asking())).status == 404


@pytest.mark.parametrize("status", ["SCALED_TO_ZERO", "WAKING_UP", "DEPLOYING", "LOADING_MODEL"])
async def test_parking_timeout_is_a_500_and_bills_nothing(platform_house: House, status: str) -> None:
    platform_house.directory.deploy(status)
    platform_house.directory.limit(Limit(LimitType.TOKEN, Unit.MINUTE, 10_000))
    platform_house = platform_house.rebuilt(settings=type(platform_house.settings)({}, parking_timeout_s=0.01))
    outgoing = await platform_house.serve(asking())
    assert (outgoing.status, outgoing.json["error"]) == (500, "Failed to route request")
    assert not platform_house.journal.opened
    assert platform_house.counters.settled[0].actual_tokens == 0


async def test_empty_500_of_a_replica_names_the_model_code(platform_house: House) -> None:
    platform_house.directory.deploy("ACTIVE", "http://a")
    platform_house.upstream.will(answer(b"", 500))
    outgoing = await platform_house.serve(asking())
    assert (outgoing.status, outgoing.json["error"]) == (500, "Internal Server Error (in model/chainlet).")
