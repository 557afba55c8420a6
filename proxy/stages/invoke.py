"""Passes a direct call to a platform model, instead of steps 3 to 6 (404 405 499 500 502 503 504 529).

No limit binds it, and it leaves no event: it is metered in metrics only. Successes pass as they are, with backpressure;
nothing reads them.

See docs/reference/inference.md#direct-calls.
"""

from collections.abc import Awaitable
from time import perf_counter

from policy.endpoints import PLATFORM, Target
from policy.hosts import Reach
from proxy.answer_head import begin
from proxy.answers import Answered, Headers
from proxy.directory_values import Identified
from proxy.error_bodies import read_error
from proxy.exchange import RequestContext
from proxy.http_rules import model_paths
from proxy.http_rules.headers import (
    DIRECT_FORWARDED_FIELDS,
    DIRECT_RETURNED_FIELDS,
    forwarded_headers,
    is_encoded,
    returned_headers,
)
from proxy.http_rules.model_paths import METHODS, ModelPath
from proxy.http_rules.upstream_errors import discreet, error_for_caller, host_of, raise_target_fault, without_secrets
from proxy.parts import Directory, DispatchSettings, Replicas, UpstreamClient
from proxy.records.messages import UpstreamAnswer, UpstreamCall
from proxy.refusals import NoSuchModelError, UpgradeError, WrongMethodError
from proxy.replicas.direct_call import DirectCall
from proxy.replicas.replica_calls import Wanted
from proxy.replicas.replica_sending import send_to_replica

NOT_MODIFIED = 304
"""A replica's answer to a conditional request: neither an error nor a success."""
_MODEL_SERVER = Target(PLATFORM)
"""Stands for every replica where an error's origin matters."""


class Invoke:
    """Takes direct calls to their replicas, and the answers back."""

    def __init__(
        self, directory: Directory, replicas: Replicas, upstream: UpstreamClient, settings: DispatchSettings
    ) -> None:
        self._directory = directory
        self._replicas = replicas
        self._upstream = upstream
        self._settings = settings

    def path(self, context: RequestContext) -> ModelPath:
        """Return what the request asks for, by path, host and method."""
        incoming = context.incoming
        path = model_paths.model_path(incoming.request_target, context.facts.host_model)
        if "websocket" in (incoming.header("upgrade") or "").lower():
            raise UpgradeError
        methods = METHODS[path.action]
        if incoming.method not in methods:
            allowed = ", ".join(methods)
            raise WrongMethodError(f"this path takes {allowed}", (("allow", allowed),))
        return path

    def route(self, identified: Identified, path: ModelPath) -> DirectCall:
        """Find the model that the request asks. Another workspace's model is answered like one that does not exist."""
        assert path.model_id is not None  # only a path to an asynchronous request names none
        model = self._directory.model(path.model_id)
        workspace_id = identified.key.workspace_id
        deployment = model.deployment_at(path.where) if model is not None else None
        if model is None or deployment is None or model.workspace_id != workspace_id:
            raise NoSuchModelError
        return DirectCall(Wanted(workspace_id, path.model_id, path.where, identified.turn), path.target, deployment)

    async def wake(self, call: DirectCall) -> Answered:
        """Wake the deployment, without a call."""
        await self._replicas.wake(call.replica_request)
        return Answered(202, (("content-type", "application/json"),), b"{}")

    async def send(self, context: RequestContext, call: DirectCall) -> UpstreamAnswer:
        """Send the call to a replica. Returns its answer when the head has arrived."""
        settings = self._settings
        incoming = context.incoming
        load = context.load
        assert load is not None  # it has entered
        outbound = UpstreamCall(
            url="",
            method=incoming.method,
            headers=forwarded_headers(incoming, context.request_id, {}, DIRECT_FORWARDED_FIELDS),
            body=call.body,
            deadline=0.0,
            idle_timeout_s=settings.stream_idle_timeout_s,
            reach=Reach.REPLICA,
        )

        def send(base_url: str) -> Awaitable[UpstreamAnswer]:
            outbound.url = call.url = base_url.rstrip("/") + call.target
            if not outbound.has_begun:  # nothing has reached a replica: it may have been parked again meanwhile
                outbound.deadline = perf_counter() + settings.request_timeout_s
            return self._upstream.send(outbound)

        context.replica_call = replica_call = self._replicas.begin(call.replica_request, load)
        start_s = perf_counter()
        try:
            return await send_to_replica(replica_call, send)
        finally:
            context.upstream_s += perf_counter() - start_s

    async def relay(self, context: RequestContext, call: DirectCall, upstream: UpstreamAnswer) -> Answered:
        """Pass the answer on as it arrives. An error becomes the caller's."""
        if not 200 <= upstream.status < 300 and upstream.status != NOT_MODIFIED:
            return await _error(context, call, upstream)
        call.body = b""  # free the request: its answer may take minutes
        if context.load is not None:
            context.load.drop()
        outgoing = context.outgoing
        method = context.incoming.method
        head = Answered(upstream.status, _returned(method, upstream), b"")
        length = _declared_length(upstream.headers)

        def write(data: bytes) -> bool:
            if not outgoing.has_started:
                if len(data) == length:  # all of it: one write, with its length
                    head.final = data
                    return True
                begin(context, head)
            return outgoing.write(data)

        if method == "HEAD" or length is None:
            write(b"")  # a stream's head does not wait for its first bytes
        while not upstream.ended:
            start_s = perf_counter()
            try:
                has_room = await upstream.pour(write)
            finally:
                context.upstream_s += perf_counter() - start_s
            if not has_room:
                await outgoing.room()
        return head


async def _error(context: RequestContext, call: DirectCall, upstream: UpstreamAnswer) -> Answered:
    raise_target_fault(upstream.status, _MODEL_SERVER)
    host = host_of(call.url)
    body = b"" if is_encoded(upstream.headers) else without_secrets(await read_error(context, upstream), host)
    answered = discreet(error_for_caller(upstream.status, upstream.headers, body, _MODEL_SERVER), host)
    answered.headers = (*answered.headers, *(field for field in upstream.headers if field[0] == "allow"))
    return answered


def _returned(method: str, upstream: UpstreamAnswer) -> Headers:
    """The answer's fields. Of an answer to HEAD, the length is that of GET's."""
    fields = DIRECT_RETURNED_FIELDS | {"content-length"} if method == "HEAD" else DIRECT_RETURNED_FIELDS
    return returned_headers(upstream.headers, fields)


def _declared_length(headers: Headers) -> int | None:
    """The body's `content-length`, which the upstream's client has checked."""
    return next((int(value) for name, value in headers if name == "content-length"), None)
