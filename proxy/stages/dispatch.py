"""Step 5: shape the request in the target's dialect, find a replica, send it (400 404 500 502 503 504 529).

Accepts nothing but an `Admitted`. Journals the call before anything is sent: the upstream's client sends once the
record is written. Sends a request to another replica only if no byte of it reached the first. Asks again in another
dialect where a compatible server lacks the path, and without what we added where the server refuses that.
"""

from collections.abc import Awaitable
from functools import partial
from time import perf_counter, time_ns

from policy.billing import Payer, event_start, payer_members
from policy.deployments import Where
from policy.endpoints import PLATFORM, VENDOR_C, Target
from policy.hosts import Reach
from proxy.accounting.recovery import open_record
from proxy.dialects.dialect_attempt import DialectAttempt
from proxy.dialects.middle.bounds import check_bounds
from proxy.dialects.upstream_request import UpstreamRequest
from proxy.directory_values import Forwarding, Shape
from proxy.error_bodies import read_refusal
from proxy.exchange import Admitted, Answering, RequestContext
from proxy.http_rules import target_rules
from proxy.http_rules.headers import forwarded_headers, forwarded_query
from proxy.http_rules.refused_requests import REFUSING
from proxy.json_text.segmented_body import RestoredBody
from proxy.json_text.sliced_json import AT_ONCE_BYTES
from proxy.parts import Parts
from proxy.records.messages import UpstreamAnswer, UpstreamCall
from proxy.refusals import NoModelReplicaError, NoSuchModelError, TargetSecretError
from proxy.replicas.replica_calls import Wanted
from proxy.replicas.replica_sending import send_to_replica
from proxy.time_slices import Slices

FEW_BYTES = 16 << 10
"""A body of this size is looked at at once."""
FEW_CONTAINERS = 50
MANY_CONTAINERS = 500
"""A body with few objects and lists is translated at once, one with many beside the event loop: an object takes up to
6 µs. What lies between has a turn of the loop for itself, so that many callers at once hold nobody up."""
SUCCESS = 200


