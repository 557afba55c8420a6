"""The spans of a call, over the pipeline on in-memory parts: what they say, what they must not, and whom they name."""

import asyncio
import contextlib
import json
import logging
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace import SpanKind, StatusCode

from policy.deployments import Deployment
from policy.endpoints import Target
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from policy.spend.balances import Balance
from policy.spend.effective import SpendPlan
from policy.spend.limits import SpendEnforcement, SpendLimit
from policy.spend.spend_hash import LIMB
from proxy.edges.telemetry.access_log import lines_of
from proxy.edges.telemetry.gen_ai_names import OPERATIONS
from proxy.edges.telemetry.tracing.exemplars import Exemplars
from proxy.errors import UpstreamCutError, UpstreamUnreachableError
from proxy.worker.tracing import traced_pipeline
from runtime.log_schema import log_line
from runtime.tracing.current import add_ids_to_log_lines
from tests.fakes.counters import LaterCounters
from tests.fakes.directory import KEY, SLUG, WORKSPACE_KEY, platform
from tests.fakes.path import PathRig, now_ms
from tests.fakes.spend import LaterSpend
from tests.fakes.upstream_client import SSE, answer
from tests.fakes.wire import FakeIncoming, FakeOutgoing, asking
from tests.proxy.test_journal_order import HeldJournal
from tests.proxy.test_pipeline import DONE, USAGE, completion, delta, frame
from tests.waiting import eventually

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
CALLERS_SPAN = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{CALLERS_SPAN}-01"
SERVER = "POST /v1/chat/completions"
CHAT = "chat their-model"
PROMPT = "a prompt that nobody may read"


@dataclass
class TracedRig(PathRig):
    """The pipeline with spans. `spans` are those that ended, by name."""

    sampler: Sampler = field(default_factory=lambda: ParentBased(ALWAYS_ON))

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ended = InMemorySpanExporter()
        provider = TracerProvider(sampler=self.sampler, shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.ended))
        self.exemplars = Exemplars()
        tracer = provider.get_tracer("test")
        self.handle, _ = traced_pipeline(tracer, self.parts(), self.exemplars, self.seal_keys)

    async def serve(self, incoming: FakeIncoming) -> FakeOutgoing:
        outgoing = FakeOutgoing()
        await self.handle(incoming, outgoing)
        return outgoing

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.ended.get_finished_spans()}


@pytest.fixture
def rig() -> TracedRig:
    return TracedRig()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def ids(span: ReadableSpan) -> tuple[str, str]:
    context = span.get_span_context()
    assert context is not None
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


async def test_call_that_the_journal_ends_is_reported_under_its_own_span() -> None:
    """The write of a group runs in the context of another call."""
    journal = HeldJournal()
    rig = TracedRig(journal=journal)
    rig.upstream.will(answer(completion()), answer(completion()))

    async def serve(number: int) -> None:
        serving = asyncio.create_task(rig.serve(asking()))
        await eventually(lambda: len(journal.opening) == number)
        journal.opening[-1].tell()
        await serving

    await serve(1)
    await serve(2)
    for record in journal.closing:
        record.tell()
    servers = [ids(span) for span in rig.ended.get_finished_spans() if span.name == SERVER]
    assert [(call.trace_id, call.span_id) for call in rig.meters.calls] == servers
    assert len(set(servers)) == 2


