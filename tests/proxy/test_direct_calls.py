"""Direct calls to platform models through the whole pipeline, on fakes: who may, what goes out, what comes back."""

import asyncio
import errno
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from policy.credentials import KeyKind, digest_of
from policy.deployments import Deployment, Where
from policy.hosts import Reach
from policy.keys.roles import Role
from policy.snapshot import KeyRow, ModelRow, WorkspaceRow
from proxy.answers import Headers
from proxy.capacity.worker_capacity import CapacityLimits
from proxy.errors import (
    CallerGoneError,
    PolicyUnavailableError,
    UpstreamCutError,
    UpstreamResetError,
    UpstreamTimeoutError,
    UpstreamUnreachableError,
)
from proxy.parts import Parts
from proxy.refusals import NoModelReplicaError, NoSuchModelError, NotRoutedError, ShedError
from proxy.replicas.replica_calls import Wanted
from tests.fakes.directory import KEY, WORKSPACE_KEY
from tests.fakes.path import PathRig
from tests.fakes.scripted_replicas import ScriptedReplicas
from tests.fakes.upstream_client import JSON, SSE, FakeAnswer, answer
from tests.fakes.wire import FakeIncoming, FakeOutgoing
from tests.proxy.capacity.idle import check_idle

MODEL = "mdl_01JABCDEFGHJKMNPQRSTVWXYZ0"
HOST = "model-mdl-01jabcdefghjkmnpqrstvwxyz0.models.test"
REPLICA = "http://10.0.0.5:8000"
OTHER_KEY = "tg_otherspace00.0123456789abcdefghijklmnopqrst"
FOUND = {"error": "The model or deployment does not exist", "error_code": "MODEL_NOT_FOUND"}


@dataclass
class DirectRig(PathRig):
    """A worker whose replicas answer as scripted."""

    scripted: ScriptedReplicas = field(default_factory=ScriptedReplicas)

    def parts(self) -> Parts:
        return replace(super().parts(), replicas=self.scripted)


@pytest.fixture
def rig() -> DirectRig:
    rig = DirectRig(model_host_suffix="models.test")
    environments = {"production": "dep_1", "Staging": "dep_1"}
    rig.directory.models[MODEL] = ModelRow(MODEL, "w1", {"dep_1": Deployment("dep_1", "ACTIVE")}, environments)
    rig.directory.workspaces["w2"] = WorkspaceRow("w2", "active", "basic", True)
    digest = digest_of(OTHER_KEY)
    rig.directory.keys[digest] = KeyRow(digest, "tg_otherspace00", KeyKind.WORKSPACE_INVOKE, "w2", None)
    rig.scripted.will(REPLICA)
    return rig


def asking(
    path: str = "/production/predict", method: str = "POST", body: bytes = b"{}", **more: str | None
) -> FakeIncoming:
    more.setdefault("authorization", f"Bearer {WORKSPACE_KEY}")
    return FakeIncoming(f"/models/{MODEL}{path}", method, **more).saying(body)


async def refused(rig: DirectRig, incoming: FakeIncoming, status: int) -> FakeOutgoing:
    outgoing = await rig.serve(incoming)
    assert outgoing.status == status
    assert not rig.upstream.calls
    assert rig.meters.calls[-1].status == status
    return outgoing


async def test_predict_sends_any_body_to_the_replica_and_returns_its_answer(rig: DirectRig) -> None:
    body = bytes(range(256))
    rig.upstream.will(answer(b"\x00\xff", 201, (("content-type", "image/png"), ("etag", '"1"'), ("set-cookie", "a"))))
    outgoing = await rig.serve(asking("/production/predict?a=1&a=2", body=body, content_type="application/x-thing"))
    [call] = rig.upstream.calls
    assert (call.method, call.url, bytes(call.body)) == ("POST", f"{REPLICA}/predict?a=1&a=2", body)
    assert call.reach is Reach.REPLICA
    assert call.headers["content-type"] == "application/x-thing"
    assert WORKSPACE_KEY not in repr(call)
    assert (outgoing.status, outgoing.body) == (201, b"\x00\xff")
    assert outgoing.header("etag") == '"1"'
    assert outgoing.header("set-cookie") is None
    assert rig.scripted.calls[0].request == Wanted("w1", MODEL, Where("production"), digest_of(WORKSPACE_KEY))


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_sync_keeps_method_path_query_and_status(rig: DirectRig, method: str) -> None:
    rig.upstream.will(answer(status=204, headers=(), pieces=[b""]))
    outgoing = await rig.serve(asking("/environments/STAGING/sync/v1/x%2Fy?q=%20", method, b""))
    [call] = rig.upstream.calls
    assert (call.method, call.url) == (method, f"{REPLICA}/v1/x%2Fy?q=%20")
    assert outgoing.status == 204


