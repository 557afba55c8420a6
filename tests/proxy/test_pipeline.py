"""The whole path on in-memory parts: every kind of answer and refusal, and what each one bills."""

import asyncio
import contextlib
import json
from dataclasses import asdict
from functools import cache
from time import sleep
from typing import Any

import pytest

from policy.billing import MAX_COUNT, Details, Tokens
from policy.credentials import digest_of
from policy.deployments import Deployment
from policy.endpoints import Target, VendorCConfig
from policy.limits.groups import Enforcement, Group
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit, SlugLimits
from policy.snapshot import WorkspaceRow
from policy.token_estimate import AUDIO_TOKENS, DOCUMENT_TOKENS, IMAGE_TOKENS
from proxy.answers import EndCause, RefusingLimit
from proxy.capacity.worker_capacity import CapacityLimits
from proxy.edges.process.replica_requests import WaitingTimes
from proxy.errors import UpstreamCutError, UpstreamResetError, UpstreamTimeoutError, UpstreamUnreachableError
from proxy.replicas.replica_calls import CallEnded
from proxy.stages import settle
from tests.fakes.directory import KEY, SLUG, WORKSPACE_KEY, platform, vendor_b
from tests.fakes.path import VENDOR_B, PathRig, now_ms
from tests.fakes.upstream_client import SSE, FakeAnswer, answer
from tests.fakes.wire import FakeIncoming, FakeOutgoing, asking
from tests.waiting import PATIENCE_S, eventually

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
def rig() -> PathRig:
    return PathRig()


# Answers.


async def test_call_is_answered_billed_and_counted_in_metrics(rig: PathRig) -> None:
    rig.upstream.will(answer(completion()))
    outgoing = await rig.serve(asking())
    assert (outgoing.status, outgoing.finished) == (200, True)
    assert outgoing.json["model"] == SLUG
    [opened] = rig.journal.opened
    [closed] = rig.journal.closed
    assert (closed.status, closed.tokens) == (200, REPORTED)
    assert (opened.workspace_id, opened.group_id, opened.model_slug) == ("w1", "g1", SLUG)
    assert (opened.api_key_prefix, opened.external_entity_id) == (KEY.partition(".")[0], "entity-1")
    [counted] = rig.meters.calls
    assert (counted.status, counted.tokens, counted.labels.external_entity_id) == (200, REPORTED, "entity-1")
    rig.check_settled()


@pytest.mark.parametrize("enforcement", list(Enforcement))
async def test_event_has_the_path_of_groups_from_the_root(rig: PathRig, enforcement: Enforcement) -> None:
    limits = rig.directory.groups["g1"].models
    rig.directory.groups = {
        "root": Group("root", "w1", None, "top", enforcement, limits),
        "mid": Group("mid", "w1", "root", "middle", enforcement, ()),
        "g1": Group("g1", "w1", "mid", "entity-1", enforcement, limits),
    }
    rig.upstream.will(answer(completion()))
    await rig.serve(asking())
    assert rig.journal.opened[0].group_path == "root/mid/g1/"


async def test_event_has_the_details_and_the_source_of_its_figures(rig: PathRig) -> None:
    usage = {
        **{"prompt_tokens": 12, "completion_tokens": 8, "total_tokens": 20},
        **{"completion_tokens_details": {"reasoning_tokens": 5}, "prompt_tokens_details": {"cache_write_tokens": 7}},
    }
    rig.upstream.will(answer(completion(usage=usage, service_tier="flex")))
    await rig.serve(asking())
    rig.upstream.will(answer(completion(usage=None)))
    await rig.serve(asking())
    rig.upstream.will(answer(status=500))
    await rig.serve(asking())
    assert [(closed.source, closed.details) for closed in rig.journal.closed] == [
        ("REPORTED", Details(cache_write=7, reasoning=5, service_tier="flex")),
        ("COUNTED", Details()),
        ("COUNTED", Details()),
    ]
    assert not any(closed.is_count for closed in rig.journal.closed)


async def test_counted_pictures_and_sound_of_a_request_are_known_as_such(rig: PathRig) -> None:
    picture = {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}}
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    document = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}}
    rig.upstream.will(answer(completion(usage=None)))
    await rig.serve(asking(messages=[{"role": "user", "content": [picture, picture, sound, document]}]))
    [closed] = rig.journal.closed
    assert closed.details == Details(image_input=2 * IMAGE_TOKENS, audio_input=AUDIO_TOKENS)
    assert closed.tokens.input >= 2 * IMAGE_TOKENS + AUDIO_TOKENS + DOCUMENT_TOKENS


async def test_call_is_reported_completely(rig: PathRig) -> None:
    rig.upstream.will(answer(completion()))
    incoming = asking()
    outgoing = await rig.serve(incoming)
    [logged] = rig.meters.calls
    assert asdict(logged.labels) == {
        "method": "POST",
        "path": incoming.request_target,
        "workspace_id": "w1",
        "external_entity_id": "entity-1",
        "group_id": "g1",
        "key_prefix": KEY.partition(".")[0],
        "slug": SLUG,
        "model_id": "",
        "counted": ("w1", "entity-1", SLUG),
        "shown_path": incoming.request_target,
        "encoded": b"",
    }
    assert (logged.request_id, logged.cause) == (outgoing.header("x-request-id"), "")
    assert (logged.request_bytes, logged.response_bytes) == (incoming.declared_bytes, outgoing.sent_bytes)
    assert abs(logged.ended_at_ms - now_ms()) < 60_000
    assert logged.first_byte_s is not None
    assert 0 < logged.ours_s <= logged.duration_s
    assert 0 < logged.upstream_s < logged.duration_s
    assert logged.first_byte_s <= logged.duration_s


