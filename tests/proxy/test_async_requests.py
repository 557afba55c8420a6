"""Asynchronous requests through the whole pipeline, on fakes: who may, what is queued, told and refused."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from policy.credentials import KeyKind, digest_of
from policy.deployments import Deployment
from policy.hosts import EgressRules, HostRuleError, check_base_url
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from policy.snapshot import KeyRow, ModelRow, WorkspaceRow
from proxy.answers import EndCause, RefusingLimit
from proxy.async_requests.queues import ParkedRequestError, QueueFullError, QueueUnavailableError
from proxy.async_requests.requests import Cancellation, DeploymentRef, RetryRules
from proxy.edges.telemetry.async_counts import AsyncCounts
from proxy.parts import AsyncQueueing, Parts
from proxy.stages import async_requests
from tests.fakes.counters import FakeCounters
from tests.fakes.directory import KEY, WORKSPACE_KEY
from tests.fakes.failing_async_queue import FailingAsyncQueue
from tests.fakes.path import PathRig
from tests.fakes.scripted_replicas import ScriptedReplicas
from tests.fakes.wire import FakeIncoming, FakeOutgoing

MODEL = "mdl_01JABCDEFGHJKMNPQRSTVWXYZ0"
OTHER_MODEL = "mdl_01JABCDEFGHJKMNPQRSTVWXYZ1"
HOST = "model-mdl-01jabcdefghjkmnpqrstvwxyz0.models.test"
OTHER_KEY = "tg_otherspace00.0123456789abcdefghijklmnopqrst"
UNKNOWN_ID = "areq_01JABCDEFGHJKMNPQRSTVWXYZ9"
DEPLOYMENT = DeploymentRef("w1", MODEL, "dep_1")
SUBMIT = "/production/async_predict"
NO_MODEL = {"error": "The model or deployment does not exist", "error_code": "MODEL_NOT_FOUND"}
NO_REQUEST = {"error": "The asynchronous request does not exist", "error_code": "REQUEST_NOT_FOUND"}


@dataclass
class WebhookUrls:
    """Judges the text alone, and remembers what it judged."""

    judged: list[str] = field(default_factory=list)

    async def check(self, url: str, field: str) -> None:
        self.judged.append(url)
        check_base_url(url, EgressRules.parse("", ["platform.test"]), field)


@dataclass
class AsyncRig(PathRig):
    """A worker with a scripted queue."""

    queue: FailingAsyncQueue = field(default_factory=FailingAsyncQueue)
    urls: WebhookUrls = field(default_factory=WebhookUrls)
    counts: AsyncCounts = field(default_factory=AsyncCounts)
    scripted: ScriptedReplicas = field(default_factory=ScriptedReplicas)
    set_up: bool = True

    def parts(self) -> Parts:
        queueing = AsyncQueueing(queue=self.queue, webhook_urls=self.urls, counts=self.counts, max_body_bytes=1000)
        parts = replace(super().parts(), replicas=self.scripted)
        return replace(parts, async_queueing=queueing if self.set_up else None)

    def deploy(self, status: str) -> None:
        self.directory.models[MODEL] = model(status)

    async def queued(self, **body: object) -> str:
        """The id of a request that was accepted."""
        outgoing = await self.serve(asking(body={"model_input": 1, **body}))
        assert outgoing.status == 201
        id: str = outgoing.json["request_id"]
        return id


def model(status: str = "ACTIVE", id: str = MODEL, workspace_id: str = "w1") -> ModelRow:
    environments = {"production": "dep_1", "development": "dep_2", "Staging": "dep_1"}
    deployments = {id: Deployment(id, status) for id in ("dep_1", "dep_2")}
    return ModelRow(id, workspace_id, deployments, environments)


@pytest.fixture
def rig() -> AsyncRig:
    return filled(AsyncRig(model_host_suffix="models.test"))


def filled(rig: AsyncRig) -> AsyncRig:
    rig.directory.models[MODEL] = model()
    rig.directory.models[OTHER_MODEL] = model(id=OTHER_MODEL)
    rig.directory.workspaces["w2"] = WorkspaceRow("w2", "active", "basic", True)
    digest = digest_of(OTHER_KEY)
    rig.directory.keys[digest] = KeyRow(digest, "tg_otherspace00", KeyKind.WORKSPACE_MANAGE_ALL, "w2", None)
    return rig


def asking(path: str = SUBMIT, method: str = "POST", body: object = b"", **more: str | None) -> FakeIncoming:
    more.setdefault("authorization", f"Bearer {WORKSPACE_KEY}")
    target = path if path.startswith("/async_request") else f"/models/{MODEL}{path}"
    return FakeIncoming(target, method, **more).saying(body if body != b"" else {"model_input": 1})


def about(id: str, method: str = "GET", **more: str | None) -> FakeIncoming:
    incoming = asking(f"/async_request/{id}", method, **more)
    incoming.parts.clear()
    incoming.declared_bytes = None
    return incoming


async def refused(rig: AsyncRig, incoming: FakeIncoming, status: int) -> FakeOutgoing:
    outgoing = await rig.serve(incoming)
    assert (outgoing.status, outgoing.json.get("error")) == (status, outgoing.json["error"])
    assert not rig.queue.accepted
    assert rig.meters.calls[-1].status == status
    rig.check_settled()
    return outgoing


# Queueing.


@pytest.mark.parametrize(
    ("where", "deployment"),
    [
        *(("production", "dep_1"), ("development", "dep_2"), ("environments/staging", "dep_1")),
        ("deployment/dep_2", "dep_2"),
    ],
)
async def test_request_is_queued_for_the_deployment_that_the_path_names(
    rig: AsyncRig, where: str, deployment: str
) -> None:
    for target, host in ((f"/models/{MODEL}/{where}/async_predict", "us"), (f"/{where}/async_predict", HOST)):
        incoming = asking(body=b'{"model_input": {"a" :1.50} }', host=host)
        incoming.request_target = target
        outgoing = await rig.serve(incoming)
        assert outgoing.status == 201
        request = rig.queue.accepted[outgoing.json["request_id"]]
        assert outgoing.json == {"request_id": request.id}
        assert request.deployment == DeploymentRef("w1", MODEL, deployment)
        assert request.submission.model_input == b'{"a" :1.50}'
        assert request.path == target
    assert rig.queue.parks == [False, False]
    assert not rig.scripted.calls


async def test_all_members_reach_the_queue(rig: AsyncRig) -> None:
    url = "https://hooks.example.com/a"
    body = {
        "model_input": None,
        "webhook_endpoint": url,
        "priority": 2,
        "max_time_in_queue_seconds": 10,
        "inference_retry_config": {"max_attempts": 1, "initial_delay_ms": 0, "max_delay_ms": 60_000},
    }
    submission = rig.queue.accepted[await rig.queued(**body)].submission
    assert (submission.model_input, submission.webhook_endpoint, submission.priority) == (b"null", url, 2)
    assert (submission.max_time_in_queue_s, submission.retries) == (10, RetryRules(1, 0, 60_000))
    assert rig.urls.judged == [url]


async def test_ids_are_our_own_and_new_for_each_request(rig: AsyncRig) -> None:
    ids = set()
    for _ in range(3):
        outgoing = await rig.serve(asking(x_request_id="mine"))
        assert outgoing.header("x-request-id") == "mine"
        ids.add(outgoing.json["request_id"])
    assert len(ids) == 3
    assert all(re.fullmatch("areq_[0-9A-Z]{26}", id) for id in ids)


@pytest.mark.parametrize(
    ("status", "parks"), [("SCALED_TO_ZERO", True), ("LOADING_MODEL", True), ("UNHEALTHY", False), ("NEW", False)]
)
async def test_the_queue_is_told_whether_calls_of_the_deployment_park(rig: AsyncRig, status: str, parks: bool) -> None:
    rig.deploy(status)
    await rig.queued()
    assert rig.queue.parks == [parks]


@pytest.mark.parametrize("status", ["BUILDING", "FAILED", "DEPLOY_FAILED", "DEACTIVATING", "INACTIVE"])
async def test_deployment_that_does_not_serve_is_a_503_as_for_sync_calls(rig: AsyncRig, status: str) -> None:
    rig.deploy(status)
    assert (await refused(rig, asking(), 503)).json["error_code"] == "NO_REPLICA"


# Bodies.

BAD: dict[str, tuple[object, str]] = {
    "no input": ({"priority": 1}, "model_input"),
    "priority": ({"model_input": 1, "priority": 3}, "priority"),
    "unknown": ({"model_input": 1, "x": 2}, "x"),
    "retries": ({"model_input": 1, "inference_retry_config": {"max_attempts": 11}}, "max_attempts"),
    "webhook's type": ({"model_input": 1, "webhook_endpoint": 5}, "webhook_endpoint"),
    "not https": ({"model_input": 1, "webhook_endpoint": "http://hooks.example.com"}, "webhook_endpoint"),
    "port": ({"model_input": 1, "webhook_endpoint": "https://hooks.example.com:444"}, "webhook_endpoint"),
    "metadata": ({"model_input": 1, "webhook_endpoint": "https://169.254.169.254/"}, "webhook_endpoint"),
    "private": ({"model_input": 1, "webhook_endpoint": "https://10.0.0.1/"}, "webhook_endpoint"),
    "internal": ({"model_input": 1, "webhook_endpoint": "https://redis.internal"}, "webhook_endpoint"),
    "ourselves": ({"model_input": 1, "webhook_endpoint": "https://api.platform.test/x"}, "webhook_endpoint"),
    "empty": ({"model_input": 1, "webhook_endpoint": ""}, "webhook_endpoint"),
    "not JSON": (b"{", "JSON"),
    "a list": (b"[]", "object"),
}


@pytest.mark.parametrize(("body", "names"), BAD.values(), ids=BAD)
async def test_bad_body_is_a_400_that_names_the_field(rig: AsyncRig, body: object, names: str) -> None:
    outgoing = await refused(rig, asking(body=body), 400)
    assert names in outgoing.json["error"]
    assert "base_url" not in outgoing.json["error"]
    assert outgoing.json["error_code"] == "MALFORMED_REQUEST"
    assert not rig.counters.books, "a body that is refused counts against no limit"
    assert rig.queue.calls == []


async def test_webhook_with_a_secret_in_its_url_appears_in_no_message(rig: AsyncRig) -> None:
    body = {"model_input": 1, "webhook_endpoint": "https://s3cret:pass@hooks.example.com/s3cret"}
    outgoing = await refused(rig, asking(body=body), 400)
    assert "s3cret" not in str(outgoing.headers) + outgoing.body.decode() + outgoing.reason
    assert "s3cret" not in repr(rig.meters.calls)


def with_size(size: int) -> bytes:
    return b'{"model_input": "' + b"x" * (size - 19) + b'"}'


def in_pieces(body: bytes) -> FakeIncoming:
    incoming = asking()
    incoming.declared_bytes = None
    incoming.parts.clear()
    incoming.parts.extend(body[at : at + 300] for at in range(0, len(body), 300))
    return incoming


@pytest.mark.parametrize("shaped", [lambda body: asking(body=body), in_pieces], ids=["declared", "chunked"])
async def test_body_may_have_the_bound_and_not_one_byte_more(
    rig: AsyncRig, shaped: Callable[[bytes], FakeIncoming]
) -> None:
    outgoing = await refused(rig, shaped(with_size(1001)), 413)
    assert outgoing.json["error"] == "payload size of 1001 bytes exceeds maximum size of 1000 bytes"
    assert (await rig.serve(shaped(with_size(1000)))).status == 201
    assert [call.request_bytes for call in rig.meters.calls][1] == 1000


async def test_declared_body_above_the_bound_is_refused_unread(rig: AsyncRig) -> None:
    incoming = asking(body=with_size(1001))
    await refused(rig, incoming, 413)
    assert incoming.reads == 0


@pytest.mark.parametrize(("own", "accepted", "too_large"), [(2000, 2000, 2001), (100, 100, 101), (10**9, 5000, 5001)])
async def test_workspace_may_have_a_bound_of_its_own_but_none_above_that_of_all_requests(
    own: int, accepted: int, too_large: int
) -> None:
    rig = filled(AsyncRig(max_body_bytes=5000))
    rig.directory.workspaces["w1"] = WorkspaceRow("w1", "active", "basic", True, async_max_body_bytes=own)
    outgoing = await refused(rig, asking(body=with_size(too_large)), 413)
    assert outgoing.json["error"].endswith(f"maximum size of {accepted} bytes")
    assert (await rig.serve(asking(body=with_size(accepted)))).status == 201


async def test_compressed_body_is_a_415(rig: AsyncRig) -> None:
    incoming = asking(content_encoding="gzip")
    await refused(rig, incoming, 415)
    assert incoming.reads == 0
    assert (await rig.serve(asking(content_encoding="identity"))).status == 201


async def test_memory_of_a_body_is_held_until_the_queue_has_it(rig: AsyncRig) -> None:
    rig.queue.will(asyncio.Event())
    task = asyncio.create_task(rig.serve(asking(body=with_size(900))))
    await rig.queue.wait_start.wait()
    assert rig.meters.capacity is not None
    assert rig.meters.capacity.held_bytes == 900
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert rig.meters.capacity.held_bytes == 0
    assert rig.meters.calls[-1].status == 499


# Who may, and what is there.


@pytest.mark.parametrize("path", [SUBMIT, "/production/async_queue_status", f"/async_request/{UNKNOWN_ID}"])
async def test_only_workspace_keys_may_ask(rig: AsyncRig, path: str) -> None:
    exporting = "tg_exporterkey0.0123456789abcdefghijklmnopqrst"
    rig.directory.add_key(exporting, KeyKind.WORKSPACE_EXPORT_METRICS, None)
    for authorization, status in ((None, 401), (KEY, 403), (exporting, 403), (f"{WORKSPACE_KEY[:-1]}x", 403)):
        await refused(rig, asking(path, "GET", authorization=authorization and f"Bearer {authorization}"), status)
    rig.directory.workspaces["w1"] = WorkspaceRow("w1", "suspended", "basic", True)
    await refused(rig, asking(path, "GET"), 402)
    assert rig.queue.calls == []


UNKNOWN = ("/models/mdl_none/production", f"/models/{MODEL}/environments/none", f"/models/{MODEL}/deployment/dep_9")


@pytest.mark.parametrize("place", UNKNOWN)
async def test_unknown_model_environment_and_deployment_are_answered_alike(rig: AsyncRig, place: str) -> None:
    for path, method in (("async_predict", "POST"), ("async_queue_status", "GET")):
        incoming = asking(method=method)
        incoming.request_target = f"{place}/{path}"
        assert (await refused(rig, incoming, 404)).json == NO_MODEL
        assert incoming.reads == 0


async def test_model_of_another_workspace_is_answered_like_an_unknown_one(rig: AsyncRig) -> None:
    key = f"Bearer {OTHER_KEY}"
    assert (await refused(rig, asking(authorization=key), 404)).json == NO_MODEL
    assert (
        await refused(rig, asking("/production/async_queue_status", "GET", authorization=key), 404)
    ).json == NO_MODEL


METHODS = {
    SUBMIT: ("POST", ("GET", "HEAD", "PUT", "DELETE", "OPTIONS")),
    "/production/async_queue_status": ("GET, HEAD", ("POST", "DELETE", "OPTIONS")),
    f"/async_request/{UNKNOWN_ID}": ("GET, HEAD, DELETE", ("POST", "PUT", "PATCH", "OPTIONS")),
}


@pytest.mark.parametrize(("path", "allowed", "method"), [(p, a, m) for p, (a, ms) in METHODS.items() for m in ms])
async def test_other_methods_are_a_405(rig: AsyncRig, path: str, allowed: str, method: str) -> None:
    outgoing = await refused(rig, asking(path, method), 405)
    assert outgoing.header("allow") == allowed


@pytest.mark.parametrize("path", METHODS)
async def test_upgrade_to_a_websocket_is_refused(rig: AsyncRig, path: str) -> None:
    outgoing = await refused(rig, asking(path, METHODS[path][0].partition(",")[0], upgrade="WebSocket"), 400)
    assert outgoing.json["error_code"] == "WEBSOCKET_UNSUPPORTED"


@pytest.mark.parametrize("path", METHODS)
async def test_all_paths_are_503_where_asynchronous_requests_are_not_set_up(path: str) -> None:
    rig = filled(AsyncRig(set_up=False))
    outgoing = await refused(rig, asking(path, METHODS[path][0].partition(",")[0]), 503)
    assert outgoing.json["error_code"] == "ASYNC_NOT_SET_UP"
    assert (await rig.serve(asking(path, authorization=None))).status == 401


# Status, cancel, figures.


@pytest.mark.parametrize("prefix", ["/async_request", f"/models/{MODEL}/async_request", "host"])
async def test_status_is_told(rig: AsyncRig, prefix: str) -> None:
    id = await rig.queued(webhook_endpoint="https://hooks.example.com")
    incoming = about(id, host=HOST if prefix == "host" else "us")
    incoming.request_target = f"{'/async_request' if prefix == 'host' else prefix}/{id}?x=1"
    outgoing = await rig.serve(incoming)
    assert outgoing.status == 200
    state = outgoing.json
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", state["created_at"])
    assert state == {
        "request_id": id,
        "model_id": MODEL,
        "deployment_id": "dep_1",
        "status": "QUEUED",
        "webhook_status": "PENDING",
        "created_at": state["created_at"],
        "status_at": state["created_at"],
        "errors": [],
    }
    assert (await rig.serve(about(id, "HEAD"))).status == 200


async def test_failed_request_tells_why(rig: AsyncRig) -> None:
    id = await rig.queued()
    await rig.queue.fail_deployment(DEPLOYMENT)
    state = (await rig.serve(about(id))).json
    assert (state["status"], state["webhook_status"]) == ("FAILED", "NO_WEBHOOK_PROVIDED")
    [error] = state["errors"]
    assert error == {"code": "MODEL_DOES_NOT_EXIST", "message": error["message"]}


async def test_cancel_says_whether_it_was_canceled(rig: AsyncRig) -> None:
    running, failed, canceled = [await rig.queued(priority=priority) for priority in range(3)]
    assert await rig.queue.start(DEPLOYMENT, "worker") is not None
    outgoing = await rig.serve(about(canceled, "DELETE"))
    message = "The request was canceled"
    assert (outgoing.status, outgoing.json) == (200, {"request_id": canceled, "canceled": True, "message": message})
    await rig.queue.fail_deployment(DEPLOYMENT)
    for id, words in ((running, "is in progress"), (failed, "has ended (FAILED)"), (canceled, "has ended (CANCELED)")):
        outgoing = await rig.serve(about(id, "DELETE"))
        message = f"The request {words} and can no longer be canceled"
        assert (outgoing.status, outgoing.json) == (200, {"request_id": id, "canceled": False, "message": message})
    assert (await rig.serve(about(canceled))).json["errors"] == []
    counts = rig.counts.drain()
    assert counts["requests"] == [("w1", MODEL, "dep_1", "CANCELED", 1)], "who cancels a request, counts its end"
    assert sum(counts["histograms"]["queued"][0]) == 1


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
async def test_request_of_another_workspace_or_model_is_answered_like_an_unknown_one(
    rig: AsyncRig, method: str
) -> None:
    id = await rig.queued()
    foreign = about(id, method, authorization=f"Bearer {OTHER_KEY}")
    other = about(id, method)
    unknown_model = about(id, method)
    other.request_target = f"/models/{OTHER_MODEL}/async_request/{id}"
    unknown_model.request_target = f"/models/mdl_none/async_request/{id}"
    for incoming in (foreign, other, unknown_model, about(UNKNOWN_ID, method)):
        outgoing = await rig.serve(incoming)
        assert (outgoing.status, outgoing.json) == (404, NO_REQUEST)
    assert (await rig.serve(about(id))).json["status"] == "QUEUED"


ODD = (
    *("x", "areq_", UNKNOWN_ID + "0", UNKNOWN_ID.lower(), "..", "%2e%2e", UNKNOWN_ID + "%00", UNKNOWN_ID + "%0a", "*"),
    *("{w1}", "areq_" + "0" * 8000, UNKNOWN_ID.replace("a", "%61", 1), "areq_01JABCDEFGHJKMNPQRSTVWXYZ:", "-", "+"),
)


@pytest.mark.parametrize("id", ODD, ids=lambda id: id[:40])
async def test_odd_id_is_a_404_and_does_not_reach_the_queue(rig: AsyncRig, id: str) -> None:
    for method in ("GET", "DELETE"):
        assert (await refused(rig, about(id, method), 404)).json == NO_REQUEST
    assert rig.queue.calls == []


NOWHERE = (*("", "/", f"{UNKNOWN_ID}/", f"{UNKNOWN_ID}/x", f"/{UNKNOWN_ID}", f"../{UNKNOWN_ID}"),)


@pytest.mark.parametrize("rest", NOWHERE)
async def test_nothing_is_below_a_request(rig: AsyncRig, rest: str) -> None:
    outgoing = await refused(rig, about(rest), 404)
    assert outgoing.json["error_code"] == "NOT_FOUND"


async def test_queue_figures_are_told_for_each_priority(rig: AsyncRig) -> None:
    for priority in (0, 2, 2, 2):
        await rig.queued(priority=priority)
    await rig.queue.start(DEPLOYMENT, "worker")
    outgoing = await rig.serve(asking("/environments/STAGING/async_queue_status", "GET"))
    assert (outgoing.status, outgoing.json) == (
        200,
        {
            "model_id": MODEL,
            "deployment_id": "dep_1",
            "num_queued_requests": 3,
            "num_in_progress_requests": 1,
            "priorities": {"0": 0, "1": 0, "2": 3},
        },
    )
    assert rig.queue.asked_for == [DEPLOYMENT]
    rig.deploy("INACTIVE")
    assert (await rig.serve(asking("/production/async_queue_status", "HEAD"))).status == 200


# A queue that refuses, and one that does not answer.


@pytest.mark.parametrize(
    ("failure", "code"), [(ParkedRequestError(), "CAPACITY_EXCEEDED"), (QueueFullError(), "ASYNC_QUEUE_FULL")]
)
async def test_refusal_of_the_queue_is_a_429_that_counts_against_no_limit(
    rig: AsyncRig, failure: Exception, code: str
) -> None:
    rig.queue.will(failure)
    outgoing = await refused(rig, asking(), 429)
    assert outgoing.json["error_code"] == code
    assert int(outgoing.header("retry-after") or 0) >= 1
    assert [settled.given_back for settled in rig.counters.settled] == [True]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_requests, "TRY_S", 0.01)
    monkeypatch.setattr(async_requests, "PAUSE_S", 0.001)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("takes_effect", [True, False])
async def test_submit_that_is_not_answered_is_repeated_with_the_same_id(rig: AsyncRig, takes_effect: bool) -> None:
    rig.queue.takes_effect = takes_effect
    for step in (QueueUnavailableError(), asyncio.Event()):
        rig.queue.will(step)
        await rig.queued()
    assert rig.queue.calls == ["submit"] * 4
    assert (await rig.queue.figures(DEPLOYMENT)).queued[0] == 2


@pytest.mark.usefixtures("impatient")
async def test_queue_that_never_answers_is_a_503_with_the_id_of_the_request_that_may_run(rig: AsyncRig) -> None:
    rig.queue.will(QueueUnavailableError(), asyncio.Event(), QueueUnavailableError())
    outgoing = await refused(rig, asking(), 503)
    assert outgoing.json["error_code"] == "ASYNC_UNAVAILABLE"
    assert re.search("may have been queued, as areq_[0-9A-Z]{26}, or not", outgoing.json["error"])
    assert rig.queue.calls == ["submit", "submit", "cancel"]


@pytest.mark.usefixtures("impatient")
async def test_request_in_doubt_is_canceled(rig: AsyncRig) -> None:
    rig.queue.takes_effect = True
    rig.queue.will(QueueUnavailableError(), QueueUnavailableError())
    outgoing = await rig.serve(asking())
    assert outgoing.status == 503
    id = re.findall("areq_[0-9A-Z]{26}", outgoing.json["error"])[0]
    assert (await rig.serve(about(id))).json["status"] == "CANCELED"
    assert [row[3] for row in rig.counts.drain()["requests"]] == ["CANCELED"]


@pytest.mark.usefixtures("impatient")
async def test_request_in_doubt_that_runs_already_is_accepted() -> None:
    class Quick(FailingAsyncQueue):
        async def cancel(self, workspace_id: str, request_id: str) -> Cancellation | None:
            await self.start(DEPLOYMENT, "worker")
            return await super().cancel(workspace_id, request_id)

    rig = filled(AsyncRig(queue=Quick(takes_effect=True)))
    rig.queue.will(QueueUnavailableError(), QueueUnavailableError())
    assert (await rig.serve(asking())).status == 201


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_status_and_cancel_without_an_answer_are_503(rig: AsyncRig, method: str) -> None:
    id = await rig.queued()
    rig.queue.will(QueueUnavailableError())
    assert (await rig.serve(about(id, method))).status == 200
    rig.queue.will(asyncio.Event(), QueueUnavailableError())
    outgoing = await rig.serve(about(id, method))
    assert (outgoing.status, outgoing.json["error_code"]) == (503, "ASYNC_UNAVAILABLE")
    rig.queue.will(QueueUnavailableError(), QueueUnavailableError())
    assert (await rig.serve(asking("/production/async_queue_status", "GET"))).status == 503


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("takes_effect", [True, False])
async def test_cancel_whose_answer_is_lost_tells_that_it_was_canceled(rig: AsyncRig, takes_effect: bool) -> None:
    id = await rig.queued()
    rig.queue.takes_effect = takes_effect
    rig.queue.will(QueueUnavailableError())
    assert (await rig.serve(about(id, "DELETE"))).json["canceled"] is True
    assert [row[3] for row in rig.counts.drain()["requests"]] == ["CANCELED"]
    assert (await rig.serve(about(id, "DELETE"))).json["canceled"] is False


async def test_caller_who_leaves_before_the_201_leaves_nothing_here(rig: AsyncRig) -> None:
    rig.queue.will(asyncio.Event())
    task = asyncio.create_task(rig.serve(asking()))
    await rig.queue.wait_start.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [call.status for call in rig.meters.calls] == [499]
    rig.check_settled()


# Limits.


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> AsyncRig:
    """A worker where 2 submissions a minute and 3 look-ups a second are allowed, and time stands still."""
    monkeypatch.setattr("policy.limits.async_limits.SUBMISSIONS", Limit(LimitType.REQUEST, Unit.MINUTE, 2))
    monkeypatch.setattr("policy.limits.async_limits.LOOK_UPS", Limit(LimitType.REQUEST, Unit.SECOND, 3))
    return filled(AsyncRig(counters=FakeCounters(lambda: 1_700_000_000_000)))


async def test_submissions_of_a_workspace_are_limited_together(few: AsyncRig) -> None:
    for remaining in (1, 0):
        outgoing = await few.serve(asking())
        assert outgoing.status == 201
        assert outgoing.header("x-ratelimit-remaining-requests") == str(remaining)
    outgoing = await few.serve(asking("/development/async_predict"))
    assert (outgoing.status, outgoing.json["error_code"]) == (429, "RATE_LIMITED")
    assert outgoing.json["error"] == "Rate limit exceeded for async_predict: 2 REQUEST per MINUTE"
    assert outgoing.header("retry-after") == "61", "60 001 ms, rounded up"
    assert len(few.queue.accepted) == 2
    assert few.meters.decisions[-2:] == [("admitted", "", ""), ("refused", "REQUEST", "MINUTE")]
    assert few.meters.calls[-1].end_cause == EndCause("limit", RefusingLimit("", "REQUEST", "MINUTE", "2"))
    id = next(iter(few.queue.accepted))
    assert (await few.serve(about(id))).status == 200, "status has a limit of its own"


async def test_refused_submissions_give_their_place_back(few: AsyncRig) -> None:
    few.queue.will(*(ParkedRequestError() for _ in range(5)))
    for _ in range(5):
        assert (await few.serve(asking())).status == 429
    await few.queued()
    await few.queued()
    assert (await few.serve(asking())).json["error_code"] == "RATE_LIMITED"


async def test_status_cancel_and_figures_share_one_limit_of_the_workspace(few: AsyncRig) -> None:
    id = await few.queued()
    assert (await few.serve(about(id))).status == 200
    assert (await few.serve(about(id, "DELETE"))).status == 200
    assert (await few.serve(asking("/production/async_queue_status", "GET"))).status == 200
    for incoming in (about(id), about(id, "DELETE"), asking("/production/async_queue_status", "GET"), about("x")):
        outgoing = await few.serve(incoming)
        assert (outgoing.status, outgoing.header("retry-after")) == (429, "2")
        assert outgoing.json["error"] == "Rate limit exceeded for async_request: 3 REQUEST per SECOND"
    foreign = about(id, authorization=f"Bearer {OTHER_KEY}")
    assert (await few.serve(foreign)).status == 404, "another workspace has its own"
    assert (await few.serve(asking())).status == 201


async def test_lost_counters_refuse_as_for_every_call(rig: AsyncRig) -> None:
    rig.counters.away = True
    assert (await refused(rig, asking(), 503)).json["error_code"] == "LIMITS_UNAVAILABLE"
    assert (await refused(rig, about(UNKNOWN_ID), 503)).json["error_code"] == "LIMITS_UNAVAILABLE"
    assert rig.queue.calls == []


# What is recorded.


async def test_request_is_logged_like_a_direct_call(rig: AsyncRig) -> None:
    await rig.serve(asking(body={"model_input": "s3cret", "webhook_endpoint": "https://hooks.example.com/s3cret"}))
    await rig.serve(asking("/production/async_queue_status", "GET"))
    first, second = rig.meters.calls
    assert (first.status, first.labels.path, first.labels.model_id) == (201, f"/models/{MODEL}{SUBMIT}", MODEL)
    assert (first.labels.workspace_id, first.labels.slug, first.tokens) == ("w1", "", None)
    assert (second.status, second.labels.method, second.labels.model_id) == (200, "GET", MODEL)
    assert "s3cret" not in repr(rig.meters.calls)
    assert not rig.journal.entries


async def test_host_rule_error_of_resolved_addresses_names_the_field(rig: AsyncRig) -> None:
    class Inside(WebhookUrls):
        async def check(self, url: str, field: str) -> None:
            raise HostRuleError(field, f"{field}: the address is not public")

    rig = filled(AsyncRig(urls=Inside()))
    body = {"model_input": 1, "webhook_endpoint": "https://hooks.example.com"}
    outgoing = await refused(rig, asking(body=body), 400)
    assert outgoing.json["error"] == "webhook_endpoint: the address is not public"