async def test_bare_path_on_the_models_host_reaches_the_same_model(rig: DirectRig) -> None:
    rig.upstream.will(answer(b"1"))
    incoming = asking(host=HOST.upper() + ":8080")
    incoming.request_target = "/deployment/dep_1/predict"
    assert (await rig.serve(incoming)).body == b"1"
    assert rig.scripted.calls[0].request.where == Where(None, "dep_1")
    assert rig.meters.calls[0].labels.model_id == MODEL


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/models", f"/models/{MODEL}/production/predict", "/"])
async def test_nothing_else_is_served_on_a_models_host(rig: DirectRig, target: str) -> None:
    incoming = asking(host=HOST)
    incoming.request_target = target
    await refused(rig, incoming, 404)
    incoming = asking(host=HOST, authorization=f"Bearer {KEY}")
    incoming.request_target = target
    await refused(rig, incoming, 403)


async def test_without_the_setting_a_models_host_is_like_any_other() -> None:
    rig = PathRig()
    rig.upstream.will(answer(b'{"choices": []}'))
    outgoing = await rig.serve(FakeIncoming(host=HOST).saying({"model": "acme/chat", "messages": []}))
    assert outgoing.status == 200


UNKNOWN = {
    "model": f"/models/mdl_{'0' * 26}/production/predict",
    "environment": f"/models/{MODEL}/environments/nowhere/predict",
    "development": f"/models/{MODEL}/development/wake",
    "deployment": f"/models/{MODEL}/deployment/dep_2/sync/x",
}


@pytest.mark.parametrize("target", UNKNOWN.values(), ids=UNKNOWN)
async def test_unknown_model_environment_and_deployment_are_answered_alike(rig: DirectRig, target: str) -> None:
    incoming = asking()
    incoming.request_target = target
    assert (await refused(rig, incoming, 404)).json == FOUND
    assert rig.meters.calls[0].labels.model_id == ""
    assert incoming.reads == 0


async def test_model_of_another_workspace_is_answered_like_an_unknown_one(rig: DirectRig) -> None:
    outgoing = await refused(rig, asking(authorization=f"Bearer {OTHER_KEY}"), 404)
    assert outgoing.json == FOUND
    assert (await refused(rig, asking("/production/wake", authorization=f"Bearer {OTHER_KEY}"), 404)).json == FOUND
    assert not rig.scripted.woken
    assert not rig.scripted.calls


CREDENTIALS = [
    *((None, 401), (f"Bearer {KEY}", 403), ("Bearer tg_unknownkey00.0123456789abcdefghijklmnopqrst", 403)),
    ("Bearer nothing", 403),
]


@pytest.mark.parametrize(("authorization", "status"), CREDENTIALS)
async def test_only_workspace_keys_may_call(rig: DirectRig, authorization: str | None, status: int) -> None:
    for path in ("/production/predict", "/production/wake", "/nonsense", "/production/websocket"):
        await refused(rig, asking(path, authorization=authorization), status)


async def test_export_key_suspended_and_not_onboarded_workspaces_are_refused(rig: DirectRig) -> None:
    rig.directory.add_key(WORKSPACE_KEY, KeyKind.WORKSPACE_EXPORT_METRICS, None)
    await refused(rig, asking(), 403)
    rig.directory.add_key(WORKSPACE_KEY, KeyKind.WORKSPACE_MANAGE_ALL, None)
    rig.directory.workspaces["w1"] = WorkspaceRow("w1", "suspended", "basic", True)
    await refused(rig, asking(), 402)
    rig.directory.workspaces["w1"] = WorkspaceRow("w1", "active", "basic", False)
    await refused(rig, asking(), 403)