async def test_labels_are_kept_by_key_slug_and_path(rig: PathRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "MAX_LABELS", 2)
    monkeypatch.setattr(rig.directory, "key_holder", cache(rig.directory.key_holder))  # as the directory does
    rig.directory.add_slug("acme/other", vendor_b())
    models = (SlugLimits(SLUG), SlugLimits("acme/other"))
    rig.directory.groups["g1"] = Group("g1", "w1", None, "entity-1", Enforcement.INDEPENDENT, models)
    rig.directory.add_key("tg_second.secret")
    places = [
        (KEY, SLUG, "/v1/completions"),
        (KEY, SLUG, "/v1/embeddings"),
        (KEY, "acme/other", "/v1/embeddings"),
        ("tg_second.secret", "acme/other", "/v1/embeddings"),
    ]
    for key, model, path in (place for place in 2 * places for _ in range(2)):
        rig.upstream.will(answer(completion()))
        incoming = FakeIncoming(path, authorization=f"Bearer {key}").saying({"model": model, "prompt": "", "input": ""})
        assert (await rig.serve(incoming)).status == 200
    labels = [call.labels for call in rig.meters.calls]
    assert [(one.key_prefix, one.slug, one.path) for one in labels] == [
        (key.partition(".")[0], slug, path) for key, slug, path in 2 * places for _ in range(2)
    ]
    assert all(first is second for first, second in zip(labels[::2], labels[1::2], strict=True))
    holder = rig.directory.key_holder(digest_of(KEY))
    assert holder is not None
    assert holder.identified is not None
    assert 0 < len(holder.identified.labels) <= 2


@pytest.mark.parametrize(
    "incoming", [asking(model="acme/unknown"), FakeIncoming().saying(b"{"), FakeIncoming("/v1/nothing")]
)
async def test_refused_call_is_counted_with_its_external_entity_id(rig: PathRig, incoming: FakeIncoming) -> None:
    outgoing = await rig.serve(incoming)
    [counted] = rig.meters.calls
    assert outgoing.status in (400, 404)
    assert (counted.status, counted.labels.external_entity_id, counted.labels.slug) == (outgoing.status, "entity-1", "")


DEEP = '{"a":' * 400 + "1" + "}" * 400


@pytest.mark.parametrize(
    "incoming",
    [
        FakeIncoming().saying(f'{{"model":"{SLUG}","metadata":{DEEP}}}'.encode()),
        FakeIncoming(x_request_metadata=DEEP).saying({"model": SLUG}),
        FakeIncoming().saying(f'{{"model":"x","model":"{SLUG}","messages":[{DEEP}]}}'.encode()),
    ],
    ids=["metadata", "header", "a duplicate member, so that the body is encoded again"],
)
async def test_too_deeply_nested_json_is_a_400(rig: PathRig, incoming: FakeIncoming) -> None:
    outgoing = await rig.serve(incoming)
    assert outgoing.status == 400
    assert "nested too deeply" in outgoing.json["error"]
    assert not rig.upstream.calls


async def test_call_is_journaled_before_the_last_byte_is_sent(rig: PathRig) -> None:
    for upstream, incoming in (
        (answer(completion()), asking()),
        (streamed(delta("a"), delta("b"), frame(choices=[], usage=USAGE), DONE), asking(stream=True)),
    ):
        outgoing = FakeOutgoing(entries=rig.journal.entries)
        rig.journal.entries.clear()
        rig.upstream.will(upstream)
        await rig.pipeline.handle(incoming, outgoing)
        entries = rig.journal.entries
        assert entries[-2:] == ["close", "finish"]
        assert entries.count("close") == 1
        assert entries[0] == "open"


async def test_stream_is_journaled_as_answered_before_its_first_bytes(rig: PathRig) -> None:
    outgoing = FakeOutgoing(entries=rig.journal.entries)
    rig.upstream.will(streamed(delta("a"), DONE))
    await rig.pipeline.handle(asking(stream=True), outgoing)
    assert rig.journal.entries == ["open", "answered", "write", "close", "finish"]


async def test_passing_a_stream_on_is_the_gateways_time(rig: PathRig) -> None:
    class Slow(FakeOutgoing):
        def write(self, data: bytes) -> bool:
            sleep(0.02)
            return super().write(data)

    rig.upstream.will(streamed(delta("a"), delta("b"), delta("c"), DONE))
    await rig.pipeline.handle(asking(stream=True), Slow())
    [logged] = rig.meters.calls
    assert logged.ours_s >= 0.06
    assert logged.upstream_s < logged.duration_s - 0.06


async def test_stream_passes_with_the_slug_as_its_model(rig: PathRig) -> None:
    rig.upstream.will(streamed(delta("a"), delta("b"), frame(choices=[], usage=USAGE), DONE))
    outgoing = await rig.serve(asking(stream=True))
    assert outgoing.header("content-type") == "text/event-stream"
    assert b"their-model" not in outgoing.body
    assert outgoing.body.count(SLUG.encode()) == 2, "the usage chunk that only the proxy asked for is removed"
    assert outgoing.body.endswith(DONE)
    assert rig.journal.closed[0].tokens == REPORTED


async def test_head_is_sent_before_the_first_complete_frame(rig: PathRig) -> None:
    rig.upstream.will(streamed(b"data: {", delta("a")[7:], DONE))
    outgoing = await rig.serve(asking(stream=True))
    assert outgoing.pieces[0] == b""
    assert outgoing.finished


