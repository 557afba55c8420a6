"""Step 5: find capacity, shape the request, send it (404 500 502 503 504 529).

Takes nothing but an `Admitted`. Writes the journal's `open` before anything leaves. Sends a request to a second replica
only when no byte of it reached the first.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter, time_ns
from typing import Any, Protocol

from policy.endpoints import Target
from policy.hosts import Reach
from policy.snapshot import Deployment, EndpointRow, ModelRow
from proxy.accounting.recovery import OpenCall
from proxy.capacity.circuit_breaker import Event
from proxy.capacity.model_replicas import Fleet, ReplicaCall
from proxy.dialects.upstream_request import UpstreamRequest
from proxy.exchange import (
    Admitted,
    Answering,
    Call,
    Received,
    UpstreamAnswer,
    UpstreamCall,
    UpstreamResetError,
    UpstreamUnreachableError,
)
from proxy.http_rules.headers import forwarded_headers, forwarded_query
from proxy.json_text.segmented_body import RestoredBody
from proxy.json_text.sliced_json import AT_ONCE_BYTES
from proxy.refusals import NoModelReplicaError, NoSuchModelError, NotRoutedError, TargetSecretError
from proxy.time_slices import Slices

PLATFORM = "PLATFORM"
VENDOR_C = "VENDOR_C"
DEFAULT_ENVIRONMENT = "production"
PARKING = frozenset(("SCALED_TO_ZERO", "WAKING_UP", "DEPLOYING", "LOADING_MODEL"))
NOT_SERVING = frozenset(("BUILDING", "FAILED", "DEPLOY_FAILED", "DEACTIVATING", "INACTIVE"))
"""A status that is in neither set, a newer control plane's included, serves from the replicas it has."""
MAX_REPLICAS_TRIED = 3
FIRST_LOOK_S = 0.05
LONGEST_LOOK_S = 0.5


class Directory(Protocol):
    """The replica of policy. Every method raises `PolicyUnavailableError` when there is none to serve from."""

    def model(self, id: str) -> ModelRow | None: ...

    def secret(self, id: str) -> str | None: ...


class Journal(Protocol):
    """Where a call is written down before it is dispatched."""

    def open(self, call: OpenCall) -> None:
        """Raises `JournalUnavailableError`."""
        ...


class UpstreamClient(Protocol):
    """The way out."""

    async def send(self, call: UpstreamCall) -> UpstreamAnswer:
        """Raises `UpstreamUnreachableError`, `UpstreamResetError` or `UpstreamTimeoutError`."""
        ...


class Tokens(Protocol):
    """Short-lived credentials, for the providers that want one in place of the secret."""

    async def token(self, secret_value: str) -> str:
        """Raises `TargetCredentialError` or an `UpstreamError`."""
        ...


class Dialects(Protocol):
    """How each provider wants to be asked."""

    def build_request(
        self, request: Received, target: Target, credential: str | None, translation: dict[str, Any] | None
    ) -> UpstreamRequest:
        """Raises `UntranslatableError`."""
        ...


@dataclass(frozen=True, slots=True)
class DispatchSettings:
    """`base_urls`: by provider, for those whose base URL is the operator's. The deadline runs from dispatch."""

    base_urls: Mapping[str, str]
    request_timeout_s: float = 1200.0
    parking_timeout_s: float = 1200.0
    stream_idle_timeout_s: float = 300.0


@dataclass(frozen=True, slots=True)
class DispatchDependencies:
    """What dispatch works with."""

    directory: Directory
    journal: Journal
    upstream: UpstreamClient
    dialects: Dialects
    fleet: Fleet
    settings: DispatchSettings
    tokens: Tokens | None = None