async def test_call_has_a_server_span_with_admission_and_upstream_below_it(rig: TracedRig) -> None:
    rig.upstream.will(answer(completion()))
    outgoing = await rig.serve(asking())
    server, admit, upstream = (rig.spans[name] for name in (SERVER, "admit", CHAT))
    assert (server.kind, admit.kind, upstream.kind) == (SpanKind.SERVER, SpanKind.INTERNAL, SpanKind.CLIENT)
    assert server.parent is None
    assert admit.parent is not None
    assert upstream.parent is not None
    assert admit.parent.span_id == upstream.parent.span_id == server.get_span_context().span_id  # type: ignore[union-attr]
    values = attributes(server)
    assert values.pop("tollgate.ours_ms") > 0
    assert values.pop("tollgate.first_byte_ms") > 0
    assert values == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "url.path": "/v1/chat/completions",
        "url.scheme": "http",
        "http.response.status_code": 200,
        "http.request.body.size": asking().declared_bytes,
        "http.response.body.size": outgoing.sent_bytes,
        "tollgate.request_id": outgoing.header("x-request-id"),
        "tollgate.workspace": "w1",
        "tollgate.group": "g1",
        "tollgate.external_entity_id": "entity-1",
        "tollgate.key_prefix": KEY.partition(".")[0],
        "tollgate.slug": SLUG,
    }
    assert attributes(admit) == {"tollgate.limit.outcome": "admitted"}
    assert attributes(upstream) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "their-model",
        "gen_ai.request.stream": False,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "server.address": "vendor-b.test",
        "server.port": 443,
    }
    assert {span.status.status_code for span in rig.spans.values()} == {StatusCode.UNSET}


HARD_DAY = SpendLimit(Unit.DAY, Decimal(1), "EUR", SpendEnforcement.HARD)


def limit_spend(rig: TracedRig) -> SpendPlan:
    rig.directory.price("3", "15")
    rig.directory.limit_spend(HARD_DAY)
    plan = rig.directory.spend["g1"]
    rig.spend.count(plan)
    return plan


async def test_spend_limits_have_a_span_beside_that_of_limits(rig: TracedRig) -> None:
    limit_spend(rig)
    rig.upstream.will(answer(completion()))
    await rig.serve(asking())
    server, spend = rig.spans[SERVER], rig.spans["spend"]
    assert spend.parent is not None
    assert spend.parent.span_id == server.get_span_context().span_id  # type: ignore[union-attr]
    assert attributes(spend) == {"tollgate.limit.outcome": "admitted"}


async def test_span_of_a_refusal_by_a_spend_limit_names_its_unit(rig: TracedRig) -> None:
    rig.spend.books[limit_spend(rig).key].reserved["g1"] = LIMB
    assert (await rig.serve(asking())).status == 429
    await eventually(lambda: "spend" in rig.spans)
    assert attributes(rig.spans["spend"]) == {
        "tollgate.limit.outcome": "refused",
        "tollgate.limit.type": "SPEND",
        "tollgate.limit.unit": "DAY",
    }


async def test_span_of_a_refusal_by_a_balance_names_no_unit(rig: TracedRig) -> None:
    limit_spend(rig)
    rig.directory.prepay(Balance("EUR", Decimal("0.000001")))
    rig.spend.count(rig.directory.spend["g1"])
    assert (await rig.serve(asking())).status == 402
    await eventually(lambda: "spend" in rig.spans)
    assert attributes(rig.spans["spend"]) == {"tollgate.limit.outcome": "refused", "tollgate.limit.type": "BALANCE"}


async def test_span_of_spend_limits_that_cannot_be_decided_says_so(rig: TracedRig) -> None:
    limit_spend(rig)
    rig.spend.may_reserve = False
    assert (await rig.serve(asking())).status == 503
    await eventually(lambda: "spend" in rig.spans)
    assert attributes(rig.spans["spend"]) == {"tollgate.limit.outcome": "unavailable"}


async def test_span_of_spend_limits_ends_where_limits_refuse_first() -> None:
    rig = TracedRig(spend=LaterSpend(now_ms, 5))
    limit_spend(rig)
    rig.directory.limit(Limit(LimitType.REQUEST, Unit.MINUTE, 0))
    assert (await rig.serve(asking())).status == 429
    await eventually(lambda: "spend" in rig.spans)
    assert attributes(rig.spans["spend"]) == {"tollgate.limit.outcome": "given_up"}


async def test_stream_tells_when_its_first_chunk_came(rig: TracedRig) -> None:
    rig.upstream.will(answer(headers=SSE, pieces=(delta("he"), delta("llo"), frame(choices=[], usage=USAGE), DONE)))
    await rig.serve(asking(stream=True))
    upstream = attributes(rig.spans[CHAT])
    assert upstream["gen_ai.request.stream"] is True
    assert upstream["gen_ai.response.time_to_first_chunk"] >= 0
    assert upstream["gen_ai.usage.output_tokens"] == 5