async def test_upstream_call_has_the_targets_model_and_credential(rig: PathRig) -> None:
    rig.upstream.will(answer(completion()))
    await rig.serve(asking())
    [call] = rig.upstream.calls
    assert call.url == f"{VENDOR_B}/v1/chat/completions"
    assert json.loads(bytes(call.body))["model"] == "their-model"
    headers = call.headers
    assert headers["authorization"] == "Bearer sk-upstream-secret"
    assert KEY not in str(call)


# Request ids, metadata, model listing.


async def test_valid_request_id_is_kept_and_an_invalid_one_replaced(rig: PathRig) -> None:
    for sent_id, is_valid in (("my-id", True), ("no good", False)):
        rig.upstream.will(answer(completion()))
        incoming = asking()
        incoming.fields.append(("x-request-id", sent_id))
        outgoing = await rig.serve(incoming)
        request_id = outgoing.header("x-request-id")
        assert (request_id == sent_id) is is_valid
        assert request_id == rig.journal.opened[-1].request_id
        assert rig.upstream.calls[-1].headers["x-request-id"] == request_id


async def test_each_call_has_an_event_key_of_its_own_though_callers_repeat_request_ids(rig: PathRig) -> None:
    rig.upstream.will(*(answer(completion()) for _ in range(3)))
    request_id = (await rig.serve(asking())).header("x-request-id")
    for _ in range(2):
        incoming = asking()
        incoming.fields.append(("x-request-id", request_id or ""))
        await rig.serve(incoming)
    first, *repeated = (call.event_key for call in rig.journal.opened)
    assert first == request_id
    assert len({first, *repeated}) == 3


async def test_refusal_has_a_request_id(rig: PathRig) -> None:
    outgoing = await rig.serve(FakeIncoming(authorization=None))
    assert len(outgoing.header("x-request-id") or "") == 26


@pytest.mark.parametrize(
    ("header", "body", "metadata"),
    [
        ('{"a":1}', {"b": 2}, {"a": 1}),
        (None, {"b": 2}, {"b": 2}),
        (None, None, None),
    ],
)
async def test_request_metadata_comes_from_the_header_or_else_the_body(
    rig: PathRig, header: str | None, body: object, metadata: object
) -> None:
    rig.upstream.will(answer(completion()))
    incoming = asking(metadata=body) if body is not None else asking()
    if header is not None:
        incoming.fields.append(("x-request-metadata", header))
    await rig.serve(incoming)
    assert rig.journal.opened[0].request_metadata == metadata


EXACT = '{"id":340282366920938463463374607431768211456,"deep":[{"n":-98765432109876543210,"x":0.1234567890123456789}]}'


@pytest.mark.parametrize("spaced", [False, True])
async def test_long_numbers_in_request_metadata_stay_exact(rig: PathRig, spaced: bool) -> None:
    text = EXACT.replace(":", " :\n ") if spaced else EXACT
    rig.upstream.will(answer(completion()), answer(completion()), answer(completion()))
    await rig.serve(FakeIncoming().saying(f'{{"model":"{SLUG}","metadata":{text}}}'.encode()))
    await rig.serve(FakeIncoming(x_request_metadata=text.replace("\n", " ")).saying({"model": SLUG}))
    long = json.dumps("x" * 100_000)
    rig.max_body_bytes = 1 << 20
    rig.over(rig.upstream)
    await rig.serve(FakeIncoming().saying(f'{{"model":"{SLUG}","prompt":{long},"metadata":{text}}}'.encode()))
    for record in rig.journal.open_records:
        assert b',"request_metadata":' + EXACT.encode() in record


async def test_request_metadata_of_long_numbers_is_bounded(rig: PathRig) -> None:
    numbers = ",".join(["1" * 100] * 700)
    outgoing = await rig.serve(FakeIncoming().saying(f'{{"model":"{SLUG}","metadata":{{"n":[{numbers}]}}}}'.encode()))
    assert (outgoing.status, outgoing.json["error"]) == (400, "metadata is larger than 65536 bytes")


@pytest.mark.parametrize("header", ["nope", "[1]", "1", "", '{"a":"' + "x" * 4096 + '"}'])
async def test_malformed_request_metadata_header_is_a_400(rig: PathRig, header: str) -> None:
    incoming = asking()
    incoming.fields.append(("x-request-metadata", header))
    outgoing = await rig.serve(incoming)
    assert outgoing.status == 400
    assert "x-request-metadata" in outgoing.json["error"]
    assert not rig.journal.opened


async def test_listing_has_the_existing_models_that_the_key_may_call(rig: PathRig) -> None:
    outgoing = await rig.serve(FakeIncoming("/v1/models", "GET"))
    assert outgoing.status == 200
    assert outgoing.json == {
        "object": "list",
        "data": [{"id": SLUG, "object": "model", "created": 0, "owned_by": "acme"}],
    }
    rig.directory.endpoints.clear()
    assert (await rig.serve(FakeIncoming("/v1/models", "GET"))).json["data"] == []


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
    rig: PathRig, incoming: FakeIncoming, status: int, error: dict[str, str]
) -> None:
    outgoing = await rig.serve(unread(incoming))
    assert (outgoing.status, outgoing.json) == (status, error)
    assert incoming.reads == 0
    rig.check_settled()


@pytest.mark.parametrize("form", [f"bearer {KEY}", f"Api-Key {KEY}"])
async def test_each_form_of_a_credential_is_accepted(rig: PathRig, form: str) -> None:
    rig.upstream.will(answer(completion()), answer(completion()))
    incoming = asking()
    incoming.fields[0] = ("authorization", form)
    assert (await rig.serve(incoming)).status == 200
    incoming = asking()
    incoming.fields[0] = ("x-api-key", KEY)
    assert (await rig.serve(incoming)).status == 200


