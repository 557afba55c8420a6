"""THE REQUEST'S PATH: seven steps on one screen; settle always runs.

`handle` is called once per request, by the listener, in a task that is cancelled when the caller goes away. Whatever
happens, the call is booked before its last byte leaves, and told of after it.
"""

import logging
import random
import secrets
from asyncio import CancelledError
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import time_ns
from typing import Protocol

from policy.billing import MAX_REPORTED_TOKENS
from policy.limits.tiers import DEFAULT_TIERS, Tier
from proxy.accounting.ulids import Ulids
from proxy.capacity.model_replicas import Fleet
from proxy.capacity.worker_capacity import Capacity, CapacityLimits
from proxy.exchange import Answered, Call, CallerGoneError, Incoming, Outgoing, Purpose
from proxy.refusals import BUG, render, row_of
from proxy.stages import admit, authenticate, dispatch, relay, route, settle
from proxy.stages.receive import Receive
from proxy.time_slices import Slices

log = logging.getLogger(__name__)


class Directory(authenticate.Directory, route.Directory, dispatch.Directory, Protocol):
    """The replica of policy, as all stages together see it."""


class Counters(admit.Counters, settle.Counters, Protocol):
    """The buckets."""


class Journal(dispatch.Journal, relay.Journal, settle.Journal, Protocol):
    """The books."""


class Dialects(route.Dialects, dispatch.Dialects, relay.Dialects, Protocol):
    """How providers are asked and read."""


class OutputEstimates(admit.OutputEstimates, settle.OutputEstimates, Protocol):
    """How much output calls bring."""


class Meters(admit.Meters, settle.Meters, Protocol):
    """The metrics."""

    def watch(self, capacity: Capacity) -> None:
        """Told once, of what knows how many calls are in flight."""
        ...


class Tokens(dispatch.Tokens, Protocol):
    """Short-lived credentials."""


@dataclass(frozen=True, slots=True)
class PipelineDependencies:
    """All that the path works with; `proxy/worker/app.py` puts it together."""

    directory: Directory
    counters: Counters
    journal: Journal
    upstream: dispatch.UpstreamClient
    dialects: Dialects
    output_estimates: OutputEstimates
    meters: Meters
    access_log: settle.AccessLog
    dispatch: dispatch.DispatchSettings
    max_body_bytes: int = 100_000_000
    max_reported_tokens: int = MAX_REPORTED_TOKENS
    capacity: CapacityLimits = field(default_factory=CapacityLimits)
    tokens: Tokens | None = None
    tiers: Mapping[str, Tier] = field(default_factory=lambda: DEFAULT_TIERS)


class Pipeline:
    """One worker's path for all requests."""

    def __init__(self, dependencies: PipelineDependencies) -> None:
        ulids = Ulids(time_ns, secrets.token_bytes)
        self._capacity = Capacity(dependencies.capacity)
        dependencies.meters.watch(self._capacity)
        slices = Slices()
        self._receive = Receive(ulids, slices, dependencies.max_body_bytes)
        self._authenticate = authenticate.Authenticate(dependencies.directory)
        self._route = route.Route(dependencies.directory, dependencies.dialects)
        self._admit = admit.Admit(
            dependencies.counters,
            dependencies.output_estimates,
            dependencies.meters,
            ulids,
            admit.Tiers(dependencies.tiers),
        )
        self._dispatch = dispatch.Dispatch(_dispatch_dependencies(dependencies), slices)
        self._relay = relay.Relay(dependencies.journal, dependencies.dialects, slices, dependencies.max_reported_tokens)
        self._settle = settle.Settle(_settle_dependencies(dependencies))

    async def handle(self, incoming: Incoming, outgoing: Outgoing) -> None:
        """Serve one request to its end."""
        call = Call(incoming, outgoing)
        try:
            await self._answer(call)
        except (CancelledError, CallerGoneError) as gone:
            _mark(call, CallerGoneError())
            if isinstance(gone, CancelledError):
                raise
        finally:
            self._end(call)

    async def _steps(self, call: Call) -> Answered:
        """The path. Each step's value is the next one's ticket; what a step may refuse with stands beside it."""
        call.load = load = self._capacity.enter()  # 529
        arrived = self._receive.head(call)  # 400
        call.identified = identified = await self._authenticate(arrived)  # 401 402 403 503
        load.claim(identified.key.workspace_id, identified.key.digest)  # 529
        if arrived.purpose is Purpose.LIST and arrived.incoming.method in ("GET", "HEAD"):
            return self._route.models(identified)  # 404
        received = await self._receive.body(call, identified)  # 400 404 405 408 413 415 529
        call.routed = routed = self._route(identified, received)  # 400 404
        call.admitted = admitted = await self._admit(call, routed)  # 429 503
        answering = await self._dispatch(call, admitted)  # 404 500 502 503 504 529
        return await self._relay(call, answering)  # 499 502 504

    async def _answer(self, call: Call) -> None:
        outgoing = call.outgoing
        try:
            answered = await self._steps(call)
            call.status = answered.status
            self._settle.book(call)
        except CallerGoneError:
            raise
        # The one broad except: whatever else goes wrong, a bug of ours included, the caller gets an answer from the
        # table, the call is booked, and the trace is in the log. Nothing is swallowed.
        except Exception as error:  # noqa: BLE001
            answered = self._refused(call, error)
            if outgoing.started:  # nothing else can be said: the connection is cut, so that it shows
                outgoing.abort()
                return
        if not outgoing.started:
            relay.begin(call, answered)
        await outgoing.finish(answered.final)

    def _refused(self, call: Call, error: Exception) -> Answered:
        request_id = call.arrived.request_id if call.arrived else ""
        if row_of(error) is BUG:
            log.error("a bug of ours ended request %s", request_id, exc_info=error)
        _mark(call, error)
        self._settle.book(call)
        return render(error, request_id)

    def _end(self, call: Call) -> None:
        """Nothing here waits: the task may be cancelled."""
        try:
            if not call.booked:
                self._settle.book(call)
        finally:
            if call.upstream is not None:
                call.upstream.close()
            if call.replica_call is not None:
                call.replica_call.end()
            if call.load is not None:
                call.load.leave()
            self._settle.tell(call)


def _mark(call: Call, error: Exception) -> None:
    row = row_of(error)
    call.status, call.cause = row.status, row.cause


def _dispatch_dependencies(dependencies: PipelineDependencies) -> dispatch.DispatchDependencies:
    return dispatch.DispatchDependencies(
        directory=dependencies.directory,
        journal=dependencies.journal,
        upstream=dependencies.upstream,
        dialects=dependencies.dialects,
        fleet=Fleet(random.SystemRandom().randrange),
        settings=dependencies.dispatch,
        tokens=dependencies.tokens,
    )


def _settle_dependencies(dependencies: PipelineDependencies) -> settle.SettleDependencies:
    return settle.SettleDependencies(
        journal=dependencies.journal,
        counters=dependencies.counters,
        output_estimates=dependencies.output_estimates,
        meters=dependencies.meters,
        access_log=dependencies.access_log,
    )