class Dispatch:
    """Sends admitted calls out."""

    def __init__(self, parts: DispatchDependencies, slices: Slices) -> None:
        self._parts = parts
        self._slices = slices

    async def __call__(self, call: Call, admitted: Admitted) -> Answering:
        parts, routed = self._parts, admitted.routed
        received, target = routed.received, routed.endpoint.target
        credential = None
        if target.secret_id is not None:
            credential = parts.directory.secret(target.secret_id)
            if credential is None:
                raise TargetSecretError
            if target.provider == VENDOR_C:
                credential = await self._token(call, credential)
        asked = parts.dialects.build_request(received, target, credential, routed.translation)
        if routed.translation is None:  # the other dialect has no such parameters
            asked.query = forwarded_query(received.incoming.target)
        routed.translation = None  # an answer may take minutes
        if isinstance(asked.body, RestoredBody) and len(received.body) > AT_ONCE_BYTES:
            await self._slices.run(asked.body.measure_in_slices(), len(received.body))
        headers = forwarded_headers(received.incoming, received.request_id, asked.headers)
        idle_timeout_s = parts.settings.stream_idle_timeout_s
        going = UpstreamCall("", "POST", headers, asked.body, 0.0, idle_timeout_s, Reach.REPLICA)
        if target.provider == PLATFORM:
            upstream = await self._to_replica(call, admitted, asked, going)
        else:
            self._address(going, asked, target)
            upstream = await self._send(call, admitted, going)
        return Answering(admitted, upstream, credential, going.url)

    async def _token(self, call: Call, secret: str) -> str:
        """The secret itself, a private key, must never be presented."""
        if self._parts.tokens is None:
            raise TargetSecretError
        started = perf_counter()
        try:
            return await self._parts.tokens.token(secret)
        finally:
            call.upstream_s += perf_counter() - started

    def _address(self, going: UpstreamCall, asked: UpstreamRequest, target: Target) -> None:
        base_url, going.reach = target.base_url, Reach.CUSTOMER
        if base_url is None:
            base_url, going.reach = self._parts.settings.base_urls.get(target.provider), Reach.OPERATOR
        if base_url is None:  # a provider that only a newer control plane knows
            raise NoModelReplicaError
        going.url = asked.url_at(base_url)

    async def _send(self, call: Call, admitted: Admitted, going: UpstreamCall) -> UpstreamAnswer:
        """`going.deadline` 0: nothing was sent yet."""
        parts = self._parts
        if not call.opened:
            parts.journal.open(_open_call(admitted))
            call.opened = True
        started = perf_counter()
        if not going.deadline:
            going.deadline = started + parts.settings.request_timeout_s
        try:
            call.upstream = upstream = await parts.upstream.send(going)
        finally:
            call.upstream_s += perf_counter() - started
            call.dispatched = going.written
        return upstream

    # Platform models: a deployment's replicas, parked calls, breakers.

    async def _to_replica(
        self, call: Call, admitted: Admitted, asked: UpstreamRequest, going: UpstreamCall
    ) -> UpstreamAnswer:
        deployment = await self._serving(call, admitted.routed.endpoint)
        urls = list(deployment.replicas)
        for _ in range(MAX_REPLICAS_TRIED):
            replica_call = self._parts.fleet.begin_call(urls, perf_counter())
            if replica_call is None:
                break
            call.replica_call = replica_call
            going.url = asked.url_at(replica_call.replica.url)
            try:
                return await self._through(replica_call, call, admitted, going)
            except UpstreamUnreachableError:
                replica_call.end()
                urls.remove(replica_call.replica.url)
        raise NoModelReplicaError

    async def _through(
        self, replica_call: ReplicaCall, call: Call, admitted: Admitted, going: UpstreamCall
    ) -> UpstreamAnswer:
        try:
            upstream = await self._send(call, admitted, going)
        except (UpstreamUnreachableError, UpstreamResetError):
            replica_call.record(Event.FAILED, perf_counter())
            raise
        replica_call.record(Event.ANSWERED, perf_counter())
        return upstream

    async def _serving(self, call: Call, endpoint: EndpointRow) -> Deployment:
        """The deployment behind the slug, once it serves; parks the call while it is on its way up."""
        deployment = self._deployment(endpoint)
        if deployment.status in PARKING:
            load, started = call.load, perf_counter()
            assert load is not None  # it has entered
            load.park()
            try:
                deployment = await self._parked(endpoint, started + self._parts.settings.parking_timeout_s)
            finally:
                load.unpark()
                call.upstream_s += perf_counter() - started
        if deployment.status in NOT_SERVING:
            raise NoModelReplicaError
        return deployment

    async def _parked(self, endpoint: EndpointRow, until: float) -> Deployment:
        """Looks again and again, ever less often: a look costs one dict-shaped look-up, a subscription a mechanism."""
        pause_s = FIRST_LOOK_S
        while (left_s := until - perf_counter()) > 0:
            await asyncio.sleep(min(pause_s, left_s))
            deployment = self._deployment(endpoint)
            if deployment.status not in PARKING:
                return deployment
            pause_s = min(2 * pause_s, LONGEST_LOOK_S)
        raise NotRoutedError

    def _deployment(self, endpoint: EndpointRow) -> Deployment:
        target = endpoint.target
        model = self._parts.directory.model(target.model_id) if target.model_id is not None else None
        if model is None or model.workspace_id != endpoint.workspace_id:
            raise NoSuchModelError
        deployment = model.deployment_in(target.environment_name or DEFAULT_ENVIRONMENT)
        if deployment is None:
            raise NoSuchModelError
        return deployment


def _open_call(admitted: Admitted) -> OpenCall:
    routed, received = admitted.routed, admitted.routed.received
    key = routed.identified.key
    return OpenCall(  # by place: names cost as much again
        admitted.event_key,
        key.workspace_id,
        routed.plan.group_id,
        routed.external_entity_id,
        key.prefix,
        received.request_id,
        routed.plan.slug,
        received.metadata,
        time_ns() // 1_000_000,
        admitted.estimate,
        admitted.taken.reservations,
    )