async def test_unknown_key_is_confirmed_with_control_before_a_403(rig: PathRig) -> None:
    row = rig.directory.keys.popitem()
    rig.directory.keys.clear()
    rig.directory.add_key(KEY)
    keys = list(rig.directory.keys.items())
    rig.directory.keys.clear()
    assert row
    assert (await rig.serve(asking())).status == 403
    rig.directory.arrives_on_confirmation = keys
    rig.upstream.will(answer(completion()))
    assert (await rig.serve(asking())).status == 200
    assert rig.directory.confirmations == 2


async def test_missing_policy_is_a_503(rig: PathRig) -> None:
    rig.directory.unconfirmable = True
    rig.directory.keys.clear()
    assert (await rig.serve(asking())).status == 503
    rig.directory.away = True
    assert (await rig.serve(asking())).status == 503
    assert (await rig.serve(FakeIncoming("/v1/models", "GET"))).status == 503


@pytest.mark.parametrize(
    ("workspace", "status"),
    [
        (WorkspaceRow("w1", "suspended", "basic", True), 402),
        (WorkspaceRow("w1", "active", "basic", False), 403),
    ],
)
async def test_suspended_workspace_is_a_402_and_one_not_onboarded_a_403(
    rig: PathRig, workspace: WorkspaceRow, status: int
) -> None:
    rig.directory.workspaces["w1"] = workspace
    assert (await rig.serve(asking())).status == status
    labels = rig.meters.calls[-1].labels
    assert (labels.workspace_id, labels.group_id) == ("w1", "g1"), "the key is known"


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
async def test_invalid_body_is_a_400_that_names_the_fault(rig: PathRig, body: bytes, expected: str) -> None:
    outgoing = await rig.serve(FakeIncoming().saying(body))
    assert outgoing.status == 400
    assert expected in outgoing.json["error"]


async def test_unknown_and_forbidden_slugs_get_the_same_404(rig: PathRig) -> None:
    rig.directory.add_slug("acme/other", Target("VENDOR_B", secret_id="s1"))
    rig.directory.add_slug("them/theirs", Target("VENDOR_B", secret_id="s1"), workspace_id="w2")
    answers = [await rig.serve(asking(slug)) for slug in ("acme/none", "acme/other", "them/theirs")]
    assert [outgoing.status for outgoing in answers] == [404] * 3
    texts = [
        outgoing.json["error"].replace(slug, "?")
        for outgoing, slug in zip(answers, ("acme/none", "acme/other", "them/theirs"), strict=True)
    ]
    assert len(set(texts)) == 1


async def test_group_deleted_while_the_body_comes_revokes_the_key_of_the_call_too(rig: PathRig) -> None:
    incoming = asking()
    body_comes = asyncio.Event()
    incoming.parts.appendleft(body_comes)
    serving = asyncio.create_task(rig.serve(incoming))
    await incoming.wait_start.wait()
    rig.directory.keys.clear()
    rig.directory.groups.clear()
    body_comes.set()
    outgoing = await serving
    assert (outgoing.status, outgoing.json) == (403, {"error": "Authentication failed"})


async def test_slug_of_another_workspace_is_a_404_even_if_the_group_allows_it(rig: PathRig) -> None:
    rig.directory.add_slug(SLUG, Target("VENDOR_B", secret_id="s1"), workspace_id="w2")
    assert (await rig.serve(asking())).status == 404


async def test_unknown_path_is_a_404_and_wrong_method_a_405(rig: PathRig) -> None:
    assert (await rig.serve(FakeIncoming("/v1/nope"))).status == 404
    wrong = await rig.serve(FakeIncoming("/v1/chat/completions", "GET"))
    assert (wrong.status, wrong.header("allow")) == (405, "POST")
    assert (await rig.serve(FakeIncoming("/v1/models", "POST"))).header("allow") == "GET, HEAD"


async def test_compressed_body_is_a_415(rig: PathRig) -> None:
    incoming = asking()
    incoming.fields.append(("content-encoding", "gzip"))
    assert (await rig.serve(incoming)).status == 415


async def test_413_names_both_sizes() -> None:
    rig = PathRig(max_body_bytes=100)
    declared = unread(FakeIncoming())
    declared.declared_bytes = 101
    outgoing = await rig.serve(declared)
    assert outgoing.status == 413
    assert outgoing.json["error"] == "payload size of 101 bytes exceeds maximum size of 100 bytes"
    outgoing = await rig.serve(FakeIncoming().saying(b" " * 101))
    assert outgoing.json["error"] == "payload size of 101 bytes exceeds maximum size of 100 bytes"
    streaming = FakeIncoming()
    streaming.parts.extend([b"x" * 60, b"x" * 60, AssertionError("read on")])
    outgoing = await rig.serve(streaming)
    assert outgoing.json["error"] == "payload size of 120 bytes exceeds maximum size of 100 bytes"
    exact = FakeIncoming().saying(b"x" * 100)
    assert (await rig.serve(exact)).status == 400


async def test_body_of_too_many_values_is_refused_before_it_is_parsed(rig: PathRig) -> None:
    """Parsing 100 MB of `{},` would take 3 GB and block the loop for half a minute."""
    rig = rig.rebuilt(max_body_bytes=100_000_000)
    body = b'{"model":"acme/chat","messages":[' + b"{}," * 700_000 + b"{}]}"
    outgoing = await rig.serve(FakeIncoming().saying(body))
    assert (outgoing.status, outgoing.json["error_code"]) == (400, "MALFORMED_REQUEST")
    assert "objects and lists" in outgoing.json["error"]


