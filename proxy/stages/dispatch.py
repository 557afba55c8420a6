"""Step 5: shape the request in the target's dialect, find a replica, send it (400 404 500 502 503 504 529).

Accepts nothing but an `Admitted`. Journals the call before anything is sent: the upstream's client sends once the
record is written. Sends a request to another replica only if no byte of it reached the first. Asks again in another
dialect where a compatible server lacks the path, and without what we added where the server refuses that.
"""

from collections.abc import Awaitable
from functools import partial
from time import perf_counter, time_ns

from policy.billing import event_start, payer_members
from policy.deployments import Where
from policy.endpoints import PLATFORM, VENDOR_C, Target
from policy.hosts import Reach
from proxy.accounting.journaled_call import JournaledCall
from proxy.accounting.recovery import open_record
from proxy.dialects.attempt import Attempt
from proxy.dialects.middle.bounds import check_bounds
from proxy.dialects.upstream_request import UpstreamRequest
from proxy.directory_values import Forwarding, Shape
from proxy.error_bodies import read_refusal
from proxy.exchange import Admitted, Answering, RequestContext, UpstreamAnswer, UpstreamCall
from proxy.http_rules import target_rules
from proxy.http_rules.headers import field_lines, forwarded_headers, forwarded_query
from proxy.http_rules.refused_requests import REFUSING
from proxy.json_text.segmented_body import RestoredBody
from proxy.json_text.sliced_json import AT_ONCE_BYTES
from proxy.parts import Parts
from proxy.refusals import NoModelReplicaError, NoSuchModelError, TargetSecretError
from proxy.replicas.replica_calls import Wanted
from proxy.replicas.replica_sending import send_to_replica
from proxy.time_slices import Slices

FEW_BYTES = 16 << 10
"""A body of this size is looked at at once."""
FEW_CONTAINERS, MANY_CONTAINERS = 50, 500
"""A body with few objects and lists is translated at once, one with many beside the event loop: an object takes up to
6 µs. What lies between has a turn of the loop for itself, so that many callers at once hold nobody up."""