@pytest.mark.parametrize("role", list(Role))
async def test_role_says_whether_a_managing_key_may_call_models(rig: DirectRig, role: Role) -> None:
    rig.directory.add_key(WORKSPACE_KEY, KeyKind.WORKSPACE_MANAGE_ALL, None, role)
    if role in (Role.OPERATOR, Role.ADMIN):
        rig.upstream.will(answer(b"1"))
        assert (await rig.serve(asking())).body == b"1"
    else:
        for path in ("/production/predict", "/production/wake", "/production/async_predict", "/nonsense"):
            await refused(rig, asking(path), 403)


async def test_wrong_method_names_the_right_ones(rig: DirectRig) -> None:
    assert (await refused(rig, asking(method="GET"), 405)).header("allow") == "POST"
    assert (await refused(rig, asking("/production/wake", "GET"), 405)).header("allow") == "POST"
    outgoing = await refused(rig, asking("/production/sync/x", "TRACE"), 405)
    assert outgoing.header("allow") == "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"


@pytest.mark.parametrize(
    "incoming",
    [
        asking("/production/websocket", "GET"),
        asking("/production/predict", "GET", upgrade="websocket", connection="upgrade"),
        asking("/production/sync/x", "GET", upgrade="h2c, WebSocket", connection="upgrade"),
    ],
)
async def test_websocket_is_a_400_that_says_what_to_use(rig: DirectRig, incoming: FakeIncoming) -> None:
    outgoing = await refused(rig, incoming, 400)
    assert outgoing.json["error_code"] == "WEBSOCKET_UNSUPPORTED"
    assert "predict" in outgoing.json["error"]


# The body.


async def test_no_replica_is_asked_for_before_the_body_is_complete(rig: DirectRig) -> None:
    rest = asyncio.Event()
    incoming = asking()
    incoming.parts.clear()
    incoming.parts += (b"a", rest, b"b")
    incoming.declared_bytes = None
    rig.upstream.will(answer(b"1"))
    task = asyncio.create_task(rig.serve(incoming))
    await incoming.wait_start.wait()
    assert not rig.scripted.calls
    rest.set()
    assert (await task).status == 200
    assert bytes(rig.upstream.calls[0].body) == b"ab"


async def test_body_above_the_bound_is_refused_declared_or_not(rig: DirectRig) -> None:
    await refused(rig, asking(body=b"x" * 100_001), 413)
    incoming = asking(body=b"x" * 100_001)
    incoming.declared_bytes = None
    await refused(rig, incoming, 413)
    assert not rig.scripted.calls


async def test_body_is_held_against_the_workers_memory_until_the_answer_begins(rig: DirectRig) -> None:
    rig = replace(rig, capacity=CapacityLimits(max_held_bytes=60_000))
    await refused(rig, asking(body=b"x" * 70_000), 529)
    gate = asyncio.Event()
    rig.upstream.will(gate, answer(pieces=[b"1", gate2 := asyncio.Event(), b"2"], headers=SSE))
    task = asyncio.create_task(rig.serve(asking(body=b"x" * 50_000)))
    await rig.upstream.wait_start.wait()
    assert rig.meters.capacity is not None
    assert rig.meters.capacity.held_bytes == 50_000
    gate.set()
    while rig.meters.capacity.held_bytes:
        await asyncio.sleep(0)
    gate2.set()
    assert (await task).body == b"12"


# Answers.


async def test_answer_is_passed_on_piece_by_piece_with_backpressure(rig: DirectRig) -> None:
    rig.upstream.will(answer(pieces=[b"data: 1\n\n", b"data: 2\n\n", b"data: 3\n\n"], headers=SSE))
    outgoing = FakeOutgoing()
    outgoing.room_left.clear()
    task = asyncio.create_task(rig.pipeline.handle(asking(), outgoing))
    await outgoing.wait_start.wait()
    assert outgoing.body == b"data: 1\n\n"
    outgoing.room_left.set()
    await task
    assert outgoing.body == b"data: 1\n\ndata: 2\n\ndata: 3\n\n"


async def test_answer_that_arrived_whole_leaves_whole(rig: DirectRig) -> None:
    rig.upstream.will(answer(b"12345", headers=(*JSON, ("content-length", "5"))))
    outgoing = await rig.serve(asking())
    assert (outgoing.entries, outgoing.body) == (["finish"], b"12345")