async def test_no_span_holds_content_a_key_or_the_upstreams_path(rig: TracedRig) -> None:
    rig.upstream.will(answer(completion(secret="an answer that nobody may read")))
    incoming = asking(messages=[{"role": "user", "content": PROMPT}])
    incoming.request_target += "?beta=true&token=sesame"
    await rig.serve(incoming)
    everything = " ".join(span.to_json() for span in rig.ended.get_finished_spans())
    for hidden in (PROMPT, "nobody may read", KEY, KEY.partition(".")[2], "sesame", "https://vendor-b.test"):
        assert hidden not in everything


# Context.


async def test_callers_context_is_the_parent_and_the_upstream_gets_ours(rig: TracedRig) -> None:
    rig.upstream.will(answer(completion()))
    incoming = asking()
    incoming.fields += [("traceparent", TRACEPARENT), ("tracestate", "vendor=1,other=2")]
    await rig.serve(incoming)
    server = rig.spans[SERVER]
    upstream = rig.spans[CHAT]
    assert server.parent is not None
    assert (ids(server)[0], f"{server.parent.span_id:016x}") == (TRACE_ID, CALLERS_SPAN)
    [call] = rig.upstream.calls
    assert call.headers["traceparent"] == f"00-{TRACE_ID}-{ids(upstream)[1]}-01"
    assert call.headers["tracestate"] == "vendor=1,other=2"