class Dispatch:
    """Sends admitted calls to their upstreams."""

    def __init__(self, parts: Parts, slices: Slices) -> None:
        self._directory = parts.directory
        self._dialects = parts.dialects
        self._journal = parts.journal
        self._upstream = parts.upstream
        self._replicas = parts.replicas
        self._access_tokens = parts.access_tokens
        self._base_urls = parts.dispatch.base_urls
        self._request_timeout_s = parts.dispatch.request_timeout_s
        self._idle_timeout_s = parts.dispatch.stream_idle_timeout_s
        self._slices = slices

    async def send(self, context: RequestContext, admitted: Admitted) -> Answering:
        """Send a call, the way that is kept for calls like it if there is one, until an answer stands."""
        forwarding = context.forwarding
        if forwarding is None:
            forwarding = await self._first_forwarding(context, admitted)
        else:
            context.attempt = forwarding.attempt
        deadline = 0.0
        while True:
            body = self._dialects.build_body(context, admitted.route.endpoint.target, forwarding.attempt)
            if context.outline is not None and len(context.body) > AT_ONCE_BYTES and isinstance(body, RestoredBody):
                await self._slices.run(context.workspace_id, body.measure_in_slices(), len(context.body))
            outbound = UpstreamCall(
                url=forwarding.url,
                method="POST",
                headers=forwarding.headers,
                body=body,
                deadline=deadline,
                idle_timeout_s=self._idle_timeout_s,
                reach=forwarding.reach,
                upload=context.upload,
                request_id=context.request_id,
            )
            if not forwarding.url:
                upstream = await self._to_replica(context, admitted, forwarding.request, outbound)
            else:
                sending = self._send(context, admitted, outbound)
                try:
                    upstream = await sending
                finally:
                    context.upstream_s += perf_counter() - outbound.waiting_since
                    if outbound.has_begun:
                        context.dispatched = True
            answering = Answering(admitted, upstream, forwarding.credential, outbound.url)
            if upstream.status not in forwarding.doubtful:
                return answering
            following = await self._following(context, answering)
            if following is None:
                context.attempt.release()
                return answering
            answering.upstream.close()
            deadline = outbound.deadline
            context.use_attempt(following)
            forwarding = self._forwarding(context, admitted, forwarding.credential)

    async def _first_forwarding(self, context: RequestContext, admitted: Admitted) -> Forwarding:
        """Find out how the call goes upstream, and keep it for calls like it."""
        directory = self._directory
        endpoint = admitted.route.endpoint
        facts = context.facts
        target = endpoint.target
        context.use_attempt(await self._first_attempt(context, target, context.workspace_id))
        credential = await self._credential(context, target)
        forwarding = self._forwarding(context, admitted, credential)
        context.shape = None  # to be made anew, with what is kept from now on
        if forwarding.is_shared:
            context.forwarding = forwarding
            if facts.forwarded:
                directory.keep_forwarding(facts.forwarded, endpoint, forwarding)
        return forwarding

    async def _first_attempt(self, context: RequestContext, target: Target, workspace: str) -> DialectAttempt:
        """The first attempt. A long translation runs beside the event loop, and so does a close look at a long body."""
        dialects = self._dialects
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

    async def _following(self, context: RequestContext, answering: Answering) -> DialectAttempt | None:
        """The next attempt; None if this answer stands."""
        dialects = self._dialects
        attempt = context.attempt
        status = answering.upstream.status
        if not dialects.may_ask_again(context, attempt, status):
            return None
        answering.upstream, refusal = await read_refusal(context, answering.upstream)
        target = answering.admitted.route.endpoint.target
        make = dialects.following(context, target, attempt, status, refusal)
        workspace = answering.admitted.identified.key.workspace_id
        return None if make is None else await self._slices.beside(workspace, make)

    def _forwarding(self, context: RequestContext, admitted: Admitted, credential: str | None) -> Forwarding:
        """Return the form in which the current attempt goes upstream."""
        dialects = self._dialects
        attempt = context.attempt
        target = admitted.route.endpoint.target
        request = dialects.build_request(context, target, credential, attempt)
        if not attempt.is_translated:  # only the caller's own dialect has such parameters
            request.query = forwarded_query(context.incoming.request_target)
        headers = forwarded_headers(context.incoming, context.request_id, request.headers)
        del headers["x-request-id"]
        base_url, reach = self._base_url(target)
        is_open = attempt.json is not None or dialects.may_ask_again(context, attempt, SUCCESS)
        return Forwarding(
            attempt=attempt,
            doubtful=range(1000) if is_open else REFUSING,
            credential=credential,
            request=request,
            url=request.url_at(base_url) if base_url else "",
            reach=reach,
            headers=headers,
            is_shared=_is_shared(context, target),
        )

    def _base_url(self, target: Target) -> tuple[str, Reach]:
        if target.provider == PLATFORM:
            return "", Reach.REPLICA  # the replica's, once the call has one
        if target.base_url is not None:
            return target.base_url, Reach.CUSTOMER
        base_url = self._base_urls.get(target.provider)
        if base_url is None:  # a provider that only a newer control plane knows
            raise NoModelReplicaError
        return base_url, Reach.OPERATOR

    async def _credential(self, context: RequestContext, target: Target) -> str | None:
        """The target's credential; None if it has none."""
        if target.secret_id is None:
            return None
        credential = self._directory.secret(target.secret_id)
        if credential is None:
            raise TargetSecretError
        return await self._token(context, credential) if target.provider == VENDOR_C else credential

    async def _token(self, context: RequestContext, secret: str) -> str:
        """Return the access token for a secret that is a private key. The key itself is never sent."""
        if self._access_tokens is None:
            raise TargetSecretError
        start_s = perf_counter()
        try:
            return await self._access_tokens.token(secret)
        finally:
            context.upstream_s += perf_counter() - start_s

    def _send(self, context: RequestContext, admitted: Admitted, outbound: UpstreamCall) -> Awaitable[UpstreamAnswer]:
        """Journal the call if it is not journaled yet, and send it. Await what this returns at once.

        The deadline runs from the dispatch that reached the upstream: after a failed connection a call may be parked.
        """
        if context.journaled is None:
            shape = context.shape
            start = event_start(
                idempotency_key=admitted.event_key,
                payer=self._payer_of_new(context, admitted) if shape is None else shape.payer,
                request_id=context.request_id,
                request_metadata=context.metadata,
            )
            context.journaled = outbound.record = self._journal.open(
                open_record(
                    start=start,
                    opened_at_ms=time_ns() // 1_000_000,
                    estimate=admitted.estimate,
                    reservations=admitted.take.reservations,
                )
            )
        outbound.waiting_since = start_s = perf_counter()
        if not context.dispatched:
            outbound.deadline = start_s + self._request_timeout_s
        return self._upstream.send(outbound)

    async def _to_replica(
        self, context: RequestContext, admitted: Admitted, request: UpstreamRequest, outbound: UpstreamCall
    ) -> UpstreamAnswer:
        """Send to a replica of a platform model. Another attempt at the same call goes to the same replica."""
        load = context.load
        call = context.replica_call
        assert load is not None  # set when the request entered
        if call is None:
            call = context.replica_call = self._replicas.begin(_wanted(admitted), load)

        async def send(base_url: str) -> UpstreamAnswer:
            outbound.url = request.url_at(base_url)
            sending = self._send(context, admitted, outbound)
            try:
                return await sending
            finally:
                context.upstream_s += perf_counter() - outbound.waiting_since
                if outbound.has_begun:
                    context.dispatched = True

        waited_s = call.waited_s
        try:
            return await send_to_replica(call, send)
        finally:
            context.upstream_s += call.waited_s - waited_s

    def _payer_of_new(self, context: RequestContext, admitted: Admitted) -> bytes:
        """Return who pays. From the second call with this head and slug on, keep what the next one can use again."""
        route = admitted.route
        facts = context.facts
        payer = _payer(admitted)
        if route.repeats and facts.repeats:
            context.shape = Shape(admitted.identified, route, payer, context.forwarding)
            self._directory.keep_shape(facts, context.shape)
        route.repeats = True
        return payer