async def test_head_of_a_stream_does_not_wait_for_its_first_bytes(rig: DirectRig) -> None:
    piece = asyncio.Event()
    rig.upstream.will(stream := answer(pieces=[piece, b"x"], headers=SSE))
    outgoing = FakeOutgoing()
    task = asyncio.create_task(rig.pipeline.handle(asking(), outgoing))
    await stream.wait_start.wait()
    assert outgoing.has_started
    piece.set()
    await task


async def test_head_answer_keeps_the_length_that_a_get_would_have(rig: DirectRig) -> None:
    rig.upstream.will(answer(headers=(("content-length", "12345"),), pieces=[b""]))
    outgoing = await rig.serve(asking("/production/sync/file", "HEAD", b""))
    assert outgoing.header("content-length") == "12345"


async def test_not_modified_passes_with_its_validators(rig: DirectRig) -> None:
    rig.upstream.will(answer(status=304, headers=(("etag", '"1"'), ("cache-control", "max-age=1")), pieces=[b""]))
    outgoing = await rig.serve(asking("/production/sync/file", "GET", b"", if_none_match='"1"'))
    assert (outgoing.status, outgoing.header("etag")) == (304, '"1"')
    assert rig.upstream.calls[0].headers["if-none-match"] == '"1"'


async def test_compressed_answer_passes_as_it_is(rig: DirectRig) -> None:
    rig.upstream.will(answer(b"\x1f\x8b", headers=(*JSON, ("content-encoding", "gzip"))))
    outgoing = await rig.serve(asking(content_encoding="zstd"))
    assert (outgoing.body, outgoing.header("content-encoding")) == (b"\x1f\x8b", "gzip")
    assert rig.upstream.calls[0].headers["content-encoding"] == "zstd"
    assert rig.upstream.calls[0].headers["accept-encoding"] == "identity"


ERRORS: dict[str, tuple[FakeAnswer, int, object]] = {
    "own error": (answer(b'{"error": {"message": "no"}}', 404), 404, {"error": {"message": "no"}}),
    "text": (answer(b"Not Found", 404), 404, {"error": "Not Found"}),
    "unauthorized": (answer(b'{"error": "who"}', 401), 401, {"error": "who"}),
    "raised": (
        answer(b"", 500),
        500,
        {"error": "Internal Server Error (in model/chainlet).", "error_code": "MODEL_ERROR"},
    ),
    "own host": (answer(b'{"error": "at 10.0.0.5:8000"}', 503), 503, {"error": "at [hidden]"}),
    "redirect": (
        answer(b"", 307, (("location", "http://169.254.169.254/"),)),
        502,
        {"error": "Error making prediction", "error_code": "UPSTREAM_ERROR"},
    ),
    "overload": (
        answer(b"", 529),
        529,
        {"error": "Capacity exhausted, try again later", "error_code": "UPSTREAM_ERROR"},
    ),
}


@pytest.mark.parametrize(("reply", "status", "body"), ERRORS.values(), ids=ERRORS)
async def test_errors_of_a_replica_reach_the_caller_by_the_table(
    rig: DirectRig, reply: FakeAnswer, status: int, body: object
) -> None:
    rig.upstream.will(FakeAnswer(reply.status, reply.headers, reply.pieces.copy()))
    outgoing = await rig.serve(asking())
    assert (outgoing.status, outgoing.json) == (status, body)
    assert outgoing.header("location") is None
    assert rig.scripted.calls[0].events == ["answered"]


async def test_replicas_405_keeps_its_allow(rig: DirectRig) -> None:
    rig.upstream.will(answer(b"no", 405, (("allow", "GET"),)))
    assert (await rig.serve(asking())).header("allow") == "GET"


# Replicas that fail.


async def test_unreachable_replica_is_replaced_and_a_reset_one_is_not(rig: DirectRig) -> None:
    rig.scripted.will("http://10.0.0.6:8000/base/")
    rig.upstream.will(UpstreamUnreachableError(), UpstreamResetError())
    outgoing = await rig.serve(asking())
    assert [call.url for call in rig.upstream.calls] == [f"{REPLICA}/predict", "http://10.0.0.6:8000/base/predict"]
    assert (outgoing.status, outgoing.json["error"]) == (502, "Error making prediction")
    assert rig.scripted.calls[0].events == ["unreachable", "reset"]


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "x"), OSError(errno.ENFILE, "x"), MemoryError()])
async def test_lack_of_descriptors_or_memory_sheds_the_call_and_blames_no_replica(
    rig: DirectRig, error: Exception
) -> None:
    rig.upstream.will(error)
    outgoing = await rig.serve(asking())
    assert (outgoing.status, outgoing.json["error_code"]) == (529, "CAPACITY_EXHAUSTED")
    assert outgoing.header("retry-after") == "1"
    (call,) = rig.scripted.calls
    assert call.events == []
    assert [ended.status for ended in call.ends] == [529]