@pytest.mark.parametrize(
    "fields",
    [
        [("traceparent", "")],
        [("traceparent", "garbage")],
        [("traceparent", TRACEPARENT.upper())],
        [("traceparent", f"ff-{TRACE_ID}-{CALLERS_SPAN}-01")],
        [("traceparent", f"00-{'0' * 32}-{CALLERS_SPAN}-01")],
        [("traceparent", f"00-{TRACE_ID}-{'0' * 16}-01")],
        [("traceparent", f"{TRACEPARENT}-{'x' * 20_000}")],
        [("traceparent", TRACEPARENT), ("traceparent", TRACEPARENT)],
        [("tracestate", "vendor=1")],
        [("traceparent", "00-\xff\xfe"), ("tracestate", "\udcff=\x00")],
    ],
)
async def test_invalid_context_begins_a_trace_and_is_not_passed_on(
    rig: TracedRig, fields: list[tuple[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    rig.upstream.will(answer(completion()))
    incoming = asking()
    incoming.fields += fields
    outgoing = await rig.serve(incoming)
    assert outgoing.status == 200
    assert rig.spans[SERVER].parent is None
    [call] = rig.upstream.calls
    assert call.headers["traceparent"].split("-")[1] == ids(rig.spans[CHAT])[0] != TRACE_ID
    assert "tracestate" not in call.headers


async def test_an_unsampled_call_has_no_spans_but_passes_its_trace_on() -> None:
    rig = TracedRig(sampler=ParentBased(ALWAYS_OFF))
    rig.upstream.will(answer(completion()))
    await rig.serve(asking(traceparent=TRACEPARENT[:-2] + "00"))  # a body member, no field
    incoming = asking()
    incoming.fields.append(("traceparent", TRACEPARENT[:-2] + "00"))
    rig.upstream.will(answer(completion()))
    await rig.serve(incoming)
    assert not rig.spans
    assert rig.exemplars.drain() == []
    _, call = rig.upstream.calls
    _, trace_id, span_id, flags = call.headers["traceparent"].split("-")
    assert (trace_id, flags) == (TRACE_ID, "00")
    logged: Any = rig.meters.calls[-1]
    assert (logged.trace_id, logged.span_id) == (TRACE_ID, span_id)


# Ends of all kinds.


async def test_refused_call_says_which_limit_refused_it(rig: TracedRig) -> None:
    rig.directory.limit(Limit(LimitType.REQUEST, Unit.MINUTE, 1))
    rig.upstream.will(answer(completion()))
    await rig.serve(asking())
    rig.ended.clear()
    assert (await rig.serve(asking())).status == 429
    assert attributes(rig.spans["admit"]) == {
        "tollgate.limit.outcome": "refused",
        "tollgate.limit.type": "REQUEST",
        "tollgate.limit.unit": "MINUTE",
    }
    server = rig.spans[SERVER]
    assert attributes(server)["http.response.status_code"] == 429
    assert server.status.status_code is StatusCode.UNSET, "a refusal is no error of the server"
    assert CHAT not in rig.spans


async def test_counters_that_are_away_fail_admission_and_the_call(rig: TracedRig) -> None:
    rig.directory.limit(Limit(LimitType.REQUEST, Unit.MINUTE, 1))
    rig.counters.away = True
    assert (await rig.serve(asking())).status == 503
    admit = rig.spans["admit"]
    server = rig.spans[SERVER]
    assert attributes(admit)["error.type"] == "CountersUnavailableError"
    assert admit.status.status_code is server.status.status_code is StatusCode.ERROR
    assert attributes(server)["error.type"] == attributes(server)["tollgate.cause"]


@pytest.mark.parametrize("turns", range(8))
async def test_caller_who_leaves_in_the_turn_of_the_admission_returns_the_take(turns: int) -> None:
    counters = LaterCounters(now_ms)
    rig = TracedRig(counters=counters)
    rig.directory.limit(Limit(LimitType.TOKEN, Unit.MINUTE, 100_000))
    task = asyncio.create_task(rig.serve(asking()))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert len(counters.settled) == counters.admitted


async def test_unreachable_upstream_is_the_client_spans_error(rig: TracedRig) -> None:
    rig.upstream.will(UpstreamUnreachableError())
    assert (await rig.serve(asking())).status == 503
    upstream = rig.spans[CHAT]
    assert attributes(upstream)["error.type"] == "UpstreamUnreachableError"
    assert upstream.status.status_code is rig.spans[SERVER].status.status_code is StatusCode.ERROR


async def test_answer_that_breaks_off_is_an_error_under_a_200(rig: TracedRig) -> None:
    rig.upstream.will(answer(headers=SSE, pieces=(delta("he"), UpstreamCutError())))
    await rig.serve(asking(stream=True))
    upstream = rig.spans[CHAT]
    assert attributes(upstream)["http.response.status_code"] == 200
    assert upstream.status.status_code is StatusCode.ERROR
    assert attributes(rig.spans[SERVER])["http.response.status_code"] == 502


async def test_caller_who_leaves_ends_all_spans(rig: TracedRig) -> None:
    rig.upstream.will(answer(headers=SSE, pieces=(delta("he"), asyncio.Event())))
    task = asyncio.create_task(rig.serve(asking(stream=True)))
    while not rig.upstream.calls:
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert attributes(rig.spans[SERVER])["http.response.status_code"] == 499
    assert CHAT in rig.spans


async def test_fallback_to_another_dialect_is_a_client_span_each(rig: TracedRig) -> None:
    rig.upstream.will(answer(b"no such path", status=404), answer(completion()))
    rig.directory.add_slug(SLUG, Target("VENDOR_B_COMPATIBLE", base_url="https://own.test/secret-path"))
    incoming = FakeIncoming("/v1/responses").saying({"model": SLUG, "input": "hi"})
    await rig.serve(incoming)
    clients = [span for span in rig.ended.get_finished_spans() if span.kind is SpanKind.CLIENT]
    assert [attributes(span)["http.response.status_code"] for span in clients] == [404, 200]
    assert ["gen_ai.usage.input_tokens" in attributes(span) for span in clients] == [False, True]
    assert [call.headers["traceparent"].split("-")[2] for call in rig.upstream.calls] == [
        ids(one)[1] for one in clients
    ]
    assert "secret-path" not in " ".join(span.to_json() for span in clients)


async def test_platform_call_shows_the_wait_for_its_replica(rig: TracedRig) -> None:
    rig.directory.add_slug(SLUG, platform())
    rig.directory.deploy("ACTIVE", "http://10.0.0.1:8000")
    rig.upstream.will(answer(completion()))
    assert (await rig.serve(asking())).status == 200
    assert {"replica", "admit"} <= rig.spans.keys()
    assert attributes(rig.spans[f"chat {SLUG}"])["gen_ai.provider.name"] == "platform"


async def test_direct_call_has_a_plain_client_span(rig: TracedRig) -> None:
    model = "mdl_01JABCDEFGHJKMNPQRSTVWXYZ0"
    rig.directory.add_model(model, Deployment("d1", "ACTIVE", ("http://10.0.0.1:8000",)))
    rig.upstream.will(answer(b"ok"))
    path = f"/models/{model}/production/predict"
    await rig.serve(FakeIncoming(path, authorization=f"Bearer {WORKSPACE_KEY}").saying({}))
    _, client, server = rig.ended.get_finished_spans()
    assert (client.name, client.kind) == ("POST", SpanKind.CLIENT)
    assert (server.name, server.kind) == ("POST", SpanKind.SERVER)
    assert attributes(server)["tollgate.model_id"] == model
    assert "http.route" not in attributes(server)
    assert not [name for name in attributes(client) if name.startswith("gen_ai.")]


async def test_unknown_methods_and_paths_make_no_names(rig: TracedRig) -> None:
    await rig.serve(FakeIncoming("/v1/\xff/made-up", method="BREW"))
    [span] = rig.ended.get_finished_spans()
    assert span.name == "HTTP"
    assert attributes(span)["http.request.method"] == "_OTHER"
    assert "http.route" not in attributes(span)


async def test_a_request_that_is_not_http_has_a_span_too(rig: TracedRig) -> None:
    incoming = FakeIncoming()
    incoming.fault = ValueError()
    await rig.serve(incoming)
    assert len(rig.spans) == 1


# Lines, exemplars, names.


async def test_access_log_line_and_exemplars_name_the_span(rig: TracedRig) -> None:
    rig.upstream.will(answer(completion()))
    await rig.serve(asking())
    trace_id, span_id = ids(rig.spans[SERVER])
    logged: Any = rig.meters.calls[0]
    line = json.loads(lines_of([logged]))
    assert (line["trace_id"], line["span_id"], line["status"]) == (trace_id, span_id, 200)
    noted = {name: (noted_id, seconds) for name, _, noted_id, seconds, _ in rig.exemplars.drain()}
    assert noted == {
        "duration": (trace_id, logged.duration_s),
        "overhead": (trace_id, logged.ours_s),
        "first_byte": (trace_id, logged.first_byte_s),
    }
    assert rig.exemplars.drain() == []


async def test_log_lines_of_a_call_name_its_span_and_those_of_others_do_not(
    rig: TracedRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[dict[str, Any]] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(json.loads(log_line(record)))  # type: ignore[method-assign]
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    add_ids_to_log_lines()
    background: list[asyncio.Task[None]] = []

    async def something_else() -> None:
        logging.getLogger("test").warning("of a background task")

    async def rejected(_call: Any) -> Any:
        logging.getLogger("test").warning("of the call")
        background.append(asyncio.create_task(something_else()))
        return answer(completion())

    monkeypatch.setattr(rig.upstream, "send", rejected)
    rig = TracedRig(upstream=rig.upstream)
    await rig.serve(asking())
    await asyncio.gather(*background)
    logging.getLogger("test").warning("after the call")
    trace_id, span_id = ids(rig.spans[SERVER])
    of_call, *others = lines
    assert (of_call["message"], of_call["trace_id"], of_call["span_id"]) == ("of the call", trace_id, span_id)
    assert [line.get("trace_id") for line in others] == [None, None]


def test_every_operation_name_is_the_conventions_or_the_paths() -> None:
    assert {OPERATIONS[f"/v1/{path}"] for path in ("chat/completions", "responses", "messages")} == {"chat"}
    assert OPERATIONS["/v1/completions"] == "text_completion"
    assert OPERATIONS["/v1/embeddings"] == "embeddings"
    assert OPERATIONS["/v2/rerank"] == OPERATIONS["/v1/rerank"]