def _is_shared(context: RequestContext, target: Target) -> bool:
    """Return whether other calls may reuse this call's form, and are likely to come.

    Returns False for uploads and translations, which differ from call to call; for targets that may lack the path, or
    refused part of this call; for access tokens, which expire; where each body must be checked for options with a
    price; and for replicas.
    """
    facts = context.facts
    provider = target.provider
    if not (facts.repeats or facts.forwarded) or context.upload is not None or provider in (PLATFORM, VENDOR_C):
        return False
    return context.attempt.is_plain and target.passes_price_options


def _wanted(admitted: Admitted) -> Wanted:
    endpoint = admitted.route.endpoint
    target = admitted.route.endpoint.target
    if target.model_id is None:
        raise NoSuchModelError
    where = Where(target.environment_name)
    return Wanted(endpoint.workspace_id, target.model_id, where, admitted.identified.turn)


def _payer(admitted: Admitted) -> bytes:
    """Return who pays, as members of the billing event."""
    key = admitted.identified.key
    group = admitted.identified.group
    plan = admitted.route.plan
    assert group is not None  # `route` refuses a key without a group
    path = "/".join((*reversed(group.path), ""))
    spend = admitted.route.spend  # by which the call has reserved
    balance = "" if spend is None or spend.balance is None else spend.balance.group_id
    payer = Payer(key.workspace_id, plan.group_id, group.external_entity_id, key.prefix, plan.slug, path, balance)
    return payer_members(payer)