REFUSALS = [
    *((NoSuchModelError(), 404), (NoModelReplicaError(), 503), (NotRoutedError(), 500), (ShedError(), 529)),
]


@pytest.mark.parametrize(("refusal", "status"), REFUSALS)
async def test_refusals_of_the_replicas_reach_the_caller(rig: DirectRig, refusal: Exception, status: int) -> None:
    rig.scripted.script.clear()
    rig.scripted.will(refusal)
    await refused(rig, asking(), status)
    [ended] = rig.scripted.calls[0].ends
    assert (ended.status, ended.method, ended.path) == (status, "POST", f"/models/{MODEL}/production/predict")


async def test_timeout_is_a_504_and_runs_from_the_dispatch_that_reached_a_replica(rig: DirectRig) -> None:
    rig.scripted.will(REPLICA)
    rig.upstream.will(UpstreamUnreachableError(), UpstreamTimeoutError())
    assert (await rig.serve(asking())).status == 504
    first, second = rig.upstream.calls
    assert 0 < first.deadline < second.deadline


async def test_answer_that_breaks_off_is_cut_visibly(rig: DirectRig) -> None:
    rig.upstream.will(answer(pieces=[b"data: 1\n\n", UpstreamCutError()], headers=SSE))
    outgoing = await rig.serve(asking())
    assert outgoing.aborted
    assert rig.meters.calls[0].status == 502
    assert rig.scripted.calls[0].ends[0].status == 502


async def test_answer_that_breaks_off_before_its_first_byte_is_a_502(rig: DirectRig) -> None:
    rig.upstream.will(answer(pieces=[UpstreamCutError()], headers=(*JSON, ("content-length", "9"))))
    assert (await rig.serve(asking())).status == 502


# Callers that leave.


async def test_caller_who_leaves_while_parked_ends_the_call(rig: DirectRig) -> None:
    rig.scripted.script.clear()
    rig.scripted.will(asyncio.Event())
    task = asyncio.create_task(rig.serve(asking()))
    await rig.scripted.wait_start.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    [ended] = rig.scripted.calls[0].ends
    assert ended.status == rig.meters.calls[0].status == 499
    assert rig.meters.level == 0


Scene = tuple[FakeIncoming, FakeOutgoing, asyncio.Event]
"""A call, and what is set once it waits at a given await."""


def while_the_body_comes(rig: DirectRig) -> Scene:
    incoming = asking()
    incoming.parts.append(asyncio.Event())
    incoming.declared_bytes = None
    return incoming, FakeOutgoing(), incoming.wait_start


def while_a_replica_is_asked(rig: DirectRig) -> Scene:
    rig.upstream.will(asyncio.Event())
    return asking(body=b"x" * 1000), FakeOutgoing(), rig.upstream.wait_start


def before_the_first_bytes(rig: DirectRig) -> Scene:
    rig.upstream.will(stream := answer(pieces=[asyncio.Event()], headers=(("content-length", "9"),)))
    return asking(), FakeOutgoing(), stream.wait_start


def within_a_stream(rig: DirectRig) -> Scene:
    rig.upstream.will(stream := answer(pieces=[b"data: 1\n\n", asyncio.Event()], headers=SSE))
    return asking(), FakeOutgoing(), stream.wait_start


def while_the_caller_does_not_read(rig: DirectRig) -> Scene:
    rig.upstream.will(answer(pieces=[b"1", b"2"], headers=SSE))
    outgoing = FakeOutgoing()
    outgoing.room_left.clear()
    return asking(), outgoing, outgoing.wait_start


def within_an_error(rig: DirectRig) -> Scene:
    rig.upstream.will(error := answer(status=500, pieces=[b"{", asyncio.Event()]))
    return asking(), FakeOutgoing(), error.wait_start


SCENES = [
    *(while_the_body_comes, while_a_replica_is_asked, before_the_first_bytes, within_a_stream),
    *(while_the_caller_does_not_read, within_an_error),
]