async def test_call_above_max_in_flight_is_a_529() -> None:
    rig = PathRig(capacity=CapacityLimits(max_in_flight=1))
    rig.pipeline._capacity.enter()
    outgoing = await rig.serve(asking())
    assert (outgoing.status, outgoing.json["error_code"]) == (529, "CAPACITY_EXHAUSTED")
    assert outgoing.header("retry-after") == "1"
    [record] = rig.meters.calls
    assert (record.status, record.request_id) == (529, outgoing.header("x-request-id"))


async def test_body_above_max_held_bytes_is_a_529_and_releases_its_memory() -> None:
    rig = PathRig(capacity=CapacityLimits(max_held_bytes=150))
    outgoing = await rig.serve(FakeIncoming().saying(b"x" * 151))
    assert (outgoing.status, outgoing.header("retry-after")) == (529, "1")
    for _ in range(3):
        assert (await rig.serve(FakeIncoming().saying(b"x" * 150))).status == 400


async def test_buffered_answer_counts_against_max_held_bytes() -> None:
    """Many large answers of one customer's upstream must not fill the worker's memory."""
    rig = PathRig(capacity=CapacityLimits(max_held_bytes=5000))
    for _ in range(2):
        rig.upstream.will(answer(pieces=[completion(text="x" * 6000)]))
        outgoing = await rig.serve(asking())
        assert (outgoing.status, outgoing.header("retry-after")) == (529, "1")
        assert rig.journal.closed[-1].tokens == Tokens()
        rig.upstream.will(answer(completion(text="x" * 2000)))
        assert (await rig.serve(asking())).status == 200
    assert rig.pipeline._capacity.held_bytes == 0


async def test_request_body_is_released_when_the_answer_streams(rig: PathRig) -> None:
    upstream = streamed(delta("a"), asyncio.Event())
    rig.upstream.will(upstream)
    task = asyncio.create_task(rig.pipeline.handle(asking(stream=True), FakeOutgoing()))
    await asyncio.wait_for(upstream.wait_start.wait(), PATIENCE_S)
    assert rig.pipeline._capacity.held_bytes == 0
    task.cancel()
    await asyncio.wait([task])
    assert rig.pipeline._capacity.held_bytes == 0


# Limits.


async def test_429_names_its_limit_and_consumes_nothing(rig: PathRig) -> None:
    rig.directory.limit(Limit(LimitType.REQUEST, Unit.MINUTE, 1))
    rig.upstream.will(answer(completion()))
    first = await rig.serve(asking())
    assert first.header("x-ratelimit-limit-requests") == "1"
    assert first.header("x-ratelimit-remaining-requests") == "0"
    second = await rig.serve(asking())
    assert second.status == 429
    assert second.json["error_code"] == "RATE_LIMITED"
    for word in ("REQUEST", "MINUTE", "1 ", SLUG):
        assert word in second.json["error"]
    assert "g1" not in second.body.decode()
    assert 1 <= int(second.header("retry-after") or 0) <= 61
    assert second.header("x-ratelimit-remaining-requests") == "0"
    assert len(rig.upstream.calls) == len(rig.journal.opened) == 1
    assert rig.meters.decisions == [("admitted", "", ""), ("refused", "REQUEST", "MINUTE")]
    causes = [call.end_cause for call in rig.meters.calls]
    assert causes == [None, EndCause("limit", RefusingLimit("g1", "REQUEST", "MINUTE", "1"))]


async def test_429_for_a_reservation_has_a_short_retry_after(rig: PathRig) -> None:
    rig.directory.limit(Limit(LimitType.TOKEN, Unit.DAY, 100))
    rig.upstream.will(asyncio.Event())
    running = asyncio.create_task(rig.serve(asking()))
    while not rig.upstream.calls:
        await asyncio.sleep(0)
    refusal = await rig.serve(asking())
    assert (refusal.status, refusal.header("retry-after")) == (429, "61")
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


@pytest.mark.parametrize("unit", [Unit.DAY, Unit.MONTH])
@pytest.mark.parametrize(("type", "threshold"), [(LimitType.REQUEST, 1), (LimitType.TOKEN, 12), (LimitType.TOKEN, 0)])
async def test_refusal_by_a_used_up_usage_limit_is_reported(
    rig: PathRig, type: LimitType, unit: Unit, threshold: int
) -> None:
    rig.directory.limit(Limit(type, unit, threshold))
    rig.upstream.will(answer(completion()))
    await rig.serve(asking())
    assert (await rig.serve(asking())).status == 429
    (limit,) = set(rig.meters.limits_reached)
    assert (limit.group_id, limit.slug, limit.type, limit.unit) == ("g1", SLUG, type, unit)


@pytest.mark.parametrize("limit", [Limit(LimitType.REQUEST, Unit.MINUTE, 1), Limit(LimitType.TOKEN, Unit.DAY, 100)])
async def test_refusal_by_a_rate_limit_or_for_calls_in_flight_is_not_reported(rig: PathRig, limit: Limit) -> None:
    rig.directory.limit(limit)
    rig.upstream.will(asyncio.Event())
    running = asyncio.create_task(rig.serve(asking()))
    while not rig.upstream.calls:
        await asyncio.sleep(0)
    assert (await rig.serve(asking())).status == 429
    assert rig.meters.limits_reached == []
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_429_for_a_used_up_day_retries_at_midnight(rig: PathRig) -> None:
    rig.directory.limit(Limit(LimitType.TOKEN, Unit.DAY, 12))
    rig.upstream.will(answer(completion()))
    await rig.serve(asking())
    refusal = await rig.serve(asking())
    reset_s = int(refusal.header("retry-after") or 0)
    assert refusal.status == 429
    assert abs(reset_s - (86_400 - now_ms() / 1000 % 86_400)) <= 2