class Dispatch:
    """Sends admitted calls to their upstreams."""

    def __init__(self, parts: Parts, slices: Slices) -> None:
        self._parts = parts
        self._slices = slices

    async def __call__(self, context: RequestContext, admitted: Admitted) -> Answering:
        """Send a call, if possible like one that was sent before."""
        parts = self._parts
        settings = self._parts.dispatch
        forwarding = context.forwarding
        if forwarding is None:
            return await self._send_first(context, admitted)
        shape = context.shape or self._keep_shape(context, admitted, forwarding)
        attempt = context.attempt = forwarding.attempt
        body = parts.dialects.build_body(context, admitted.route.endpoint.target, attempt)
        record = self._record(context, admitted, shape.payer)
        started = perf_counter()
        context.deadline = deadline = started + settings.request_timeout_s
        outbound = UpstreamCall(
            url=forwarding.url,
            method="POST",
            headers=forwarding.headers,
            body=body,
            deadline=deadline,
            idle_timeout_s=settings.stream_idle_timeout_s,
            reach=forwarding.reach,
            record=record,
            waiting_since=started,
            request_id=context.request_id,
            lines=forwarding.lines,
        )
        try:
            upstream = await parts.upstream.send(outbound)
        finally:
            context.upstream_s = perf_counter() - outbound.waiting_since
            context.dispatched = outbound.written
        answering = Answering(admitted, upstream, forwarding.credential, forwarding.url)
        return answering if upstream.status not in REFUSING else await self._standing(context, answering)

    async def _send_first(self, context: RequestContext, admitted: Admitted) -> Answering:
        """Send any other call."""
        target = admitted.route.endpoint.target
        context.put_by(await self._first_attempt(context, target, admitted.identified.key.workspace_id))
        credential = await self._credential(context, target)
        return await self._standing(context, await self._ask(context, admitted, credential))

    async def _standing(self, context: RequestContext, answering: Answering) -> Answering:
        """The answer that stands: ask again as long as one says that the target must be asked otherwise."""
        while (following := await self._following(context, answering)) is not None:
            answering.upstream.close()
            context.put_by(following)
            answering = await self._ask(context, answering.admitted, answering.credential)
        context.attempt.release()
        return answering

    async def _first_attempt(self, context: RequestContext, target: Target, workspace: str) -> Attempt:
        """The first attempt. A long translation runs beside the event loop, and so does a close look at a long body."""
        dialects = self._parts.dialects
        if target_rules.concerns(context, target) or context.upload is not None:
            check = partial(target_rules.check, context, target)
            await self._slices.beside(workspace, check) if len(context.body) > FEW_BYTES else check()
        containers = dialects.translated_containers(context, target)
        if containers <= FEW_CONTAINERS:
            return dialects.first_attempt(context, target)
        attempt = partial(dialects.first_attempt, context, target)
        if containers <= MANY_CONTAINERS:
            return await self._slices.step(workspace, attempt)
        check_bounds(context)
        return await self._slices.beside(workspace, attempt)

    async def _following(self, context: RequestContext, answering: Answering) -> Attempt | None:
        """The next attempt; None if this answer stands."""
        dialects, attempt, status = self._parts.dialects, context.attempt, answering.upstream.status
        if not dialects.may_ask_again(context, attempt, status):
            return None
        answering.upstream, refusal = await read_refusal(context, answering.upstream)
        target = answering.admitted.route.endpoint.target
        make = dialects.following(context, target, attempt, status, refusal)
        workspace = answering.admitted.identified.key.workspace_id
        return None if make is None else await self._slices.beside(workspace, make)

    async def _ask(self, context: RequestContext, admitted: Admitted, credential: str | None) -> Answering:
        """Put the call to its target as the current attempt says."""
        parts, incoming = self._parts, context.incoming
        target, attempt = admitted.route.endpoint.target, context.attempt
        asked = parts.dialects.build_request(context, target, credential, attempt)
        if not attempt.is_translated:  # only the caller's own dialect has such parameters
            asked.query = forwarded_query(incoming.target)
        if isinstance(asked.body, RestoredBody) and len(context.body) > AT_ONCE_BYTES:
            workspace = admitted.identified.key.workspace_id
            await self._slices.run(workspace, asked.body.measure_in_slices(), len(context.body))
        headers = forwarded_headers(incoming, context.request_id, asked.headers)
        idle_timeout_s = parts.dispatch.stream_idle_timeout_s
        outbound = UpstreamCall(
            url="",
            method="POST",
            headers=headers,
            body=asked.body,
            deadline=context.deadline,
            idle_timeout_s=idle_timeout_s,
            reach=Reach.REPLICA,
            upload=context.upload,
        )
        if target.provider == PLATFORM:
            self._keep_shape(context, admitted, None)
            upstream = await self._to_replica(context, admitted, asked, outbound)
        else:
            self._address(outbound, asked, target)
            self._keep_shape(context, admitted, self._forwarding(context, admitted, credential, outbound))
            upstream = await self._send(context, admitted, outbound)
        return Answering(admitted=admitted, upstream=upstream, credential=credential, url=outbound.url)

    async def _credential(self, context: RequestContext, target: Target) -> str | None:
        """The target's credential; None if it has none."""
        if target.secret_id is None:
            return None
        credential = self._parts.directory.secret(target.secret_id)
        if credential is None:
            raise TargetSecretError
        return await self._token(context, credential) if target.provider == VENDOR_C else credential

    async def _token(self, context: RequestContext, secret: str) -> str:
        """The access token for a secret that is a private key, which itself is never sent."""
        if self._parts.access_tokens is None:
            raise TargetSecretError
        started = perf_counter()
        try:
            return await self._parts.access_tokens.token(secret)
        finally:
            context.upstream_s += perf_counter() - started

    def _address(self, outbound: UpstreamCall, asked: UpstreamRequest, target: Target) -> None:
        base_url, outbound.reach = target.base_url, Reach.CUSTOMER
        if base_url is None:
            base_url, outbound.reach = self._parts.dispatch.base_urls.get(target.provider), Reach.OPERATOR
        if base_url is None:  # a provider that only a newer control plane knows
            raise NoModelReplicaError
        outbound.url = asked.url_at(base_url)

    async def _send(self, context: RequestContext, admitted: Admitted, outbound: UpstreamCall) -> UpstreamAnswer:
        """Journal the call if it is not journaled yet, and send it.

        The deadline runs from the dispatch that reached the upstream: after a failed connection a call may be parked.
        """
        parts = self._parts
        if context.journaled is None:
            outbound.record = self._record(context, admitted, _payer(admitted))
        outbound.waiting_since = started = perf_counter()
        if not context.dispatched:
            context.deadline = outbound.deadline = started + parts.dispatch.request_timeout_s
        try:
            return await parts.upstream.send(outbound)
        finally:
            context.upstream_s += perf_counter() - outbound.waiting_since
            context.dispatched = context.dispatched or outbound.written

    def _record(self, context: RequestContext, admitted: Admitted, payer: bytes) -> JournaledCall:
        """Journal the call. Nothing of it may be sent before what this returns is written."""
        start = event_start(
            idempotency_key=admitted.event_key,
            payer=payer,
            request_id=context.request_id,
            request_metadata=context.metadata,
        )
        record = open_record(
            start=start,
            opened_at_ms=time_ns() // 1_000_000,
            estimate=admitted.estimate,
            reservations=admitted.taken.reservations,
        )
        context.journaled = journaled = self._parts.journal.open(record)
        return journaled

    def _keep_shape(self, context: RequestContext, admitted: Admitted, forwarding: Forwarding | None) -> Shape:
        """Make what the next call with this head and slug can use again, and keep it if there may be one."""
        shape = Shape(admitted.identified, admitted.route, _payer(admitted), forwarding)
        if context.facts.repeats:
            self._parts.directory.keep_shape(context.facts, shape)
        return shape

    def _forwarding(
        self, context: RequestContext, admitted: Admitted, credential: str | None, outbound: UpstreamCall
    ) -> Forwarding | None:
        """Make what calls like this one can use again, and keep it for them.

        None if no call will ask for it; for an upload or a translation, which differ from call to call; where the
        target may lack the path, or refused a part of this call; for an access token, which expires; and where each
        body must be checked for options with a price.
        """
        attempt = context.attempt
        target = admitted.route.endpoint.target
        varies = outbound.upload is not None or attempt.json is not None or attempt.is_translated
        varies = varies or bool(attempt.untried) or not attempt.asks_usage
        is_of_use = context.facts.repeats or context.facts.forwarded
        if not is_of_use or varies or target.provider == VENDOR_C or not target.passes_price_options:
            return None
        headers = {name: value for name, value in outbound.headers.items() if name != "x-request-id"}
        forwarding = Forwarding(
            attempt=attempt,
            credential=credential,
            url=outbound.url,
            reach=outbound.reach,
            headers=headers,
            lines=field_lines(headers),
        )
        if context.facts.forwarded:
            self._parts.directory.keep_forwarding(context.facts.forwarded, admitted.route.endpoint, forwarding)
        return forwarding

    async def _to_replica(
        self, context: RequestContext, admitted: Admitted, asked: UpstreamRequest, outbound: UpstreamCall
    ) -> UpstreamAnswer:
        """Send to a replica of a platform model. Another attempt at the same call goes to the same replica."""
        load, call = context.load, context.replica_call
        assert load is not None  # set when the request entered
        if call is None:
            call = context.replica_call = self._parts.replicas.begin(_wanted(admitted), load)

        def send(base_url: str) -> Awaitable[UpstreamAnswer]:
            outbound.url = asked.url_at(base_url)
            return self._send(context, admitted, outbound)

        waited_s = call.waited_s
        try:
            return await send_to_replica(call, send)
        finally:
            context.upstream_s += call.waited_s - waited_s


def _wanted(admitted: Admitted) -> Wanted:
    endpoint, target = admitted.route.endpoint, admitted.route.endpoint.target
    if target.model_id is None:
        raise NoSuchModelError
    where = Where(target.environment_name)
    return Wanted(endpoint.workspace_id, target.model_id, where, admitted.identified.turn)


def _payer(admitted: Admitted) -> bytes:
    """Who pays, as the event says it."""
    key, group, plan = admitted.identified.key, admitted.identified.group, admitted.route.plan
    assert group is not None  # `route` refuses a key without a group
    return payer_members(key.workspace_id, plan.group_id, group.external_entity_id, key.prefix, plan.slug)