@pytest.mark.parametrize("scene", SCENES)
async def test_caller_who_leaves_at_any_await_leaves_nothing(
    rig: DirectRig, scene: Callable[[DirectRig], Scene]
) -> None:
    incoming, outgoing, reached = scene(rig)
    answers = [step for step in rig.upstream.script if isinstance(step, FakeAnswer)]
    task = asyncio.create_task(rig.pipeline.handle(incoming, outgoing))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(reply.closed for reply in answers)
    assert [call.status for call in rig.meters.calls] == [499]
    assert [ended.status for call in rig.scripted.calls for ended in call.ends] == [499] * len(rig.scripted.calls)
    assert rig.meters.capacity is not None
    assert rig.meters.level == 0
    check_idle(rig.meters.capacity)


async def test_write_to_a_caller_who_left_cancels_the_upstream(rig: DirectRig) -> None:
    rig.upstream.will(stream := answer(pieces=[CallerGoneError()], headers=SSE))
    await rig.serve(asking())
    assert stream.closed
    assert rig.meters.calls[0].status == 499


# What is recorded.


async def test_direct_call_leaves_no_event_and_takes_no_limit(rig: DirectRig) -> None:
    rig.upstream.will(answer(b'{"usage": {"prompt_tokens": 5}}'))
    outgoing = await rig.serve(asking("/production/sync/v1/chat/completions"))
    assert not rig.journal.entries
    assert not rig.meters.decisions
    assert not [name for name, _ in outgoing.headers if name.startswith("x-ratelimit")]
    [call] = rig.meters.calls
    assert (call.labels.workspace_id, *call.labels.counted[1:], call.labels.slug) == ("w1", "", MODEL, "")
    assert (call.status, call.tokens, call.request_bytes, call.response_bytes) == (200, None, 2, 31)
    assert call.first_byte_s is not None
    rig.check_settled()


async def test_request_id_is_the_callers_and_goes_to_the_replica(rig: DirectRig) -> None:
    rig.upstream.will(answer(b"1"))
    outgoing = await rig.serve(asking(x_request_id="mine"))
    assert outgoing.header("x-request-id") == "mine"
    assert rig.upstream.calls[0].headers["x-request-id"] == "mine"
    assert rig.scripted.calls[0].ends[0].request_id == "mine"


SECRET_FIELDS: Headers = (
    *(("x-api-key", WORKSPACE_KEY), ("cookie", "c"), ("proxy-authorization", "p"), ("x-forwarded-for", "1.1.1.1")),
    *(("host", "us"), ("transfer-encoding", "chunked"), ("content-length", "7"), ("expect", "100-continue")),
    *(("connection", "keep-alive, Range"), ("upgrade", "h2c"), ("x-http-method-override", "DELETE")),
)


async def test_credentials_and_unlisted_fields_never_reach_the_replica(rig: DirectRig) -> None:
    incoming = asking(accept="text/event-stream", range="bytes=0-1", if_match="*")
    incoming.fields += SECRET_FIELDS
    rig.upstream.will(answer(b"1"))
    await rig.serve(incoming)
    headers = rig.upstream.calls[0].headers
    assert set(headers) == {"x-request-id", "accept-encoding", "content-type", "accept", "if-match"}


# Waking.


@pytest.mark.parametrize("where", ["production", "environments/staging", "deployment/dep_1"])
async def test_wake_is_accepted_without_a_call(rig: DirectRig, where: str) -> None:
    outgoing = await rig.serve(asking(f"/{where}/wake", body=b""))
    assert (outgoing.status, outgoing.json) == (202, {})
    [want] = rig.scripted.woken
    assert (want.workspace_id, want.model_id) == ("w1", MODEL)
    assert not rig.scripted.calls
    assert rig.meters.calls[0].labels.model_id == MODEL


@pytest.mark.parametrize(("failure", "status"), [(NoSuchModelError(), 404), (PolicyUnavailableError(), 503)])
async def test_wake_that_cannot_be_told_is_refused(rig: DirectRig, failure: Exception, status: int) -> None:
    rig.scripted.wake_failure = failure
    await refused(rig, asking("/production/wake"), status)


async def test_no_policy_is_a_503(rig: DirectRig) -> None:
    rig.directory.away = True
    await refused(rig, asking(), 503)