async def test_estimate_is_capped_at_what_the_counters_can_store(rig: PathRig) -> None:
    rig.directory.limit(Limit(LimitType.TOKEN, Unit.MINUTE, 10_000))
    rig.upstream.will(answer(completion()))
    await rig.serve(asking(max_tokens=2**64 - 1))
    [settled] = rig.counters.settled
    assert settled.reservation.reserved_tokens == MAX_COUNT
    estimate = rig.journal.opened[0].estimate
    assert estimate.expected + estimate.margin == MAX_COUNT


async def test_estimate_is_reserved_and_reported_usage_is_settled(rig: PathRig) -> None:
    rig.directory.limit(Limit(LimitType.TOKEN, Unit.MINUTE, 10_000))
    rig.upstream.will(answer(completion()))
    incoming = asking(max_tokens=1, max_completion_tokens=100)
    size = incoming.declared_bytes or 0
    await rig.serve(incoming)
    [settled] = rig.counters.settled
    assert settled.reservation.reserved_tokens == -(-size // 4) + 100
    assert settled.actual_tokens == REPORTED.total
    assert rig.journal.closed[0].numbers == (settled.number,)


async def test_unreachable_counters_are_a_503_and_counted(rig: PathRig) -> None:
    rig.directory.limit(Limit(LimitType.REQUEST, Unit.MINUTE, 1))
    rig.counters.away = True
    assert (await rig.serve(asking())).status == 503
    assert rig.meters.decisions == [("unavailable", "", "")]
    rig.check_settled()


async def test_model_api_tier_limits_calls_besides_the_group(rig: PathRig) -> None:
    rig.directory.add_slug(SLUG, Target("PLATFORM_MODEL_API", secret_id="s1", target_model="m"))
    rig = rig.rebuilt(settings=type(rig.settings)({"PLATFORM_MODEL_API": VENDOR_B}))
    rig.upstream.will(*(answer(completion()) for _ in range(15)))
    statuses = [(await rig.serve(asking())).status for _ in range(16)]
    assert statuses == [200] * 15 + [429]
    cause = EndCause("limit", RefusingLimit("", "REQUEST", "MINUTE", "15"))
    assert rig.meters.calls[-1].end_cause == cause, "the limit is no group's"


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
async def test_call_without_an_upstream_answer_bills_nothing(rig: PathRig, failure: Exception, status: int) -> None:
    rig.directory.limit(Limit(LimitType.TOKEN, Unit.MINUTE, 10_000))
    rig.upstream.will(failure)
    outgoing = await rig.serve(asking())
    assert outgoing.status == status
    assert b"sk-upstream-secret" not in outgoing.body
    [closed] = rig.journal.closed
    assert (closed.status, closed.tokens) == (status, Tokens())
    assert rig.counters.settled[0].actual_tokens == 0
    rig.check_settled()


async def test_internal_error_is_logged_with_its_traceback(rig: PathRig, caplog: pytest.LogCaptureFixture) -> None:
    rig.upstream.will(ZeroDivisionError("oops"))
    outgoing = await rig.serve(asking())
    assert outgoing.header("x-request-id") in outgoing.json["error"]
    [record] = caplog.records
    assert record.exc_info is not None
    assert outgoing.header("x-request-id") in record.getMessage()  # type: ignore[operator] # a refusal has a request id
    assert rig.meters.calls[0].cause == "bug"


@pytest.mark.parametrize(
    ("failure", "status"), [(UpstreamCutError(), 502), (UpstreamTimeoutError(), 504), (ValueError("bug"), 502)]
)
async def test_incomplete_plain_answer_is_an_error_and_bills_nothing(
    rig: PathRig, failure: Exception, status: int
) -> None:
    rig.upstream.will(answer(pieces=[completion()[:20], failure]))
    outgoing = await rig.serve(asking())
    assert (outgoing.status, outgoing.finished) == (status, True)
    assert rig.journal.closed[0].tokens == Tokens()
    rig.check_settled()


@pytest.mark.parametrize(
    ("failure", "status"), [(UpstreamCutError(), 502), (UpstreamTimeoutError(), 504), (ValueError("bug"), 502)]
)
async def test_incomplete_stream_is_aborted_and_bills_the_delivered_text(
    rig: PathRig, failure: Exception, status: int
) -> None:
    rig.upstream.will(streamed(delta("a"), failure))
    outgoing = await rig.serve(asking(stream=True))
    assert (outgoing.status, outgoing.aborted, outgoing.finished) == (200, True, False)
    [closed] = rig.journal.closed
    assert closed.status == status
    assert closed.tokens == Tokens(input=REQUEST_TOKENS, output=ANSWER_TOKENS)
    assert rig.meters.calls[0].status == status
    rig.check_settled()


async def test_stream_that_ends_before_its_first_bytes_is_a_502(rig: PathRig) -> None:
    rig.upstream.will(streamed(UpstreamCutError()))
    outgoing = await rig.serve(asking(stream=True))
    assert (outgoing.status, outgoing.finished, outgoing.aborted) == (502, True, False)
    assert rig.journal.closed[0].tokens == Tokens()


async def test_missing_usage_is_estimated_and_a_reported_zero_is_kept(rig: PathRig) -> None:
    rig.upstream.will(answer(completion(usage=None)))
    await rig.serve(asking())
    assert rig.journal.closed[-1].tokens == Tokens(input=REQUEST_TOKENS, output=ANSWER_TOKENS)
    assert rig.meters.unreported == ["missing"]
    rig.upstream.will(answer(completion(usage={"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0})))
    await rig.serve(asking())
    assert rig.journal.closed[-1].tokens == Tokens()


@pytest.mark.parametrize("status", [400, 404, 409, 413, 422, 429, 500, 502, 503, 529])
async def test_upstream_error_passes_unchanged_and_bills_nothing(rig: PathRig, status: int) -> None:
    body = json.dumps({"error": {"message": "no"}}).encode()
    rig.upstream.will(answer(body, status, [("content-type", "application/json"), ("x-ratelimit-limit-tokens", "1")]))
    outgoing = await rig.serve(asking(stream=True))
    assert (outgoing.status, outgoing.body) == (status, body)
    assert outgoing.header("x-ratelimit-limit-tokens") is None
    assert rig.journal.closed[0].tokens == Tokens()
    assert rig.journal.closed[0].status == status


async def test_upstream_error_hides_the_credential_and_the_host(rig: PathRig) -> None:
    rig.upstream.will(answer(b'{"error":"key sk-upstream-secret unknown at vendor-b.test"}', 400))
    outgoing = await rig.serve(asking())
    assert outgoing.json == {"error": "key [hidden] unknown at [hidden]"}


async def test_rejected_target_credential_hides_the_vendors_message(rig: PathRig) -> None:
    rig.upstream.will(answer(b'{"error":"your card"}', 402))
    outgoing = await rig.serve(asking())
    assert (outgoing.status, outgoing.json["error"]) == (502, "Upstream rejected the target's credential")


@pytest.mark.parametrize(
    "upstream",
    [
        answer(status=302, headers=[("location", "https://x")], pieces=[b"moved"]),
        answer(headers=[("content-encoding", "gzip")], pieces=[completion()]),
    ],
)
async def test_redirect_or_compressed_answer_is_a_502(rig: PathRig, upstream: FakeAnswer) -> None:
    rig.upstream.will(upstream)
    outgoing = await rig.serve(asking())
    assert (outgoing.status, outgoing.json["error"]) == (502, "Error making prediction")
    assert outgoing.header("location") is None
    assert upstream.closed


async def test_missing_target_secret_is_a_503(rig: PathRig) -> None:
    rig.directory.secrets.clear()
    assert (await rig.serve(asking())).status == 503
    assert not rig.journal.opened


async def test_service_account_secret_is_never_sent_upstream(rig: PathRig) -> None:
    place = VendorCConfig("project", "here")
    rig.directory.add_slug(SLUG, Target("VENDOR_C", secret_id="s1", vendor_c_config=place))
    rig = rig.rebuilt(settings=type(rig.settings)({"VENDOR_C": "https://vendor-c.test"}))
    assert (await rig.serve(asking())).status == 503
    assert not rig.upstream.calls


async def test_full_journal_is_a_503_before_dispatch(rig: PathRig) -> None:
    rig.directory.limit(Limit(LimitType.TOKEN, Unit.MINUTE, 10_000))
    rig.journal.full = True
    assert (await rig.serve(asking())).status == 503
    assert not rig.upstream.calls
    assert rig.counters.settled[0].actual_tokens == 0


# Callers that disconnect.


async def test_write_after_a_disconnect_is_a_499_and_bills_the_delivered_text(rig: PathRig) -> None:
    upstream = streamed(delta("a"), delta("b"), DONE)
    rig.upstream.will(upstream)
    await rig.pipeline.handle(asking(stream=True), FakeOutgoing(is_gone=True))
    assert rig.journal.closed[0].status == 499
    assert rig.journal.closed[0].tokens == Tokens(input=REQUEST_TOKENS, output=ANSWER_TOKENS)
    assert rig.meters.calls[0].status == 499
    assert upstream.closed
    rig.check_settled()


# Platform models.


@pytest.fixture
def platform_rig(rig: PathRig) -> PathRig:
    rig.directory.add_slug(SLUG, platform())
    return rig


async def test_platform_call_goes_to_a_production_replica(platform_rig: PathRig) -> None:
    platform_rig.directory.deploy("ACTIVE", "http://10.0.0.5:8000")
    platform_rig.upstream.will(answer(completion()))
    assert (await platform_rig.serve(asking())).status == 200
    assert platform_rig.upstream.calls[0].url == "http://10.0.0.5:8000/v1/chat/completions"
    assert "authorization" not in dict(platform_rig.upstream.calls[0].headers)


async def test_failed_connection_is_retried_once_at_each_other_replica(platform_rig: PathRig) -> None:
    platform_rig.directory.deploy("ACTIVE", "http://a", "http://b")
    platform_rig.upstream.will(UpstreamUnreachableError(), answer(completion()))
    assert (await platform_rig.serve(asking())).status == 200
    assert len({call.url for call in platform_rig.upstream.calls}) == 2
    assert len(platform_rig.journal.opened) == 1
    first, second = (call.deadline for call in platform_rig.upstream.calls)
    assert first < second, "the request timeout runs from the dispatch that reached a replica"
    platform_rig.upstream.will(UpstreamUnreachableError(), UpstreamUnreachableError())
    assert (await platform_rig.serve(asking())).status == 503


async def test_reset_call_is_not_retried(platform_rig: PathRig) -> None:
    platform_rig.directory.deploy("ACTIVE", "http://a", "http://b")
    platform_rig.upstream.will(UpstreamResetError())
    assert (await platform_rig.serve(asking())).status == 502
    assert len(platform_rig.upstream.calls) == 1


async def test_five_resets_open_the_breaker(platform_rig: PathRig) -> None:
    platform_rig.directory.deploy("ACTIVE", "http://a")
    platform_rig.upstream.will(*(UpstreamResetError() for _ in range(5)))
    statuses = [(await platform_rig.serve(asking())).status for _ in range(6)]
    assert statuses == [502] * 5 + [503]
    assert len(platform_rig.upstream.calls) == 5


@pytest.mark.parametrize("status", ["INACTIVE", "FAILED", "DEPLOY_FAILED", "BUILDING", "DEACTIVATING"])
async def test_deployment_that_does_not_serve_is_a_503(platform_rig: PathRig, status: str) -> None:
    platform_rig.directory.deploy(status, "http://a")
    assert (await platform_rig.serve(asking())).status == 503
    assert not platform_rig.journal.opened


async def test_active_deployment_without_replicas_is_a_503(platform_rig: PathRig) -> None:
    platform_rig.directory.deploy("ACTIVE")
    assert (await platform_rig.serve(asking())).status == 503


async def test_missing_model_environment_or_deployment_is_a_404(platform_rig: PathRig) -> None:
    assert (await platform_rig.serve(asking())).status == 404
    platform_rig.directory.deploy("ACTIVE", "http://a", environment="staging")
    assert (await platform_rig.serve(asking())).status == 404
    platform_rig.directory.deploy("ACTIVE", "http://a", workspace_id="w2")
    assert (await platform_rig.serve(asking())).status == 404


@pytest.mark.parametrize("status", ["SCALED_TO_ZERO", "WAKING_UP", "DEPLOYING", "LOADING_MODEL"])
async def test_parking_timeout_is_a_500_and_bills_nothing(platform_rig: PathRig, status: str) -> None:
    platform_rig.directory.deploy(status)
    platform_rig.directory.limit(Limit(LimitType.TOKEN, Unit.MINUTE, 10_000))
    platform_rig = platform_rig.rebuilt(waiting_times=WaitingTimes(parked_s=0.01))
    outgoing = await platform_rig.serve(asking())
    assert (outgoing.status, outgoing.json["error"]) == (500, "Failed to route request")
    assert not platform_rig.journal.opened
    assert platform_rig.counters.settled[0].actual_tokens == 0


async def test_parked_call_is_answered_by_the_deployment_that_its_environment_points_to_now(
    platform_rig: PathRig,
) -> None:
    platform_rig.directory.deploy("SCALED_TO_ZERO")
    platform_rig.upstream.will(answer(completion()))
    parked = asyncio.create_task(platform_rig.serve(asking()))
    await platform_rig.replicas.wait_start.wait()
    await asyncio.sleep(0.05)
    platform_rig.directory.add_model("m1", Deployment("d2", "ACTIVE", ("http://b",)))
    assert (await parked).status == 200
    assert platform_rig.upstream.calls[0].url == "http://b/v1/chat/completions"
    [record] = platform_rig.meters.calls
    assert record.upstream_s >= 0.05, "waiting for a replica is not our time"


async def test_full_queue_is_a_529_that_gives_everything_back(platform_rig: PathRig) -> None:
    platform_rig.directory.limit(Limit(LimitType.TOKEN, Unit.MINUTE, 10_000))
    platform_rig.directory.add_model("m1", Deployment("d1", "ACTIVE", ("http://a",), max_concurrency=1, max_queued=0))
    platform_rig.upstream.will(asyncio.Event())
    waiter = asyncio.create_task(platform_rig.serve(asking()))
    await platform_rig.upstream.wait_start.wait()
    outgoing = await platform_rig.serve(asking())
    assert (outgoing.status, outgoing.header("retry-after")) == (529, "1")
    assert len(platform_rig.journal.opened) == 1
    assert [settled.actual_tokens for settled in platform_rig.counters.settled] == [0]
    waiter.cancel()
    await asyncio.wait([waiter])


async def test_deployment_learns_how_each_call_ended(platform_rig: PathRig) -> None:
    platform_rig.directory.deploy("ACTIVE", "http://a")
    ended: list[tuple[str, str | None, CallEnded]] = []
    platform_rig.replicas.switchboard.on_ended = lambda *ending: ended.append(ending)
    platform_rig.upstream.will(answer(completion()), UpstreamResetError(), UpstreamUnreachableError(), answer(b"", 500))
    outgoing = [await platform_rig.serve(asking()) for _ in range(4)]
    await eventually(lambda: len(ended) == 4)
    assert [ending.status for _, _, ending in ended] == [each.status for each in outgoing] == [200, 502, 503, 500]
    assert [ending.request_id for _, _, ending in ended] == [each.header("x-request-id") for each in outgoing]
    assert {(ending.method, ending.path) for _, _, ending in ended} == {("POST", "/v1/chat/completions")}
    assert [(id, replica) for id, replica, _ in ended] == [
        *(("d1", "http://a"), ("d1", "http://a"), ("d1", None), ("d1", "http://a"))
    ]


async def test_call_that_is_put_in_another_dialect_keeps_its_replica(platform_rig: PathRig) -> None:
    platform_rig.directory.add_model("m1", Deployment("d1", "ACTIVE", ("http://a",), max_concurrency=1, max_queued=0))
    platform_rig.upstream.will(answer(b"", 404), answer(completion()))
    incoming = asking()
    incoming.request_target = "/v1/responses"
    incoming.saying({"model": SLUG, "input": "hi"})
    assert (await platform_rig.serve(incoming)).status == 200
    assert [call.url for call in platform_rig.upstream.calls] == [
        "http://a/v1/responses",
        "http://a/v1/chat/completions",
    ]
    assert [message["is"] for message in platform_rig.replicas.messages].count("ask") == 1
    assert len({call.deadline for call in platform_rig.upstream.calls}) == 1, "one request timeout for both"


async def test_empty_500_of_a_replica_names_the_model_code(platform_rig: PathRig) -> None:
    platform_rig.directory.deploy("ACTIVE", "http://a")
    platform_rig.upstream.will(answer(b"", 500))
    outgoing = await platform_rig.serve(asking())
    assert (outgoing.status, outgoing.json["error"]) == (500, "Internal Server Error (in model/chainlet).")
